"""`python3 -m tests.soak renewals`: renew `towline up` in its own process under load, over and over."""

import argparse
import signal
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.soak.towline_up import SteadyLoad, TaskOutcome, TowlineUp
from tests.support.eventually import eventually

LOAD: Final = 0.7
"""Load as a share of the workers' capacity."""
RENEWAL_SECONDS: Final = 120.0


@dataclass(frozen=True, slots=True)
class RenewalResult:
    """The number of renewals; `is_same_crew`: whether the workers stayed the same."""

    times: int
    least_ready: int
    is_same_crew: bool
    is_same_process: bool
    done: TaskOutcome


def renewals(folder: Path, *, times: int, workers: int = 4, task_seconds: float = 0.3) -> RenewalResult:
    """Renew a supervisor and its server `times` times while workers work and tasks arrive."""
    crew = TowlineUp(folder)
    crew.write(workers=workers, colour="red")
    pid = crew.start()
    queues = crew.queues()
    queue = queues.queue("jobs")
    try:
        eventually(lambda: len(crew.capacity()) >= workers, seconds=RENEWAL_SECONDS)
        before, began_at = crew.workers(), crew.capacity()[-1][0]
        is_same_process = True
        with SteadyLoad(crew, a_second=LOAD * workers / task_seconds, seconds=task_seconds) as load:
            for _ in range(times):
                started_at, added = crew.shown("started_at"), crew.added
                crew.signal(signal.SIGUSR2)
                eventually(lambda: crew.shown("started_at") != started_at, seconds=RENEWAL_SECONDS)  # noqa: B023
                eventually(lambda: crew.shown("phase") == "leading", seconds=RENEWAL_SECONDS)
                eventually(lambda: crew.added >= added + workers, seconds=RENEWAL_SECONDS)  # noqa: B023
                is_same_process = is_same_process and crew.shown("pid") == pid
        assert not load.failures
        eventually(lambda: queue.stats().deleted_total == crew.added, seconds=RENEWAL_SECONDS)
        ready = [ready for at, ready in crew.capacity() if at >= began_at]
        return RenewalResult(times, min(ready), crew.workers() == before, is_same_process, crew.done(queue))
    finally:
        queues.close()
        crew.end()


def main(arguments: Sequence[str]) -> int:
    """Run it and print the figures; return 0 when neither tasks nor workers were affected."""
    parser = argparse.ArgumentParser(prog="python3 -m tests.soak renewals", description=__doc__)
    parser.add_argument("--times", type=int, default=20)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="towline-soak-") as folder:
        renewed = renewals(Path(folder), times=options.times)
    done = renewed.done
    print(f"renewed {renewed.times} times under load; ready to lease: never fewer than {renewed.least_ready} of 4")
    print(f"the same process: {renewed.is_same_process}; the same workers: {renewed.is_same_crew}")
    print(f"{done.added} tasks added, {done.lost} lost, {done.twice} run twice, {done.released} released")
    return 0 if renewed.is_same_crew and renewed.is_same_process and not (done.lost or done.twice) else 1

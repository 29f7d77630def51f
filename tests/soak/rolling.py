"""`python3 -m tests.soak rolling`: replace the workers of a pool of ten under load by a change of settings."""

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.soak.towline_up import SteadyLoad, TaskOutcome, TowlineUp
from tests.support.eventually import eventually

LOAD: Final = 0.8
"""Load as a share of the workers' capacity."""
ROLL_SECONDS: Final = 300.0


@dataclass(frozen=True, slots=True)
class Rolled:
    """One replacement of a whole pool: the least and the most workers that were ready meanwhile."""

    seconds: float
    least_ready: int
    most_processes: int
    replaced: int
    done: TaskOutcome


def roll(folder: Path, *, workers: int = 10, task_seconds: float = 0.4) -> Rolled:
    """Replace all workers of a pool while it works."""
    crew = TowlineUp(folder)
    crew.write(workers=workers, colour="red")
    crew.start()
    queues = crew.queues()
    queue = queues.queue("jobs")
    try:
        eventually(lambda: _ready(crew) == workers, seconds=ROLL_SECONDS)
        before = crew.workers()
        most = 0
        with SteadyLoad(crew, a_second=LOAD * workers / task_seconds, seconds=task_seconds):
            eventually(lambda: queue.stats().deleted_total > 2 * workers, seconds=ROLL_SECONDS)
            began_at = crew.capacity()[-1][0]
            crew.write(workers=workers, colour="blue")

            def is_replaced() -> bool:
                nonlocal most
                now = crew.workers()
                most = max(most, len(now))
                return not set(now) & set(before) and len(now) == workers

            eventually(is_replaced, seconds=ROLL_SECONDS)
        eventually(lambda: queue.stats().deleted_total == crew.added, seconds=ROLL_SECONDS)
        row = [(at, ready) for at, ready in crew.capacity() if at >= began_at]
        return Rolled(row[-1][0] - row[0][0], min(ready for _, ready in row), most, len(before), crew.done(queue))
    finally:
        queues.close()
        crew.end()


def _ready(crew: TowlineUp) -> int:
    row = crew.capacity()
    return row[-1][1] if row else 0


def main(arguments: Sequence[str]) -> int:
    """Run it and print the figures; return 0 when capacity never dropped, nothing was lost and nothing ran twice."""
    parser = argparse.ArgumentParser(prog="python3 -m tests.soak rolling", description=__doc__)
    parser.add_argument("--workers", type=int, default=10)
    parser.add_argument("--task-seconds", type=float, default=0.4)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="towline-soak-") as folder:
        rolled = roll(Path(folder), workers=options.workers, task_seconds=options.task_seconds)
    done = rolled.done
    print(f"{rolled.replaced} workers replaced in {rolled.seconds:.1f} s under load, max {options.workers}")
    print(f"ready to lease: never fewer than {rolled.least_ready}; processes: never more than {rolled.most_processes}")
    print(f"{done.added} tasks added, {done.lost} lost, {done.twice} run twice,", end=" ")
    print(f"{done.released} leases released, {done.expired} expired")
    is_well = rolled.least_ready >= options.workers and not (done.lost or done.twice or done.released or done.expired)
    return 0 if is_well else 1

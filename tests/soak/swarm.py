"""`python3 -m tests.soak swarm`: a pool on a swarm of two engines under faults, round after round.

It grows from nothing, a node is drained, its supervisor is killed, a node is lost, and it shrinks to nothing. Needs
root and dockerd.
"""

import argparse
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orchestrator.base.clock import SystemMonotonicClock
from tests.support.docker.swarm_sites import SwarmSite, swarm_site
from tests.support.docker.swarms import swarm
from tests.support.eventually import eventually
from tests.support.stores.engine_process import EngineUnavailableError

CLOCK: Final = SystemMonotonicClock()
PATIENCE_SECONDS: Final = 120.0
SIZE: Final = 8


@dataclass(frozen=True, slots=True)
class Round:
    """One fault under load: the outcome of its tasks, and how long it took from nothing to nothing."""

    trouble: str
    seconds: float
    most_workers: int
    lost: int
    twice: int


def _drained(site: SwarmSite) -> None:
    second = site.swarm.nodes[1]
    site.swarm.set_availability(second, "drain")
    eventually(lambda: second.running() == 0, seconds=PATIENCE_SECONDS)


def _killed(site: SwarmSite) -> None:
    supervisor = site.processes.pop()
    supervisor.kill()
    supervisor.wait()
    site.start()


def _lost(site: SwarmSite) -> None:
    site.swarm.cut(site.swarm.nodes[1])
    before = len(site.logged("worker.reaped"))
    eventually(lambda: len(site.logged("worker.reaped")) > before, seconds=PATIENCE_SECONDS)


def _calm(_site: SwarmSite) -> None:
    return None


TROUBLES: Final[Mapping[str, Callable[[SwarmSite], None]]] = {
    "none": _calm,
    "a node is drained": _drained,
    "the supervisor is killed": _killed,
    "a node is lost": _lost,
}


def go_round(site: SwarmSite, trouble: str, *, tasks: int) -> Round:
    """Grow from nothing to `SIZE` workers, apply one fault, and shrink back; every node is healthy in the end."""
    began_at = CLOCK.monotonic()
    done_before = len(site.done())
    site.add(tasks, seconds=0.5)
    most = eventually(lambda: (n := sum(site.running())) >= SIZE and n, seconds=PATIENCE_SECONDS)
    TROUBLES[trouble](site)
    eventually(site.is_done, seconds=PATIENCE_SECONDS)
    second = site.swarm.nodes[1]
    site.swarm.mend(second)
    site.swarm.set_availability(second, "active")
    eventually(lambda: not site.workers() and not sum(site.running()), seconds=PATIENCE_SECONDS)
    times = Counter(task for _, task, _ in site.done()[done_before:])
    twice = sum(1 for count in times.values() if count > 1)
    return Round(trouble, CLOCK.monotonic() - began_at, most, tasks - len(times), twice)


def main(arguments: Sequence[str]) -> int:
    """Run it and print the figures; return 0 when nothing was lost, and only a lost node's tasks ran twice."""
    parser = argparse.ArgumentParser(prog="python3 -m tests.soak swarm", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="times through all troubles")
    parser.add_argument("--tasks", type=int, default=600, help="tasks of half a second, a round")
    options = parser.parse_args(arguments)
    is_well = True
    try:
        with (
            swarm(2) as two,
            tempfile.TemporaryDirectory(prefix="towline-") as folder,
            swarm_site(Path(folder), two) as site,
        ):
            # Enough work that the slo requires all workers, and an slo longer than any start.
            site.write(workers={"min": 0, "max": SIZE}, slo="30s", churn="0s", spawn_parallelism=SIZE)
            site.start()
            for number in range(options.rounds):
                for trouble in TROUBLES:
                    one = go_round(site, trouble, tasks=options.tasks)
                    told = f"0 to {one.most_workers} to 0 workers in {one.seconds:.1f} s, {trouble}"
                    print(f"{number + 1}: {told}: {one.lost} lost, {one.twice} run twice", flush=True)
                    is_well &= one.lost == 0 and (one.twice == 0 or trouble == "a node is lost")
            stats = site.queue.stats()
            print(f"{stats.added_total} added, {stats.deleted_total} done, {stats.dead} dead")
            is_well &= stats.added_total == stats.deleted_total
    except EngineUnavailableError as error:
        print(f"no swarm can be had here: {error}")
        return 1
    return 0 if is_well else 1

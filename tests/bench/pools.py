"""Measure a supervisor's turn as pools grow in number, and a decision as a pool grows in size.

`python3 -m tests.bench.pools` prints both, in CPU time, which a busy machine hardly changes; queue and processes are
cheap fakes, the rest is the product.
"""

import argparse
import cProfile
import pstats
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import structlog

from orchestrator.base.clock import ManualMonotonicClock
from orchestrator.base.samples import QueueSample, RunningLease, Waiting
from orchestrator.config.pools import PoolSpec
from orchestrator.launch import Launch
from orchestrator.scaling.decision import Conditions
from orchestrator.scaling.learning import PolicyState
from orchestrator.state.directory import StateDir
from orchestrator.supervisor.reconciler import Reconciler
from orchestrator.supervisor.snapshot import SnapshotWriter
from orchestrator.supervisor.view import Heartbeat
from tests.support.fleet.fakes import FakeRuntime
from tests.support.fleet.fleet_builders import NOW, a_fleet_of, a_lease, a_pool, a_sample, learn_and_decide

TURNS = 40
WORKERS_PER_POOL = 4


class SteadySource:
    """A source where every worker holds a task, some tasks wait, and some finished since the last sample."""

    def __init__(self) -> None:
        self.turn = 0

    def sample(self, pool: PoolSpec, *, workers: Sequence[str], now: float, **_: object) -> QueueSample:
        names = list(workers)
        self.turn += 1
        waiting = tuple(Waiting(n, 8.0 / n) for n in range(1, 5 + self.turn % 4))
        return QueueSample(
            at=now,  # type: ignore[arg-type]
            ready=len(waiting),
            delayed=3,
            in_flight=len(names),
            dead=0,
            arrivals=2 + self.turn % 3,
            waiting=waiting,
            running=tuple(RunningLease(name, 1.0 + n / 7, 0.4, 1, 3) for n, name in enumerate(names)),
            first_seen_seconds_ago=dict.fromkeys(names, 0.5),
        )

    def samples(self, pools: Sequence[object], *, now: float) -> dict[str, QueueSample]:
        return {}

    def retire(self, worker: str, *, busy: str = "keep") -> bool:
        return True

    def given_back_by(self, worker: str, pool: object, *, within_seconds: float) -> Sequence[object]:
        return []

    def release_held_by(self, worker: str, notice: object) -> Sequence[object]:
        return []


def turn_seconds(pools: int, *, profile: bool = False) -> tuple[list[float], list[float]]:
    """Return the CPU seconds of each turn of `pools` pools that are all due, and of publishing them."""
    clock, source, runtime = ManualMonotonicClock(), SteadySource(), FakeRuntime()
    names = iter(range(1_000_000))
    with tempfile.TemporaryDirectory() as folder:
        files = StateDir(Path(folder))
        reconciler = Reconciler(
            source=source,  # type: ignore[arg-type]
            runtime=runtime,
            clock=clock,
            files=files,
            launch=Launch("memory:", folder, "lock", 60.0),
            identify=lambda pool: f"{pool}-{next(names)}",
        )
        writer = SnapshotWriter(files, clock=clock, url="memory:", heartbeat=Heartbeat(now=clock.monotonic()))
        specs = [_pool(number) for number in range(pools)]
        reconciler.set_pools({spec.name: spec for spec in specs})
        took, shown = [], []
        profiler = cProfile.Profile()
        for turn in range(TURNS + 5):
            clock.advance(5.0)
            if profile and turn == 5:
                profiler.enable()
            began = time.process_time()
            reconciler.reap()
            reconciler.turns()
            took.append(time.process_time() - began)
            began = time.process_time()
            writer.update(reconciler.pools.values(), phase="leading")
            shown.append(time.process_time() - began)
        profiler.disable()
        if profile:
            pstats.Stats(profiler).sort_stats("tottime").print_stats(40)
        return took[5:], shown[5:]


def decision_seconds(ready: int, workers: int) -> list[float]:
    """Return the CPU seconds of each decision for one pool of that size."""
    fleet = a_fleet_of(busy=workers)
    running = [a_lease(name, held=n / 9) for n, name in enumerate(fleet.workers)]
    step = ready // 8
    waiting = {"positions": [step * n for n in range(1, 9)], "ages": [20.0 - n for n in range(8)]}
    state, took = PolicyState(), []
    for turn in range(200):
        sample = a_sample(at=NOW + 3 * turn, running=running, arrivals=30, **waiting)  # type: ignore[arg-type]
        began = time.process_time()
        _, state = learn_and_decide(
            sample,
            fleet=fleet,
            spec=a_pool(most=1_000),
            state=state,
            now=sample.at,
            conditions=Conditions(cores=1_000),
        )
        took.append(time.process_time() - began)
    return took


def _pool(number: int) -> PoolSpec:
    settings: dict[str, object] = {"queue": f"q{number}", "priority": number % 3, "budget": "96h/day"}
    if number % 2:
        settings["schedule"] = [
            {"cron": "0 8 * * 1-5", "for": "10h", "workers": {"max": 20}, "timezone": "Europe/Berlin"}
        ]
    return a_pool(f"pool-{number}", least=WORKERS_PER_POOL, most=WORKERS_PER_POOL + 2, **settings)


def main() -> None:
    """Print median and maximum of both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pools", type=int, default=200)
    parser.add_argument("--profile", action="store_true")
    given = parser.parse_args()
    structlog.configure(processors=[], logger_factory=structlog.ReturnLoggerFactory())
    took, shown = turn_seconds(given.pools, profile=given.profile)
    print(f"a turn of {given.pools} pools: {statistics.median(took) * 1e3:.1f} ms, at most {max(took) * 1e3:.1f} ms")
    print(f"showing them, once a second: {statistics.median(shown) * 1e3:.1f} ms")
    took = decision_seconds(10_000, 200)
    print(f"a decision at 10,000 ready, 200 workers: {statistics.median(took) * 1e3:.2f} ms")


if __name__ == "__main__":
    main()

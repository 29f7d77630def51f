"""The result of a simulated run: lateness, waits, cost, and how often the pool's size changed. Values only."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from orchestrator.simulation.pool import SimulatedPool
from orchestrator.simulation.workload import Workload

_ROUNDING: float = 1e-9
WAIT_SLOTS: Final = 400


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of one run.

    Waits are those before a task's last lease, in seconds; a task still ready at the end has waited until then.
    `late_share` counts tasks that waited longer than the slo or never ended. `worker_seconds` are from spawn to exit;
    `grew` and `shrank` count turns; `sizes` has the number of workers from each instant at which it changed;
    `longest_waits` the longest wait of the leases that began in each of `WAIT_SLOTS` equal spans of the run.
    """

    scaler: str
    slo_seconds: float
    tasks: int
    late_share: float
    unfinished: int
    dead: int
    wait_mean: float
    wait_p50: float
    wait_p95: float
    wait_p99: float
    wait_max: float
    worker_seconds: float
    starts: int
    grew: int
    shrank: int
    killed: int
    peak: int
    ended_at: float
    sizes: Sequence[tuple[float, int]] = ()
    longest_waits: Sequence[tuple[float, float]] = ()

    @property
    def p99_over_slo(self) -> float:
        """The 99th percentile of the waits, in slos."""
        return self.wait_p99 / self.slo_seconds

    @property
    def worst_over_slo(self) -> float:
        """The longest wait, in slos."""
        return self.wait_max / self.slo_seconds

    @property
    def changes_per_hour(self) -> float:
        """The turns per hour that changed the size of the pool."""
        return (self.grew + self.shrank) * 3600.0 / self.ended_at if self.ended_at else 0.0


def result_of(
    pool: SimulatedPool, workload: Workload, *, scaler: str, slo_seconds: float, grew: int, shrank: int
) -> RunResult:
    """Return the result of a finished run; remaining workers cost until now."""
    ended = sorted(pool.waits)
    unfinished = workload.tasks - len(ended)
    late = len(ended) - bisect_right(ended, slo_seconds + _ROUNDING) + unfinished
    waits = sorted([*ended, *pool.waited_seconds(range(1, len(pool.ready) + 1))]) if pool.ready else ended
    return RunResult(
        scaler=scaler,
        slo_seconds=slo_seconds,
        tasks=workload.tasks,
        late_share=late / workload.tasks if workload.tasks else 0.0,
        unfinished=unfinished,
        dead=pool.dead,
        wait_mean=math.fsum(waits) / len(waits) if waits else 0.0,
        wait_p50=quantile(waits, 0.50),
        wait_p95=quantile(waits, 0.95),
        wait_p99=quantile(waits, 0.99),
        wait_max=waits[-1] if waits else 0.0,
        worker_seconds=pool.worker_seconds + math.fsum(pool.now - worker.born_at for worker in pool.workers.values()),
        starts=pool.starts,
        grew=grew,
        shrank=shrank,
        killed=pool.killed,
        peak=pool.peak,
        ended_at=pool.now,
        sizes=tuple(pool.sizes),
        longest_waits=_longest_waits(pool),
    )


def _longest_waits(pool: SimulatedPool) -> tuple[tuple[float, float], ...]:
    width = max(pool.now, _ROUNDING) / WAIT_SLOTS
    longest = [0.0] * WAIT_SLOTS
    for began_at, waited in zip(pool.leased_at, pool.waits, strict=True):
        slot = min(WAIT_SLOTS - 1, int(began_at / width))
        longest[slot] = max(longest[slot], waited)
    return (*((slot * width, waited) for slot, waited in enumerate(longest)), (pool.now, 0.0))


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return a quantile of an ordered sequence, interpolated; 0 if it is empty."""
    if not ordered:
        return 0.0
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)

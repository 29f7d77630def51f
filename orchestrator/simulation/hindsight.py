"""What the same tasks would have cost whoever had known them all beforehand. Pure.

Nobody can: it is the yardstick of every result. It may use any number of workers, each with one task at a time.
"""

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass
from typing import Final

from orchestrator.simulation.workload import Workload

_STYLES: Final = (
    # patience and lateness as shares of the slo; whether a task takes the first or the last slot it may wait for
    (0.0, 0.0, False),
    (0.5, 0.0, False),
    (0.95, 0.0, False),
    (0.95, 0.0, True),
    (0.95, 0.45, False),
    (0.95, 0.9, False),
    (0.95, 0.9, True),
)
_FORGET_STARTS: Final = 3.0
_FORGET_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Hindsight:
    """The cheapest schedule found with no task late, and what no schedule can beat: the work and one start."""

    worker_seconds: float
    starts: int
    least_worker_seconds: float


def hindsight(workload: Workload, *, slo_seconds: float, startup_seconds: float) -> Hindsight:
    """The best of several list schedules: in order of arrival each task is given a worker, and never moved.

    A worker is started exactly `startup_seconds` before its first task, and goes at once unless keeping it idle until
    its next task costs less than another start. The styles differ in how long a task may wait for a worker that is
    busy, and in how late a worker is started.
    """
    found = [
        _schedule(
            workload,
            startup_seconds,
            patience_seconds=patience * slo_seconds,
            late_seconds=late * slo_seconds,
            takes_first=takes_first,
        )
        for patience, late, takes_first in _STYLES
    ]
    cost, starts = min(found)
    least = workload.work_seconds + (startup_seconds if workload.tasks else 0.0)
    return Hindsight(cost, starts, least)


def _schedule(
    workload: Workload, startup_seconds: float, *, patience_seconds: float, late_seconds: float, takes_first: bool
) -> tuple[float, int]:
    """Worker-seconds and starts of one schedule."""
    free_at: list[float] = []  # when each worker's last task so far ends, ascending
    idle_seconds, starts = 0.0, 0
    forgotten_seconds = _FORGET_STARTS * startup_seconds + _FORGET_SECONDS
    for ready_at, service_seconds in zip(workload.ready_at, workload.service_seconds, strict=True):
        idle = bisect_right(free_at, ready_at)
        soon = bisect_right(free_at, ready_at + patience_seconds, idle) if patience_seconds else idle
        if soon > idle and not (idle and free_at[idle - 1] == ready_at):
            begins_at = free_at.pop(idle if takes_first else soon - 1)  # waits for one that is busy: nobody idles
        elif idle and ready_at - free_at[idle - 1] <= startup_seconds:
            idle_seconds += ready_at - free_at.pop(idle - 1)
            begins_at = ready_at
        else:
            starts += 1
            begins_at = ready_at + late_seconds
            del free_at[: bisect_left(free_at, ready_at - forgotten_seconds)]  # too long idle to be kept
        insort(free_at, begins_at + service_seconds)
    return workload.work_seconds + idle_seconds + starts * startup_seconds, starts

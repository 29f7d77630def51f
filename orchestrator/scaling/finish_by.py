"""Compute the fewest workers to add so that the work that waits now is done by an instant. Pure."""

import math
from typing import Final

from orchestrator.base.values import value
from orchestrator.scaling.deadline import ServingCapacity
from orchestrator.scaling.decision import FinishBy

_KEPT_BACK: Final = 0.05  # share of the time left as a reserve
_ROUNDING: Final = 1e-9
_STEPS: Final = 40  # of each search: doublings, then halvings


@value
class FinishForecast:
    """The workers to add, when all work is done with as many of them as the pool may have, and whether in time."""

    workers: int
    done_in_seconds: float
    is_in_time: bool


def forecast_finish(
    finish_by: FinishBy, ready: int, *, capacity: ServingCapacity, startup_seconds: float, current: int, most: int
) -> FinishForecast:
    """Return the smallest fleet that does `ready` tasks by then; fewer starts cost less.

    The last task must begin two service times before the instant, and a twentieth of the time is kept in reserve, as
    durations vary. If the work falls behind, each later sample asks for more. No worker is let go while tasks wait (see
    `rules.shrink`).
    """
    tail = 2.0 * capacity.service_seconds
    within = max(0.0, (1.0 - _KEPT_BACK) * finish_by.within_seconds - tail)
    missing = ready - capacity.can_start(within)
    workers = 0
    if missing > _ROUNDING:
        if within > startup_seconds:
            each = capacity.one_more_can_start(within, startup_seconds=startup_seconds)
            workers = math.ceil(missing / each - _ROUNDING)
        else:  # too late for a new worker to help in time: as many as allowed, to be done soon
            workers = max(0, most - current)
    added = max(0, min(workers, most - current))
    done_in = tail + _begun_in(ready, capacity=capacity, added=added, startup_seconds=startup_seconds)
    return FinishForecast(workers, done_in, done_in <= finish_by.within_seconds)


def _begun_in(ready: int, *, capacity: ServingCapacity, added: int, startup_seconds: float) -> float:
    """Return in how many seconds the last of `ready` tasks can begin, with `added` workers spawned now."""

    def can_start(within: float) -> float:
        begun = capacity.can_start(within)
        if within > startup_seconds:
            begun += added * capacity.one_more_can_start(within, startup_seconds=startup_seconds)
        return begun

    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        if can_start(high) >= ready:
            break
        low, high = high, 2.0 * high
    else:
        return math.inf
    for _ in range(_STEPS):
        middle = (low + high) / 2.0
        if can_start(middle) >= ready:
            high = middle
        else:
            low = middle
    return high

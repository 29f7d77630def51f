"""How many workers more so that what waits now is done by an instant, and no more than that. Pure."""

import math
from typing import Final

from orchestrator.scaling.deadline import ServingCapacity
from orchestrator.scaling.decision import FinishBy
from orchestrator.values import value

_KEPT_BACK: Final = 0.05
_ROUNDING: Final = 1e-9
_STEPS: Final = 40


@value
class FinishForecast:
    """Workers to add, when all will be done with as many of them as there may be, and whether that is in time."""

    workers: int
    done_in_seconds: float
    is_in_time: bool


def forecast_finish(
    finish_by: FinishBy, ready: int, *, capacity: ServingCapacity, startup_seconds: float, current: int, most: int
) -> FinishForecast:
    """The smallest fleet that has done `ready` tasks by then: the fewer start, the less is spent on starts.

    The last task must have begun two service times before the instant, and a twentieth of the time
    is kept back: durations scatter. Being behind asks for more at every look; tasks wait until then, so nobody is let
    go before (see `growing.shrink`).
    """
    tail = 2.0 * capacity.service_seconds
    within = max(0.0, (1.0 - _KEPT_BACK) * finish_by.within_seconds - tail)
    missing = ready - capacity.can_start(within)
    workers = 0
    if missing > _ROUNDING:
        if within > startup_seconds:
            each = capacity.one_more_can_start(within, startup_seconds=startup_seconds)
            workers = math.ceil(missing / each - _ROUNDING)
        else:  # too late for anybody who starts now to help in time: as many as there may be, so that it is soon
            workers = max(0, most - current)
    added = max(0, min(workers, most - current))
    done_in = tail + _begun_in(ready, capacity=capacity, added=added, startup_seconds=startup_seconds)
    return FinishForecast(workers, done_in, done_in <= finish_by.within_seconds)


def _begun_in(ready: int, *, capacity: ServingCapacity, added: int, startup_seconds: float) -> float:
    """When the last of so many tasks can have begun, with workers added now."""

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

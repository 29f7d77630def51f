"""The last hour of a pool, a point a minute: what waited, and its workers. Pure; kept in memory only."""

from collections.abc import Sequence
from typing import Final

from orchestrator.base.clock import Monotonic
from orchestrator.base.values import value

MINUTES: Final = 60
_MINUTE_SECONDS: Final = 60.0


@value
class TrendPoint:
    """A minute of a pool: the most tasks that were ready at a sample in it, and its workers at the last one."""

    minute: int
    ready: int
    workers: int


Trend = tuple[TrendPoint, ...]
"""Points of different minutes, oldest first, at most `MINUTES`. A minute without a sample has none."""


def trend_after(trend: Trend, *, ready: int, workers: int, now: Monotonic) -> Trend:
    """Return a trend with one sample more."""
    minute = minute_of(now)
    if trend and trend[-1].minute == minute:
        last = trend[-1]
        point = TrendPoint(minute, max(last.ready, ready), workers)
        return trend if point == last else (*trend[:-1], point)
    return (*trend[-(MINUTES - 1) :], TrendPoint(minute, ready, workers))


def minute_of(now: Monotonic) -> int:
    """Return the minute of an instant."""
    return int(now // _MINUTE_SECONDS)


def by_minute(trend: Sequence[TrendPoint], *, now: Monotonic) -> list[TrendPoint | None]:
    """Return the last `MINUTES` minutes, oldest first; None for a minute without a sample."""
    found = {point.minute: point for point in trend}
    last = minute_of(now)
    return [found.get(minute) for minute in range(last - MINUTES + 1, last + 1)]

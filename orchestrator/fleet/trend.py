"""The last hour of a pool, a point a minute: what waited, what moved, and its workers. Pure; kept in memory only."""

from collections.abc import Sequence
from typing import Final

from orchestrator.base.clock import Monotonic
from orchestrator.base.samples import QueueSample
from orchestrator.base.values import value

MINUTES: Final = 60
MINUTE_SECONDS: Final = 60.0


@value
class TrendPoint:
    """A minute of a pool.

    `ready`: the most tasks at a sample; `workers` and `busy`: at the last sample. Of the whole minute: `arrivals`
    became leasable, `completed` were deleted by their worker, `failed` attempts ended otherwise, and the lease that
    waited longest had waited `longest_wait_seconds`.
    """

    minute: int
    ready: int
    workers: int
    busy: int = 0
    arrivals: int = 0
    completed: int = 0
    failed: int = 0
    longest_wait_seconds: float = 0.0


Trend = tuple[TrendPoint, ...]
"""Points of different minutes, oldest first, at most `MINUTES`. A minute without a sample has none."""


@value
class TrendRates:
    """Tasks per second over the last minute."""

    arrivals: float = 0.0
    completed: float = 0.0
    failed: float = 0.0


def point_of(sample: QueueSample, *, workers: int, busy: int) -> TrendPoint:
    """Return what one sample says of its minute."""
    completed = sum(lease.outcome == "deleted" for lease in sample.finished)
    return TrendPoint(
        minute_of(sample.at),
        ready=sample.ready,
        workers=workers,
        busy=busy,
        arrivals=sample.arrivals,
        completed=completed,
        failed=len(sample.finished) - completed,
        longest_wait_seconds=max((lease.waited_seconds for lease in sample.finished), default=0.0),
    )


def trend_after(trend: Trend, point: TrendPoint) -> Trend:
    """Return a trend with one sample more."""
    if not trend or trend[-1].minute != point.minute:
        return (*trend[-(MINUTES - 1) :], point)
    last = trend[-1]
    both = TrendPoint(
        point.minute,
        ready=max(last.ready, point.ready),
        workers=point.workers,
        busy=point.busy,
        arrivals=last.arrivals + point.arrivals,
        completed=last.completed + point.completed,
        failed=last.failed + point.failed,
        longest_wait_seconds=max(last.longest_wait_seconds, point.longest_wait_seconds),
    )
    return trend if both == last else (*trend[:-1], both)


def minute_of(now: Monotonic) -> int:
    """Return the minute of an instant."""
    return int(now // MINUTE_SECONDS)


def by_minute(trend: Sequence[TrendPoint], *, now: Monotonic) -> list[TrendPoint | None]:
    """Return the last `MINUTES` minutes, oldest first; None for a minute without a sample."""
    found = {point.minute: point for point in trend}
    last = minute_of(now)
    return [found.get(minute) for minute in range(last - MINUTES + 1, last + 1)]


def rates_of(trend: Sequence[TrendPoint], *, now: Monotonic) -> TrendRates:
    """Return the rates of the last minute: this minute so far, and the rest from the one before in proportion.

    In a pool's first minute: over the time since its minute began.
    """
    this = minute_of(now)
    parts = {point.minute: point for point in trend[-2:]}
    passed = now - this * MINUTE_SECONDS
    share = 1 - passed / MINUTE_SECONDS if this - 1 in parts else 0.0
    seconds = MINUTE_SECONDS if this - 1 in parts else max(passed, 1.0)
    none = TrendPoint(this, 0, 0)
    new, old = parts.get(this, none), parts.get(this - 1, none)
    return TrendRates(
        (new.arrivals + share * old.arrivals) / seconds,
        (new.completed + share * old.completed) / seconds,
        (new.failed + share * old.failed) / seconds,
    )

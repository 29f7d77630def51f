"""How many leases a queue granted in the last minute and hour, from those held now and the finished ones that are kept.

Stateless: every server of a store tells the same, also right after its start.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from queue_core.clock import Instant, after, seconds_between
from queue_core.stats import FinishedLease, LiveLease
from queue_core.verbs import Turn

MINUTE_SECONDS = 60.0
HOUR_SECONDS = 3600.0
MAX_LIVE = 2000
PAGE = 1000
MAX_PAGES = 12
"""Stores keep about 10,000 finished leases of a queue."""


@dataclass(frozen=True, slots=True)
class LeasedLately:
    """Leases granted in the last minute and hour. Exact while all of the hour is kept, else carried on at its rate."""

    last_minute: int
    last_hour: int


def leased_lately(turn: Turn, queue: str, *, in_flight: int) -> LeasedLately:
    """Look at a queue that has so many leases in flight; costs in proportion to the finished leases kept."""
    finished: list[FinishedLease] = []
    cursor, missed = 0, False
    for _ in range(MAX_PAGES):
        page = turn.transaction.samples(queue, after=cursor, limit=PAGE)
        missed = missed or page.missed
        finished.extend(page.finished)
        if len(page.finished) < PAGE:
            break
        cursor = page.cursor
    live = turn.transaction.live_leases(queue, limit=MAX_LIVE, now=turn.now)
    return LeasedLately(
        _granted(live, finished, seconds=MINUTE_SECONDS, now=turn.now, missed=missed, in_flight=in_flight),
        _granted(live, finished, seconds=HOUR_SECONDS, now=turn.now, missed=missed, in_flight=in_flight),
    )


def _granted(
    live: Sequence[LiveLease],
    finished: Sequence[FinishedLease],
    *,
    seconds: float,
    now: Instant,
    missed: bool,
    in_flight: int,
) -> int:
    since = after(now, -seconds)
    held = sum(lease.leased_at >= since for lease in live)
    if live and in_flight > len(live):
        held = round(held * in_flight / len(live))
    ended = sum(after(lease.ended_at, -lease.held_seconds) >= since for lease in finished)
    if missed and finished and finished[0].ended_at > since:
        known_seconds = max(seconds_between(finished[0].ended_at, now), 1e-6)
        ended = round(ended * seconds / known_seconds)
    return held + ended

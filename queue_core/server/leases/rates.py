"""How many leases a queue granted in the last minute and hour: figures that App Engine's statistics show.

The store counts leases in a total that only grows, whichever server granted them. This server notes those totals every
few seconds while anything happens, so a count costs one subtraction whatever the traffic. The notes are its own and are
lost when it ends: after a start, counts cover the time since then. A minute is noted finely, an hour by the minute.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from queue_core.clock import MICROSECONDS, Instant
from queue_core.errors import StoreError
from queue_core.server.hands import Hands
from queue_core.service import QueueService
from queue_core.stats import QueueStats
from queue_core.task import ANY
from queue_core.verbs import Turn

MINUTE = 60 * MICROSECONDS
HOUR = 60 * MINUTE
NOTE_SECONDS = 5.0
"""Between two notes; the leases of so long a time may be missed or counted too much where a window begins."""
MAX_QUEUES = 1000
"""Queues that are noted, the first by name; the counts of others are 0."""

_Note = tuple[Instant, int]


@dataclass(frozen=True, slots=True)
class RecentCounts:
    """Leases granted in the last minute, and in the last hour."""

    last_minute: int = 0
    last_hour: int = 0


class LeaseCounts:
    """Notes of totals, per queue, and the counts that follow from them. No clock. One thread writes, any may read."""

    def __init__(self) -> None:
        self._notes: Mapping[str, tuple[_Note, ...]] = {}
        self._noted_at: Instant | None = None

    def note(self, totals: Mapping[str, int], *, now: Instant) -> None:
        """Remember the totals of all queues at `now`. A queue not seen before was made, empty, since the last note."""
        born: tuple[_Note, ...] = () if self._noted_at is None else ((self._noted_at, 0),)
        self._notes = {
            queue: thinned((*self._notes.get(queue, born), (now, totals[queue])), now=now)
            for queue in list(totals)[:MAX_QUEUES]
        }
        self._noted_at = now

    def counts(self, stats: QueueStats, *, now: Instant) -> RecentCounts:
        """Leases of a queue up to the total in `stats`, which was read at `now`."""
        if self._noted_at is None:
            return RecentCounts()
        born: tuple[_Note, ...] = ((self._noted_at, 0),) if len(self._notes) < MAX_QUEUES else ()
        notes = self._notes.get(stats.queue, born)
        return RecentCounts(
            _since(notes, Instant(now - MINUTE), stats.leased_total),
            _since(notes, Instant(now - HOUR), stats.leased_total),
        )


def _since(notes: tuple[_Note, ...], start: Instant, total: int) -> int:
    """What came on top of the last note at or before `start`; of the first one when none is so old."""
    if not notes:
        return 0
    base = notes[0][1]
    for at, noted in notes:
        if at > start:
            break
        base = noted
    return max(0, total - base)


def thinned(notes: tuple[_Note, ...], *, now: Instant) -> tuple[_Note, ...]:
    """Without the notes that no window needs: one that is older than an hour, then one a minute, then all.

    The first one stays until an hour has passed: what was leased in its own minute counts from it.
    """
    kept: list[_Note] = []
    for at, total in notes:
        if at > now:
            continue  # the clock was set back
        is_idle = len(kept) > 1 and kept[-1][1] == kept[-2][1] == total
        is_same_minute = len(kept) > 1 and at <= now - MINUTE and at // MINUTE == kept[-1][0] // MINUTE
        is_old = is_same_minute or (kept and at <= now - HOUR)
        if is_idle or is_old:
            kept[-1] = (at, total)
        else:
            kept.append((at, total))
    return tuple(kept)


# -- taking the notes -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LeaseTotals:
    """Leases that each queue has granted since its birth, at an instant."""

    at: Instant
    totals: Mapping[str, int]


def lease_totals(turn: Turn) -> LeaseTotals:
    """A reading step."""
    queues = [spec.name for spec in turn.transaction.queues()[:MAX_QUEUES]]
    return LeaseTotals(turn.now, {queue: turn.stats(queue, ANY).leased_total for queue in queues})


class LeaseNotes:
    """Notes the totals at the start, and then a few seconds after any change; an idle server does nothing."""

    def __init__(self, counts: LeaseCounts, service: QueueService, hands: Hands) -> None:
        self._counts = counts
        self._service = service
        self._hands = hands
        self._timer: asyncio.TimerHandle | None = None
        self._is_looking = False

    def start(self) -> None:
        """What the totals are before the first call."""
        if self._service.store.is_remote:
            self._note()
            return
        try:
            self._noted(self._service.look(lease_totals))
        except StoreError as error:
            self._noted(error)

    def after_turn(self) -> None:
        """Something may have been leased."""
        if self._timer is None and not self._is_looking:
            self._timer = asyncio.get_running_loop().call_later(NOTE_SECONDS, self._note)

    def stop(self) -> None:
        """Note no more."""
        self._is_looking = True
        if self._timer is not None:
            self._timer.cancel()

    def _note(self) -> None:
        self._timer = None
        self._is_looking = True
        self._hands.do(lambda: self._service.look(lease_totals), self._noted)

    def _noted(self, outcome: LeaseTotals | Exception) -> None:
        self._is_looking = False
        if isinstance(outcome, LeaseTotals):  # else the store is away: the next note has it all
            self._counts.note(outcome.totals, now=outcome.at)

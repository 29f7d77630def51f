"""Lease rates of App Engine: leases granted in the last minute and hour, and a limit on lease calls a second.

The store counts leases in a total that only grows, whichever server granted them. This server records those totals
every few seconds while anything happens, so that a count costs one subtraction. The readings are lost when the server
ends: after a start, counts cover the time since then. The last minute has a reading every few seconds, the last hour
one a minute.
"""

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock

from queue_core.clock import MICROSECONDS, Instant
from queue_core.errors import StoreError
from queue_core.server.commit.thread_pool import ThreadPool
from queue_core.stats import QueueStats
from queue_core.task import ANY
from queue_core.unit.service import QueueService
from queue_core.unit.unit_of_work import UnitOfWork

MINUTE = 60 * MICROSECONDS
HOUR = 60 * MINUTE
RECORD_SECONDS = 5.0
"""Seconds between two readings; a count may be wrong by the leases of so long a time."""
MAX_QUEUES = 1000
"""Queues whose totals are recorded, the first by name; the counts of other queues are 0."""
MAX_LIMITED_QUEUES = 1000
"""Queues remembered before those without a lease call in the last second are forgotten."""

_Reading = tuple[Instant, int]


@dataclass(frozen=True, slots=True)
class RecentCounts:
    """Leases granted in the last minute, and in the last hour."""

    last_minute: int = 0
    last_hour: int = 0


class LeaseCounts:
    """Readings of totals per queue, and the counts derived from them. One thread records, any thread reads."""

    def __init__(self) -> None:
        self._readings: Mapping[str, tuple[_Reading, ...]] = {}
        self._recorded_at: Instant | None = None

    def record(self, totals: Mapping[str, int], *, now: Instant) -> None:
        """Remember the totals at `now`; a queue that is new here was created, empty, since the last reading."""
        born: tuple[_Reading, ...] = () if self._recorded_at is None else ((self._recorded_at, 0),)
        self._readings = {
            queue: thinned((*self._readings.get(queue, born), (now, totals[queue])), now=now)
            for queue in list(totals)[:MAX_QUEUES]
        }
        self._recorded_at = now

    def counts(self, stats: QueueStats, *, now: Instant) -> RecentCounts:
        """Return the leases of a queue up to the total in `stats`, which was read at `now`."""
        if self._recorded_at is None:
            return RecentCounts()
        born: tuple[_Reading, ...] = ((self._recorded_at, 0),) if len(self._readings) < MAX_QUEUES else ()
        readings = self._readings.get(stats.queue, born)
        return RecentCounts(
            _leases_since(readings, Instant(now - MINUTE), stats.leased_total),
            _leases_since(readings, Instant(now - HOUR), stats.leased_total),
        )


def _leases_since(readings: tuple[_Reading, ...], start: Instant, total: int) -> int:
    """Return the leases since the last reading at or before `start`, or since the first reading when none is so old."""
    if not readings:
        return 0
    base = readings[0][1]
    for at, recorded in readings:
        if at > start:
            break
        base = recorded
    return max(0, total - base)


def thinned(readings: tuple[_Reading, ...], *, now: Instant) -> tuple[_Reading, ...]:
    """Return the readings that a window needs: one older than an hour, then one a minute, then all.

    The first reading stays until an hour has passed: leases of its own minute count from it.
    """
    kept: list[_Reading] = []
    for at, total in readings:
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


# -- recording the totals -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LeaseTotals:
    """The leases that each queue has granted since its creation, at an instant."""

    at: Instant
    totals: Mapping[str, int]


def lease_totals(work: UnitOfWork) -> LeaseTotals:
    """Read the totals of all queues; changes nothing."""
    queues = [spec.name for spec in work.transaction.queues()[:MAX_QUEUES]]
    return LeaseTotals(work.now, {queue: work.stats(queue, ANY).leased_total for queue in queues})


class LeaseCountRecorder:
    """Records the totals at the start, and then a few seconds after any change; an idle server reads nothing."""

    def __init__(self, counts: LeaseCounts, service: QueueService, threads: ThreadPool) -> None:
        self._counts = counts
        self._service = service
        self._threads = threads
        self._timer: asyncio.TimerHandle | None = None
        self.is_scheduled = False
        """Return whether a reading is due or under way, or the recorder has stopped: `schedule` is not to be called."""

    def start(self) -> None:
        """Record the totals before the first call."""
        if self._service.store.is_remote:
            self._read()
            return
        try:
            self._record(self._service.read(lease_totals))
        except StoreError as error:
            self._record(error)

    def schedule(self) -> None:
        """Record the totals in `RECORD_SECONDS`."""
        self.is_scheduled = True
        self._timer = asyncio.get_running_loop().call_later(RECORD_SECONDS, self._read)

    def stop(self) -> None:
        """Record no more."""
        self.is_scheduled = True
        if self._timer is not None:
            self._timer.cancel()

    def _read(self) -> None:
        self._timer = None
        self.is_scheduled = True
        self._threads.submit(lambda: self._service.read(lease_totals), self._record)

    def _record(self, outcome: LeaseTotals | Exception) -> None:
        self.is_scheduled = False
        if isinstance(outcome, LeaseTotals):  # after a failure the next reading covers the gap
            self._counts.record(outcome.totals, now=outcome.at)


# -- a limit on lease calls -----------------------------------------------------------------------------------------


class LeaseRate:
    """Limits the lease calls of a queue in any second. Any thread may call it, as a remote store's commits run in
    threads.

    Source: App Engine, "10 LeaseTasks requests per queue per second".
    """

    def __init__(self) -> None:
        self._granted: dict[str, deque[Instant]] = {}
        self._lock = Lock()

    def allows(self, queue: str, spec_limit: int | None, now: Instant) -> bool:
        """Return whether a call at `now` is within the limit; only a call within it counts.

        Args:
            spec_limit: calls in any second; None: no limit, and nothing is counted.
        """
        if spec_limit is None:
            return True
        with self._lock:
            if queue not in self._granted and len(self._granted) >= MAX_LIMITED_QUEUES:
                self._forget(now)
            granted = self._granted.setdefault(queue, deque())
            # A call later than now: the clock was set back, so it is not of this second.
            while granted and not now - MICROSECONDS < granted[0] <= now:
                granted.popleft()
            while granted and granted[-1] > now:
                granted.pop()
            if len(granted) >= spec_limit:
                return False
            granted.append(now)
            return True

    def _forget(self, now: Instant) -> None:
        quiet = [queue for queue, granted in self._granted.items() if not granted or granted[-1] <= now - MICROSECONDS]
        for queue in quiet:
            del self._granted[queue]

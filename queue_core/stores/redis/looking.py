"""The verbs that only look, each one atomic call: statistics, waiting times, live leases, samples."""

from struct import Struct, pack, unpack_from

from queue_core.clock import Instant
from queue_core.stats import LiveLease, QueueStats, Samples, TagStats, WaitingTask, spread
from queue_core.stores.redis.calls import DATA, Calls
from queue_core.stores.redis.packing import (
    pack_filter,
    parse_all_finished,
    parse_held,
)
from queue_core.task import TagFilter

_COUNTS = Struct(">" + "6s" * 10 + "7sB")
_LIVE = Struct(">QQI")
_POSITION = Struct(">QQ")


def stats(calls: Calls, queue: str, tags: TagFilter, *, now: Instant) -> QueueStats:
    """See `Transaction.stats`."""
    kind, names = pack_filter(tags)
    return _stats(queue, calls.look("stats", queue, pack(">QB", now, kind), *names), DATA)


def tag_stats(calls: Calls, queue: str, *, after: str | None, limit: int, now: Instant) -> list[TagStats]:
    """See `Transaction.tag_stats`."""
    data = calls.look("tag_stats", queue, pack(">QIB", now, limit, after is None), after or "")
    listed: list[TagStats] = []
    at = DATA
    while at < len(data):
        (size,) = unpack_from(">H", data, at)
        at += 2 + size
        listed.append(TagStats(data[at - size : at].decode() or None, _stats(queue, data, at)))
        at += _COUNTS.size
    return listed


def _stats(queue: str, data: bytes, at: int) -> QueueStats:
    *packed, is_closed = _COUNTS.unpack_from(data, at)
    ready, delayed, leased, dead, added, leases, deleted, released, expired, died, oldest = (
        int.from_bytes(number, "big") for number in packed
    )
    return QueueStats(
        queue,
        ready,
        delayed,
        leased,
        dead,
        Instant(oldest) if oldest else None,
        added,
        leases,
        deleted,
        released,
        expired,
        died,
        bool(is_closed),
    )


def waiting(calls: Calls, queue: str, tags: TagFilter, *, now: Instant) -> tuple[WaitingTask, ...]:
    """See `Transaction.waiting`."""
    kind, names = pack_filter(tags)
    data = calls.look("waiting", queue, pack(">QB", now, kind), *names)
    if data[1]:
        return tuple(WaitingTask(position, ready_at) for position, ready_at in _POSITION.iter_unpack(data[DATA:]))
    ready, newest, *etas = unpack_from(f">{(len(data) - DATA) // 8}Q", data, DATA)
    return spread(etas, ready=ready, newest=newest)


def upcoming(calls: Calls, queue: str, tags: TagFilter, *, until: Instant, limit: int, now: Instant) -> list[Instant]:
    """See `Transaction.upcoming`."""
    kind, names = pack_filter(tags)
    data = calls.look("upcoming", queue, pack(">QQIB", now, until, limit, kind), *names)
    return [Instant(eta) for eta in unpack_from(f">{(len(data) - DATA) // 8}Q", data, DATA)]


def live_leases(calls: Calls, queue: str, *, limit: int, now: Instant) -> list[LiveLease]:
    """See `Transaction.live_leases`."""
    data = calls.look("live_leases", queue, pack(">QI", now, limit))
    leases: list[LiveLease] = []
    at = DATA
    while at < len(data):
        task_id, expires_at, size = _LIVE.unpack_from(data, at)
        at += _LIVE.size
        (number, leased_at, ready_at), _, (tag, name, worker, _), _ = parse_held(data, at)
        at += size
        leases.append(
            LiveLease(
                name or f"_{task_id}", tag or None, worker, number, Instant(leased_at), expires_at, Instant(ready_at)
            )
        )
    return leases


def next_eta(calls: Calls, queue: str) -> Instant | None:
    """See `Transaction.next_eta`."""
    eta = int.from_bytes(calls.look("next_eta", queue)[DATA:], "big")
    return Instant(eta) if eta else None


def samples(calls: Calls, queue: str, *, after: int, limit: int) -> Samples:
    """See `Transaction.samples`."""
    data = calls.look("samples", queue, pack(">QI", after, limit))
    dropped, first, number = unpack_from(">QQI", data, DATA)
    finished, _ = parse_all_finished(queue, data, DATA + 20, number)
    return Samples(finished, first + number, missed=after < dropped)

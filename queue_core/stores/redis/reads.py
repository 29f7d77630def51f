"""The verbs that only read, each one atomic call: peek, statistics, waiting times, live leases, samples."""

import heapq
from collections.abc import Iterator, Sequence
from struct import Struct, pack, unpack_from

from queue_core import semantics
from queue_core.clock import Instant
from queue_core.clock import after as later
from queue_core.semantics import LeaseEnd
from queue_core.stats import (
    FinishedLease,
    History,
    LiveLease,
    QueueStats,
    Samples,
    TagStats,
    WaitingTask,
    sample_waiting,
)
from queue_core.stores.redis.admin import queue as settings_of
from queue_core.stores.redis.binary import (
    pack_filter,
    pack_instants,
    parse_all_finished,
    parse_finished,
    parse_lease_record,
    parse_task,
)
from queue_core.stores.redis.calls import DATA, Calls
from queue_core.stores.redis.client.connection import Cell
from queue_core.stores.redis.keys import key_of
from queue_core.task import QueueSpec, StoredTask, TagFilter
from queue_core.verbs import Page, PeekQuery

_COUNTS = Struct(">" + "6s" * 10 + "7sB6sq")
_LIVE = Struct(">QQI")
_POSITION = Struct(">QQ")
_LARGEST_CURSOR = 1 << 40  # above all numbers of samples, and whole in Lua


def stats(calls: Calls, queue: str, tags: TagFilter, *, now: Instant) -> QueueStats:
    """See `Transaction.stats`."""
    kind, names = pack_filter(tags)
    return _stats(queue, calls.read("stats", queue, pack(">QB", now, kind), *names), DATA)


def tag_stats(calls: Calls, queue: str, *, after: str | None, limit: int, now: Instant) -> list[TagStats]:
    """See `Transaction.tag_stats`."""
    data = calls.read("tag_stats", queue, pack(">QIB", now, limit, after is None), after or "")
    listed: list[TagStats] = []
    at = DATA
    while at < len(data):
        (size,) = unpack_from(">H", data, at)
        at += 2 + size
        listed.append(TagStats(data[at - size : at].decode() or None, _stats(queue, data, at)))
        at += _COUNTS.size
    return listed


def _stats(queue: str, data: bytes, at: int) -> QueueStats:
    *packed, oldest, is_closed, held, room = _COUNTS.unpack_from(data, at)
    ready, delayed, leased, dead, added, leases, deleted, released, expired, died = (
        int.from_bytes(number, "big") for number in packed
    )
    oldest_at = int.from_bytes(oldest, "big")
    return QueueStats(
        queue,
        ready,
        delayed,
        leased,
        dead,
        Instant(oldest_at) if oldest_at else None,
        added,
        leases,
        deleted,
        released,
        expired,
        died,
        bool(is_closed),
        held=int.from_bytes(held, "big"),
        room=None if room < 0 else room,
    )


def waiting(calls: Calls, queue: str, tags: TagFilter, *, now: Instant) -> tuple[WaitingTask, ...]:
    """See `Transaction.waiting`."""
    kind, names = pack_filter(tags)
    data = calls.read("waiting", queue, pack(">QB", now, kind), *names)
    if data[1]:
        return tuple(WaitingTask(position, ready_at) for position, ready_at in _POSITION.iter_unpack(data[DATA:]))
    ready, newest, *etas = unpack_from(f">{(len(data) - DATA) // 8}Q", data, DATA)
    return sample_waiting(etas, ready=ready, newest=newest)


def upcoming(calls: Calls, queue: str, tags: TagFilter, *, until: Instant, limit: int, now: Instant) -> list[Instant]:
    """See `Transaction.upcoming`."""
    kind, names = pack_filter(tags)
    data = calls.read("upcoming", queue, pack(">QQIB", now, until, limit, kind), *names)
    return [Instant(eta) for eta in unpack_from(f">{(len(data) - DATA) // 8}Q", data, DATA)]


def live_leases(calls: Calls, queue: str, *, limit: int, now: Instant) -> list[LiveLease]:
    """See `Transaction.live_leases`."""
    data = calls.read("live_leases", queue, pack(">QI", now, limit))
    leases: list[LiveLease] = []
    at = DATA
    while at < len(data):
        task_id, expires_at, size = _LIVE.unpack_from(data, at)
        at += _LIVE.size
        (number, leased_at, ready_at, _), _, (tag, name, worker, _), _ = parse_lease_record(data, at)
        at += size
        leases.append(
            LiveLease(
                name or f"_{task_id}", tag or None, worker, number, Instant(leased_at), expires_at, Instant(ready_at)
            )
        )
    return leases


def next_eta(calls: Calls, queue: str, *, now: Instant) -> Instant | None:
    """See `Transaction.next_eta`."""
    eta = int.from_bytes(calls.read("next_eta", queue, pack(">Q", now))[DATA:], "big")
    return Instant(eta) if eta else None


def samples(calls: Calls, queue: str, *, after: int, limit: int) -> Samples:
    """See `Transaction.samples`."""
    data = calls.read("samples", queue, pack(">QI", min(after, _LARGEST_CURSOR), limit))
    dropped, first, number = unpack_from(">QQI", data, DATA)
    finished, _ = parse_all_finished(queue, data, DATA + 20, number)
    return Samples(finished, first + number, missed=after < dropped)


def history(
    calls: Calls, queue: str, *, names: Sequence[str] | None, before: int | None, limit: int, now: Instant
) -> History:
    """See `Transaction.history`. Takes several calls where much is to be examined, so that none takes long."""
    spec = settings_of(calls, queue)
    oldest_at = max(0, later(now, -spec.history_seconds))
    found: list[tuple[int, FinishedLease]] = []
    cursor = before or 0
    while before is None or before > 1:
        wanted = limit + 1 - len(found)
        head = _HISTORY.pack(now, spec.history_keep, oldest_at, cursor, wanted, names is not None)
        data = calls.read("history", queue, head, *(names or ()))
        (cursor,) = unpack_from(">Q", data, DATA)
        at = DATA + 8
        while at < len(data):
            number, size = _NUMBERED.unpack_from(data, at)
            at += _NUMBERED.size + size
            found.append((number, parse_finished(queue, data, at - size)[0]))
        if not cursor or len(found) > limit:
            break
    next_before = found[limit][0] + 1 if len(found) > limit else None
    return History(tuple([lease for _, lease in found[:limit]]), next_before)


_HISTORY = Struct(">QQQQIB")
_NUMBERED = Struct(">QI")
_PEEK = Struct(">QBBQIIH")
_SPARSE = b"s"


def _cells(query: PeekQuery) -> list[Cell]:
    """Pack a query as the functions take it."""
    kind, tags = pack_filter(query.tags)
    states = sum(1 << state for state in query.states)
    fixed = _PEEK.pack(query.now, kind, states, query.after, query.limit, query.payload_bytes, len(tags))
    return [fixed, *tags]


def peek(calls: Calls, queue: str, query: PeekQuery) -> Page:
    """See `Transaction.peek`. Not atomic for a queue of very many tasks with sparse ids, which takes many calls."""
    spec = settings_of(calls, queue)
    if query.names is not None:
        return _page(spec, calls.read("peek_names", queue, *_cells(query), *dict.fromkeys(query.names)), query)
    answer = calls.client.read("peek", (key_of(queue),), _cells(query))
    if answer != _SPARSE:
        return _page(spec, calls.done(answer), query)
    ids = heapq.nsmallest(query.limit + 1, set(_ids(calls, queue, query)))
    page = _page(spec, calls.read("peek_ids", queue, *_cells(query), pack_instants(ids[: query.limit])), query)
    return Page(page.tasks, ids[query.limit - 1] if len(ids) > query.limit else None)


def _ids(calls: Calls, queue: str, query: PeekQuery) -> Iterator[int]:
    """Scan the queue and yield the lowest ids of each piece; a task that stays is in one piece at least."""
    cursor = 0
    while True:
        data = calls.read("peek_piece", queue, *_cells(query), cursor)
        cursor, *ids = unpack_from(f">{(len(data) - DATA) // 8}Q", data, DATA)
        yield from ids
        if not cursor:
            return


def _page(spec: QueueSpec, data: bytes, query: PeekQuery) -> Page:
    tasks: list[StoredTask] = []
    at = DATA
    while at < len(data):
        task, at = parse_task(spec.name, data, at)
        settled = semantics.expire(task, spec, now=query.now)
        shown = settled.task if isinstance(settled, LeaseEnd) else settled
        if shown is not None and shown.state in query.states:
            tasks.append(shown)
    return Page(tuple(tasks), tasks[-1].id if data[1] and tasks else None)

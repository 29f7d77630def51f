"""The verbs that only read: tasks, statistics, waiting times, samples, live leases.

They are exact as of `now`, although they write no expiry.
"""

import re
from collections.abc import Sequence
from heapq import merge
from itertools import islice
from typing import Any, Final

from queue_core import semantics
from queue_core.clock import Instant, after
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
from queue_core.stores.postgres import results
from queue_core.stores.postgres.client import binary as pack
from queue_core.stores.postgres.client.statements import Row, Statement
from queue_core.stores.postgres.queues import find
from queue_core.stores.postgres.results import TASK_COLUMNS, task_of
from queue_core.stores.postgres.session import PostgresSession
from queue_core.task import QueueSpec, StoredTask, TagFilter
from queue_core.verbs import Page, PeekQuery

HEAD = 1000
"""Etas of ready tasks that are read for `waiting`."""
POSITION_BITS = 16
"""Bits of a cursor that count the samples read of a transaction; the bits above are its number."""
_NEWEST: Final = (1 << 62) - 1
"""A cursor beyond all samples."""

_PEEK = Statement(
    "towline_peek",
    f"SELECT {TASK_COLUMNS}, coalesce(substr(t.payload, 1, $8), '') FROM towline.peek($1, $2, $3, $4, $5, $6, $7) AS t",  # noqa: S608
    (pack.text, pack.texts, pack.int2s, pack.texts, pack.int8, pack.int4, pack.int8, pack.int4),
)
_STATS = Statement("towline_stats", "SELECT * FROM towline.queue_stats($1, $2, $3)", (pack.text, pack.texts, pack.int8))
_TAG_STATS = Statement(
    "towline_tag_stats",
    "SELECT * FROM towline.stats_of_tags($1, $2, $3, $4)",
    (pack.text, pack.text, pack.int4, pack.int8),
)
_WAITING = Statement(
    "towline_waiting",
    "SELECT * FROM towline.waiting($1, $2, $3, $4, $5)",
    (pack.text, pack.texts, pack.boolean, pack.int4, pack.int8),
)
_UPCOMING = Statement(
    "towline_upcoming",
    "SELECT towline.upcoming($1, $2, $3, $4, $5)",
    (pack.text, pack.texts, pack.int8, pack.int8, pack.int4),
)
_SAMPLES = Statement(
    "towline_samples", "SELECT * FROM towline.read_samples($1, $2, $3)", (pack.text, pack.int8, pack.int4)
)
_HISTORY = Statement(
    "towline_history",
    "SELECT * FROM towline.history($1, $2, $3, $4, $5, $6, $7, $8)",
    (pack.text, pack.texts, pack.int8s, pack.int8, pack.int8, pack.int8, pack.int8, pack.int4),
)
_CHOSEN_NAME = re.compile(r"_[0-9]{1,18}")
_LIVE = Statement("towline_live", "SELECT * FROM towline.live_leases($1, $2, $3)", (pack.text, pack.int8, pack.int4))
_NEXT_ETA = Statement("towline_next_eta", "SELECT towline.next_eta($1, $2)", (pack.text, pack.int8))


def tag_values(tags: TagFilter) -> tuple[str, ...] | None:
    """Return a filter's tags as the schema's functions take them: None for any, empty for untagged tasks."""
    if tags.kind == "untagged":
        return ()
    return tags.tags or None


def peek(session: PostgresSession, queue: str, query: PeekQuery) -> Page:
    """See `Transaction.peek`. The function reads along the path that has the fewest rows."""
    spec = find(session, queue)
    rows = session.rows(
        _PEEK,
        queue,
        tag_values(query.tags),
        sorted(query.states),
        query.names,
        query.after,
        query.limit + 1,
        query.now,
        query.payload_bytes,
    )
    has_lanes = spec.per_tag.holds_tasks
    shown = [_as_of_now(task_of(queue, row, has_lanes=has_lanes), spec, now=query.now) for row in rows]
    if len(shown) > query.limit:
        return Page(tuple(shown[: query.limit]), shown[query.limit - 1].id)
    return Page(tuple(shown))


def _as_of_now(task: StoredTask, spec: QueueSpec, *, now: Instant) -> StoredTask:
    settled = semantics.expire(task, spec, now=now)
    shown = settled.task if isinstance(settled, LeaseEnd) else settled
    assert shown is not None, "the statement leaves out tasks whose expiry deletes them"
    return shown


def stats(session: PostgresSession, queue: str, tags: TagFilter, *, now: Instant) -> QueueStats:
    """See `Transaction.stats`."""
    rows = session.rows(_STATS, queue, tag_values(tags), now)
    if not rows:
        find(session, queue)
    return _stats_of(queue, rows[0])


def _stats_of(queue: str, row: Row) -> QueueStats:
    paused, ready, delayed, leased, dead, oldest, added, leases, deleted, released, expired, died, held, room = row
    return QueueStats(
        queue,
        ready,
        delayed,
        leased,
        dead,
        oldest,
        added,
        leases,
        deleted,
        released,
        expired,
        died,
        paused,
        held=held,
        room=room,
    )


def tag_stats(session: PostgresSession, queue: str, *, after: str | None, limit: int, now: Instant) -> list[TagStats]:
    """See `Transaction.tag_stats`."""
    rows = session.rows(_TAG_STATS, queue, after, limit, now)
    if not rows:
        find(session, queue)
    return [TagStats(tag, _stats_of(queue, tuple(row))) for tag, *row in rows]


def waiting(session: PostgresSession, queue: str, tags: TagFilter, *, now: Instant) -> tuple[WaitingTask, ...]:
    """See `Transaction.waiting`."""
    ((ready, stored, due, newest),) = session.rows(_WAITING, queue, tag_values(tags), tags.kind == "oldest", HEAD, now)
    if not ready:
        find(session, queue)
        return ()
    etas = list(islice(merge(stored, due), HEAD))
    last = max([now if newest is None else newest, *due[-1:]]) if newest is None else max([newest, *due[-1:]])
    return sample_waiting(etas, ready=ready, newest=Instant(last)) if etas else ()


def upcoming(
    session: PostgresSession, queue: str, tags: TagFilter, *, until: Instant, limit: int, now: Instant
) -> list[Instant]:
    """See `Transaction.upcoming`."""
    ((etas,),) = session.rows(_UPCOMING, queue, tag_values(tags), now, until, limit)
    if etas is None:
        find(session, queue)
        return []
    return [Instant(eta) for eta in etas]


def samples(session: PostgresSession, queue: str, *, after: int, limit: int) -> Samples:
    """See `Transaction.samples`."""
    rows = session.rows(_SAMPLES, queue, after >> POSITION_BITS, limit)
    if not rows:
        find(session, queue)
    trimmed = rows[0][0] if rows else 0
    skip = after & ((1 << POSITION_BITS) - 1)
    cursor = after
    finished: list[FinishedLease] = []
    number, position = after >> POSITION_BITS, 0
    for _, xid, size, *columns in rows:
        if xid is None:
            continue
        if xid != number:
            number, position, skip = xid, 0, 0
        if position + size > skip:
            taken = _unpacked(queue, columns)[max(0, skip - position) :][: limit - len(finished)]
            finished += taken
            cursor = (xid << POSITION_BITS) + max(position, skip) + len(taken)
        position += size
        if len(finished) >= limit:
            break
    return Samples(tuple(finished), cursor, trimmed > after >> POSITION_BITS)


def _unpacked(queue: str, columns: list[Any]) -> list[FinishedLease]:
    outcome, numbers, texts, ended_at, reasons, lived = columns
    size = len(numbers)
    return [
        results.finished_of(queue, sample, words, outcome, ended, reason, lived=lived)
        for sample, words, ended, reason in zip(
            numbers, texts, ended_at * size if len(ended_at) == 1 else ended_at, reasons or [None] * size, strict=True
        )
    ]


def history(
    session: PostgresSession, queue: str, *, names: Sequence[str] | None, before: int | None, limit: int, now: Instant
) -> History:
    """See `Transaction.history`. A cursor is one of `samples`: it counts those before a sample."""
    spec = find(session, queue)
    cursor = _NEWEST if before is None else before
    rows = session.rows(
        _HISTORY,
        queue,
        names,
        None if names is None else [int(name[1:]) for name in names if _CHOSEN_NAME.fullmatch(name)],
        cursor >> POSITION_BITS,
        cursor & ((1 << POSITION_BITS) - 1),
        spec.history_keep,
        after(now, -spec.history_seconds),
        limit + 1,
    )
    leases = tuple(
        [
            results.finished_of(queue, numbers[0], texts[0], outcome, ended_at, reason, lived=lived)
            for _, _, outcome, numbers, texts, ended_at, reason, lived in rows[:limit]
        ]
    )
    return History(leases, (rows[limit - 1][0] << POSITION_BITS) + rows[limit - 1][1] if len(rows) > limit else None)


def live_leases(session: PostgresSession, queue: str, *, limit: int, now: Instant) -> list[LiveLease]:
    """See `Transaction.live_leases`."""
    rows = session.rows(_LIVE, queue, now, limit)
    if not rows:
        find(session, queue)
    return [LiveLease(*row) for row in rows]


def next_eta(session: PostgresSession, queue: str, *, now: Instant) -> Instant | None:
    """See `Transaction.next_eta`."""
    ((eta,),) = session.rows(_NEXT_ETA, queue, now)
    if eta is None:
        find(session, queue)
    return eta  # type: ignore[no-any-return]

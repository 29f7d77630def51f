"""The read verbs: statistics, waiting times, leases, tasks. Exact as of `now`, though they expire nothing."""

import json
from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from itertools import islice

from queue_core import semantics
from queue_core.clock import Instant
from queue_core.limits import MAX_PRIORITY
from queue_core.semantics import LeaseEnd
from queue_core.stats import LiveLease, QueueStats, TagStats, WaitingTask, sample_waiting
from queue_core.stores.sqlite.counters import COLUMNS as COUNTERS
from queue_core.stores.sqlite.driver import Row
from queue_core.stores.sqlite.lanes.lane import load_whole
from queue_core.stores.sqlite.lanes.rotation import heads_of
from queue_core.stores.sqlite.lanes.updates import room
from queue_core.stores.sqlite.rows import COLUMNS, completed, ready_rows, task_of
from queue_core.stores.sqlite.selection import gauge, in_state, row_of_name
from queue_core.stores.sqlite.session import QueueRow, SqliteSession
from queue_core.task import StoredTask, TagFilter, TaskState, chosen_name
from queue_core.verbs import Page, PeekQuery

MAX_WAITING_READ = 1000
"""Etas of ready tasks that `waiting` reads at most."""
MAX_SORTED = 5000
"""`peek` reads up to so many tasks of its states by their index and sorts them; more than that it finds by a scan in id
order, which soon fills a page."""

_SUMS = ", ".join(f"sum({counter})" for counter in COUNTERS)
_OF_TAGS = " AND tag IN (SELECT value FROM json_each(?))"
_READY_FIRST = f"{ready_rows('eta')} ORDER BY eta LIMIT ?2"
_READY_LAST = f"{ready_rows('eta')} ORDER BY eta DESC LIMIT ?2"
_TAG_FIRST = "SELECT eta FROM tasks INDEXED BY tasks_ready_by_tag WHERE tag = ? AND state = 0 ORDER BY eta LIMIT ?"
_TAG_LAST = "SELECT eta FROM tasks INDEXED BY tasks_ready_by_tag WHERE tag = ? AND state = 0 ORDER BY eta DESC LIMIT ?"
_OF_STATE = "AND state = ? AND state < 0 ORDER BY eta {} LIMIT ?"
_URGENT = f"SELECT eta FROM tasks INDEXED BY tasks_urgent WHERE queue = ? {_OF_STATE}"  # noqa: S608
_TAG_URGENT = f"SELECT eta FROM tasks INDEXED BY tasks_urgent_by_tag WHERE tag = ? {_OF_STATE}"  # noqa: S608
_FIRST_URGENT = (
    "SELECT state, eta, id, tag FROM tasks INDEXED BY tasks_urgent WHERE queue = ? AND state < 0"
    " ORDER BY state, eta, id LIMIT 1"
)
_FIRST_PLAIN = f"{ready_rows('0, eta, id, tag')} ORDER BY eta, id LIMIT 1"
_OPENS_AT = (
    "SELECT opens_at FROM lanes INDEXED BY lanes_opening WHERE queue = ? AND opens_at IS NOT NULL"
    " ORDER BY opens_at LIMIT 1"
)


def stats(session: SqliteSession, name: str, tags: TagFilter, *, now: Instant) -> QueueStats:
    """See `Transaction.stats`."""
    queue = session.queue(name)
    session.counts.write(session.cursor, now=session.now)
    return _stats(session, queue, session.tag_ids(queue, tags), now=now)


def _stats(session: SqliteSession, queue: QueueRow, tag_ids: list[int] | None, *, now: Instant) -> QueueStats:
    name, paused = queue.spec.name, queue.spec.is_closed
    left = _room(session, queue, now=now) if queue.spec.is_limited else None
    if tag_ids == []:
        return QueueStats(name, paused=paused, room=left)
    ids = [queue.whole] if tag_ids is None else tag_ids
    of_tags, cells = _narrowed(tag_ids)
    counted = session.connection.execute(
        f"SELECT {_SUMS} FROM counts WHERE id IN (SELECT value FROM json_each(?))",  # noqa: S608
        (json.dumps(ids),),
    ).fetchone()
    assert counted is not None, "an aggregate answers one row"
    ready, delayed, leased, dead, added, leases, deleted, released, expired, died, held = (
        count or 0 for count in counted
    )
    etas = [_first_ready(session, queue, tag_ids)]
    if delayed:
        due, first = _due(
            session, f"tasks_delayed WHERE queue = ? AND state = 1 AND eta <= ?{of_tags}", queue, now, cells
        )
        ready, delayed = ready + due, delayed - due
        etas.append(first)
    if leased:
        lapsed = f"tasks_leased WHERE queue = ? AND state = 2 AND eta <= ?{of_tags}"
        due, first = _due(session, lapsed, queue, now, cells)
        if due:
            gone, _ = _due(session, f"{lapsed} AND NOT {_alive(queue)}", queue, now, cells)
            if gone:
                _, first = _due(session, f"{lapsed} AND {_alive(queue)}", queue, now, cells)
            ready, leased, expired, died = ready + due - gone, leased - due, expired + due, died + gone
            dead += gone if queue.spec.on_exhausted == "dead" else 0
            etas.append(first)
    oldest = min((eta for eta in etas if eta is not None), default=None)
    return QueueStats(
        name,
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
        room=left,
    )


def _room(session: SqliteSession, queue: QueueRow, *, now: Instant) -> int:
    """Return how many leases the limits of the whole queue let it grant, once those that are over are expired."""
    over, _ = _due(session, "tasks_leased WHERE queue = ? AND state = 2 AND eta <= ?", queue, now, ())
    return room(session, queue, now=now, over=over)


def _narrowed(tag_ids: list[int] | None) -> tuple[str, tuple[str, ...]]:
    """Return the SQL condition that selects these tags, and its parameters."""
    return ("", ()) if tag_ids is None else (_OF_TAGS, (json.dumps(tag_ids),))


def _alive(queue: QueueRow) -> str:
    """Return the SQL condition that a task has a lease left."""
    bound = queue.spec.max_leases
    return f"(leases < coalesce(max_leases, {'9e18' if bound is None else bound}))"


def _due(
    session: SqliteSession, chosen: str, queue: QueueRow, now: Instant, cells: tuple[str, ...]
) -> tuple[int, Instant | None]:
    """Return the number of rows, and their first eta."""
    sql = f"SELECT count(*), min(eta) FROM tasks INDEXED BY {chosen}"  # noqa: S608
    row = session.connection.execute(sql, (queue.id, now, *cells)).fetchone()
    assert row is not None, "an aggregate answers one row"
    return row[0], row[1]


def _first_ready(session: SqliteSession, queue: QueueRow, tag_ids: list[int] | None) -> Instant | None:
    return next((Instant(eta) for eta in _ready_etas(session, queue, tag_ids, limit=1)), None)


def _ready_etas(
    session: SqliteSession, queue: QueueRow, tag_ids: list[int] | None, *, limit: int, last: bool = False
) -> Iterator[Instant]:
    """Yield the etas of ready tasks, of any priority, in order; or, of each priority and tag, only the last one."""
    sorts: list[Iterable[Row]] = []
    if tag_ids is None:
        sql = _READY_LAST if last else _READY_FIRST
        sorts.append(session.connection.execute(sql, (queue.id, limit)))
    else:
        sql = _TAG_LAST if last else _TAG_FIRST
        sorts += [session.connection.execute(sql, (tag_id, limit)) for tag_id in tag_ids]
    if queue.has_priorities:
        every = [(_URGENT, queue.id)] if tag_ids is None else [(_TAG_URGENT, tag_id) for tag_id in tag_ids]
        order = "DESC" if last else ""
        for sql, of in every:
            for state in range(-MAX_PRIORITY, 0):
                sorts.append(session.connection.execute(sql.format(order), (of, state, limit)))
    return (row[0] for row in merge(*sorts))


def tag_stats(session: SqliteSession, name: str, *, after: str | None, limit: int, now: Instant) -> list[TagStats]:
    """See `Transaction.tag_stats`."""
    queue = session.queue(name)
    session.counts.write(session.cursor, now=session.now)
    rows = session.connection.execute(
        "SELECT id, tag FROM counts WHERE queue = ? AND tag > ? ORDER BY tag LIMIT ?",
        (queue.id, after or "", limit),
    ).fetchall()
    if after is None:
        untagged = session.existing_tag_id(queue, None)
        if untagged is not None:
            rows = [(untagged, None), *rows][:limit]
    return [TagStats(tag, _stats(session, queue, [tag_id], now=now)) for tag_id, tag in rows]


def waiting(session: SqliteSession, name: str, tags: TagFilter, *, now: Instant) -> tuple[WaitingTask, ...]:
    """See `Transaction.waiting`."""
    queue = session.queue(name)
    tag_ids = session.tag_ids(queue, tags)
    if tags.kind == "oldest" and not queue.spec.per_tag.fair:
        tag_ids = _tag_of_oldest(session, queue, tag_ids, now=now)
    ready = _stats(session, queue, tag_ids, now=now).ready
    if not ready:
        return ()
    stored = _ready_etas(session, queue, tag_ids, limit=MAX_WAITING_READ)
    due = _due_etas(session, queue, tag_ids, now=now)
    etas = list(islice(merge(stored, due), MAX_WAITING_READ))
    newest = max([*_ready_etas(session, queue, tag_ids, limit=1, last=True), *due[-1:]], default=now)
    return sample_waiting(etas, ready=ready, newest=newest) if etas else ()


def upcoming(
    session: SqliteSession, name: str, tags: TagFilter, *, until: Instant, limit: int, now: Instant
) -> list[Instant]:
    """See `Transaction.upcoming`."""
    queue = session.queue(name)
    of_tags, cells = _narrowed(session.tag_ids(queue, tags))
    rows = session.connection.execute(
        "SELECT eta FROM (SELECT eta, tag, leases FROM tasks INDEXED BY tasks_delayed"  # noqa: S608
        " WHERE queue = ? AND state = 1 AND eta > ? AND eta <= ? ORDER BY eta LIMIT ?)"
        f" WHERE leases = 0{of_tags} ORDER BY eta",
        (queue.id, now, until, limit, *cells),
    )
    return [row[0] for row in rows]


def _due_etas(session: SqliteSession, queue: QueueRow, tag_ids: list[int] | None, *, now: Instant) -> list[Instant]:
    """Return the first etas, in order, of tasks that are stored as delayed or leased but ready as of `now`."""
    of_tags, cells = _narrowed(tag_ids)
    etas: list[Instant] = []
    for chosen in (
        f"tasks_delayed WHERE queue = ? AND state = 1 AND eta <= ?{of_tags}",
        f"tasks_leased WHERE queue = ? AND state = 2 AND eta <= ?{of_tags} AND {_alive(queue)}",
    ):
        sql = f"SELECT eta FROM tasks INDEXED BY {chosen} ORDER BY eta LIMIT ?"  # noqa: S608
        etas.extend(row[0] for row in session.connection.execute(sql, (queue.id, now, *cells, MAX_WAITING_READ)))
    return sorted(etas)


def _tag_of_oldest(session: SqliteSession, queue: QueueRow, tag_ids: list[int] | None, *, now: Instant) -> list[int]:
    """Return the tag of the first task that is leasable as of `now`, whatever its stored state."""
    of_tags, cells = _narrowed(tag_ids)
    heads = _ready_heads(session, queue, tag_ids)
    for chosen in (
        f"tasks_delayed WHERE queue = ? AND state = 1 AND eta <= ?{of_tags}",
        f"tasks_leased WHERE queue = ? AND state = 2 AND eta <= ?{of_tags} AND {_alive(queue)}",
    ):
        first = "-coalesce(priority, 0), eta, id" if queue.has_priorities else "0, eta, id"
        by = "1, eta, id" if queue.has_priorities else "eta, id"
        sql = f"SELECT {first}, tag FROM tasks INDEXED BY {chosen} ORDER BY {by} LIMIT 1"  # noqa: S608
        heads.extend(session.connection.execute(sql, (queue.id, now, *cells)))
    return [min(heads)[3]] if heads else []


def _ready_heads(session: SqliteSession, queue: QueueRow, tag_ids: list[int] | None) -> list[tuple[int, int, int, int]]:
    """Return state, eta, id and tag of the first ready task: of the queue, or of each of these tags."""
    if tag_ids is None:
        rows = session.connection.execute(_FIRST_URGENT, (queue.id,)).fetchall() if queue.has_priorities else []
        return rows or session.connection.execute(_FIRST_PLAIN, (queue.id,)).fetchall()
    return [(*head, tag_id) for tag_id in tag_ids for head in islice(heads_of(session, queue, tag_id, limit=1), 1)]


def live_leases(session: SqliteSession, name: str, *, limit: int, now: Instant) -> list[LiveLease]:
    """See `Transaction.live_leases`."""
    queue = session.queue(name)
    rows = session.connection.execute(
        "SELECT id, name, tag, worker, leases, leased_at, eta, ready_at FROM tasks INDEXED BY tasks_leased"
        " WHERE queue = ? AND state = 2 AND eta > ? ORDER BY eta, id LIMIT ?",
        (queue.id, now, limit),
    ).fetchall()
    return [LiveLease(chosen_name(row[0]) if row[1] is None else row[1], session.tag(row[2]), *row[3:]) for row in rows]


def next_eta(session: SqliteSession, name: str, *, now: Instant) -> Instant | None:
    """See `Transaction.next_eta`."""
    queue = session.queue(name)
    if queue.spec.moved_to:
        return None
    etas: list[Instant] = []
    for state, index in ((TaskState.DELAYED, "tasks_delayed"), (TaskState.LEASED, "tasks_leased")):
        etas.extend(
            row[0]
            for row in session.connection.execute(
                f"SELECT eta FROM tasks INDEXED BY {index} WHERE queue = ? AND state = {int(state)}"  # noqa: S608
                " ORDER BY eta LIMIT 1",
                (queue.id,),
            )
        )
    if queue.spec.per_tag.rate is not None:
        etas.extend(row[0] for row in session.connection.execute(_OPENS_AT, (queue.id,)))
    if queue.spec.rate is not None:
        full_at = load_whole(session, queue).full_at
        if not queue.spec.rate.tokens(full_at, now=now) and _first_ready(session, queue, None) is not None:
            etas.append(queue.spec.rate.reached_at(1, full_at))
    return min(etas, default=None)


def peek(session: SqliteSession, name: str, query: PeekQuery) -> Page:
    """See `Transaction.peek`."""
    queue = session.queue(name)
    tag_ids = session.tag_ids(queue, query.tags)
    shown: list[StoredTask] = []
    for row in _rows(session, queue, query, tag_ids):
        task = _after_expiry(task_of(session, queue, row), queue, now=query.now)
        if task is None or task.id <= query.after or task.state not in query.states:
            continue
        if tag_ids is not None and row[1] not in tag_ids:
            continue
        if len(shown) == query.limit:
            return Page(_completed(session, shown, query.payload_bytes), shown[-1].id if shown else None)
        shown.append(task)
    return Page(_completed(session, shown, query.payload_bytes))


def _after_expiry(task: StoredTask, queue: QueueRow, *, now: Instant) -> StoredTask | None:
    expired = semantics.expire(task, queue.spec, now=now)
    return expired.task if isinstance(expired, LeaseEnd) else expired


def _rows(session: SqliteSession, queue: QueueRow, query: PeekQuery, tag_ids: list[int] | None) -> Iterable[Row]:
    """Return rows in id order, among them all that match the query."""
    if query.names is not None:
        named = (row_of_name(session, queue, name) for name in dict.fromkeys(query.names))
        return sorted(row for row in named if row is not None)
    stored = _stored_states(query.states)
    counted = [queue.whole] if tag_ids is None else tag_ids
    if sum(gauge(session, counted, state) for state in stored) <= MAX_SORTED:
        return sorted(row for state in stored for row in in_state(session, queue, state, tag_ids, limit=MAX_SORTED))
    return _by_id(session, queue, query, tag_ids)


def _stored_states(states: frozenset[TaskState]) -> list[TaskState]:
    """Return the stored states whose tasks may be in `states` by now: time makes READY and DEAD tasks of others."""
    stored = set(states)
    if TaskState.READY in states:
        stored |= {TaskState.DELAYED, TaskState.LEASED}
    if TaskState.DEAD in states:
        stored.add(TaskState.LEASED)
    return sorted(stored)


def _by_id(session: SqliteSession, queue: QueueRow, query: PeekQuery, tag_ids: list[int] | None) -> Iterator[Row]:
    of_tags, cells = ("", ()) if tag_ids is None else (" AND tag IN (SELECT value FROM json_each(?))", (tag_ids,))
    return iter(
        session.connection.execute(
            f"SELECT {COLUMNS} FROM tasks NOT INDEXED WHERE id > ? AND queue = ?{of_tags} ORDER BY id",  # noqa: S608
            (query.after, queue.id, *(json.dumps(cell) for cell in cells)),
        )
    )


def _completed(session: SqliteSession, tasks: Sequence[StoredTask], payload_bytes: int) -> tuple[StoredTask, ...]:
    return tuple([completed(session.connection, task, payload_bytes=payload_bytes) for task in tasks])

"""The verbs that only look: statistics, waiting times, leases, tasks. Exact as of `now`, though nothing is settled."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import merge
from itertools import islice

from queue_core import semantics
from queue_core.clock import Instant
from queue_core.semantics import LeaseEnd
from queue_core.stats import LiveLease, QueueStats, TagStats, WaitingTask, sample_waiting
from queue_core.store import Page
from queue_core.stores.sqlite.admin import gauge, in_state, row_of_name
from queue_core.stores.sqlite.driver import Row
from queue_core.stores.sqlite.leases import in_order
from queue_core.stores.sqlite.rows import COLUMNS, ready_rows, task_of
from queue_core.stores.sqlite.session import QueueRow, SqliteSession
from queue_core.stores.sqlite.statistics import COLUMNS as COUNTERS
from queue_core.task import StoredTask, TagFilter, TaskState, chosen_name

HEAD = 1000  # etas of the ready queue that are read for `waiting`
SORTED_AT_MOST = 5000
"""Up to so many tasks of the states asked for are read by their index and sorted; more are met soon in id order."""

_SUMS = ", ".join(f"sum({counter})" for counter in COUNTERS)
_OF_TAGS = " AND tag IN (SELECT value FROM json_each(?))"
_READY_FIRST = f"{ready_rows('eta')} ORDER BY eta LIMIT ?2"
_READY_LAST = f"{ready_rows('eta')} ORDER BY eta DESC LIMIT 1"
_TAG_LAST = "SELECT eta FROM tasks INDEXED BY tasks_ready_by_tag WHERE tag = ? AND state = 0 ORDER BY eta DESC LIMIT 1"


def stats(step: SqliteSession, name: str, tags: TagFilter, *, now: Instant) -> QueueStats:
    """See `Transaction.stats`."""
    queue = step.queue(name)
    step.counts.write(step.cursor, now=step.now)
    return _stats(step, queue, step.tag_ids(queue, tags), now=now)


def _stats(step: SqliteSession, queue: QueueRow, tag_ids: list[int] | None, *, now: Instant) -> QueueStats:
    name, paused = queue.spec.name, queue.spec.is_closed
    if tag_ids == []:
        return QueueStats(name, paused=paused)
    ids = [queue.whole] if tag_ids is None else tag_ids
    of_tags, cells = _narrowed(tag_ids)
    counted = step.connection.execute(
        f"SELECT {_SUMS} FROM counts WHERE id IN (SELECT value FROM json_each(?))",  # noqa: S608
        (json.dumps(ids),),
    ).fetchone()
    assert counted is not None, "an aggregate answers one row"
    ready, delayed, leased, dead, added, leases, deleted, released, expired, died = (count or 0 for count in counted)
    etas = [_first_ready(step, queue, tag_ids)]
    if delayed:
        due, first = _due(step, f"tasks_delayed WHERE queue = ? AND state = 1 AND eta <= ?{of_tags}", queue, now, cells)
        ready, delayed = ready + due, delayed - due
        etas.append(first)
    if leased:
        lapsed = f"tasks_leased WHERE queue = ? AND state = 2 AND eta <= ?{of_tags}"
        due, first = _due(step, lapsed, queue, now, cells)
        if due:
            gone, _ = _due(step, f"{lapsed} AND NOT {_alive(queue)}", queue, now, cells)
            if gone:
                _, first = _due(step, f"{lapsed} AND {_alive(queue)}", queue, now, cells)
            ready, leased, expired, died = ready + due - gone, leased - due, expired + due, died + gone
            dead += gone if queue.spec.on_exhausted == "dead" else 0
            etas.append(first)
    oldest = min((eta for eta in etas if eta is not None), default=None)
    return QueueStats(
        name, ready, delayed, leased, dead, oldest, added, leases, deleted, released, expired, died, paused
    )


def _narrowed(tag_ids: list[int] | None) -> tuple[str, tuple[str, ...]]:
    """The condition that keeps to these tags, and what it needs."""
    return ("", ()) if tag_ids is None else (_OF_TAGS, (json.dumps(tag_ids),))


def _alive(queue: QueueRow) -> str:
    """The condition that a task has a lease left."""
    bound = queue.spec.max_leases
    return f"(leases < coalesce(max_leases, {'9e18' if bound is None else bound}))"


def _due(
    step: SqliteSession, chosen: str, queue: QueueRow, now: Instant, cells: tuple[str, ...]
) -> tuple[int, Instant | None]:
    """How many rows, and the first eta of them."""
    sql = f"SELECT count(*), min(eta) FROM tasks INDEXED BY {chosen}"  # noqa: S608
    row = step.connection.execute(sql, (queue.id, now, *cells)).fetchone()
    assert row is not None, "an aggregate answers one row"
    return row[0], row[1]


def _first_ready(step: SqliteSession, queue: QueueRow, tag_ids: list[int] | None) -> Instant | None:
    if tag_ids is None:
        row = step.connection.execute(_READY_FIRST, (queue.id, 1)).fetchone()
        return None if row is None else row[0]
    return next((Instant(eta) for eta, _ in in_order(step, tag_ids, limit=1)), None)


def tag_stats(step: SqliteSession, name: str, *, after: str | None, limit: int, now: Instant) -> list[TagStats]:
    """See `Transaction.tag_stats`."""
    queue = step.queue(name)
    step.counts.write(step.cursor, now=step.now)
    rows = step.connection.execute(
        "SELECT id, tag FROM counts WHERE queue = ? AND tag > ? ORDER BY tag LIMIT ?",
        (queue.id, after or "", limit),
    ).fetchall()
    if after is None:
        untagged = step.known_tag_id(queue, None)
        if untagged is not None:
            rows = [(untagged, None), *rows][:limit]
    return [TagStats(tag, _stats(step, queue, [tag_id], now=now)) for tag_id, tag in rows]


def waiting(step: SqliteSession, name: str, tags: TagFilter, *, now: Instant) -> tuple[WaitingTask, ...]:
    """See `Transaction.waiting`."""
    queue = step.queue(name)
    tag_ids = step.tag_ids(queue, tags)
    if tags.kind == "oldest":
        tag_ids = _tag_of_oldest(step, queue, tag_ids, now=now)
    ready = _stats(step, queue, tag_ids, now=now).ready
    if not ready:
        return ()
    if tag_ids is None:
        stored = (row[0] for row in step.connection.execute(_READY_FIRST, (queue.id, HEAD)))
        lasts = [step.connection.execute(_READY_LAST, (queue.id,)).fetchone()]
    else:
        stored = (eta for eta, _ in in_order(step, tag_ids, limit=HEAD))
        lasts = [step.connection.execute(_TAG_LAST, (tag_id,)).fetchone() for tag_id in tag_ids]
    due = _due_etas(step, queue, tag_ids, now=now)
    etas = list(islice(merge(stored, due), HEAD))
    newest = max([row[0] for row in lasts if row is not None] + due[-1:], default=now)
    return sample_waiting(etas, ready=ready, newest=newest) if etas else ()


def upcoming(
    step: SqliteSession, name: str, tags: TagFilter, *, until: Instant, limit: int, now: Instant
) -> list[Instant]:
    """See `Transaction.upcoming`."""
    queue = step.queue(name)
    of_tags, cells = _narrowed(step.tag_ids(queue, tags))
    rows = step.connection.execute(
        "SELECT eta FROM (SELECT eta, tag, leases FROM tasks INDEXED BY tasks_delayed"  # noqa: S608
        " WHERE queue = ? AND state = 1 AND eta > ? AND eta <= ? ORDER BY eta LIMIT ?)"
        f" WHERE leases = 0{of_tags} ORDER BY eta",
        (queue.id, now, until, limit, *cells),
    )
    return [row[0] for row in rows]


def _due_etas(step: SqliteSession, queue: QueueRow, tag_ids: list[int] | None, *, now: Instant) -> list[Instant]:
    """Etas, in order, of the first tasks that are stored as delayed or leased but are ready by now."""
    of_tags, cells = _narrowed(tag_ids)
    etas: list[Instant] = []
    for chosen in (
        f"tasks_delayed WHERE queue = ? AND state = 1 AND eta <= ?{of_tags}",
        f"tasks_leased WHERE queue = ? AND state = 2 AND eta <= ?{of_tags} AND {_alive(queue)}",
    ):
        sql = f"SELECT eta FROM tasks INDEXED BY {chosen} ORDER BY eta LIMIT ?"  # noqa: S608
        etas.extend(row[0] for row in step.connection.execute(sql, (queue.id, now, *cells, HEAD)))
    return sorted(etas)


def _tag_of_oldest(step: SqliteSession, queue: QueueRow, tag_ids: list[int] | None, *, now: Instant) -> list[int]:
    """The tag of the first leasable task, whether it is settled or not."""
    of_tags, cells = _narrowed(tag_ids)
    heads: list[tuple[int, int, int]] = _ready_heads(step, queue, tag_ids)
    for chosen in (
        f"tasks_delayed WHERE queue = ? AND state = 1 AND eta <= ?{of_tags}",
        f"tasks_leased WHERE queue = ? AND state = 2 AND eta <= ?{of_tags} AND {_alive(queue)}",
    ):
        sql = f"SELECT eta, id, tag FROM tasks INDEXED BY {chosen} ORDER BY eta, id LIMIT 1"  # noqa: S608
        heads.extend(step.connection.execute(sql, (queue.id, now, *cells)))
    return [min(heads)[2]] if heads else []


def _ready_heads(step: SqliteSession, queue: QueueRow, tag_ids: list[int] | None) -> list[tuple[int, int, int]]:
    """(eta, id, tag) of the first ready task: of the queue, or of each of these tags."""
    if tag_ids is None:
        return step.connection.execute(f"{ready_rows('eta, id, tag')} ORDER BY eta, id LIMIT 1", (queue.id,)).fetchall()
    return [(*head, tag_id) for tag_id in tag_ids for head in in_order(step, [tag_id], limit=1)]


def live_leases(step: SqliteSession, name: str, *, limit: int, now: Instant) -> list[LiveLease]:
    """See `Transaction.live_leases`."""
    queue = step.queue(name)
    rows = step.connection.execute(
        "SELECT id, name, tag, worker, leases, leased_at, eta, ready_at FROM tasks INDEXED BY tasks_leased"
        " WHERE queue = ? AND state = 2 AND eta > ? ORDER BY eta, id LIMIT ?",
        (queue.id, now, limit),
    ).fetchall()
    return [LiveLease(chosen_name(row[0]) if row[1] is None else row[1], step.tag(row[2]), *row[3:]) for row in rows]


def next_eta(step: SqliteSession, name: str) -> Instant | None:
    """See `Transaction.next_eta`."""
    queue = step.queue(name)
    if queue.spec.moved_to:
        return None
    etas: list[Instant] = []
    for state, index in ((TaskState.DELAYED, "tasks_delayed"), (TaskState.LEASED, "tasks_leased")):
        etas.extend(
            row[0]
            for row in step.connection.execute(
                f"SELECT eta FROM tasks INDEXED BY {index} WHERE queue = ? AND state = {int(state)}"  # noqa: S608
                " ORDER BY eta LIMIT 1",
                (queue.id,),
            )
        )
    return min(etas, default=None)


@dataclass(frozen=True, slots=True)
class SqlitePeek:
    """What a peek asks for."""

    tags: TagFilter
    states: frozenset[TaskState]
    names: Sequence[str] | None
    after: int
    limit: int
    payload_bytes: int
    now: Instant


def peek(step: SqliteSession, name: str, look: SqlitePeek) -> Page:
    """See `Transaction.peek`."""
    queue = step.queue(name)
    tag_ids = step.tag_ids(queue, look.tags)
    shown: list[StoredTask] = []
    for row in _rows(step, queue, look, tag_ids):
        task = _settled(task_of(step, queue, row), queue, now=look.now)
        if task is None or task.id <= look.after or task.state not in look.states:
            continue
        if tag_ids is not None and row[1] not in tag_ids:
            continue
        if len(shown) == look.limit:
            return Page(_with_payloads(step, shown, look.payload_bytes), shown[-1].id if shown else None)
        shown.append(task)
    return Page(_with_payloads(step, shown, look.payload_bytes))


def _settled(task: StoredTask, queue: QueueRow, *, now: Instant) -> StoredTask | None:
    settled = semantics.expire(task, queue.spec, now=now)
    return settled.task if isinstance(settled, LeaseEnd) else settled


def _rows(step: SqliteSession, queue: QueueRow, look: SqlitePeek, tag_ids: list[int] | None) -> Iterable[Row]:
    """Rows in id order among which are all that are asked for."""
    if look.names is not None:
        named = (row_of_name(step, queue, name) for name in dict.fromkeys(look.names))
        return sorted(row for row in named if row is not None)
    stored = _stored_states(look.states)
    counted = [queue.whole] if tag_ids is None else tag_ids
    if sum(gauge(step, counted, state) for state in stored) <= SORTED_AT_MOST:
        return sorted(row for state in stored for row in in_state(step, queue, state, tag_ids, limit=SORTED_AT_MOST))
    return _by_id(step, queue, look, tag_ids)


def _stored_states(states: frozenset[TaskState]) -> list[TaskState]:
    """The states as stored from which the settled ones may come: time makes READY and DEAD tasks of others."""
    stored = set(states)
    if TaskState.READY in states:
        stored |= {TaskState.DELAYED, TaskState.LEASED}
    if TaskState.DEAD in states:
        stored.add(TaskState.LEASED)
    return sorted(stored)


def _by_id(step: SqliteSession, queue: QueueRow, look: SqlitePeek, tag_ids: list[int] | None) -> Iterator[Row]:
    of_tags, cells = ("", ()) if tag_ids is None else (" AND tag IN (SELECT value FROM json_each(?))", (tag_ids,))
    return iter(
        step.connection.execute(
            f"SELECT {COLUMNS} FROM tasks NOT INDEXED WHERE id > ? AND queue = ?{of_tags} ORDER BY id",  # noqa: S608
            (look.after, queue.id, *(json.dumps(cell) for cell in cells)),
        )
    )


def _with_payloads(step: SqliteSession, tasks: Sequence[StoredTask], payload_bytes: int) -> tuple[StoredTask, ...]:
    cut = (
        "SELECT coalesce(substr(coalesce(tasks.payload, payloads.payload), 1, ?), x'')"
        " FROM tasks LEFT JOIN payloads USING (id) WHERE id = ?"
    )
    shown = []
    for task in tasks:
        row = step.connection.execute(cut, (payload_bytes, task.id)).fetchone()
        payload = b"" if row is None else row[0]
        shown.append(replace(task, payload=payload))
    return tuple(shown)

"""The add verb: write rows, names and counters of new tasks.

A task that is added alone is staged in `staged_adds`, a table without an index: one page to write instead of three (ADR
21). Staged adds are never visible: they are flushed before any other verb of a transaction, in any process, and before
a reader's snapshot.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter

from queue_core import semantics
from queue_core.clock import Instant
from queue_core.rare_fields import has_rare_fields
from queue_core.stores.rare_text import rare_text
from queue_core.stores.sqlite.counters import ADDED, DELAYED, GAUGE_OF_STATE, READY
from queue_core.stores.sqlite.driver import Cell
from queue_core.stores.sqlite.rows import LONG_PAYLOAD_BYTES, Refusal, expire_used_up, give_names, refusal_of_name
from queue_core.stores.sqlite.session import QueueRow, SqliteSession
from queue_core.task import NewTask, TaskState
from queue_core.verbs import Added

MAX_STAGED = 48
"""Tasks staged at most. A reader flushes so many in 0.15 to 0.22 ms, and one in 0.06 to 0.08 ms."""
MAX_STAGED_PER_TRANSACTION = 4
"""A transaction that adds more tasks flushes at once: to write a row twice would cost more than the pages saved."""

_STAGE = "INSERT INTO staged_adds VALUES (?, ?, ?, ?, ?, ?, ?)"
_COUNT = (
    "SELECT c.id, a.tag, count(*), max(a.added_at) FROM staged_adds a"
    " JOIN counts c ON c.queue = a.queue AND c.tag IS NULL GROUP BY a.tag"
)
_FLUSH = (
    "INSERT INTO tasks SELECT id, queue, tag, 0, added_at, added_at, added_at, 0, 0, '', '', NULL, NULL,"
    " max_leases, headers, NULL, NULL, NULL, payload, NULL FROM staged_adds"
)

_INSERT = (
    "INSERT INTO tasks VALUES (?1, ?2, ?3, ?4, ?5, ?5, ?6, 0, 0, '', '', ?7, NULL, ?8, ?9, NULL, NULL, NULL, ?10, NULL)"
)
_INSERT_URGENT = _INSERT.removesuffix("NULL)") + "?11)"

_QUEUE_OF = attrgetter("queue")
_EXISTS: Refusal = "exists"


def check_adds(session: SqliteSession, queue: str, tasks: Sequence[NewTask], *, now: Instant) -> None:
    """Raise for an unknown queue or an eta out of range."""
    session.open_queue(queue)
    for new in tasks:
        if new.queue is not None:
            session.open_queue(new.queue)
        if new.eta is not None:
            semantics.effective_eta(new, now=now)


def add(session: SqliteSession, queue: str, tasks: Sequence[NewTask], *, now: Instant) -> list[Added]:
    """Add checked tasks, in order; runs of one queue are written together."""
    session.has_changes = True
    outcomes: list[Added] = []
    for named, run in groupby(tasks, _QUEUE_OF):
        outcomes += _add_run(session, session.queue(named or queue), run, now=now)
    return outcomes


def _add_run(session: SqliteSession, queue: QueueRow, tasks: Iterable[NewTask], *, now: Instant) -> list[Added]:
    outcomes: list[Added] = []
    rows: list[tuple[Cell, ...]] = []
    long: list[tuple[int, bytes]] = []
    named: dict[str, int] = {}
    numbers: list[int] = []
    urgent: list[tuple[Cell, ...]] = []
    last_tag: str | None = ""  # no tag is empty
    tag, at_once, at_once_state = -1, READY, 0
    task_id = session.next_id
    for new in tasks:
        name = new.name
        if name is not None:
            refusal: Refusal | None = "exists" if name in named else _taken(session, queue, name, now=now)
            if refusal is not None:
                outcomes.append(Added(name, refusal))
                continue
            named[name] = task_id
        eta = now if new.eta is None and new.delay_seconds is None else semantics.effective_eta(new, now=now)
        is_delayed = eta > now
        if new.tag != last_tag:
            last_tag = new.tag
            tag = session.tag_id(queue, last_tag)
            numbers = session.counts.of(queue.whole, tag)
            if not queue.is_plain:
                at_once_state = queue.state_of(tag, TaskState.READY)
                at_once = GAUGE_OF_STATE[at_once_state]
        numbers[DELAYED if is_delayed else at_once] += 1
        numbers[ADDED] += 1
        payload: bytes | None = new.payload
        if len(new.payload) > LONG_PAYLOAD_BYTES:
            long.append((task_id, new.payload))
            payload = None
        rare = rare_text(new) if has_rare_fields(new) else None
        state = 1 if is_delayed else at_once_state
        if new.priority:
            queue = session.with_priorities(queue)
            cells = (task_id, queue.id, tag, state or -new.priority, eta, now, name, new.max_leases, rare, payload)
            urgent.append((*cells, new.priority))
        else:
            rows.append((task_id, queue.id, tag, state, eta, now, name, new.max_leases, rare, payload))
        outcomes.append(Added(f"_{task_id}" if name is None else name, "added", not state))
        task_id += 1
    if rows:
        session.cursor.executemany(_INSERT, rows)
    if urgent:
        session.cursor.executemany(_INSERT_URGENT, urgent)
    session.next_id = task_id
    if long:
        session.connection.executemany("INSERT INTO payloads VALUES (?, ?)", long)
    if named:
        give_names(session.connection, queue, list(named.items()), now=now)
    return outcomes


def _taken(session: SqliteSession, queue: QueueRow, name: str, *, now: Instant) -> Refusal | None:
    """Return why `name` can't be added, or None. A task whose last lease has expired no longer has its name."""
    refusal = refusal_of_name(session.connection, queue, name, now=now)
    if refusal == _EXISTS and expire_used_up(session, queue, name, now=now):
        return refusal_of_name(session.connection, queue, name, now=now)
    return refusal


def stage(session: SqliteSession, queue: str, tasks: Sequence[NewTask], *, now: Instant) -> list[Added] | None:
    """Stage one checked task, or do nothing and return None.

    A task can be staged when it is ready at once and is short, and has no name, no priority, and a tag with a row in
    `counts`, but no lane and no place in a rotation; and while no limit bounds all payloads, as the triggers that
    measure them are on `tasks`.
    """
    if len(tasks) != 1:
        return None
    new = tasks[0]
    if new.name is not None or new.eta is not None or new.delay_seconds is not None or new.priority:
        return None
    row = session.queue(new.queue or queue)
    if not row.is_plain and row.has_lanes:
        return None
    tag = session.existing_tag_id(row, new.tag)
    if tag is None or len(new.payload) > LONG_PAYLOAD_BYTES or session.catalog.is_limited:
        return None
    rare = rare_text(new) if has_rare_fields(new) else None
    if rare is not None and len(rare) + len(new.payload) > LONG_PAYLOAD_BYTES:
        return None
    task_id = session.next_id
    session.next_id += 1
    session.has_changes = True
    session.staged.append((row.whole, (task_id, row.id, tag, now, new.max_leases, rare, new.payload)))
    return [Added(f"_{task_id}", "added", True)]  # noqa: FBT003 - that it is ready


def write_staged(session: SqliteSession) -> None:
    """Write the adds of a transaction at its end: a few are staged in the table, more are flushed with all others."""
    staged = session.staged
    if len(staged) > MAX_STAGED_PER_TRANSACTION or session.staged_rows + len(staged) > MAX_STAGED:
        flush(session)
        return
    for _, cells in staged:
        session.cursor.execute(_STAGE, cells)
    session.staged_rows += len(staged)
    session.staged = []


def flush(session: SqliteSession) -> None:
    """Move all staged adds, of the table and of this transaction, to `tasks`, and count them."""
    if session.staged_rows:
        for whole, tag, number, added_at in session.cursor.execute(_COUNT).fetchall():
            session.counts.change(whole, tag, ((READY, number), (ADDED, number)))
            session.now = session.now or added_at
        session.cursor.execute(_FLUSH)
        session.cursor.execute("DELETE FROM staged_adds")
        session.staged_rows = 0
    if session.staged:
        rows: list[tuple[Cell, ...]] = []
        for whole, (task_id, queue_id, tag, added_at, max_leases, rare, payload) in session.staged:
            session.counts.change(whole, tag, ((READY, 1), (ADDED, 1)))
            rows.append((task_id, queue_id, tag, 0, added_at, added_at, None, max_leases, rare, payload))
        session.cursor.executemany(_INSERT, rows)
        session.staged = []

"""The transfer verbs, for moving a queue to or from another store: restore tasks, hold names, mark a queue as moved."""

from collections.abc import Sequence

from queue_core import semantics
from queue_core.attempts.attempt import attempts_text
from queue_core.clock import Instant
from queue_core.stores.rare_text import rare_text
from queue_core.stores.sqlite.counters import ADDED, GAUGE_OF_STATE
from queue_core.stores.sqlite.driver import Cell
from queue_core.stores.sqlite.rows import (
    LONG_PAYLOAD_BYTES,
    give_names,
    progress_text,
    refusal_of_name,
    spent_text,
    stored_state,
)
from queue_core.stores.sqlite.session import QueueRow, SqliteSession
from queue_core.task import StoredTask, TaskState
from queue_core.verbs import Added, HeldName

_INSERT = f"INSERT INTO tasks VALUES ({', '.join(20 * '?')})"  # noqa: S608
_HELD = (
    "SELECT name, until FROM names WHERE queue = ? AND name > ? AND task IS NULL AND until > ? ORDER BY name LIMIT ?"
)
_HOLD = (
    "INSERT INTO names VALUES (?, ?, NULL, ?)"
    " ON CONFLICT DO UPDATE SET until = max(until, excluded.until) WHERE task IS NULL"
)


def restore(session: SqliteSession, name: str, tasks: Sequence[StoredTask], *, now: Instant) -> list[Added]:
    """See `Transaction.restore`."""
    queue = session.queue(name)
    session.has_changes = True
    outcomes: list[Added] = []
    kept: list[StoredTask] = []
    named: dict[str, int] = {}
    for moved in tasks:
        if moved.name is not None:
            taken = refusal_of_name(session.connection, queue, moved.name, now=now)
            if moved.name in named or taken is not None:
                outcomes.append(Added(moved.name, taken or "exists"))
                continue
            named[moved.name] = session.next_id
        task = semantics.restore(moved, task_id=session.next_id, queue=name, now=now)
        kept.append(task)
        is_ready = queue.state_of(task.tag is not None, task.state) is TaskState.READY
        outcomes.append(Added(task.shown_name, "added", is_ready))
        session.next_id += 1
    _insert(session, queue, kept)
    if named:
        give_names(session.connection, queue, list(named.items()), now=now)
    return outcomes


def _insert(session: SqliteSession, queue: QueueRow, tasks: Sequence[StoredTask]) -> None:
    rows: list[tuple[Cell, ...]] = []
    for task in tasks:
        tag = session.tag_id(queue, task.tag)
        state = queue.state_of(tag, task.state)
        session.counts.change(queue.whole, tag, ((GAUGE_OF_STATE[state], 1), (ADDED, 1)))
        if task.priority:
            queue = session.with_priorities(queue)
        is_long = len(task.payload) > LONG_PAYLOAD_BYTES
        rows.append(
            (
                task.id,
                queue.id,
                tag,
                stored_state(state, task.priority),
                task.eta,
                task.ready_at,
                task.added_at,
                task.leases,
                task.leased_at,
                task.worker,
                task.reason,
                task.name,
                spent_text(task.spent),
                task.max_leases,
                rare_text(task),
                attempts_text(task.attempts),
                progress_text(task.progress),
                task.checkpoint,
                None if is_long else task.payload,
                task.priority or None,
            )
        )
    session.connection.executemany(_INSERT, rows)
    session.connection.executemany(
        "INSERT INTO payloads VALUES (?, ?)",
        [(task.id, task.payload) for task in tasks if len(task.payload) > LONG_PAYLOAD_BYTES],
    )


def held_names(session: SqliteSession, name: str, *, after: str | None, limit: int, now: Instant) -> list[HeldName]:
    """See `Transaction.held_names`."""
    queue = session.queue(name)
    rows = session.connection.execute(_HELD, (queue.id, after or "", now, limit)).fetchall()
    return [HeldName(row[0], Instant(row[1])) for row in rows]


def hold_names(session: SqliteSession, name: str, names: Sequence[HeldName], *, now: Instant) -> None:
    """See `Transaction.hold_names`."""
    queue = session.queue(name)
    session.has_changes = True
    session.connection.executemany(_HOLD, [(queue.id, held.name, held.until) for held in names if held.until > now])


def set_moved(session: SqliteSession, name: str, to: str) -> None:
    """See `Transaction.set_moved`. The catalog's revision rises, so that every process sees it."""
    queue = session.queue(name)
    if queue.spec.moved_to != to:
        session.has_changes = True
        session.connection.execute("UPDATE queues SET moved_to = ? WHERE id = ?", (to, queue.id))
        session.catalog_changed()

"""The two primitives of `ChangeVerbs`: which rows a verb means, and what is written of its outcomes."""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from queue_core.changes import READY_OR_HELD, Change, Held, InStates, LeasedBy, Named, Removal, Selector
from queue_core.clock import Instant
from queue_core.semantics import LeaseEnd
from queue_core.stores.sqlite.counters import DELETED, GAUGE_OF_STATE
from queue_core.stores.sqlite.driver import Row
from queue_core.stores.sqlite.lanes.updates import expire
from queue_core.stores.sqlite.rows import COLUMNS, completed, end, kept, remove, task_of, write
from queue_core.stores.sqlite.selection import in_state, row_after_expiry, row_of_name
from queue_core.stores.sqlite.session import QueueRow, SqliteSession
from queue_core.task import QueueSpec, StoredTask, TaskState

_LIVE_LEASES = (
    f"SELECT {COLUMNS} FROM tasks INDEXED BY tasks_leased WHERE queue = ? AND state = 2 AND eta > ?"  # noqa: S608
    " AND worker = ? ORDER BY id"
)
_SET_TAG = "UPDATE tasks SET tag = ? WHERE id = ?"
_TAKEN = (
    "SELECT name FROM names WHERE queue = ? AND name IN (SELECT value FROM json_each(?))"
    " AND (task IS NOT NULL OR until > ?)"
)


def hold(session: SqliteSession, name: str, selector: Selector, *, now: Instant) -> tuple[QueueSpec, list[Held[Row]]]:
    """See `ChangeVerbs.hold`."""
    queue = session.open_queue(name)
    if not isinstance(selector, Named) or selector.settles:
        expire(session, queue, now=now)
    session.has_changes = True
    rows = _selected(session, queue, selector, now=now)
    tasks = [task_of(session, queue, row) for _, row in rows]
    if not isinstance(selector, LeasedBy) and selector.whole:
        tasks = [completed(session.connection, task) for task in tasks]
    return queue.spec, [Held(given, task, row) for (given, row), task in zip(rows, tasks, strict=True)]


def _selected(session: SqliteSession, queue: QueueRow, selector: Selector, *, now: Instant) -> list[tuple[str, Row]]:
    match selector:
        case Named():
            find = partial(row_after_expiry, now=now) if selector.settles else row_of_name
            found = [(name, find(session, queue, name)) for name in selector.names]
            return [(name, row) for name, row in found if row is not None]
        case LeasedBy():
            live = session.connection.execute(_LIVE_LEASES, (queue.id, now, selector.worker))
            return [("", row) for row in live.fetchall()]
        case InStates():
            tag_ids = session.tag_ids(queue, selector.tags)
            rows: list[Row] = []
            for state in selector.states:
                rows += in_state(session, queue, state, tag_ids, limit=selector.limit - len(rows))
            return [("", row) for row in rows]


def change(session: SqliteSession, name: str, changes: Sequence[Change[Row]], *, now: Instant) -> bool:
    """See `ChangeVerbs.change`. Nobody else writes within a transaction, so that it always succeeds."""
    queue = session.open_queue(name)
    removed: list[Row] = []
    for one in changes:
        row, outcome = one.held.record, one.outcome
        if isinstance(outcome, LeaseEnd):
            end(session, queue, row, outcome)
        elif isinstance(outcome, Removal):
            removed.append(row)
            done = ((DELETED, 1),) if outcome is Removal.DELETED else ()
            session.counts.change(queue.whole, row[1], ((GAUGE_OF_STATE[one.held.task.state], -1), *done))
        else:
            _write(session, queue, one.held, outcome)
    if removed:
        remove(session, queue, removed, at=now)
    return True


def _write(session: SqliteSession, queue: QueueRow, held: Held[Row], outcome: StoredTask) -> None:
    before, tag_before = held.task, held.record[1]
    tag_id = tag_before if outcome.tag == before.tag else session.tag_id(queue, outcome.tag)
    is_ready = outcome.state in READY_OR_HELD
    after = kept(queue, tag_id, replace(outcome, state=TaskState.READY)) if is_ready else outcome
    write(session.connection, [after])
    if tag_id != tag_before:
        session.connection.execute(_SET_TAG, (tag_id, before.id))
    if tag_id != tag_before or after.state is not before.state:
        session.counts.change(queue.whole, tag_before, ((GAUGE_OF_STATE[before.state], -1),))
        session.counts.change(queue.whole, tag_id, ((GAUGE_OF_STATE[after.state], 1),))


def taken_names(session: SqliteSession, name: str, names: Sequence[str], *, now: Instant) -> set[str]:
    """See `ChangeVerbs.taken_names`."""
    queue = session.queue(name)
    return {row[0] for row in session.connection.execute(_TAKEN, (queue.id, json.dumps(list(names)), now)).fetchall()}

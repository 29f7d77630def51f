"""The two primitives of `ChangeVerbs`: which rows a verb means, and what is written of its outcomes."""

import json
from collections import Counter
from collections.abc import Sequence
from functools import partial
from operator import itemgetter

from queue_core.clock import Instant
from queue_core.fast_values import replaced
from queue_core.semantics import LeaseEnd
from queue_core.stores.sqlite.counters import DELETED, GAUGE_OF_STATE
from queue_core.stores.sqlite.driver import Row
from queue_core.stores.sqlite.lanes.updates import expire
from queue_core.stores.sqlite.rows import (
    COLUMNS,
    REMOVED_COLUMNS,
    REMOVED_WIDTH,
    completed,
    end,
    kept,
    remove,
    removed_columns,
    state_of,
    task_of,
    write,
)
from queue_core.stores.sqlite.selection import in_state, row_after_expiry, row_of_name
from queue_core.stores.sqlite.session import QueueRow, SqliteSession
from queue_core.task import StoredTask, TaskState
from queue_core.verbs.change_verbs import HeldTasks, InStates, LeasedBy, Named, Outcome, Removed, Selector

_LIVE_LEASES = (
    f"SELECT {COLUMNS} FROM tasks INDEXED BY tasks_leased WHERE queue = ? AND state = 2 AND eta > ?"  # noqa: S608
    " AND worker = ? ORDER BY id LIMIT ?"
)
_TAG_AND_STATE = itemgetter(1, 2)
_SET_TAG = "UPDATE tasks SET tag = ? WHERE id = ?"
_TAKEN = (
    "SELECT name FROM names WHERE queue = ? AND name IN (SELECT value FROM json_each(?))"
    " AND (task IS NOT NULL OR until > ?)"
)


def hold(session: SqliteSession, name: str, selector: Selector, *, now: Instant) -> HeldTasks[Row]:
    """See `ChangeVerbs.hold`."""
    queue = session.open_queue(name)
    if not isinstance(selector, Named) or selector.settles:
        expire(session, queue, now=now)
    session.has_changes = True
    names: list[str] = []
    if isinstance(selector, Named):
        find = partial(row_after_expiry, now=now) if selector.settles else row_of_name
        named = {given: row for given in selector.names if (row := find(session, queue, given)) is not None}
        names, rows = list(named), list(named.values())
    elif isinstance(selector, LeasedBy):
        rows = session.connection.execute(_LIVE_LEASES, (queue.id, now, selector.worker, selector.limit)).fetchall()
    else:
        rows = _in_states(session, queue, selector)
    read = _complete_task if not isinstance(selector, LeasedBy) and selector.depth == "whole" else task_of
    rest = selector.rest(len(rows)) if isinstance(selector, LeasedBy) else None
    return HeldTasks(queue.spec, rows, partial(read, session, queue), names, rest=rest)


def _in_states(session: SqliteSession, queue: QueueRow, selector: InStates) -> list[Row]:
    tag_ids = session.tag_ids(queue, selector.tags)
    columns = REMOVED_COLUMNS if selector.depth == "id" else COLUMNS
    rows: list[Row] = []
    for state in selector.states:
        rows += in_state(session, queue, state, tag_ids, limit=selector.limit - len(rows), columns=columns)
    return rows


def _complete_task(session: SqliteSession, queue: QueueRow, row: Row) -> StoredTask:
    return completed(session.connection, task_of(session, queue, row))


def change(session: SqliteSession, name: str, changes: Sequence[tuple[Row, Outcome]], *, now: Instant) -> bool:
    """See `ChangeVerbs.change`. Nobody else writes within a transaction, so that it always succeeds."""
    queue = session.open_queue(name)
    written: list[StoredTask] = []
    for row, outcome in changes:
        if isinstance(outcome, LeaseEnd):
            end(session, queue, row, outcome)
        elif isinstance(outcome, StoredTask):
            written.append(_moved(session, queue, row, outcome))
    for kind in Removed:
        _remove(session, queue, [row for row, outcome in changes if outcome is kind], kind, now=now)
    write(session.connection, written)
    return True


def _remove(session: SqliteSession, queue: QueueRow, rows: Sequence[Row], kind: Removed, *, now: Instant) -> None:
    """Remove tasks that nobody has leased, as a set: all rows of `COLUMNS`, or all of `REMOVED_COLUMNS`."""
    if not rows:
        return
    if len(rows[0]) > REMOVED_WIDTH:
        rows = [removed_columns(row) for row in rows]
    for (tag, state), number in Counter(map(_TAG_AND_STATE, rows)).items():
        numbers = session.counts.of(queue.whole, tag)
        numbers[GAUGE_OF_STATE[TaskState(max(state, 0))]] -= number
        numbers[DELETED] += number * (kind is Removed.DELETED)
    remove(session, queue, rows, at=now)


def _moved(session: SqliteSession, queue: QueueRow, row: Row, outcome: StoredTask) -> StoredTask:
    """Change the tag and the counters of a task that nobody has leased; return it as its row is to be written."""
    tag_before, state_before = row[1], state_of(row)
    tag_id = tag_before if outcome.tag == session.tag(tag_before) else session.tag_id(queue, outcome.tag)
    admitted = replaced(outcome, state=TaskState.READY) if outcome.state is TaskState.HELD else outcome
    after = kept(queue, tag_id, admitted)
    if tag_id != tag_before:
        session.connection.execute(_SET_TAG, (tag_id, row[0]))
    if tag_id != tag_before or after.state is not state_before:
        session.counts.change(queue.whole, tag_before, ((GAUGE_OF_STATE[state_before], -1),))
        session.counts.change(queue.whole, tag_id, ((GAUGE_OF_STATE[after.state], 1),))
    return after


def taken_names(session: SqliteSession, name: str, names: Sequence[str], *, now: Instant) -> set[str]:
    """See `ChangeVerbs.taken_names`."""
    queue = session.queue(name)
    return {row[0] for row in session.connection.execute(_TAKEN, (queue.id, json.dumps(list(names)), now)).fetchall()}

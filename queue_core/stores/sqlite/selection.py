"""Rows of tasks by their names and by their states."""

import json
from collections.abc import Sequence

from queue_core.clock import Instant
from queue_core.stores.sqlite.counters import COLUMNS as COUNTERS
from queue_core.stores.sqlite.counters import GAUGE_OF_STATE
from queue_core.stores.sqlite.driver import Row
from queue_core.stores.sqlite.rows import COLUMNS, expire_lease, load, ready_rows, task_id_of
from queue_core.stores.sqlite.session import QueueRow, SqliteSession
from queue_core.task import TaskState

INDEX_OF_STATE = {
    TaskState.DELAYED: "tasks_delayed",
    TaskState.LEASED: "tasks_leased",
    TaskState.DEAD: "tasks_kept_back",
    TaskState.HELD: "tasks_kept_back",
}
IN_STATE = {state: f"state = {int(state)}" + " AND state > 2" * (state > TaskState.LEASED) for state in INDEX_OF_STATE}
"""The conditions of these states; a partial index is found by the very words of its own."""
_OF_TAGS = " AND tag IN (SELECT value FROM json_each(?))"


def row_after_expiry(session: SqliteSession, queue: QueueRow, name: str, *, now: Instant) -> Row | None:
    """Return the row of a named task, its lease expired if due, even when more were due than one call expires."""
    row = row_of_name(session, queue, name)
    if row is not None and row[2] == TaskState.LEASED and row[3] <= now:
        expire_lease(session, queue, row, now=now)
        return row_of_name(session, queue, name)
    return row


def row_of_name(session: SqliteSession, queue: QueueRow, name: str) -> Row | None:
    """Return the row of the task of a given or chosen name."""
    task_id = task_id_of(session.connection, queue, name)
    if task_id is None:
        return None
    row = next(iter(load(session.connection, queue, [task_id])), None)
    # A chosen name (`_42`) is not the name of a task that was given another.
    return (
        row if row is not None and row[10] in (None, name) and (row[10] is not None or name == f"_{row[0]}") else None
    )


def in_state(
    session: SqliteSession,
    queue: QueueRow,
    state: TaskState,
    tag_ids: list[int] | None,
    *,
    limit: int,
    columns: str = COLUMNS,
) -> list[Row]:
    """Return up to `limit` rows of a state (and of these tags) in the order of the state's index."""
    if limit <= 0 or tag_ids == []:
        return []
    if state is TaskState.READY and queue.has_priorities:
        of_tags, cells = ("", ()) if tag_ids is None else (_OF_TAGS, (json.dumps(tag_ids),))
        urgent = session.connection.execute(
            f"SELECT {columns} FROM tasks INDEXED BY tasks_urgent WHERE queue = ? AND state < 0{of_tags} LIMIT ?",  # noqa: S608
            (queue.id, *cells, limit),
        ).fetchall()
        return [*urgent, *_in_state(session, queue, state, tag_ids, limit=limit - len(urgent), columns=columns)]
    return _in_state(session, queue, state, tag_ids, limit=limit, columns=columns)


def _in_state(
    session: SqliteSession,
    queue: QueueRow,
    state: TaskState,
    tag_ids: list[int] | None,
    *,
    limit: int,
    columns: str,
) -> list[Row]:
    """Return rows of a state, but no ready ones that have a priority."""
    if tag_ids is None and state is TaskState.READY:
        return session.connection.execute(f"{ready_rows(columns)} LIMIT ?2", (queue.id, limit)).fetchall()
    if tag_ids is None:
        return session.connection.execute(
            f"SELECT {columns} FROM tasks INDEXED BY {INDEX_OF_STATE[state]} WHERE queue = ? AND {IN_STATE[state]}"  # noqa: S608
            " LIMIT ?",
            (queue.id, limit),
        ).fetchall()
    if gauge(session, tag_ids, state) == 0:
        return []
    if state is TaskState.READY:
        return session.connection.execute(
            f"SELECT {columns} FROM (SELECT value AS wanted FROM json_each(?))"  # noqa: S608
            " CROSS JOIN tasks INDEXED BY tasks_ready_by_tag ON tag = wanted AND state = 0 LIMIT ?",
            (json.dumps(tag_ids), limit),
        ).fetchall()
    return session.connection.execute(
        f"SELECT {columns} FROM tasks INDEXED BY {INDEX_OF_STATE[state]} WHERE queue = ? AND {IN_STATE[state]}"  # noqa: S608
        f"{_OF_TAGS} LIMIT ?",
        (queue.id, json.dumps(tag_ids), limit),
    ).fetchall()


def gauge(session: SqliteSession, tag_ids: Sequence[int], state: TaskState) -> int:
    """Return how many tasks of these tags are stored in a state; this transaction's changes are written first."""
    session.counts.write(session.cursor, now=session.now)
    row = session.connection.execute(
        f"SELECT sum({COUNTERS[GAUGE_OF_STATE[state]]}) FROM counts WHERE id IN (SELECT value FROM json_each(?))",  # noqa: S608
        (json.dumps(list(tag_ids)),),
    ).fetchone()
    return 0 if row is None or row[0] is None else int(row[0])

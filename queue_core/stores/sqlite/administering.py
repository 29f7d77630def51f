"""The verbs of people: delete by name, purge, redrive; none of them asks for a lease's token."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

from queue_core import semantics
from queue_core.clock import Instant
from queue_core.limits import check_eta
from queue_core.stores.sqlite import names as given_names
from queue_core.stores.sqlite.counts import COLUMNS as COUNTERS
from queue_core.stores.sqlite.counts import DEAD, DELAYED, DELETED, GAUGE_OF_STATE, READY
from queue_core.stores.sqlite.driver import Row
from queue_core.stores.sqlite.rows import COLUMNS, end, load, payload_of, ready_rows, remove, task_of, write
from queue_core.stores.sqlite.settling import expire, settle
from queue_core.stores.sqlite.step import QueueRow, Step
from queue_core.task import StoredTask, TagFilter, TaskState

NameOutcome = Literal["deleted", "unknown", "tombstoned"]

INDEX_OF_STATE = {
    TaskState.DELAYED: "tasks_delayed",
    TaskState.LEASED: "tasks_leased",
    TaskState.DEAD: "tasks_dead",
}


def delete_by_name(step: Step, name: str, names: Sequence[str], *, now: Instant) -> list[NameOutcome]:
    """See `Transaction.delete_by_name`."""
    queue = step.open_queue(name)
    settle(step, queue, now=now)
    step.told = True
    return [_delete_named(step, queue, given, now=now) for given in names]


def _delete_named(step: Step, queue: QueueRow, name: str, *, now: Instant) -> NameOutcome:
    row = _settled_row(step, queue, name, now=now)
    if row is None:
        return "tombstoned" if given_names.taken(step.connection, queue, name, now=now) else "unknown"
    state = TaskState(row[2])
    if state is TaskState.LEASED:
        end(step, queue, row, semantics.delete(task_of(step, queue, row), now=now))
    else:
        remove(step, queue, [row], at=now)
        step.counts.change(queue.whole, row[1], ((GAUGE_OF_STATE[state], -1), (DELETED, 1)))
    return "deleted"


def _settled_row(step: Step, queue: QueueRow, name: str, *, now: Instant) -> Row | None:
    """The row of a named task, its own expiry settled even when more tasks were due than one call settles."""
    row = row_of_name(step, queue, name)
    if row is not None and row[2] == TaskState.LEASED and row[3] <= now:
        expire(step, queue, row, now=now)
        return row_of_name(step, queue, name)
    return row


def row_of_name(step: Step, queue: QueueRow, name: str) -> Row | None:
    """The row of the task of a given or chosen name."""
    task_id = given_names.task_id_of(step.connection, queue, name)
    if task_id is None:
        return None
    row = next(iter(load(step.connection, queue, [task_id])), None)
    # A chosen name (`_42`) is not the name of a task that was given another.
    return (
        row if row is not None and row[10] in (None, name) and (row[10] is not None or name == f"_{row[0]}") else None
    )


def purge(step: Step, name: str, tags: TagFilter, states: Iterable[TaskState], *, limit: int, now: Instant) -> int:
    """See `Transaction.purge` and `purge_dead`."""
    queue = step.open_queue(name)
    settle(step, queue, now=now)
    step.told = True
    tag_ids = step.tag_ids(queue, tags)
    count = 0
    for state in states:
        rows = in_state(step, queue, state, tag_ids, limit=limit - count)
        if rows:
            remove(step, queue, rows, at=now)
            count += len(rows)
            for row in rows:
                step.counts.change(queue.whole, row[1], ((GAUGE_OF_STATE[state], -1),))
    return count


def postpone(step: Step, name: str, given: str, *, expected: Instant, eta: Instant, now: Instant) -> bool:
    """See `Transaction.postpone`."""
    queue = step.open_queue(name)
    check_eta(eta, now=now)
    step.told = True
    row = row_of_name(step, queue, given)
    task = None if row is None else task_of(step, queue, row)
    if row is None or task is None or not semantics.is_delayed_until(task, expected, now=now):
        return False
    postponed = semantics.postpone(task, eta=eta, now=now)
    write(step.connection, [postponed])
    if postponed.state is TaskState.READY:
        step.counts.change(queue.whole, row[1], ((DELAYED, -1), (READY, 1)))
    return True


def in_state(step: Step, queue: QueueRow, state: TaskState, tag_ids: list[int] | None, *, limit: int) -> list[Row]:
    """Up to `limit` rows of a state (and of these tags) in the order of the state's index."""
    if limit <= 0 or tag_ids == []:
        return []
    if tag_ids is None and state is TaskState.READY:
        return step.connection.execute(f"{ready_rows(COLUMNS)} LIMIT ?2", (queue.id, limit)).fetchall()
    if tag_ids is None:
        return step.connection.execute(
            f"SELECT {COLUMNS} FROM tasks INDEXED BY {INDEX_OF_STATE[state]} WHERE queue = ? AND state = {int(state)}"  # noqa: S608
            " LIMIT ?",
            (queue.id, limit),
        ).fetchall()
    if gauge(step, tag_ids, state) == 0:
        return []
    if state is TaskState.READY:
        return step.connection.execute(
            f"SELECT {COLUMNS} FROM (SELECT value AS wanted FROM json_each(?))"  # noqa: S608
            " CROSS JOIN tasks INDEXED BY tasks_ready_by_tag ON tag = wanted AND state = 0 LIMIT ?",
            (json.dumps(tag_ids), limit),
        ).fetchall()
    return step.connection.execute(
        f"SELECT {COLUMNS} FROM tasks INDEXED BY {INDEX_OF_STATE[state]} WHERE queue = ? AND state = {int(state)}"  # noqa: S608
        " AND tag IN (SELECT value FROM json_each(?)) LIMIT ?",
        (queue.id, json.dumps(tag_ids), limit),
    ).fetchall()


def gauge(step: Step, tag_ids: Sequence[int], state: TaskState) -> int:
    """How many tasks of these tags are stored in a state; what this transaction changed is written first."""
    step.counts.write(step.cursor, now=step.now)
    row = step.connection.execute(
        f"SELECT sum({COUNTERS[GAUGE_OF_STATE[state]]}) FROM counts WHERE id IN (SELECT value FROM json_each(?))",  # noqa: S608
        (json.dumps(list(tag_ids)),),
    ).fetchone()
    return 0 if row is None or row[0] is None else int(row[0])


def redrive(
    step: Step, name: str, names: Sequence[str] | None, tags: TagFilter, *, limit: int, now: Instant
) -> list[StoredTask]:
    """See `Transaction.redrive`."""
    queue = step.open_queue(name)
    settle(step, queue, now=now)
    step.told = True
    if names is None:
        rows = in_state(step, queue, TaskState.DEAD, step.tag_ids(queue, tags), limit=limit)
    else:
        named = (row_of_name(step, queue, given) for given in dict.fromkeys(names))
        rows = [row for row in named if row is not None and row[2] == TaskState.DEAD][:limit]
    redriven = [semantics.redrive(task_of(step, queue, row), now=now) for row in rows]
    write(step.connection, redriven)
    for row in rows:
        step.counts.change(queue.whole, row[1], ((DEAD, -1), (READY, 1)))
    return [replace(task, payload=_payload(step, task.id)) for task in redriven]


def _payload(step: Step, task_id: int) -> bytes:
    row = step.connection.execute("SELECT payload FROM tasks WHERE id = ?", (task_id,)).fetchone()
    return b"" if row is None else payload_of(step.connection, task_id, row[0])

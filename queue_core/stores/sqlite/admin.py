"""The admin verbs: create, set, pause and delete queues; delete by name, purge, redrive, retag; limit all payloads.

None of them needs a lease's token. While a limit bounds all payloads, triggers count their bytes (ADR 15), whichever
verb and process changes them.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

from queue_core import semantics
from queue_core.clock import Instant
from queue_core.limits import FARTHEST_ETA_SECONDS, check_eta
from queue_core.stats import PURGED, TaskRemoval
from queue_core.stores.sqlite.counters import COLUMNS as COUNTERS
from queue_core.stores.sqlite.counters import DEAD, DELAYED, DELETED, GAUGE_OF_STATE
from queue_core.stores.sqlite.driver import Row, SqliteConnection
from queue_core.stores.sqlite.lanes.updates import expire, limits_changed
from queue_core.stores.sqlite.rows import (
    COLUMNS,
    completed,
    end,
    expire_lease,
    kept,
    load,
    ready_rows,
    refusal_of_name,
    remove,
    state_of,
    task_id_of,
    task_of,
    write,
)
from queue_core.stores.sqlite.session import QueueRow, SqliteSession, settings_of, spec_of
from queue_core.task import QueueSpec, StoredTask, TagFilter, TaskState
from queue_core.verbs import Retagged, Storage

NameOutcome = Literal["deleted", "unknown", "tombstoned"]

_INDEX_OF_STATE = {
    TaskState.DELAYED: "tasks_delayed",
    TaskState.LEASED: "tasks_leased",
    TaskState.DEAD: "tasks_kept_back",
    TaskState.HELD: "tasks_kept_back",
}
_STATE = {state: f"state = {int(state)}" + " AND state > 2" * (state > TaskState.LEASED) for state in _INDEX_OF_STATE}
"""The conditions of these states; a partial index is found by the very words of its own."""
_ALL_TASKS = (
    "FROM tasks INDEXED BY tasks_ready WHERE queue = ?1 AND state = 0 AND tag > 0",
    "FROM tasks INDEXED BY tasks_ready_by_tag WHERE tag = -?1 AND state = 0",
    "FROM tasks INDEXED BY tasks_urgent WHERE queue = ?1 AND state < 0",
    *(
        f"FROM tasks INDEXED BY {index} WHERE queue = ?1 AND {_STATE[state]}"
        for state, index in _INDEX_OF_STATE.items()
    ),
)
_OF_TAGS = " AND tag IN (SELECT value FROM json_each(?))"
_CHANGE = "BEGIN UPDATE storage SET used_bytes = used_bytes {} length({}.payload); END"
_TRIGGERS = {
    f"{table}_{name}": f"CREATE TRIGGER {table}_{name} AFTER {verb} ON {table} WHEN {row}.payload IS NOT NULL "
    + _CHANGE.format(sign, row)
    for table in ("tasks", "payloads")
    for name, verb, sign, row in (("stored", "INSERT", "+", "NEW"), ("freed", "DELETE", "-", "OLD"))
}
RECOUNT = (
    "SELECT (SELECT coalesce(sum(length(payload)), 0) FROM tasks)"
    " + (SELECT coalesce(sum(length(payload)), 0) FROM payloads)"
)


def put_queue(session: SqliteSession, spec: QueueSpec, *, now: Instant) -> bool:
    """See `Transaction.put_queue`."""
    connection = session.connection
    session.has_changes = True
    row = connection.execute("SELECT id, settings FROM queues WHERE name = ?", (spec.name,)).fetchone()
    settings = settings_of(spec)
    if row is not None:
        before = session.queue(spec.name)
        session.counts.write(session.cursor, now=now)
        if row[1] != settings:
            connection.execute("UPDATE queues SET settings = ? WHERE id = ?", (settings, row[0]))
            session.catalog_changed()
        limits_changed(session, session.queue(spec.name), before=before.spec, now=now)
        return False
    connection.execute("INSERT INTO queues (name, settings) VALUES (?, ?)", (spec.name, settings))
    connection.execute(
        "INSERT INTO counts (queue, changed_at) SELECT id, ? FROM queues WHERE name = ?", (now, spec.name)
    )
    session.catalog_changed()
    return True


def all_queues(session: SqliteSession) -> list[QueueSpec]:
    """See `Transaction.queues`."""
    rows = session.connection.execute("SELECT name, settings, paused, moved_to FROM queues ORDER BY name").fetchall()
    return [spec_of(name, settings, paused=paused, moved_to=moved_to) for name, settings, paused, moved_to in rows]


def set_paused(session: SqliteSession, name: str, paused: Literal["paused", "running"]) -> bool:
    """See `Transaction.set_paused`."""
    queue = session.queue(name)
    session.has_changes = True
    if queue.spec.paused == (paused == "paused"):
        return False
    session.connection.execute("UPDATE queues SET paused = ? WHERE id = ?", (int(paused == "paused"), queue.id))
    session.catalog_changed()
    return True


def delete_queue(session: SqliteSession, name: str) -> int:
    """See `Transaction.delete_queue`."""
    queue = session.queue(name)
    connection = session.connection
    session.has_changes = True
    session.write()  # before the rows are gone that its counters belong to
    count = 0
    for chosen in _ALL_TASKS:
        row = connection.execute(f"SELECT count(*) {chosen}", (queue.id,)).fetchone()
        count += 0 if row is None else int(row[0])
        connection.execute(
            f"DELETE FROM payloads WHERE id IN (SELECT id {chosen} AND payload IS NULL)",  # noqa: S608
            (queue.id,),
        )
        connection.execute(f"DELETE {chosen}", (queue.id,))
    connection.execute("DELETE FROM names WHERE queue = ?", (queue.id,))
    connection.execute("DELETE FROM counts WHERE queue = ?", (queue.id,))
    connection.execute("DELETE FROM lanes WHERE queue = ?", (queue.id,))
    connection.execute("DELETE FROM samples WHERE id >= ? AND id < ?", (queue.id << 40, (queue.id + 1) << 40))
    connection.execute("DELETE FROM queues WHERE id = ?", (queue.id,))
    session.catalog.limited.pop(queue.whole, None)
    session.catalog_changed()
    return count


def delete_by_name(
    session: SqliteSession, name: str, names: Sequence[str], removal: TaskRemoval, *, now: Instant
) -> list[NameOutcome]:
    """See `Transaction.delete_by_name`."""
    queue = session.open_queue(name)
    expire(session, queue, now=now)
    session.has_changes = True
    return [_delete_named(session, queue, given, removal, now=now) for given in names]


def _delete_named(
    session: SqliteSession, queue: QueueRow, name: str, removal: TaskRemoval, *, now: Instant
) -> NameOutcome:
    row = _row_after_expiry(session, queue, name, now=now)
    if row is None:
        return "tombstoned" if refusal_of_name(session.connection, queue, name, now=now) else "unknown"
    state = state_of(row)
    if state is TaskState.LEASED:
        end(session, queue, row, semantics.remove(task_of(session, queue, row), removal, now=now))
    else:
        remove(session, queue, [row], at=now)
        done = () if removal.holder is None else ((DELETED, 1),)
        session.counts.change(queue.whole, row[1], ((GAUGE_OF_STATE[state], -1), *done))
    return "deleted"


def _row_after_expiry(session: SqliteSession, queue: QueueRow, name: str, *, now: Instant) -> Row | None:
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


def purge(
    session: SqliteSession,
    name: str,
    tags: TagFilter,
    states: Iterable[TaskState],
    removal: TaskRemoval = PURGED,
    *,
    limit: int,
    now: Instant,
) -> int:
    """See `Transaction.purge` and `purge_dead`."""
    queue = session.open_queue(name)
    expire(session, queue, now=now)
    session.has_changes = True
    tag_ids = session.tag_ids(queue, tags)
    count = 0
    for state in states:
        rows = in_state(session, queue, state, tag_ids, limit=limit - count)
        count += len(rows)
        if state is TaskState.LEASED:
            for row in rows:
                end(session, queue, row, semantics.remove(task_of(session, queue, row), removal, now=now))
        elif rows:
            remove(session, queue, rows, at=now)
            for row in rows:
                session.counts.change(queue.whole, row[1], ((GAUGE_OF_STATE[state], -1),))
    return count


def postpone(session: SqliteSession, name: str, given: str, *, expected: Instant, eta: Instant, now: Instant) -> bool:
    """See `Transaction.postpone`."""
    queue = session.open_queue(name)
    check_eta(eta, now=now, most_seconds=FARTHEST_ETA_SECONDS)
    session.has_changes = True
    row = row_of_name(session, queue, given)
    task = None if row is None else task_of(session, queue, row)
    if row is None or task is None or not semantics.is_delayed_until(task, expected, now=now):
        return False
    postponed = semantics.postpone(task, eta=eta, now=now)
    postponed = kept(queue, row[1], postponed)
    write(session.connection, [postponed])
    if postponed.state is not TaskState.DELAYED:
        session.counts.change(queue.whole, row[1], ((DELAYED, -1), (GAUGE_OF_STATE[postponed.state], 1)))
    return True


def retag(session: SqliteSession, name: str, names: Sequence[str], tag: str | None, *, now: Instant) -> list[Retagged]:
    """See `Transaction.retag`."""
    queue = session.open_queue(name)
    expire(session, queue, now=now)
    session.has_changes = True
    retagged = []
    for given in dict.fromkeys(names):
        row = _row_after_expiry(session, queue, given, now=now)
        task = None if row is None else task_of(session, queue, row)
        if row is None or task is None or task.state is TaskState.LEASED or task.tag == tag:
            continue
        tag_id = session.tag_id(queue, tag)
        moved = semantics.retag(task, tag=tag, now=now)
        is_ready = moved.state in {TaskState.READY, TaskState.HELD}
        stored = kept(queue, tag_id, replace(moved, state=TaskState.READY)) if is_ready else moved
        write(session.connection, [stored])
        session.connection.execute("UPDATE tasks SET tag = ? WHERE id = ?", (tag_id, task.id))
        session.counts.change(queue.whole, row[1], ((GAUGE_OF_STATE[task.state], -1),))
        session.counts.change(queue.whole, tag_id, ((GAUGE_OF_STATE[stored.state], 1),))
        retagged.append(Retagged(given, is_ready))
    return retagged


def in_state(
    session: SqliteSession, queue: QueueRow, state: TaskState, tag_ids: list[int] | None, *, limit: int
) -> list[Row]:
    """Return up to `limit` rows of a state (and of these tags) in the order of the state's index."""
    if limit <= 0 or tag_ids == []:
        return []
    if state is TaskState.READY and queue.has_priorities:
        of_tags, cells = ("", ()) if tag_ids is None else (_OF_TAGS, (json.dumps(tag_ids),))
        urgent = session.connection.execute(
            f"SELECT {COLUMNS} FROM tasks INDEXED BY tasks_urgent WHERE queue = ? AND state < 0{of_tags} LIMIT ?",  # noqa: S608
            (queue.id, *cells, limit),
        ).fetchall()
        return [*urgent, *_in_state(session, queue, state, tag_ids, limit=limit - len(urgent))]
    return _in_state(session, queue, state, tag_ids, limit=limit)


def _in_state(
    session: SqliteSession, queue: QueueRow, state: TaskState, tag_ids: list[int] | None, *, limit: int
) -> list[Row]:
    """Return rows of a state, but no ready ones that have a priority."""
    if tag_ids is None and state is TaskState.READY:
        return session.connection.execute(f"{ready_rows(COLUMNS)} LIMIT ?2", (queue.id, limit)).fetchall()
    if tag_ids is None:
        return session.connection.execute(
            f"SELECT {COLUMNS} FROM tasks INDEXED BY {_INDEX_OF_STATE[state]} WHERE queue = ? AND {_STATE[state]}"  # noqa: S608
            " LIMIT ?",
            (queue.id, limit),
        ).fetchall()
    if gauge(session, tag_ids, state) == 0:
        return []
    if state is TaskState.READY:
        return session.connection.execute(
            f"SELECT {COLUMNS} FROM (SELECT value AS wanted FROM json_each(?))"  # noqa: S608
            " CROSS JOIN tasks INDEXED BY tasks_ready_by_tag ON tag = wanted AND state = 0 LIMIT ?",
            (json.dumps(tag_ids), limit),
        ).fetchall()
    return session.connection.execute(
        f"SELECT {COLUMNS} FROM tasks INDEXED BY {_INDEX_OF_STATE[state]} WHERE queue = ? AND {_STATE[state]}"  # noqa: S608
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


def redrive(
    session: SqliteSession, name: str, names: Sequence[str] | None, tags: TagFilter, *, limit: int, now: Instant
) -> list[StoredTask]:
    """See `Transaction.redrive`."""
    queue = session.open_queue(name)
    expire(session, queue, now=now)
    session.has_changes = True
    if names is None:
        rows = sorted(in_state(session, queue, TaskState.DEAD, session.tag_ids(queue, tags), limit=limit))
    else:
        named = (row_of_name(session, queue, given) for given in dict.fromkeys(names))
        rows = [row for row in named if row is not None and row[2] == TaskState.DEAD][:limit]
    redriven = [semantics.redrive(task_of(session, queue, row), now=now) for row in rows]
    stored = [kept(queue, row[1], task) for row, task in zip(rows, redriven, strict=True)]
    write(session.connection, stored)
    for row, task in zip(rows, stored, strict=True):
        session.counts.change(queue.whole, row[1], ((DEAD, -1), (GAUGE_OF_STATE[task.state], 1)))
    return [completed(session.connection, task) for task in redriven]


def storage(connection: SqliteConnection) -> Storage:
    """See `Transaction.storage`."""
    row = connection.execute("SELECT limit_bytes, used_bytes FROM storage").fetchone()
    return Storage() if row is None else Storage(int(row[0]), int(row[1]))


def set_storage_limit(session: SqliteSession, limit_bytes: int | None) -> None:
    """See `Transaction.set_storage_limit`."""
    connection = session.connection
    session.has_changes = True
    before = storage(connection)
    if limit_bytes == before.limit_bytes:
        return
    session.catalog.is_limited = limit_bytes is not None
    session.catalog_changed()
    if limit_bytes is None:
        for name in _TRIGGERS:
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute("DELETE FROM storage")
    elif before.limit_bytes is None:
        for trigger in _TRIGGERS.values():
            connection.execute(trigger)
        connection.execute(f"INSERT INTO storage SELECT ?, ({RECOUNT})", (limit_bytes,))
    else:
        connection.execute("UPDATE storage SET limit_bytes = ?", (limit_bytes,))

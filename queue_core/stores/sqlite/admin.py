"""The verbs on queues themselves: create, set, pause, delete; and the limit on all payloads.

While a limit bounds all payloads, triggers count their bytes (ADR 15), whichever
verb and process changes them.
"""

from typing import Literal

from queue_core.clock import Instant
from queue_core.stores.sqlite.driver import SqliteConnection
from queue_core.stores.sqlite.lanes.updates import limits_changed
from queue_core.stores.sqlite.selection import IN_STATE, INDEX_OF_STATE
from queue_core.stores.sqlite.session import SqliteSession, settings_of, spec_of
from queue_core.task import QueueSpec
from queue_core.verbs import Storage

_ALL_TASKS = (
    "FROM tasks INDEXED BY tasks_ready WHERE queue = ?1 AND state = 0 AND tag > 0",
    "FROM tasks INDEXED BY tasks_ready_by_tag WHERE tag = -?1 AND state = 0",
    "FROM tasks INDEXED BY tasks_urgent WHERE queue = ?1 AND state < 0",
    *(
        f"FROM tasks INDEXED BY {index} WHERE queue = ?1 AND {IN_STATE[state]}"
        for state, index in INDEX_OF_STATE.items()
    ),
)
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

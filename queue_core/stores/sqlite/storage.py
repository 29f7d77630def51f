"""What the payloads of all tasks may come to. While there is a limit, triggers count them with every row that comes and
goes: whichever verb it is, and whichever process."""

from queue_core.store import Storage
from queue_core.stores.sqlite.driver import Connection
from queue_core.stores.sqlite.step import Step

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


def storage(connection: Connection) -> Storage:
    """See `Transaction.storage`."""
    row = connection.execute("SELECT limit_bytes, used_bytes FROM storage").fetchone()
    return Storage() if row is None else Storage(int(row[0]), int(row[1]))


def set_storage_limit(step: Step, limit_bytes: int | None) -> None:
    """See `Transaction.set_storage_limit`."""
    connection = step.connection
    step.told = True
    before = storage(connection)
    if limit_bytes == before.limit_bytes:
        return
    step.known.is_limited = limit_bytes is not None
    step.catalog_changed()
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

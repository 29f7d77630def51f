"""The verbs on queues themselves: create, set, list, pause, fence, drop; and the storage limit."""

from typing import Literal

from queue_core.stores.extra_settings import extra_settings_text, parse_extra_settings
from queue_core.stores.postgres import results
from queue_core.stores.postgres.client import binary as pack
from queue_core.stores.postgres.client.statements import Row, Statement
from queue_core.stores.postgres.session import UNKNOWN, PostgresSession, refuse
from queue_core.task import QueueSpec
from queue_core.verbs import Storage

_COLUMNS = (
    "name, lease_seconds, max_lease_seconds, max_leases, retry_min_seconds, retry_max_seconds, deletes_exhausted,"
    " name_retention_seconds, paused, moved_to, kept"
)
_ONE = Statement("towline_queue", f"SELECT {_COLUMNS} FROM towline.queues WHERE name = $1", (pack.text,))  # noqa: S608
_ALL = Statement("towline_queues", f"SELECT {_COLUMNS} FROM towline.queues ORDER BY name")  # noqa: S608
_SOME = Statement("towline_some_queues", "SELECT towline.some_queues()")
_PUT = Statement(
    "towline_put_queue",
    "INSERT INTO towline.queues AS q (name, lease_seconds, max_lease_seconds, max_leases, retry_min_seconds,"
    " retry_max_seconds, deletes_exhausted, name_retention_seconds, kept)"
    " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)"
    " ON CONFLICT (name) DO UPDATE SET lease_seconds = excluded.lease_seconds,"
    " max_lease_seconds = excluded.max_lease_seconds, max_leases = excluded.max_leases,"
    " retry_min_seconds = excluded.retry_min_seconds, retry_max_seconds = excluded.retry_max_seconds,"
    " deletes_exhausted = excluded.deletes_exhausted, name_retention_seconds = excluded.name_retention_seconds,"
    " kept = excluded.kept"
    " RETURNING xmax = 0",
    (pack.text, pack.float8, pack.float8, pack.int4, pack.float8, pack.float8, pack.boolean, pack.float8, pack.text),
)
_SET_PAUSED = Statement(
    "towline_set_paused",
    "UPDATE towline.queues SET paused = $2 WHERE name = $1 AND paused <> $2 RETURNING true",
    (pack.text, pack.boolean),
)
_SET_MOVED = Statement(
    "towline_set_moved",
    "UPDATE towline.queues SET moved_to = $2 WHERE name = $1 AND moved_to <> $2",
    (pack.text, pack.text),
)
_SEIZE = Statement("towline_seize", "SELECT towline.seize_queue($1)", (pack.text,))
_DROP = Statement("towline_drop", "SELECT towline.drop_queue(id) FROM towline.queues WHERE name = $1", (pack.text,))
_OPEN = Statement("towline_open", f"SELECT {results.COLUMNS} FROM towline.open_queue($1)", (pack.text,))  # noqa: S608
_SET_STORAGE_LIMIT = Statement("towline_set_storage", "SELECT towline.set_storage_limit($1)", (pack.int8,))
_STORAGE = Statement(
    "towline_storage",
    "SELECT l.bytes, towline.stored_bytes() FROM towline.storage_limit AS l",
)
"""Triggers count the payloads while there is a limit: see `schema/storage.sql`."""


def find(session: PostgresSession, name: str) -> QueueSpec:
    """Return the queue of that name. Raises `UnknownQueueError`."""
    rows = session.rows(_ONE, name)
    if not rows:
        refuse(UNKNOWN, f"{name} {session.rows(_SOME)[0][0] or ''}")
    return _spec_of(rows[0])


def lock_queue(session: PostgresSession, name: str) -> None:
    """Lock a queue before its tasks are changed. Raises `UnknownQueueError`, `QueueMovedError`."""
    results.call(session, _OPEN, name)


def all_queues(session: PostgresSession) -> list[QueueSpec]:
    """See `Transaction.queues`."""
    return [_spec_of(row) for row in session.rows(_ALL)]


def _spec_of(row: Row) -> QueueSpec:
    name, lease, max_lease, max_leases, retry_min, retry_max, deletes_exhausted, retention, paused, moved_to, kept = row
    on_exhausted: Literal["dead", "delete"] = "delete" if deletes_exhausted else "dead"
    return QueueSpec(
        name,
        lease,
        max_lease,
        max_leases,
        retry_min,
        retry_max,
        on_exhausted,
        retention,
        paused=paused,
        moved_to=moved_to,
        **parse_extra_settings(kept),
    )


def put_queue(session: PostgresSession, spec: QueueSpec) -> bool:
    """See `Transaction.put_queue`. An unchanged queue is not written."""
    known = session.rows(_ONE, spec.name)
    if known and _spec_of(known[0]) == spec:
        return False
    ((created,),) = session.write(
        _PUT,
        spec.name,
        spec.lease_seconds,
        spec.max_lease_seconds,
        spec.max_leases,
        spec.retry_min_seconds,
        spec.retry_max_seconds,
        spec.on_exhausted == "delete",
        spec.name_retention_seconds,
        extra_settings_text(spec),
    )
    return bool(created)


def set_paused(session: PostgresSession, name: str, paused: Literal["paused", "running"]) -> bool:
    """See `Transaction.set_paused`."""
    find(session, name)
    return bool(session.write(_SET_PAUSED, name, paused == "paused"))


def set_moved(session: PostgresSession, name: str, to: str) -> None:
    """See `Transaction.set_moved`. Waits for the transactions that are changing the queue's tasks."""
    find(session, name)
    session.rows(_SEIZE, name)
    session.write(_SET_MOVED, name, to)


def delete_queue(session: PostgresSession, name: str) -> int:
    """See `Transaction.delete_queue`. Waits as `set_moved` does."""
    find(session, name)
    session.rows(_SEIZE, name)
    rows = session.write(_DROP, name)
    return int(rows[0][0]) if rows else 0


def set_storage_limit(session: PostgresSession, limit_bytes: int | None) -> None:
    """See `Transaction.set_storage_limit`."""
    if storage(session).limit_bytes != limit_bytes:
        session.write(_SET_STORAGE_LIMIT, limit_bytes)


def storage(session: PostgresSession) -> Storage:
    """See `Transaction.storage`. It leaves out other transactions in progress."""
    rows = session.rows(_STORAGE)
    return Storage(*rows[0]) if rows else Storage()

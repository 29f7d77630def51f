"""The verbs on queues themselves: create, set, list, pause, fence, drop; and the storage limit."""

from typing import Literal

from queue_core.admission import Rate
from queue_core.clock import Instant
from queue_core.stores.extra_settings import extra_settings_text, parse_extra_settings
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
_SET_LIMITS = Statement(
    "towline_set_limits",
    "SELECT towline.set_limits($1, $2, $3, $4, $5, $6, $7, $8, $9)",
    (
        pack.text,
        pack.int8,
        pack.int4,
        pack.int8,
        pack.int4,
        pack.int4,
        pack.int8,
        pack.int4,
        pack.boolean,
    ),
)
_OPEN_LANES = Statement("towline_open_lanes", "SELECT towline.open_lanes($1, $2)", (pack.text, pack.int8))
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
_HOLD = Statement("towline_hold_queue", "SELECT towline.hold_queue($1)", (pack.text,))
_SEIZE = Statement("towline_seize", "SELECT towline.seize_queue($1)", (pack.text,))
_DROP = Statement("towline_drop", "SELECT towline.drop_queue(id) FROM towline.queues WHERE name = $1", (pack.text,))
_SET_STORAGE_LIMIT = Statement("towline_set_storage", "SELECT towline.set_storage_limit($1)", (pack.int8,))
_STORAGE = Statement(
    "towline_storage",
    "SELECT l.bytes, towline.stored_bytes() FROM towline.storage_limit AS l",
)
"""Triggers count the payloads while there is a limit: see `schema/storage.sql`."""


def find(session: PostgresSession, name: str) -> QueueSpec:
    """Return the queue of that name. Raises `UnknownQueueError`."""
    return _found(session, name, session.rows(_ONE, name))


def find_with(session: PostgresSession, name: str, change: Statement, *values: object) -> tuple[QueueSpec, list[Row]]:
    """Lock a queue, and return its settings and the rows of a statement that may write, in one round trip.

    Raises `UnknownQueueError`.
    """
    _, found, rows = session.write_after((_HOLD, (name,)), (_ONE, (name,)), (change, values))
    return _found(session, name, found), rows


def _found(session: PostgresSession, name: str, rows: list[Row]) -> QueueSpec:
    if not rows:
        refuse(UNKNOWN, f"{name} {session.rows(_SOME)[0][0] or ''}")
    return _spec_of(rows[0])


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


def put_queue(session: PostgresSession, spec: QueueSpec, *, now: Instant) -> bool:
    """See `Transaction.put_queue`. An unchanged queue is not written. New limits wait as `set_moved` does."""
    rows = session.rows(_ONE, spec.name)
    known = _spec_of(rows[0]) if rows else None
    if known is not None and known == spec:
        if known.per_tag.rate is not None:
            session.write(_OPEN_LANES, spec.name, now)
        return False
    has_new_limits = _limits_of(spec) != _limits_of(known or QueueSpec(spec.name))
    if has_new_limits:
        session.rows(_SEIZE, spec.name)
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
    if has_new_limits:
        session.write(_SET_LIMITS, spec.name, now, *_limits_of(spec))
    elif known is not None and spec.per_tag.rate is not None:
        session.write(_OPEN_LANES, spec.name, now)
    return bool(created)


def _limits_of(spec: QueueSpec) -> tuple[int | None, ...]:
    """Return the limits of a queue as `set_limits` takes them."""
    per_tag = spec.per_tag
    return (spec.max_in_flight, *_bucket_of(spec.rate), per_tag.max_in_flight, *_bucket_of(per_tag.rate), per_tag.fair)


def _bucket_of(rate: Rate | None) -> tuple[int | None, int | None]:
    return (None, None) if rate is None else (rate.interval, rate.burst)


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

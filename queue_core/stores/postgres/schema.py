"""Create the PostgreSQL schema, once, and refuse one of another version (ADR 11, ADR 121)."""

import hashlib
import time
from collections.abc import Callable
from importlib.resources import files

from psycopg import errors, sql

from queue_core.errors import StoreCorruptError, StoreUnavailableError, StoreUnsafeError, StoreVersionError
from queue_core.log import get_logger
from queue_core.process.wording import shown_seconds
from queue_core.stores.postgres.client.connection import Connection
from queue_core.stores.postgres.client.statements import qualified

LOCK = 0x546F776C
"""With the schema's name, the key of the advisory lock under which the schema changes; it spells "Towl"."""

VERSION = 1
"""The version of the schema. Until 0.1.0 is released it stays, and the checksum tells one pre-release from another."""
SCHEMA_WAITING = "schema.waiting"
"""Another program is creating the schema: this one waits."""

CREATION_SECONDS = 60.0
"""How long a program that opens the store waits for another one that is creating its schema."""
LOCK_TIMEOUT = "200ms"
"""How long each attempt waits for a lock."""
PAUSE_SECONDS = 0.5
"""Between two attempts."""

SUBJECTS = (
    "tables",
    "results",
    "floors",
    "epochs",
    "lanes",
    "limited_leases",
    "catalog",
    "counters",
    "samples",
    "expiry",
    "names",
    "commit_markers",
    "adds",
    "workers",
    "leases",
    "exchange",
    "lease_ends",
    "changes",
    "reads",
    "transfer",
    "storage",
    "upkeep",
    "life",
    "notify",
    "plans",
)
"""The files of `schema/`, in the order in which they run: tables before the functions that name their types."""

log = get_logger()

_FOLDER = files("queue_core.stores.postgres")
_HOLDER = """
    SELECT 'pid ' || a.pid, coalesce(a.application_name, ''), coalesce(a.usename::text, ''),
        coalesce(a.client_hostname, host(a.client_addr), 'this machine'),
        extract(epoch FROM clock_timestamp() - a.xact_start)::float8
    FROM pg_locks AS l JOIN pg_stat_activity AS a ON a.pid = l.pid
    WHERE l.granted AND l.locktype = 'advisory' AND l.objsubid = 2
        AND l.classid = %s AND l.objid = (hashtext(%s)::int8 & 4294967295)::oid
        AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
    LIMIT 1
"""
_RECORD = """
    CREATE TABLE IF NOT EXISTS {}.migrations (number int4 PRIMARY KEY, name text NOT NULL, checksum text NOT NULL)
"""


def schema_sql() -> str:
    """Return the SQL of the whole schema."""
    return "\n".join(schema_text(subject) for subject in SUBJECTS)


def checksum() -> str:
    """Return the hash that shows whether a schema is the one of this program."""
    return hashlib.sha256(schema_sql().encode()).hexdigest()


def schema_text(subject: str) -> str:
    """Return the SQL of one file of `schema/`."""
    return _FOLDER.joinpath("schema", f"{subject}.sql").read_text(encoding="utf-8")


def prepare(
    connection: Connection,
    schema: str,
    where: str,
    *,
    monotonic: Callable[[], float],
    pause: Callable[[float], object] = time.sleep,
) -> None:
    """Create the schema unless it is there; several programs may do so at once, and one of them creates it.

    Raises `StoreVersionError` for the schema of another version, `StoreCorruptError` for another program's,
    `StoreUnsafeError` where the role may not create it, `StoreUnavailableError` when another session creates it for too
    long, and the driver's errors.
    """
    if not _is_there(connection, schema, where):
        _create_in_attempts(connection, schema, where, monotonic=monotonic, pause=pause)
    connection.execute(sql.SQL("SELECT {}.adopt_backup()").format(sql.Identifier(schema)))


def _create_in_attempts(
    connection: Connection,
    schema: str,
    where: str,
    *,
    monotonic: Callable[[], float],
    pause: Callable[[float], object],
) -> None:
    until = monotonic() + CREATION_SECONDS
    is_told = False
    while True:
        try:
            _create(connection, schema, where)
        except (errors.LockNotAvailable, errors.DeadlockDetected) as error:
            holder = _holder(connection, schema)
            if monotonic() >= until:
                raise StoreUnavailableError(
                    f"{where}: its schema must be created, and for {shown_seconds(CREATION_SECONDS)} it was locked by"
                    f" {holder}; nothing was changed: open the store again after that"
                ) from error
            if not is_told:
                log.warning(SCHEMA_WAITING, store=where, version=0, wanted=VERSION, holder=holder)
                is_told = True
            pause(PAUSE_SECONDS)
        else:
            return


def _holder(connection: Connection, schema: str) -> str:
    """Return who creates the schema at the moment, and what ends that."""
    row = connection.execute(_HOLDER, (LOCK, schema)).fetchone()
    if row is None:
        return "a session that has ended"
    pid, application, role, host, seconds = row
    known = (("of", application), ("as", role), ("from", host))
    told = " ".join([str(pid), *(f"{word} {what}" for word, what in known if what)])
    lasted = f" for {shown_seconds(float(str(seconds)))}" if seconds is not None else ""
    return f"{told}{lasted} (to end it: SELECT pg_terminate_backend({str(pid).removeprefix('pid ')}))"


def _create(connection: Connection, schema: str, where: str) -> None:
    with connection.transaction():
        connection.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(LOCK_TIMEOUT))
        connection.execute("SELECT pg_advisory_xact_lock(%s, hashtext(%s))", (LOCK, schema))
        if _is_there(connection, schema, where):
            return
        name = sql.Identifier(schema)
        _make(connection, schema, where)
        connection.execute(sql.SQL(_RECORD).format(name))
        connection.execute(sql.SQL("SET LOCAL search_path TO {}").format(name))
        connection.execute("SET LOCAL check_function_bodies = off")  # a function may call one of a later file
        connection.execute(qualified(schema_sql(), schema).encode())
        connection.execute("INSERT INTO migrations VALUES (%s, %s, %s)", (VERSION, "schema", checksum()))


def _make(connection: Connection, schema: str, where: str) -> None:
    """Create the schema unless it exists: `IF NOT EXISTS` needs the right to create in any case.

    Raises `StoreUnsafeError` for a role without that right.
    """
    row = connection.execute(
        "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = %s), current_user", (schema,)
    ).fetchone()
    assert row is not None, "one row"
    is_there, role = row
    if is_there:
        return
    try:
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
    except errors.InsufficientPrivilege as error:
        raise StoreUnsafeError(
            f"{where}: there is no schema {schema}, and {role} may not create it here: an administrator must "
            f"run CREATE SCHEMA {schema} AUTHORIZATION {role}"
        ) from error


def _is_there(connection: Connection, schema: str, where: str) -> bool:
    """Return whether the schema is this program's; False: there is none, or an empty one."""
    row = connection.execute(
        "SELECT to_regclass(%s) IS NOT NULL, EXISTS (SELECT FROM pg_class WHERE relnamespace = to_regnamespace(%s))",
        (f"{schema}.migrations", schema),
    ).fetchone()
    assert row is not None, "one row"
    is_ours, is_used = row
    if not is_ours:
        if is_used:
            raise StoreCorruptError(
                f"{where}: the schema {schema} holds tables of another program; nothing was changed: give ?schema=NAME"
            )
        return False
    applied = connection.execute(
        sql.SQL("SELECT number, checksum FROM {}.migrations ORDER BY number").format(sql.Identifier(schema))
    ).fetchall()
    if applied != [(VERSION, checksum())]:
        raise StoreVersionError(
            f"{where}: schema {schema} was created by another version of towline, and this program can't use it: drain"
            " its queues, or export them (towline export), with the program that created it, and import them into a new"
            f" schema (?schema=NAME), or, if nothing in it is needed, DROP SCHEMA {schema} CASCADE"
        )
    return True

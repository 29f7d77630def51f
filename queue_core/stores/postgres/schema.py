"""Create the PostgreSQL schema, version 1, and apply later migrations: forward only, each once (ADR 11)."""

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files

from psycopg import errors, sql

from queue_core.errors import StoreCorruptError, StoreUnavailableError, StoreUnsafeError, StoreVersionError
from queue_core.log import get_logger
from queue_core.process.wording import shown_seconds
from queue_core.stores.postgres.client.connection import Connection
from queue_core.stores.postgres.client.statements import qualified

LOCK = 0x546F776C
"""With the schema's name, the key of the advisory lock under which the schema changes; it spells "Towl"."""

ADOPTING_VERSION = 3
"""The version from which on a store that came from a backup is fitted to its server when it is opened."""
SCHEMA_WAITING = "schema.waiting"
"""Another program is making the schema, or holds a lock on it: this one waits."""

MIGRATION_SECONDS = 60.0
"""How long a program that opens the store waits for the locks of its tables, so that it can change them."""
LOCK_TIMEOUT = "200ms"
"""How long each attempt waits for a lock: meanwhile all calls of running programs wait behind it."""
PAUSE_SECONDS = 0.5
"""Between two attempts; running programs go on."""

SUBJECTS = (
    "tables",
    "results",
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
    "admin",
    "reads",
    "transfer",
    "storage",
    "life",
    "notify",
    "plans",
)
"""The files of `schema/`, in the order in which they run; together they are version 1."""

log = get_logger()

_FOLDER = files("queue_core.stores.postgres")
_HOLDERS = """
    SELECT 'pid ' || a.pid, coalesce(a.application_name, ''), coalesce(a.usename::text, ''),
        coalesce(a.client_hostname, host(a.client_addr), 'this machine'),
        extract(epoch FROM clock_timestamp() - coalesce(p.prepared, a.xact_start))::float8,
        CASE WHEN a.pid IS NOT NULL THEN 'SELECT pg_terminate_backend(' || a.pid || ')' END, p.gid
    FROM pg_locks AS l JOIN pg_class AS c ON c.oid = l.relation AND c.relnamespace = to_regnamespace(%s)
    LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
    LEFT JOIN pg_locks AS x ON l.pid IS NULL AND x.pid IS NULL AND x.locktype = 'transactionid'
        AND x.virtualtransaction = l.virtualtransaction
    LEFT JOIN pg_prepared_xacts AS p ON p.transaction = x.transactionid
    WHERE l.granted AND l.pid IS DISTINCT FROM pg_backend_pid()
        AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
    ORDER BY 5 DESC NULLS LAST LIMIT 1
"""
_RECORD = """
    CREATE TABLE IF NOT EXISTS {}.migrations (number int4 PRIMARY KEY, name text NOT NULL, checksum text NOT NULL)
"""


@dataclass(frozen=True, slots=True)
class PostgresMigration:
    """One version of the schema and the SQL that leads to it; never changed after its release."""

    number: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        """The hash that shows whether the applied version is the one of this program."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def migrations() -> list[PostgresMigration]:
    """Return the versions that this program knows, in order: the schema as first released, then each migration."""
    first = "\n".join(schema_text(subject) for subject in SUBJECTS)
    later = [
        PostgresMigration(int(entry.name[:4]), entry.name.removesuffix(".sql"), entry.read_text(encoding="utf-8"))
        for entry in _FOLDER.joinpath("migrations").iterdir()
        if entry.name.endswith(".sql")
    ]
    return [PostgresMigration(1, "0001_schema", first), *sorted(later, key=lambda migration: migration.number)]


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
    """Create the schema, or bring it up to date, under locks that it waits for in short attempts.

    Raises `StoreVersionError` for the schema of a newer program or a pre-release, `StoreCorruptError` for another
    program's, `StoreUnsafeError` where the role may not create it, `StoreUnavailableError` when a session keeps the
    tables locked, and the driver's errors.
    """
    _bring_up_to_date(connection, schema, where, monotonic=monotonic, pause=pause)
    if len(migrations()) >= ADOPTING_VERSION:
        connection.execute(sql.SQL("SELECT {}.adopt_backup()").format(sql.Identifier(schema)))


def _bring_up_to_date(
    connection: Connection,
    schema: str,
    where: str,
    *,
    monotonic: Callable[[], float],
    pause: Callable[[float], object],
) -> None:
    known = migrations()
    applied = _applied(connection, schema, where, known)
    if applied == len(known):
        return
    until = monotonic() + MIGRATION_SECONDS
    is_told = False
    while True:
        try:
            _migrate(connection, schema, where, known)
        except (errors.LockNotAvailable, errors.DeadlockDetected) as error:
            holder = _holder(connection, schema)
            if monotonic() >= until:
                raise StoreUnavailableError(
                    f"{where}: its schema must be brought from version {applied} to {len(known)}, for which its tables"
                    f" must be unlocked for a moment, and for {shown_seconds(MIGRATION_SECONDS)} they were locked by"
                    f" {holder}; nothing was changed, and running programs go on: open the store again after that"
                ) from error
            if not is_told:
                log.warning(SCHEMA_WAITING, store=where, version=applied, wanted=len(known), holder=holder)
                is_told = True
            pause(PAUSE_SECONDS)
        else:
            return


def _holder(connection: Connection, schema: str) -> str:
    """Return who has had a table of the schema locked for longest, and what ends it."""
    row = connection.execute(_HOLDERS, (schema,)).fetchone()
    if row is None:
        return "a session that has ended"
    pid, application, role, host, seconds, statement, prepared = row
    lasted = f" for {shown_seconds(float(str(seconds)))}" if seconds is not None else ""
    if prepared is not None:
        remedy = sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(str(prepared))).as_string(connection)
        return f"the prepared transaction {prepared}{lasted} (to end it: {remedy})"
    known = (("of", application), ("as", role), ("from", host))
    told = " ".join([str(pid), *(f"{word} {what}" for word, what in known if what)])
    return f"{told}{lasted} (to end it: {statement})"


def _migrate(connection: Connection, schema: str, where: str, known: list[PostgresMigration]) -> None:
    with connection.transaction():
        connection.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(LOCK_TIMEOUT))
        connection.execute("SELECT pg_advisory_xact_lock(%s, hashtext(%s))", (LOCK, schema))
        applied = _applied(connection, schema, where, known)
        if applied == len(known):
            return
        name = sql.Identifier(schema)
        _make(connection, schema, where)
        connection.execute(sql.SQL(_RECORD).format(name))
        connection.execute(sql.SQL("SET LOCAL search_path TO {}").format(name))
        for migration in known[applied:]:
            connection.execute(qualified(migration.text, schema).encode())
            connection.execute(
                "INSERT INTO migrations VALUES (%s, %s, %s)", (migration.number, migration.name, migration.checksum)
            )


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


def _applied(connection: Connection, schema: str, where: str, known: list[PostgresMigration]) -> int:
    """Return how many of the migrations the schema has."""
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
        return 0
    applied = connection.execute(
        sql.SQL("SELECT number, name, checksum FROM {}.migrations ORDER BY number").format(sql.Identifier(schema))
    ).fetchall()
    for migration, (number, _, checksum) in zip(known, applied, strict=False):
        if (migration.number, migration.checksum) != (number, checksum):
            raise StoreVersionError(
                f"{where}: schema {schema} is of a pre-release of towline, or migration {number} was changed after its"
                " release, and it can't be brought up to date: export its queues with the program that made it and"
                " import them into a new schema (?schema=NAME), or, if nothing in it is needed,"
                f" DROP SCHEMA {schema} CASCADE"
            )
    if len(applied) > len(known):
        raise StoreVersionError(
            f"{where}: schema {schema} is at {applied[-1][0]}, this program knows {known[-1].number}: upgrade towline"
        )
    return len(applied)

"""Create the PostgreSQL schema, version 1, and apply later migrations: forward only, each once (ADR 11)."""

import hashlib
from dataclasses import dataclass
from importlib.resources import files

from psycopg import errors, sql

from queue_core.errors import StoreCorruptError, StoreUnsafeError, StoreVersionError
from queue_core.stores.postgres.client.connection import Connection
from queue_core.stores.postgres.client.statements import qualified

LOCK = 0x546F776C
"""With the schema's name, the key of the advisory lock under which the schema changes; it spells "Towl"."""

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

_FOLDER = files("queue_core.stores.postgres")
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


def prepare(connection: Connection, schema: str, where: str) -> None:
    """Create the schema, or bring it up to date, under a lock.

    Raises `StoreVersionError` for the schema of a newer program or a pre-release, `StoreCorruptError` for another
    program's, `StoreUnsafeError` where the role may not create it, and the driver's errors.
    """
    known = migrations()
    if _applied(connection, schema, where, known) == len(known):
        return
    with connection.transaction():
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

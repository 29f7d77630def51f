"""Makes the schema and brings it up to date: numbered steps, forward only, each applied once and recognised after."""

import hashlib
from dataclasses import dataclass
from importlib.resources import files

from psycopg import errors, sql

from queue_core.errors import StoreCorruptError, StoreUnsafeError, StoreVersionError
from queue_core.stores.postgres.calling import spelled
from queue_core.stores.postgres.wire import Connection

LOCK = 0x546F776C  # "Towl"; with the schema's name, whom it orders

_RECORD = """
    CREATE TABLE IF NOT EXISTS {}.migrations (number int4 PRIMARY KEY, name text NOT NULL, checksum text NOT NULL)
"""


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of the schema; never changed once it has been released."""

    number: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        """Tells whether what was applied is what this program has."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def migrations() -> list[Migration]:
    """The steps this program knows, in order."""
    folder = files("queue_core.stores.postgres").joinpath("migrations")
    found = [
        Migration(int(entry.name[:4]), entry.name.removesuffix(".sql"), entry.read_text(encoding="utf-8"))
        for entry in folder.iterdir()
        if entry.name.endswith(".sql")
    ]
    return sorted(found, key=lambda migration: migration.number)


def prepare(connection: Connection, schema: str, where: str) -> None:
    """Make the schema, or bring it up to date, while others that would do so wait.

    Raises `StoreVersionError` for one that a newer program made, or that differs, `StoreCorruptError` for a schema that
    is somebody else's, `StoreUnsafeError` where it is not there and may not be made, and the driver's errors.
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
            connection.execute(spelled(migration.text, schema).encode())
            connection.execute(
                "INSERT INTO migrations VALUES (%s, %s, %s)", (migration.number, migration.name, migration.checksum)
            )


def _make(connection: Connection, schema: str, where: str) -> None:
    """Make the schema unless it is there: `IF NOT EXISTS` asks for the right to make it in any case.

    Raises `StoreUnsafeError` for a role that may not.
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
            f"{where}: there is no schema {schema}, and {role} may not make it in this database: have an administrator "
            f"run CREATE SCHEMA {schema} AUTHORIZATION {role}"
        ) from error


def _applied(connection: Connection, schema: str, where: str, known: list[Migration]) -> int:
    """How many of the steps the schema has."""
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
    if len(applied) > len(known):
        raise StoreVersionError(
            f"{where}: schema {schema} is at {applied[-1][0]}, this program knows {known[-1].number}: upgrade towline"
        )
    for migration, (number, name, checksum) in zip(known, applied, strict=False):
        if (migration.number, migration.checksum) != (number, checksum):
            raise StoreVersionError(f"{where}: migration {name} is not the one this program has")
    return len(applied)

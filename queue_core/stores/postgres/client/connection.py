"""Open a connection to PostgreSQL, check what the store relies on, and set the session up."""

import contextlib
import os
import secrets
import select
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NoReturn, TypeAlias

import psycopg
from psycopg import sql

from queue_core.clock import Instant
from queue_core.errors import StoreUnavailableError, StoreUnsafeError
from queue_core.stores.postgres.client import errors
from queue_core.stores.postgres.client.call_timeouts import CallTimeouts
from queue_core.stores.postgres.client.statements import StatementRunner
from queue_core.stores.remote_clock import MAX_OPENING_READS, RemoteClock, decode_record

OLDEST_VERSION = 14
HANDSHAKE_SECONDS = 5.0
"""The timeout of the checks of a new connection."""
ISOLATION = "read committed"
TOLD = "TLTLD"
"""The code of the messages of the schema's `tell`."""

SETTINGS: Mapping[str, str] = {
    # The locks of a vanished client are released after seconds, not after TCP's two hours.
    "tcp_keepalives_idle": "3",
    "tcp_keepalives_interval": "1",
    "tcp_keepalives_count": "2",
    "tcp_user_timeout": "5000",
    "client_connection_check_interval": "2000",
    "idle_in_transaction_session_timeout": "5000",
    "lock_timeout": "8000",
    # Wake-ups and counters rely on each statement seeing all commits before it.
    "default_transaction_isolation": ISOLATION,
    "jit": "off",
}

_HANDSHAKE = """
    SELECT pg_backend_pid(), pg_is_in_recovery(), current_setting('default_transaction_read_only') = 'on',
        current_setting('default_transaction_isolation'), to_regprocedure(%s) IS NOT NULL
"""
_LIFE = "SELECT {}.life()"
_SET = "SELECT count(set_config(name, value, false)) FROM unnest(%s::text[], %s::text[]) AS setting (name, value)"
_TIME = """
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::int8,
        obj_description(to_regclass(%s), 'pg_class')
"""
_KEEP_RECORD = "COMMENT ON TABLE {}.migrations IS {}"
RECORD_HEAD = "clock: "
"""The record of the clock's steps (`ClockRecord`) is the comment of a table, so no migration is needed to read it."""

Connection: TypeAlias = psycopg.Connection[tuple[object, ...]]


@dataclass(slots=True, eq=False, weakref_slot=True)
class PostgresConnection:
    """One open connection, in autocommit.

    Args:
        driver: the driver's connection.
        life: names the time since the server's last crash; "": not known. See `ConnectionPool.outcome`.
        is_pooled: whether it goes through a proxy that may give each transaction another backend, so that session state
            (settings, prepared statements, LISTEN, session locks) is unreliable.
        number: counts the connections of a pool.
        idle_since: the monotonic seconds at which it was given back.
        is_lent: whether it is in use and must be given back.
        runner: runs statements on it.
        schema: the store's.
        marker: names the connection in the schema's `commit_markers`; `calls` is the number of its last call there.
    """

    driver: Connection
    life: str
    is_pooled: bool
    runner: StatementRunner
    number: int = 0
    idle_since: float = 0.0
    is_lent: bool = False
    marker: int = field(default_factory=lambda: secrets.randbits(63))
    calls: int = 0
    schema: str = ""
    _poll: "select.poll | None" = None

    def has_unread_input(self) -> bool:
        """Return whether the server sent anything unrequested, most likely that it shuts down."""
        if self._poll is None:
            self._poll = select.poll()
            self._poll.register(self.driver.pgconn.socket, select.POLLIN)
        return self.driver.closed or bool(self._poll.poll(0))

    def leave_to_parent(self) -> None:
        """In the child of a fork: detach the socket, as libpq would end the parent's session."""
        with contextlib.suppress(psycopg.Error, OSError):
            descriptor = self.driver.pgconn.socket
            nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            os.dup2(nothing, descriptor, inheritable=False)
            os.close(nothing)

    def read_time(self, clock: RemoteClock) -> None:
        """Set the clock by the server's time. Raises the driver's errors."""
        sent_at = clock.since_boot()
        row = self.driver.execute(_TIME, (f"{self.schema}.migrations",)).fetchone()
        received_at = clock.since_boot()
        assert row is not None and isinstance(row[0], int), "one row, of a number and a comment"
        kept = str(row[1] or "")
        record = decode_record(kept.removeprefix(RECORD_HEAD) if kept.startswith(RECORD_HEAD) else "")
        clock.observe(Instant(row[0]), sent_at=sent_at, received_at=received_at, record=record)
        if (unkept := clock.unkept) is not None:
            keep = sql.SQL(_KEEP_RECORD).format(sql.Identifier(self.schema), RECORD_HEAD + unkept.encode())
            with contextlib.suppress(psycopg.ProgrammingError):  # a role that does not own the table
                self.driver.execute(keep)


def open_connection(
    conninfo: str,
    *,
    where: str,
    schema: str,
    settings: Mapping[str, str],
    clock: RemoteClock,
    call_timeouts: CallTimeouts,
) -> PostgresConnection:
    """Connect, check the server, set the session up, and set the clock.

    Args:
        where: names the server in errors.
        settings: PostgreSQL's settings for the session; unused behind a proxy, where other sessions would inherit them.

    Raises `StoreUnavailableError` for a server that can't be reached or is a standby, as during a failover;
    `StoreReadOnlyError`, `StoreUnsafeError`.
    """
    try:
        driver = psycopg.connect(conninfo, autocommit=True)
    except psycopg.Error as error:
        raise errors.translate(error, where) from error
    try:
        with call_timeouts.over(driver.pgconn, seconds=HANDSHAKE_SECONDS):
            connection = _handshake(driver, where, schema)
            if not connection.is_pooled:
                driver.execute(_SET, (list(settings), list(settings.values())))
            for _ in range(MAX_OPENING_READS):
                connection.read_time(clock)
                if not clock.is_vague:
                    break
        return connection
    except BaseException as error:
        driver.close()
        if isinstance(error, psycopg.Error):
            raise errors.translate(error, where) from error
        raise


def _handshake(driver: Connection, where: str, schema: str) -> PostgresConnection:
    version = driver.pgconn.server_version // 10_000
    if version < OLDEST_VERSION:
        raise StoreUnsafeError(f"{where}: PostgreSQL must be {OLDEST_VERSION} or newer: {version}")
    encoding = driver.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise StoreUnsafeError(f"{where}: the database's encoding must be UTF8: {encoding}; name another database")
    row = driver.execute(_HANDSHAKE, (f"{schema}.life()",)).fetchone()
    assert row is not None, "one row"
    backend, is_standby, is_read_only, isolation, has_life = row
    if is_standby:
        raise StoreUnavailableError(f"{where}: the server is a standby: promote it, or name the primary too")
    if is_read_only:
        raise errors.read_only(where)
    is_pooled = backend != driver.info.backend_pid
    if is_pooled:
        driver.prepare_threshold = None
        if isolation != ISOLATION:
            _refuse_isolation(where, isolation)
    life = "" if is_pooled or not has_life else read_life(driver, schema)
    runner = StatementRunner(driver.pgconn, schema, keeps_statements=not is_pooled)

    def note(notice: psycopg.errors.Diagnostic) -> None:
        if notice.sqlstate == TOLD:
            runner.news.append(notice.message_primary or "")

    driver.add_notice_handler(note)
    return PostgresConnection(driver, life, is_pooled, runner, schema=schema)


def read_life(driver: Connection, schema: str) -> str:
    """Return the server's present life; see `commit_outcome`."""
    row = driver.execute(sql.SQL(_LIFE).format(sql.Identifier(schema))).fetchone()
    return str(row[0]) if row else ""


def _refuse_isolation(where: str, isolation: object) -> NoReturn:
    raise StoreUnsafeError(
        f"{where}: default_transaction_isolation must be {ISOLATION!r} behind a proxy: {isolation!r}; "
        "ALTER ROLE ... IN DATABASE ... SET default_transaction_isolation"
    )

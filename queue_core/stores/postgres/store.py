"""The PostgreSQL store: transactions on pooled connections; an answered commit is durable."""

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import inf
from threading import Lock
from types import TracebackType
from typing import Final, Literal

import psycopg
from psycopg import pq

from queue_core.clock import Clock
from queue_core.errors import InvalidRequestError, StoreUnavailableError, StoreUnsafeError
from queue_core.log import get_logger
from queue_core.process import forking
from queue_core.store import Ticket, Unit
from queue_core.stores.postgres import schema
from queue_core.stores.postgres.caller_transaction import CallerTransaction
from queue_core.stores.postgres.check import check
from queue_core.stores.postgres.client.address import parse_address
from queue_core.stores.postgres.client.connection import PostgresConnection
from queue_core.stores.postgres.client.pool import ConnectionPool
from queue_core.stores.postgres.client.statements import (
    BEGIN,
    CALLERS,
    COMMIT,
    RELAX,
    ROLLBACK,
    SNAPSHOT,
    Call,
    StatementRunner,
)
from queue_core.stores.postgres.commit_markers import AutocommitRunner
from queue_core.stores.postgres.floors import FloorRaiser
from queue_core.stores.postgres.held_snapshot import held_snapshot
from queue_core.stores.postgres.maintenance import TRIM_FAILED, Trimmer, Vacuum
from queue_core.stores.postgres.notify.bus import NotifyBus
from queue_core.stores.postgres.notify.signals import NotifySignals
from queue_core.stores.postgres.session import PostgresSession
from queue_core.stores.postgres.transaction import PostgresTransaction
from queue_core.stores.remote_clock import RemoteClock
from queue_core.verbs import Check, HeldSnapshot

_BEGIN: Final[Sequence[Call]] = ((BEGIN, ()),)
_BEGIN_RELAXED: Final[Sequence[Call]] = (*_BEGIN, (RELAX, ()))
_ISOLATION = "SELECT current_setting('transaction_isolation')"

log = get_logger()


class PostgresWrite:
    """A write transaction as a context manager; a class, as a generator costs more."""

    __slots__ = ("_connection", "_session", "_store", "_unit")

    def __init__(self, store: "PostgresStore", unit: Unit) -> None:
        self._store = store
        self._unit = unit

    def __enter__(self) -> PostgresTransaction:
        self._connection, self._session = self._store.enter(self._unit)
        return PostgresTransaction(self._session)

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if error is None:
            self._store.commit(self._connection, self._session)
        else:
            self._store.roll_back(self._connection, self._session, error)


class PostgresStore:
    """See `Store`."""

    is_remote = True
    unit: Unit = "transaction"

    def __init__(
        self,
        url: str,
        *,
        durability: Literal["strict", "relaxed"] = "strict",
        clock: RemoteClock | None = None,
    ) -> None:
        """Open the store at a `postgresql://` URL and create its schema if there is none; see `parse_address`.

        Args:
            clock: the store's; a test of clock steps brings its own.
        """
        self._durability = durability
        self._address = parse_address(url)
        self._settings = {"synchronous_commit": "off" if durability == "relaxed" else "on"}
        self._commits = 0
        self._open(clock or RemoteClock())
        try:
            self._prepare()
        except BaseException:
            self._pool.close()
            raise
        forking.renew_after_forks(self)

    def _open(self, clock: RemoteClock) -> None:
        """Set up the pool and the signals, without a connection or a thread."""
        self._pool = ConnectionPool(self._address, clock=clock, settings=self._settings)
        self._signals = NotifySignals(self._pool)
        self._vacuum = Vacuum(self._pool, clock.monotonic)
        self._floors = FloorRaiser(self._pool)
        self._lock = Lock()
        self._trimmer = Trimmer()

    def renew_after_fork(self) -> None:
        """See `forking.Renewable`. Connections and threads are the parent's; a closed store stays closed."""
        pool = self._pool
        pool.clock.renew_after_fork()
        pool.leave_to_parent()
        self._signals.leave_to_parent()
        self._open(pool.clock)
        if pool.is_closed:
            self._pool.close()

    def _prepare(self) -> None:
        connection = self._pool.connect()
        try:
            driver = connection.driver
            row = driver.execute("SELECT current_setting('fsync')").fetchone()
            if self._durability == "strict" and row != ("on",):
                raise StoreUnsafeError(
                    f"{self.url}: fsync is off, a power cut can lose the database: set it on, or durability: relaxed"
                )
            schema.prepare(driver, self._address.schema, self.url, monotonic=self._pool.clock.monotonic)
        except psycopg.Error as error:
            raise self._pool.translate(error) from error
        finally:
            connection.driver.close()

    @property
    def url(self) -> str:
        """See `Store.url`."""
        return self._address.shown

    @property
    def durability(self) -> Literal["strict", "relaxed"]:
        """See `Store.durability`."""
        return self._durability

    @property
    def signals(self) -> NotifySignals:
        """See `Store.signals`."""
        return self._signals

    def bus(self) -> NotifyBus:
        """See `Broadcaster.bus`."""
        return NotifyBus(self._pool)

    @property
    def clock(self) -> Clock:
        """See `Store.clock`."""
        return self._pool.clock

    # -- transactions ---------------------------------------------------------------------------------------------

    def begin(self, unit: Unit = "transaction") -> PostgresWrite:
        """See `Store.begin`."""
        return PostgresWrite(self, unit)

    def enter(self, unit: Unit) -> tuple[PostgresConnection, PostgresSession]:
        """Return a connection and a session, whose transaction begins with its first statement."""
        connection = self._pool.take()
        if connection.is_pooled and self._durability == "relaxed":
            return connection, PostgresSession(connection.runner, _BEGIN_RELAXED, pool=self._pool)
        autocommit = AutocommitRunner(self._pool, connection) if unit == "verb" else None
        return connection, PostgresSession(connection.runner, _BEGIN, autocommit, self._pool)

    def commit(self, connection: PostgresConnection, session: PostgresSession) -> None:
        """Commit; if the answer is lost, determine the outcome."""
        if session.used:
            self._floors.note(session.used, session.work)
        if session.is_committed:
            self._trim_after_verb(connection, session)
            self._after_commit(session)
            return
        if not session.is_open:
            self._pool.give_back(connection)
            return
        pgconn = connection.driver.pgconn
        try:
            self._check_sound(pgconn)
            self._trimmer.trim_if_due(session)
            xid = session.assigned_xid()
        except BaseException as error:
            self.roll_back(connection, session, error)
            raise
        try:
            connection.runner.call(COMMIT, ())
        except psycopg.Error as error:
            is_lost = pgconn.status != pq.ConnStatus.OK
            self._pool.give_back(connection)
            if not is_lost:
                raise self._pool.translate(error) from error
            if xid is not None and self._pool.outcome(xid, life=connection.life) == "aborted":
                raise StoreUnavailableError(f"{self.url}: the connection was lost; nothing was changed") from error
        except BaseException:
            self._pool.give_back(connection)
            raise
        else:
            self._pool.give_back(connection)
        self._after_commit(session)

    def _trim_after_verb(self, connection: PostgresConnection, session: PostgresSession) -> None:
        """Trim after a verb that committed by itself; a failure is logged, as a later trim makes up for it."""
        try:
            self._trimmer.trim_if_due(session)
            if session.is_open:
                connection.runner.call(COMMIT, ())
        except psycopg.Error as error:
            log.warning(TRIM_FAILED, store=self.url, error=str(self._pool.translate(error)))
        finally:
            self._pool.give_back(connection)

    def _after_commit(self, session: PostgresSession) -> None:
        """Count a commit, wake waiters of tasks that time made ready, and start a vacuum if one is due."""
        with self._lock:
            self._commits += 1
        for (queue, tag), number in session.take_ready().items():
            self._signals.publish(queue, tag, number)
        if session.needs_vacuum:
            self._vacuum.start()

    def _check_sound(self, pgconn: pq.abc.PGconn) -> None:
        if pgconn.transaction_status == pq.TransactionStatus.INERROR:
            raise StoreUnavailableError(f"{self.url}: a statement of the transaction failed; nothing was changed")

    def roll_back(self, connection: PostgresConnection, session: PostgresSession, error: BaseException) -> None:
        """Roll back, and raise the store's error for one of the driver."""
        try:
            if session.is_open and connection.driver.pgconn.status == pq.ConnStatus.OK:
                with contextlib.suppress(psycopg.Error):
                    connection.runner.call(ROLLBACK, ())
        finally:
            self._pool.give_back(connection)
        if isinstance(error, psycopg.Error):
            raise self._pool.translate(error) from error

    @contextmanager
    def within(self, connection: object) -> Iterator[PostgresTransaction]:
        """See `Store.within`: a `psycopg.Connection` with an open READ COMMITTED transaction."""
        runner = StatementRunner(self._check_callers(connection).pgconn, self._address.schema, keeps_statements=False)
        try:
            yield CallerTransaction(PostgresSession(runner, [(CALLERS, ())]))
        except psycopg.Error as error:
            raise self._pool.translate(error) from error

    def _check_callers(self, connection: object) -> "psycopg.Connection[object]":
        if not isinstance(connection, psycopg.Connection):
            raise InvalidRequestError(
                f"connection must be a psycopg.Connection to the store's database: {type(connection).__name__}"
            )
        status = connection.info.transaction_status
        if status == pq.TransactionStatus.IDLE and connection.autocommit:
            raise InvalidRequestError(
                "the connection is in autocommit: open a transaction, `with connection.transaction():`"
            )
        if connection.closed or connection.pgconn.pipeline_status or status == pq.TransactionStatus.INERROR:
            raise InvalidRequestError("the connection is closed, in a pipeline, or its transaction has failed")
        row = connection.cursor(row_factory=psycopg.rows.tuple_row).execute(_ISOLATION).fetchone()
        if row != ("read committed",):
            raise InvalidRequestError(f"the transaction must be READ COMMITTED: {row[0] if row else ''}")
        return connection

    @contextmanager
    def read(self) -> Iterator[PostgresTransaction]:
        """See `Store.read`."""
        connection = self._pool.take()
        session = PostgresSession(connection.runner, [(SNAPSHOT, ())])
        try:
            yield PostgresTransaction(session)
        except psycopg.Error as error:
            raise self._pool.translate(error) from error
        finally:
            self._end_read(connection, session)

    def _end_read(self, connection: PostgresConnection, session: PostgresSession) -> None:
        try:
            if session.is_open and connection.driver.pgconn.status == pq.ConnStatus.OK:
                with contextlib.suppress(psycopg.Error):
                    connection.runner.call(COMMIT, ())
        finally:
            self._pool.give_back(connection)

    def ticket(self) -> Ticket:
        """See `Store.ticket`."""
        return Ticket(self._commits)

    def sync(self, ticket: Ticket) -> None:
        """Do nothing: a commit is durable when it answers."""

    # -- maintenance ----------------------------------------------------------------------------------------------

    def check_room(self) -> None:
        """See `Store.check_room`: PostgreSQL reports a lack of room with each change."""

    def make_room(self) -> bool:
        """See `Store.make_room`."""
        return False

    def held_snapshot(self, *, min_seconds: float = 0.0) -> HeldSnapshot | None:
        """See `Store.held_snapshot`."""
        with self._pool.lend() as connection:
            return held_snapshot(connection.driver, self._address.schema, min_seconds=min_seconds)

    def check(self) -> Check:
        """See `Store.check`."""
        with self._pool.lend(seconds=inf) as connection:
            return check(connection.driver, self._address.schema)

    def close(self) -> None:
        """See `Store.close`."""
        self._vacuum.close()
        self._floors.close()
        self._signals.close()
        self._pool.close()

"""A pool of checked connections to PostgreSQL, lent last in, first out, and replaced when they are lost.

Borrowing costs 4 us with its checks, from the driver's own pool 9 us, of a transaction's 100 us.
"""

import contextlib
import time
from collections.abc import Callable, Mapping
from threading import Condition, Lock
from types import TracebackType
from typing import TypeVar
from weakref import WeakSet

import psycopg
from psycopg import pq

from queue_core.errors import OutcomeUnknownError, StoreError, StoreUnavailableError
from queue_core.stores.postgres.client import errors
from queue_core.stores.postgres.client.address import PostgresAddress
from queue_core.stores.postgres.client.call_timeouts import CallTimeouts
from queue_core.stores.postgres.client.commit_outcome import Outcome, end_backend, read_outcome
from queue_core.stores.postgres.client.connection import SETTINGS, PostgresConnection, open_connection
from queue_core.stores.remote_clock import RemoteClock

MAX_CONNECTIONS = 20
"""The most connections of a store; more wait. The server's `max_connections` bounds those of all processes."""
WAIT_SECONDS = 5.0
"""How long a call waits for a connection when all are in use."""
IDLE_SECONDS = 60.0
"""How long an idle connection stays open."""
OUTCOME_SECONDS = 5.0
"""How long the outcome of a commit is looked up after its answer was lost."""
PATIENCE_SECONDS = 1.0
"""How long a transaction without a client may go on before its backend is ended."""
PAUSE_SECONDS = 0.05
"""The pause between two lookups of an outcome."""
CALL_SECONDS = 10.0
"""How long a connection is lent before it is shut down; longer than `lock_timeout`."""

T = TypeVar("T")


class BorrowedConnection:
    """A context manager that borrows a connection and translates the driver's errors; a generator would cost more."""

    __slots__ = ("_connection", "_pool", "_seconds")

    def __init__(self, pool: "ConnectionPool", seconds: float) -> None:
        self._pool = pool
        self._seconds = seconds
        self._connection: PostgresConnection | None = None

    def __enter__(self) -> PostgresConnection:
        self._connection = connection = self._pool.take(seconds=self._seconds)
        return connection

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _at: TracebackType | None
    ) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._pool.give_back(connection)
        if isinstance(error, psycopg.Error):
            raise self._pool.translate(error) from error


class ConnectionPool:
    """The connections of one store, opened as needed; thread-safe."""

    def __init__(
        self,
        address: PostgresAddress,
        *,
        clock: RemoteClock | None = None,
        settings: Mapping[str, str] | None = None,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        """Args:
        clock: set by the server's time with every new connection, and every few seconds.
        settings: PostgreSQL's settings for each session that keeps settings, beside `SETTINGS`.
        max_connections: the most connections; more borrowers wait.
        """
        self.address = address
        self.clock = clock or RemoteClock()
        self._settings = {**SETTINGS, **(settings or {})}
        self._max_connections = max_connections
        self.call_timeouts = CallTimeouts(self.clock.monotonic)
        self._changed = Condition(Lock())
        self._idle: list[PostgresConnection] = []
        self._open = 0
        self._opened = 0
        self._dropped = 0
        self._made: WeakSet[PostgresConnection] = WeakSet()
        self._left: list[PostgresConnection] = []
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        """Return whether `close` was called."""
        return self._is_closed

    @property
    def url(self) -> str:
        """The store's URL, without secrets."""
        return self.address.shown

    def translate(self, error: psycopg.Error) -> StoreError:
        """See `errors.translate`."""
        return errors.translate(error, self.url)

    # -- lending --------------------------------------------------------------------------------------------------

    def lend(self, *, seconds: float = CALL_SECONDS) -> BorrowedConnection:
        """Lend a connection for the length of a block; a transaction that it leaves open is rolled back."""
        return BorrowedConnection(self, seconds)

    def take(self, *, seconds: float = CALL_SECONDS) -> PostgresConnection:
        """Borrow a checked connection, which must be given back in any case.

        Args:
            seconds: it is shut down if it is not given back by then, so that no call waits for ever; `inf`: never.

        Raises `StoreUnavailableError` when none is free within `WAIT_SECONDS`, and the errors of `open_connection`.
        """
        self.check_usable()
        while (connection := self._take_idle()) is not None:
            pgconn = connection.driver.pgconn
            if connection.has_unread_input():
                self._lose(connection)
                continue
            self.call_timeouts.add(pgconn, seconds=seconds)
            if not self.clock.is_stale or self._is_answering(connection):
                connection.is_lent = True
                return connection
        try:
            connection = self.connect()
        except BaseException:
            self._note_closed()
            raise
        self.call_timeouts.add(connection.driver.pgconn, seconds=seconds)
        connection.is_lent = True
        return connection

    def give_back(self, connection: PostgresConnection) -> None:
        """Give a connection back, without its transaction; if it is lost, all idle ones are closed too.

        Does nothing for one that was given back already.
        """
        if not connection.is_lent:
            return
        connection.is_lent = False
        pgconn = connection.driver.pgconn
        if pgconn.transaction_status != pq.TransactionStatus.IDLE:
            with contextlib.suppress(psycopg.Error):
                connection.driver.rollback()
            if pgconn.transaction_status != pq.TransactionStatus.IDLE:
                self._lose(connection)
                return
        self.call_timeouts.discard(pgconn)
        now = self.clock.monotonic()
        connection.idle_since = now
        oldest: PostgresConnection | None = connection
        with self._changed:
            if not self._is_closed and connection.number > self._dropped:
                self._idle.append(connection)
                self._changed.notify()
                oldest = self._idle.pop(0) if self._idle[0].idle_since < now - IDLE_SECONDS else None
        if oldest is not None:
            self._discard(oldest)

    def connect(self, conninfo: str = "") -> PostgresConnection:
        """Open a connection that the caller closes: for listening, or to prepare the schema.

        Args:
            conninfo: the connection string; the store's own by default.
        """
        self.check_usable()
        connection = open_connection(
            conninfo or self.address.conninfo,
            where=self.url,
            schema=self.address.schema,
            settings=self._settings,
            clock=self.clock,
            call_timeouts=self.call_timeouts,
        )
        with self._changed:
            self._opened += 1
            connection.number = self._opened
            self._made.add(connection)
        return connection

    def close(self) -> None:
        """Close idle connections now, and lent ones when they are given back."""
        with self._changed:
            self._is_closed = True
            idle, self._idle = self._idle, []
            self._changed.notify_all()
        self.call_timeouts.close()
        for connection in idle:
            self._discard(connection)

    def leave_to_parent(self) -> None:
        """In the child of a fork: detach every connection without ending the parent's sessions."""
        self._left = list(self._made)
        for connection in self._left:
            connection.leave_to_parent()

    def check_usable(self) -> None:
        """Raise `StoreUnavailableError` after `close`."""
        if self._is_closed:
            raise StoreUnavailableError(f"the store {self.url} was closed: open it again")

    def _take_idle(self) -> PostgresConnection | None:
        """Return an idle connection, or None for the right to open one more."""
        with self._changed:
            if not self._may_take() and not self._changed.wait_for(self._may_take, WAIT_SECONDS):
                raise StoreUnavailableError(
                    f"{self.url}: all {self._max_connections} connections were in use for {WAIT_SECONDS:.0f} s"
                )
            if self._idle:
                return self._idle.pop()
            self._open += 1
            return None

    def _may_take(self) -> bool:
        return bool(self._idle) or self._open < self._max_connections

    def _is_answering(self, connection: PostgresConnection) -> bool:
        try:
            connection.read_time(self.clock)
        except psycopg.Error:
            self._lose(connection)
            return False
        return True

    def _lose(self, connection: PostgresConnection) -> None:
        """Close a lost connection and the idle ones, which are likely lost too and would each delay a call."""
        with self._changed:
            self._dropped = self._opened
            idle, self._idle = self._idle, []
        for lost in (connection, *idle):
            self._discard(lost)

    def _discard(self, connection: PostgresConnection) -> None:
        self.call_timeouts.discard(connection.driver.pgconn)
        with contextlib.suppress(psycopg.Error):
            connection.driver.close()
        self._note_closed()

    def _note_closed(self) -> None:
        with self._changed:
            self._open -= 1
            self._changed.notify()

    # -- after a lost answer --------------------------------------------------------------------------------------

    def outcome(self, xid: int, *, life: str) -> Outcome:
        """Determine the outcome of a transaction whose COMMIT was sent and not answered, in some seconds.

        Args:
            xid: its `pg_current_xact_id()`.
            life: `PostgresConnection.life` of its connection.

        Raises `OutcomeUnknownError` when the server can't be reached in time, or does not know.
        """

        def query(connection: PostgresConnection, waited_seconds: float) -> Outcome | None:
            outcome = read_outcome(connection.driver, self.address.schema, xid, life)
            if outcome == "unknown":
                raise self._unknown("the server has crashed or was replaced meanwhile")
            if outcome != "open":
                return outcome
            if waited_seconds > PATIENCE_SECONDS:
                end_backend(connection.driver, xid)
            return None

        return self.find_out(query)

    def find_out(self, query: Callable[[PostgresConnection, float], T | None]) -> T:
        """Repeat a query for the outcome of a call until it is known, for `OUTCOME_SECONDS`.

        Args:
            query: takes a connection and the seconds waited so far; returns None while the outcome is not known.

        Raises `OutcomeUnknownError` when it is not known in time.
        """
        clock = self.clock
        started_at = clock.monotonic()
        while True:
            waited_seconds = clock.monotonic() - started_at
            why = "it is still in progress"
            try:
                with self.lend(seconds=OUTCOME_SECONDS) as connection:
                    found = query(connection, waited_seconds)
                if found is not None:
                    return found
            except OutcomeUnknownError:
                raise
            except StoreError as error:
                why = str(error)
            if waited_seconds > OUTCOME_SECONDS or self._is_closed:
                raise self._unknown(why)
            time.sleep(PAUSE_SECONDS)

    def _unknown(self, why: str) -> OutcomeUnknownError:
        return OutcomeUnknownError(
            f"{self.url}: the answer to a commit was lost and its outcome is not known ({why}): look before repeating"
        )

"""Pass texts between the processes of a database with NOTIFY; nothing is written to a table (ADR 39).

A process that receives has a connection of its own, in one thread, which is opened again when it is lost. There it
holds a lock that names it, so that its end is seen. A transaction that only notifies waits for no disk.
"""

import contextlib
import os
import select
from collections.abc import Callable, Sequence
from hashlib import blake2b
from threading import Event, Lock, Thread

import psycopg
from psycopg import sql

from queue_core.errors import StoreError, StoreUnavailableError, StoreUnsafeError
from queue_core.log import get_logger
from queue_core.stores.postgres.client.connection import PostgresConnection
from queue_core.stores.postgres.client.pool import ConnectionPool
from queue_core.stores.postgres.notify.listener import LISTENER_LOST, OPEN_SECONDS, REFUSED_SECONDS, RETRY_SECONDS

PIECE_CHARACTERS = 7_900
"""PostgreSQL refuses a payload of 8,000 bytes."""
ROUND_SECONDS = 10.0

_SEND = "SELECT pg_notify(c, p) FROM unnest(%s::text[], %s::text[]) AS sent (c, p)"
_NODES = """
    SELECT DISTINCT objid::int8 FROM pg_locks
    WHERE locktype = 'advisory' AND classid::int8 = %s AND objsubid = 2 AND granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""

log = get_logger()


class NotifyBus:
    """See `MessageBus`."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        digest = blake2b(f"towline mailboxes {pool.address.schema}".encode(), digest_size=4)
        self._class = int(digest.hexdigest(), 16)
        self._channel = f"towline_mail_{digest.hexdigest()}"
        self._node = ""
        self._lock = Lock()
        self._thread: Thread | None = None
        self._wakeup = -1
        self._opened = Event()
        self._failure: StoreError | None = None
        self._is_ending = False

    @property
    def piece_characters(self) -> int:
        """See `MessageBus.piece_characters`."""
        return PIECE_CHARACTERS

    def receive(
        self,
        node: str,
        *,
        on_piece: Callable[[str], None],
        on_gap: Callable[[], None],
        on_round: Callable[[], None],
    ) -> None:
        """See `MessageBus.receive`."""
        with self._lock:
            if self._thread is None:
                self._node = node
                self._on_piece, self._on_gap, self._on_round = on_piece, on_gap, on_round
                self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
                self._thread = Thread(target=self._work, name="towline-mailboxes", daemon=True)
                self._thread.start()
        is_over = self._opened.wait(OPEN_SECONDS)
        if self._failure is not None:
            raise self._failure
        if not is_over:
            raise StoreUnavailableError(f"{self._pool.url}: no connection to listen within {OPEN_SECONDS:g} s")

    def send(self, pieces: Sequence[tuple[str, str]]) -> None:
        """See `MessageBus.send`."""
        channels = [self._channel_of(node) for node, _ in pieces]
        with self._pool.lend() as connection:
            connection.driver.execute(_SEND, (channels, [piece for _, piece in pieces]))

    def nodes(self) -> set[str]:
        """See `MessageBus.nodes`."""
        with self._pool.lend() as connection:
            return {f"{number:08x}" for (number,) in connection.driver.execute(_NODES, (self._class,))}

    def leave_to_parent(self) -> None:
        """See `MessageBus.leave_to_parent`; the store leaves the connection itself."""
        self._is_ending = True
        if self._wakeup >= 0:
            os.close(self._wakeup)
            self._wakeup = -1

    def close(self) -> None:
        """See `MessageBus.close`."""
        self._is_ending = True
        with self._lock:
            thread = self._thread
            if self._wakeup >= 0:
                os.eventfd_write(self._wakeup, 1)
        if thread is not None:
            thread.join(OPEN_SECONDS)
            if not thread.is_alive():
                os.close(self._wakeup)
                self._wakeup = -1

    def _channel_of(self, node: str) -> str:
        return f"{self._channel}_{node}" if node else self._channel

    # -- the thread -----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        failures = 0
        is_late = False
        while not self._is_ending:
            connection: PostgresConnection | None = None
            try:
                connection = self._open()
                failures = 0
                self._failure = None
                self._opened.set()
                if is_late:
                    self._on_gap()
                self._listen(connection)
                return
            except Exception as error:
                failures += 1
                self._note_failure(error, failures)
                if not isinstance(error, StoreError | psycopg.Error):
                    log.exception(LISTENER_LOST)
            finally:
                if connection is not None:
                    with contextlib.suppress(psycopg.Error):
                        connection.driver.close()
            is_late = True
            is_refused = self._failure is not None and not isinstance(self._failure, StoreUnavailableError)
            self._sleep(REFUSED_SECONDS if is_refused else RETRY_SECONDS[min(failures, len(RETRY_SECONDS)) - 1])

    def _open(self) -> PostgresConnection:
        address = self._pool.address
        connection = self._pool.connect(address.listen)
        try:
            _check_direct(self._pool, connection)
            with self._pool.call_timeouts.over(connection.driver.pgconn, seconds=OPEN_SECONDS):
                name = [_signed(self._class), _signed(int(self._node, 16))]
                connection.driver.execute("SELECT pg_advisory_lock_shared(%s::int4, %s::int4)", name)
                for channel in (self._channel, self._channel_of(self._node)):
                    connection.driver.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        except BaseException as error:
            connection.driver.close()
            if isinstance(error, psycopg.Error):
                raise self._pool.translate(error) from error
            raise
        return connection

    def _listen(self, connection: PostgresConnection) -> None:
        pgconn, monotonic = connection.driver.pgconn, self._pool.clock.monotonic
        poll = select.poll()
        poll.register(pgconn.socket, select.POLLIN)
        poll.register(self._wakeup, select.POLLIN)
        next_round = monotonic() + ROUND_SECONDS
        while not self._is_ending:
            if poll.poll(max(0.0, next_round - monotonic()) * 1000):
                pgconn.consume_input()
                while (notify := pgconn.notifies()) is not None:
                    self._on_piece(notify.extra.decode("ascii", "replace"))
            if monotonic() >= next_round:
                next_round = monotonic() + ROUND_SECONDS
                self._on_round()

    def _note_failure(self, error: Exception, failures: int) -> None:
        if isinstance(error, psycopg.Error):
            error = self._pool.translate(error)
        if not isinstance(error, StoreError):
            return
        self._failure = error
        if isinstance(error, StoreUnavailableError):
            self._opened.clear()
            if failures == 1:
                log.warning(LISTENER_LOST, error=str(error))
        else:
            self._opened.set()

    def _sleep(self, seconds: float) -> None:
        poll = select.poll()
        poll.register(self._wakeup, select.POLLIN)
        poll.poll(seconds * 1000)


def _check_direct(pool: ConnectionPool, connection: PostgresConnection) -> None:
    if connection.is_pooled and not pool.address.listen:
        raise StoreUnsafeError(
            f"{pool.url}: behind a proxy LISTEN is not possible, so remote control of kombu's programs reaches those "
            "of one process only: add `listen=` with the percent-encoded URL of a direct connection to the database"
        )


def _signed(number: int) -> int:
    """Return 32 bits as PostgreSQL's int4."""
    return number - (1 << 32) if number >= 1 << 31 else number

"""The connection that listens: opened for the first waiter, reopened when it is lost, closed without waiters.

Registered waiters are woken by notifications; when a lost connection is back, all are woken once.
"""

import contextlib
import json
import os
import select
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from secrets import randbits
from threading import Condition, Thread, current_thread
from typing import Literal

import psycopg
from psycopg import sql

from queue_core.errors import StoreError, StoreUnavailableError, StoreUnsafeError
from queue_core.log import get_logger
from queue_core.stores.postgres.client import binary as pack
from queue_core.stores.postgres.client.connection import PostgresConnection
from queue_core.stores.postgres.client.pool import ConnectionPool
from queue_core.stores.postgres.client.statements import Statement
from queue_core.stores.postgres.notify.sender import NotifySender
from queue_core.stores.postgres.notify.waiters import PostgresSubscription, PostgresWaiters, rows

LISTENER_LOST = "listener.lost"
"""The connection that hears PostgreSQL's notifications has ended: waiters poll."""
LISTENER_RESTORED = "listener.restored"
"""PostgreSQL's notifications are heard again."""
SIGNALS_UNHEARD = "signals.unheard"
"""LISTEN is not possible here, so waiters poll every `POLL_SECONDS`; the event says why."""

OPEN_SECONDS = 5.0
"""How long the first waiter waits for the connection."""
LINGER_SECONDS = 60.0
"""How long the connection stays open without a waiter."""
POLL_SECONDS = 2.0
"""How often waiters poll where LISTEN is not possible."""
PASS_ON_SECONDS = 2.0
"""How often wake-ups that were not taken up are passed on."""
RETRY_SECONDS = (0.1, 0.2, 0.5, 1.0)
"""The pauses before a lost connection is opened again; the last one repeats."""
REFUSED_SECONDS = 30.0
"""The pause where LISTEN is not possible."""
REPOLL_SECONDS = (1.0, 3.0, 9.0, 27.0)
"""The seconds after the start of the store's first listener at which all waiters are woken.

Transactions that were open at its start notify no one when they commit.
"""

State = Literal["closed", "opening", "open", "lost", "refused"]

_REGISTER = Statement("towline_register_waiters", "SELECT towline.register_waiters($1, $2)", (pack.int8, pack.text))

log = get_logger()


class NotifyListener:
    """Receive notifications in one thread, on one connection."""

    def __init__(self, pool: ConnectionPool, waiters: PostgresWaiters, sender: NotifySender) -> None:
        self._pool = pool
        self._waiters = waiters
        self._sender = sender
        self._changed = Condition()
        self._state: State = "closed"
        self._trouble = ""
        self._thread: Thread | None = None
        self._wakeup = -1
        self._is_doubtful = False
        self._is_late = False
        self._is_ending = False

    @property
    def trouble(self) -> str:
        """The reason why waiters can't be woken; "" when they can, or none registered."""
        return self._trouble

    def register(self, waiter: PostgresSubscription) -> None:
        """Register a waiter; it is woken from now on, or once a lost connection is back."""
        with self._changed:
            if self._is_ending:
                return
            if self._thread is None:
                self._start_locked()
            if not self._changed.wait_for(lambda: self._state != "opening", OPEN_SECONDS):
                self._is_late = True
            number = self._sender.listener_number
        if number:
            try:
                self._register(number, [waiter])
            except StoreError:
                self._is_doubtful = True
                self._interrupt()

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._is_ending = True
            thread = self._thread
        if thread is not None:
            self._interrupt()
            thread.join(OPEN_SECONDS)
        with self._changed:
            if self._wakeup >= 0 and not (thread and thread.is_alive()):
                os.close(self._wakeup)
                self._wakeup = -1

    def _start_locked(self) -> None:
        self._state = "opening"
        if self._wakeup < 0:
            self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = Thread(target=self._work, name="towline-listener", daemon=True)
        self._thread.start()

    def _interrupt(self) -> None:
        with self._changed:
            if self._wakeup >= 0:
                os.eventfd_write(self._wakeup, 1)

    # -- the thread -----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        failures = 0
        while not self._is_ending:
            listening: ListenConnection | None = None
            pause_seconds = 0.0
            try:
                listening = open_listen_connection(self._pool)
                self._begin(listening)
                failures = 0
                self._listen(listening)
            except Exception as error:
                failures += 1
                pause_seconds = self._note_failure(error, failures)
                if not isinstance(error, StoreError | psycopg.Error):
                    log.exception(LISTENER_LOST)
            is_over = self._stop_listening()
            if listening is not None:
                listening.close()
            if is_over:
                return
            self._pause(pause_seconds)

    def _begin(self, listening: "ListenConnection") -> None:
        """Register the waiters that came before the connection was open; later ones register themselves."""
        self._is_doubtful = False
        self._take_interrupt()
        with self._changed:
            has_missed = self._is_late or self._state != "opening"
            self._is_late = False
            self._sender.listener_number = listening.number
            self._state = "open"
            self._waiters.poll_seconds = inf
            self._changed.notify_all()
        waiters = self._waiters.all()
        if waiters:
            self._register(listening.number, waiters)
        if self._trouble:
            self._trouble = ""
            log.info(LISTENER_RESTORED, store=self._pool.url)
        if has_missed:
            self._waiters.wake_all()

    def _listen(self, listening: "ListenConnection") -> None:
        monotonic = self._pool.clock.monotonic
        poll = select.poll()
        poll.register(listening.connection.driver.pgconn.socket, select.POLLIN)
        poll.register(self._wakeup, select.POLLIN)
        used_at = passed_on_at = monotonic()
        repoll_at = deque(used_at + seconds for seconds in REPOLL_SECONDS if listening.is_first)
        while not self._is_ending and not self._is_doubtful:
            now = monotonic()
            if len(self._waiters):
                used_at = now
                if now >= passed_on_at + PASS_ON_SECONDS:
                    passed_on_at = now
                    self._sender.pass_on()
            elif now > used_at + LINGER_SECONDS and self._is_unused():
                return
            if repoll_at and now >= repoll_at[0]:
                repoll_at.popleft()
                self._waiters.wake_all()
            seconds = min(PASS_ON_SECONDS, repoll_at[0] - now) if repoll_at else PASS_ON_SECONDS
            if poll.poll(seconds * 1000):
                self._read(listening)

    def _read(self, listening: "ListenConnection") -> None:
        pgconn = listening.connection.driver.pgconn
        pgconn.consume_input()
        while (notify := pgconn.notifies()) is not None:
            if not notify.extra:
                self._sender.pass_on()
                continue
            message = json.loads(notify.extra)
            self._waiters.deliver(message["waiters"], message["queue"], message["tag"])

    def _is_unused(self) -> bool:
        """Return whether there is no waiter; if so, the thread must end, and the next waiter starts another."""
        with self._changed:
            if len(self._waiters):
                return False
            self._state = "closed"
            self._sender.listener_number = 0
            self._thread = None
            return True

    def _stop_listening(self) -> bool:
        """Stop wake-ups from the sender; return whether the thread must end."""
        with self._changed:
            if self._thread is not current_thread():
                return True
            self._sender.listener_number = 0
            return False

    def _note_failure(self, error: Exception, failures: int) -> float:
        """Note and log a failure; return the seconds until the next try."""
        is_refused = isinstance(error, StoreError) and not isinstance(error, StoreUnavailableError)
        with self._changed:
            self._state = "refused" if is_refused else "lost"
            self._waiters.poll_seconds = POLL_SECONDS if is_refused else inf
            is_new, self._trouble = not self._trouble, str(error)
            self._changed.notify_all()
        if is_new:
            log.warning(SIGNALS_UNHEARD if is_refused else LISTENER_LOST, error=str(error))
        if is_refused:
            self._waiters.wake_all()
            return REFUSED_SECONDS
        return RETRY_SECONDS[min(failures, len(RETRY_SECONDS)) - 1]

    def _take_interrupt(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wakeup)

    def _pause(self, seconds: float) -> None:
        self._take_interrupt()
        if self._is_ending or not seconds:
            return
        poll = select.poll()
        poll.register(self._wakeup, select.POLLIN)
        poll.poll(seconds * 1000)

    def _register(self, number: int, waiters: Sequence[PostgresSubscription]) -> None:
        with self._pool.lend() as connection:
            ((is_known,),) = connection.runner.call(_REGISTER, (number, rows(waiters)))
        if not is_known:
            if self._pool.address.listen:
                raise StoreUnsafeError(f"{self._pool.url}: `listen` must lead to the same database as the URL itself")
            raise StoreUnavailableError(f"{self._pool.url}: the listener was lost")


@dataclass(slots=True)
class ListenConnection:
    """A connection that listens.

    Args:
        number: names the listener; a lock of this number shows to others that its session lives.
        is_first: whether no other process of the store listened.
    """

    pool: ConnectionPool
    connection: PostgresConnection
    number: int
    is_first: bool

    def close(self) -> None:
        """Close the connection and remove the listener from the database."""
        with contextlib.suppress(psycopg.Error):
            self.connection.driver.close()
        with contextlib.suppress(StoreError), self.pool.lend() as connection:
            connection.driver.execute(f"SELECT {self.pool.address.schema}.forget_listener(%s::int8)", (self.number,))


def open_listen_connection(pool: ConnectionPool) -> ListenConnection:
    """Connect and listen. Raises `StoreUnsafeError` behind a proxy, where LISTEN is useless."""
    connection = pool.connect(pool.address.listen)
    try:
        _check_direct(pool, connection)
        number = randbits(62) + 1
        with pool.call_timeouts.over(connection.driver.pgconn, seconds=OPEN_SECONDS):
            connection.driver.execute(sql.SQL("LISTEN {}").format(sql.Identifier(f"towline_{number:x}")))
            row = connection.driver.execute(
                f"SELECT {pool.address.schema}.open_listener(%s::int8)", (number,)
            ).fetchone()
        return ListenConnection(pool, connection, number, row == (True,))
    except BaseException as error:
        connection.driver.close()
        if isinstance(error, psycopg.Error):
            raise pool.translate(error) from error
        raise


def _check_direct(pool: ConnectionPool, connection: PostgresConnection) -> None:
    if connection.is_pooled and not pool.address.listen:
        raise StoreUnsafeError(
            f"{pool.url}: behind a proxy LISTEN is not possible, so waiters look for tasks every "
            f"{POLL_SECONDS:.0f} s: add `listen=` with the percent-encoded URL of a direct connection to the database"
        )

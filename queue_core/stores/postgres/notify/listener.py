"""The connection that listens: opened when somebody waits, made anew when it is lost, closed when nobody waits.

A waiter that is registered with it is woken; whatever happened while it was lost, all look once when it is back.
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
import structlog
from psycopg import sql

from queue_core.errors import StoreError, StoreUnavailableError, StoreUnsafeError
from queue_core.stores.postgres import events
from queue_core.stores.postgres.client import binary as pack
from queue_core.stores.postgres.client.connection import PostgresConnection
from queue_core.stores.postgres.client.pool import ConnectionPool
from queue_core.stores.postgres.client.statements import Statement
from queue_core.stores.postgres.notify.sender import Sender
from queue_core.stores.postgres.notify.waiters import PostgresSubscription, PostgresWaiters, rows

OPEN_SECONDS = 5.0
"""How long a first waiter waits for the connection."""
LINGER_SECONDS = 60.0
LOOK_SECONDS = 2.0
"""How often waiters look for themselves where nothing can be listened to."""
PASS_ON_SECONDS = 2.0
RETRY_SECONDS = (0.1, 0.2, 0.5, 1.0)
REFUSED_SECONDS = 30.0
LOOK_AGAIN_SECONDS = (1.0, 3.0, 9.0, 27.0)
"""After the store's first listener began: for transactions that told nobody, as nobody listened, and commit now."""

State = Literal["closed", "opening", "open", "lost", "deaf"]

_REGISTER = Statement("towline_register_waiters", "SELECT towline.register_waiters($1, $2)", (pack.int8, pack.text))

log = structlog.get_logger()


class NotifyListener:
    """One thread on one connection."""

    def __init__(self, link: ConnectionPool, ears: PostgresWaiters, sender: Sender) -> None:
        self._link = link
        self._ears = ears
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
        """Why waiters can't be woken; "" when they can, or nobody tried."""
        return self._trouble

    def register(self, ear: PostgresSubscription) -> None:
        """From the return of this on the ear is woken; or, while the connection is lost, as soon as it is back."""
        with self._changed:
            if self._is_ending:
                return
            if self._thread is None:
                self._start_locked()
            if not self._changed.wait_for(lambda: self._state != "opening", OPEN_SECONDS):
                self._is_late = True
            number = self._sender.listening
        if number:
            try:
                self._hear(number, [ear])
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
            line: ListenConnection | None = None
            pause_seconds = 0.0
            try:
                line = open_line(self._link)
                self._begin(line)
                failures = 0
                self._listen(line)
            except Exception as error:
                failures += 1
                pause_seconds = self._note_failure(error, failures)
                if not isinstance(error, StoreError | psycopg.Error):
                    log.exception(events.LISTENER_LOST)
            is_over = self._stop_listening()
            if line is not None:
                line.close()
            if is_over:
                return
            self._pause(pause_seconds)

    def _begin(self, line: "ListenConnection") -> None:
        """Whoever came before the state changed is registered here; whoever comes after does so itself."""
        self._is_doubtful = False
        self._take_interrupt()
        with self._changed:
            has_missed = self._is_late or self._state != "opening"
            self._is_late = False
            self._sender.listening = line.number
            self._state = "open"
            self._ears.look_seconds = inf
            self._changed.notify_all()
        ears = self._ears.all()
        if ears:
            self._hear(line.number, ears)
        if self._trouble:
            self._trouble = ""
            log.info(events.LISTENER_RESTORED, store=self._link.url)
        if has_missed:
            self._ears.hear_all()

    def _listen(self, line: "ListenConnection") -> None:
        monotonic = self._link.clock.monotonic
        poll = select.poll()
        poll.register(line.wire.connection.pgconn.socket, select.POLLIN)
        poll.register(self._wakeup, select.POLLIN)
        used_at = passed_on_at = monotonic()
        look_at = deque(used_at + seconds for seconds in LOOK_AGAIN_SECONDS if line.is_first)
        while not self._is_ending and not self._is_doubtful:
            now = monotonic()
            if len(self._ears):
                used_at = now
                if now >= passed_on_at + PASS_ON_SECONDS:
                    passed_on_at = now
                    self._sender.pass_on()
            elif now > used_at + LINGER_SECONDS and self._is_unused():
                return
            if look_at and now >= look_at[0]:
                look_at.popleft()
                self._ears.hear_all()
            seconds = min(PASS_ON_SECONDS, look_at[0] - now) if look_at else PASS_ON_SECONDS
            if poll.poll(seconds * 1000):
                self._read(line)

    def _read(self, line: "ListenConnection") -> None:
        pgconn = line.wire.connection.pgconn
        pgconn.consume_input()
        while (notify := pgconn.notifies()) is not None:
            if not notify.extra:
                self._sender.pass_on()
                continue
            message = json.loads(notify.extra)
            self._ears.hear(message["waiters"], message["queue"], message["tag"])

    def _is_unused(self) -> bool:
        """Whether nobody came at the last moment; then the thread is to end, and the next waiter starts another."""
        with self._changed:
            if len(self._ears):
                return False
            self._state = "closed"
            self._sender.listening = 0
            self._thread = None
            return True

    def _stop_listening(self) -> bool:
        """Whether the thread is to end."""
        with self._changed:
            if self._thread is not current_thread():
                return True
            self._sender.listening = 0
            return False

    def _note_failure(self, error: Exception, failures: int) -> float:
        """Seconds until another try."""
        is_refused = isinstance(error, StoreError) and not isinstance(error, StoreUnavailableError)
        with self._changed:
            self._state = "deaf" if is_refused else "lost"
            self._ears.look_seconds = LOOK_SECONDS if is_refused else inf
            is_news, self._trouble = not self._trouble, str(error)
            self._changed.notify_all()
        if is_news:
            log.warning(events.SIGNALS_UNHEARD if is_refused else events.LISTENER_LOST, error=str(error))
        if is_refused:
            self._ears.hear_all()
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

    def _hear(self, number: int, ears: Sequence[PostgresSubscription]) -> None:
        with self._link.lend() as wire:
            ((is_known,),) = wire.caller.call(_REGISTER, (number, rows(ears)))
        if not is_known:
            if self._link.address.listen:
                raise StoreUnsafeError(f"{self._link.url}: `listen` must lead to the same database as the URL itself")
            raise StoreUnavailableError(f"{self._link.url}: the listener was lost")


@dataclass(slots=True)
class ListenConnection:
    """A connection that listens.

    Args:
        number: names the listener; others see by a lock that its session holds whether it lives.
        is_first: no other process of the store listened.
    """

    link: ConnectionPool
    wire: PostgresConnection
    number: int
    is_first: bool

    def close(self) -> None:
        """Let nobody be told here any more."""
        with contextlib.suppress(psycopg.Error):
            self.wire.connection.close()
        with contextlib.suppress(StoreError), self.link.lend() as wire:
            wire.connection.execute(f"SELECT {self.link.address.schema}.forget_listener(%s::int8)", (self.number,))


def open_line(link: ConnectionPool) -> ListenConnection:
    """Connect and listen. Raises `StoreUnsafeError` where that is of no use: behind a proxy."""
    wire = link.connect(link.address.listen)
    try:
        _check_direct(link, wire)
        number = randbits(62) + 1
        with link.watch.over(wire.connection.pgconn, seconds=OPEN_SECONDS):
            wire.connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(f"towline_{number:x}")))
            row = wire.connection.execute(f"SELECT {link.address.schema}.open_listener(%s::int8)", (number,)).fetchone()
        return ListenConnection(link, wire, number, row == (True,))
    except BaseException as error:
        wire.connection.close()
        if isinstance(error, psycopg.Error):
            raise link.translate(error) from error
        raise


def _check_direct(link: ConnectionPool, wire: PostgresConnection) -> None:
    if wire.is_pooled and not link.address.listen:
        raise StoreUnsafeError(
            f"{link.url}: a proxy stands between, so nothing can be listened to, and waiters look for tasks every "
            f"{LOOK_SECONDS:.0f} s: add `listen=` with the percent-encoded URL of a direct way to the database"
        )

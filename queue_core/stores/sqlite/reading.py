"""Connections of readers, beside the writer: each with what it knows, a few kept for the next."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Condition, Lock

from queue_core.stores.sqlite.driver import Connection, Driver
from queue_core.stores.sqlite.step import Known, Step

MAX_IDLE_READERS = 4


class Readers:
    """From any thread."""

    def __init__(self, driver: Driver, connect: Callable[[], Connection]) -> None:
        self._driver = driver
        self._connect = connect
        self._idle: list[tuple[Connection, Known]] = []
        self._is_closed = False
        self._begin()

    def _begin(self) -> None:
        self._lock = Lock()
        self._changed = Condition(self._lock)
        self._in_use = 0
        self._is_held = False

    @contextmanager
    def glance(self) -> Iterator[Step]:
        """The file as it is. Raises the driver's errors."""
        with self._lock:
            while self._is_held:
                self._changed.wait()
            self._in_use += 1
            reader = self._idle.pop() if self._idle else None
        try:
            connection, known = reader or (self._connect(), Known())
            try:
                connection.execute("BEGIN")
                yield Step(connection, known)
            finally:
                with contextlib.suppress(self._driver.error):
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                self._keep(connection, known)
        finally:
            with self._lock:
                self._in_use -= 1
                if not self._in_use:
                    self._changed.notify_all()

    def close(self) -> Sequence[Connection]:
        """Keep none from now on; those that were kept, for whoever closes them."""
        with self._lock:
            self._is_closed = True
            return self._take_idle()

    def hold(self, seconds: float) -> None:
        """Let nobody in, and wait until all are out, so many seconds at most."""
        with self._lock:
            self._is_held = True
            self._changed.wait_for(lambda: not self._in_use, seconds)

    def resume(self) -> None:
        """Let them in again."""
        with self._lock:
            self._is_held = False
            self._changed.notify_all()

    def take_over(self) -> tuple[Sequence[Connection], bool]:
        """In the child of a fork: the connections that were kept, and whether there was no other. Begins anew."""
        are_all = not self._in_use
        self._begin()
        return self._take_idle(), are_all

    def _take_idle(self) -> Sequence[Connection]:
        idle, self._idle = self._idle, []
        return [connection for connection, _ in idle]

    def _keep(self, connection: Connection, known: Known) -> None:
        with self._lock:
            if not self._is_closed and len(self._idle) < MAX_IDLE_READERS:
                self._idle.append((connection, known))
                return
        connection.close()

"""Connections of readers, beside the writer: each with what it knows, a few kept for the next."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock

from queue_core.stores.sqlite.driver import Connection, Driver
from queue_core.stores.sqlite.step import Known, Step

MAX_IDLE_READERS = 4


class Readers:
    """From any thread."""

    def __init__(self, driver: Driver, connect: Callable[[], Connection]) -> None:
        self._driver = driver
        self._connect = connect
        self._lock = Lock()
        self._idle: list[tuple[Connection, Known]] = []
        self._is_closed = False

    @contextmanager
    def glance(self) -> Iterator[Step]:
        """The file as it is. Raises the driver's errors."""
        with self._lock:
            reader = self._idle.pop() if self._idle else None
        connection, known = reader or (self._connect(), Known())
        try:
            connection.execute("BEGIN")
            yield Step(connection, known)
        finally:
            with contextlib.suppress(self._driver.error):
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            self._keep(connection, known)

    def close(self) -> Sequence[Connection]:
        """Keep none from now on; those that were kept, for whoever closes them."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        return [connection for connection, _ in idle]

    def _keep(self, connection: Connection, known: Known) -> None:
        with self._lock:
            if not self._is_closed and len(self._idle) < MAX_IDLE_READERS:
                self._idle.append((connection, known))
                return
        connection.close()

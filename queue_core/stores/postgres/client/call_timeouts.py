"""End calls that are never answered, because a server hangs or the network swallows answers while TCP goes on.

Such a call fails like one whose connection was lost, and its outcome is determined in the same way.
"""

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition, Lock, Thread

import psycopg
from psycopg import pq

TICK_SECONDS = 0.5
"""How often the thread checks for calls that timed out."""
LINGER_TICKS = 20
"""The ticks without a connection to watch after which the thread ends."""


class CallTimeouts:
    """Shuts down connections whose calls time out, in one thread."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._changed = Condition(Lock())
        self._ends_at: dict[pq.abc.PGconn, float] = {}
        self._thread: Thread | None = None
        self._is_closed = False

    def add(self, pgconn: pq.abc.PGconn, *, seconds: float) -> None:
        """Shut the connection down in `seconds`, unless it is discarded before."""
        with self._changed:
            self._ends_at[pgconn] = self._monotonic() + seconds
            if self._thread is None and not self._is_closed:
                self._thread = Thread(target=self._work, name="towline-call-timeouts", daemon=True)
                self._thread.start()

    def discard(self, pgconn: pq.abc.PGconn) -> None:
        """Stop watching a connection; to be called before it is closed, or right after."""
        with self._changed:
            self._ends_at.pop(pgconn, None)

    @contextmanager
    def over(self, pgconn: pq.abc.PGconn, *, seconds: float) -> Iterator[None]:
        """Watch a connection for the length of a block."""
        self.add(pgconn, seconds=seconds)
        try:
            yield
        finally:
            self.discard(pgconn)

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def _work(self) -> None:
        idle_ticks = 0
        with self._changed:
            while not self._is_closed and idle_ticks < LINGER_TICKS:
                self._changed.wait(TICK_SECONDS)
                now = self._monotonic()
                for pgconn, ends_at in list(self._ends_at.items()):
                    if now >= ends_at:
                        del self._ends_at[pgconn]
                        _end(pgconn)
                idle_ticks = 0 if self._ends_at else idle_ticks + 1
            self._thread = None


def _end(pgconn: pq.abc.PGconn) -> None:
    """Shut the socket down, which wakes the thread that waits for it; its owner closes it."""
    with contextlib.suppress(psycopg.Error, OSError):
        descriptor = pgconn.socket
        copy = socket.socket(fileno=os.dup(descriptor))
        with copy:
            if pgconn.socket == descriptor:  # else it was closed meanwhile, and its number may be another's
                copy.shutdown(socket.SHUT_RDWR)

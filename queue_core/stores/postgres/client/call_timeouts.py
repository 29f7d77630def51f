"""Ends calls that are never answered: a server that hangs, or a way to it that swallows answers, while TCP goes on.

Such a call fails like one whose connection was lost, so that what became of it is found out as ever.
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
LINGER_TICKS = 20
"""After so many with nothing to watch the thread ends, until there is."""


class CallTimeouts:
    """One thread over all connections in use."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._changed = Condition(Lock())
        self._ends_at: dict[pq.abc.PGconn, float] = {}
        self._thread: Thread | None = None
        self._is_closed = False

    def add(self, pgconn: pq.abc.PGconn, *, seconds: float) -> None:
        """From now on the connection is ended when it is not let go within so many seconds."""
        with self._changed:
            self._ends_at[pgconn] = self._monotonic() + seconds
            if self._thread is None and not self._is_closed:
                self._thread = Thread(target=self._work, name="towline-watch", daemon=True)
                self._thread.start()

    def discard(self, pgconn: pq.abc.PGconn) -> None:
        """Let it go; to be called before it is closed, or right after."""
        with self._changed:
            self._ends_at.pop(pgconn, None)

    @contextmanager
    def over(self, pgconn: pq.abc.PGconn, *, seconds: float) -> Iterator[None]:
        """For the length of a block."""
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
    """Shut its socket down, which wakes the thread that waits for it; whoever owns it closes it."""
    with contextlib.suppress(psycopg.Error, OSError):
        descriptor = pgconn.socket
        copy = socket.socket(fileno=os.dup(descriptor))
        with copy:
            if pgconn.socket == descriptor:  # so it was not closed, and its number given to another, meanwhile
                copy.shutdown(socket.SHUT_RDWR)

"""Hears what other processes on the same store did, while somebody waits here; costs nothing while nobody does."""

import asyncio
import threading
from collections.abc import Callable

from queue_core.store import Signals, Subscription
from queue_core.task import ANY

PATIENCE_SECONDS = 5.0
"""How long to listen on after the last caller left: a busy worker is back before that."""


class Listener:
    """A thread with an ear for every queue of a store. Used in the server's loop."""

    def __init__(self, signals: Signals, ring: Callable[[], None]) -> None:
        self._signals = signals
        self._ring = ring
        self._somebody_waits = threading.Event()
        self._is_closed = False
        self._thread: threading.Thread | None = None
        self._subscription: Subscription | None = None

    def note_waiting(self, count: int) -> None:
        """So many calls wait now."""
        if count == 0:
            self._somebody_waits.clear()
        elif not self._somebody_waits.is_set():
            self._somebody_waits.set()
            if self._thread is None and not self._is_closed:
                loop = asyncio.get_running_loop()
                self._thread = threading.Thread(target=self._work, args=(loop,), name="towline-signals", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._is_closed = True
        self._somebody_waits.set()
        if self._subscription is not None:
            self._subscription.wake()
        if self._thread is not None:
            self._thread.join()

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        while not self._is_closed:
            self._somebody_waits.wait()
            self._listen(loop)

    def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        subscription = self._subscription = self._signals.subscribe("", ANY)
        try:
            self._tell(loop)  # what happened before we listened
            while not self._is_closed:
                if subscription.wait(timeout_seconds=PATIENCE_SECONDS):
                    self._tell(loop)
                elif not self._somebody_waits.is_set():
                    return
        finally:
            self._subscription = None
            subscription.close()

    def _tell(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._somebody_waits.is_set() and not self._is_closed:
            try:
                loop.call_soon_threadsafe(self._ring)
            except RuntimeError:
                self._is_closed = True  # the loop has ended

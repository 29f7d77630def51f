"""A thread that makes an event loop's calls to its broker, one after the other, while the loop delivers and dispatches.

It decides nothing: what to fetch is the loop's decision, and so is what becomes of it.
"""

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


class FetchThread(Generic[T]):
    """Makes one call at a time. All methods are for the event loop's thread."""

    def __init__(self, finished: Callable[[], None], *, unwanted: Callable[[T], None], name: str) -> None:
        """Args:
        finished: called, in this thread, when a call is over.
        unwanted: called with what a call brought after `stop`.
        """
        self._finished = finished
        self._unwanted = unwanted
        self._calls: SimpleQueue[Callable[[], T] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._outcome: list[T | Exception] = []
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        self.is_busy = False
        """Whether a call is under way, or over and not taken yet."""

    def begin(self, call: Callable[[], T]) -> None:
        """Make a call; only while the thread is not busy."""
        self.is_busy = True
        self._calls.put(call)

    def take(self) -> T | None:
        """Return what the call brought; None while it is under way. Raises its error."""
        with self._lock:
            if not self._outcome:
                return None
            outcome = self._outcome.pop()
        self.is_busy = False
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def stop(self, *, wait_seconds: float) -> None:
        """End the thread; wait a while for the call that is under way. What it brings is not wanted any more."""
        with self._lock:
            self._is_stopped = True
            left, self._outcome = self._outcome, []
        self._calls.put(None)
        for one in left:
            self._discard(one)
        self._thread.join(wait_seconds)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            outcome: T | Exception
            try:
                outcome = call()
            except Exception as error:  # noqa: BLE001 - `take` raises it
                outcome = error
            with self._lock:
                is_stopped = self._is_stopped
                if not is_stopped:
                    self._outcome.append(outcome)
            if is_stopped:
                self._discard(outcome)
                return
            self._finished()

    def _discard(self, outcome: T | Exception) -> None:
        if not isinstance(outcome, Exception):
            self._unwanted(outcome)

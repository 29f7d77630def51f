"""A thread that makes an event loop's calls to its broker, one after the other, while the loop delivers and dispatches.

It decides nothing: what to fetch is the loop's decision, and so is what becomes of it.
"""

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


class FetchThread(Generic[T]):
    """Makes one call at a time. `make_offered` is for any thread, all other methods for the event loop's."""

    def __init__(self, finished: Callable[[], None], *, unwanted: Callable[[T], None], name: str) -> None:
        """Args:
        finished: called, in the call's thread, when a call is over.
        unwanted: called with what a call brought after `stop`.
        """
        self._finished = finished
        self._unwanted = unwanted
        self._calls: SimpleQueue[Callable[[], T] | None] = SimpleQueue()
        self._changed = threading.Condition()
        self._offered: Callable[[], T] | None = None
        self._outcome: list[T | Exception] = []
        self._is_calling = False
        self._is_stopped = False
        threading.Thread(target=self._run, name=name, daemon=True).start()

    @property
    def is_busy(self) -> bool:
        """True while a call is under way, or over and not taken yet."""
        return self._is_calling or bool(self._outcome)

    def begin(self, call: Callable[[], T]) -> bool:
        """Make a call; False while the thread is busy."""
        if not self._enter():
            return False
        self._calls.put(call)
        return True

    def offer(self, call: Callable[[], T] | None) -> None:
        """Leave a call to whoever knows first that it would bring something, until another one begins."""
        with self._changed:
            self._offered = call

    def make_offered(self) -> bool:
        """Make the call that was left, in this thread; False where there is none."""
        with self._changed:
            call = self._offered
        if call is None or not self._enter(offered=call):
            return False
        self._make(call)
        return True

    def take(self) -> T | None:
        """Return what the call brought; None while it is under way. Raises its error."""
        with self._changed:
            if not self._outcome:
                return None
            outcome = self._outcome.pop()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def stop(self, *, wait_seconds: float) -> None:
        """End the thread; wait a while for the call that is under way. What it brings is not wanted any more."""
        with self._changed:
            self._is_stopped = True
            self._offered = None
            left, self._outcome = self._outcome, []
        self._calls.put(None)
        for one in left:
            self._discard(one)
        with self._changed:
            self._changed.wait_for(lambda: not self._is_calling, wait_seconds)

    def _enter(self, *, offered: Callable[[], T] | None = None) -> bool:
        """Be the one call; `offered`: only if that call is still left."""
        with self._changed:
            if self.is_busy or self._is_stopped or (offered is not None and self._offered is not offered):
                return False
            self._is_calling = True
            self._offered = None
            return True

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            self._make(call)

    def _make(self, call: Callable[[], T]) -> None:
        outcome: T | Exception
        try:
            outcome = call()
        except Exception as error:  # noqa: BLE001 - `take` raises it
            outcome = error
        with self._changed:
            is_wanted = not self._is_stopped
            if is_wanted:
                self._outcome.append(outcome)
                self._is_calling = False
        if is_wanted:
            self._finished()
            return
        try:
            self._discard(outcome)
        finally:
            with self._changed:
                self._is_calling = False
                self._changed.notify_all()

    def _discard(self, outcome: T | Exception) -> None:
        if not isinstance(outcome, Exception):
            self._unwanted(outcome)

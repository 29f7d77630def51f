"""A thread that waits for something to take, and says so: it takes nothing itself."""

import threading
from collections.abc import Callable, Sequence

from queue_core.errors import QueueError

FIRST_PAUSE_SECONDS = 0.02
LONGEST_PAUSE_SECONDS = 1.0


class Waiter:
    """Waits for one of some queues, once each time it is told to.

    A queue may have tasks that it grants to nobody (it is paused), or another worker may be faster. Finds in vain are
    followed by pauses, which double.
    """

    def __init__(self, wait: Callable[[Sequence[str]], bool], found: Callable[[], None], *, name: str) -> None:
        """Args:
        wait: waits for one of these queues, for as long as a call may take; False when nothing came.
        found: told, in this thread, that there is something.
        """
        self._wait = wait
        self._found = found
        self._name = name
        self._changed = threading.Event()
        self._wanted: tuple[str, ...] = ()
        self._pause_seconds = 0.0
        self._is_stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def wait_for(self, queues: Sequence[str]) -> None:
        """Wait for these from now on, until one is found."""
        self._wanted = tuple(dict.fromkeys(queues))
        if not self._wanted:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._changed.set()

    def took(self) -> None:
        """Learn that what was found was there: no pause is due."""
        self._pause_seconds = 0.0

    def stop(self) -> None:
        """End the thread when its call returns, without waiting for that."""
        self._is_stopped.set()
        self._wanted = ()
        self._changed.set()

    def _run(self) -> None:
        while not self._is_stopped.is_set():
            self._changed.wait()
            self._changed.clear()
            wanted = self._wanted
            if not wanted or self._is_stopped.wait(self._pause_seconds):
                continue
            try:
                is_found = self._wait(wanted)
            except QueueError:
                is_found = True  # the loop's own call finds out, and reconnects
            if is_found:
                self._pause_seconds = min(LONGEST_PAUSE_SECONDS, max(FIRST_PAUSE_SECONDS, 2 * self._pause_seconds))
            else:
                self._changed.set()
                continue
            if not self._is_stopped.is_set():
                self._found()

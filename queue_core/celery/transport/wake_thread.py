"""A thread that waits for something to take, and says so: it takes nothing itself."""

import threading
from collections.abc import Callable, Sequence

from queue_core.errors import QueueError

FIRST_PAUSE_SECONDS = 0.02
LONGEST_PAUSE_SECONDS = 1.0


class WakeThread:
    """Waits for one of some queues, once each time it is told to.

    A queue may have tasks that it grants to nobody (it is paused), or another worker may be faster. Finds in vain are
    followed by pauses, which double.
    """

    def __init__(self, wait: Callable[[Sequence[str]], bool], found: Callable[[], None], *, name: str) -> None:
        """Args:
        wait: waits for one of these queues, for as long as a call may take; False when nothing came.
        found: called, in this thread, when there is something.
        """
        self._wait = wait
        self._found = found
        self._name = name
        self._lock = threading.Lock()
        self._wanted: tuple[str, ...] = ()
        self._waiting_for: frozenset[str] | None = None
        self._pause_seconds = 0.0
        self._armed = threading.Event()
        self._stopped = threading.Event()
        self._turn = 0

    def wait_for(self, queues: Sequence[str]) -> None:
        """Wait for these from now on, until one is found."""
        with self._lock:
            self._wanted = tuple(dict.fromkeys(queues))
            if not self._wanted or self._stopped.is_set():
                return
            is_covered = self._waiting_for is not None and self._waiting_for.issuperset(self._wanted)
            if not is_covered and (self._turn == 0 or self._waiting_for is not None):
                # The present call waits for others: it ends by itself, and another thread takes its place.
                self._turn += 1
                self._waiting_for = None
                turn = self._turn
                threading.Thread(target=self._run, args=(turn,), name=self._name, daemon=True).start()
        if not is_covered:
            self._armed.set()

    def took(self) -> None:
        """Note that what was found was there: no pause is due."""
        self._pause_seconds = 0.0

    def stop(self) -> None:
        """End the thread when its call returns, without waiting for that."""
        self._stopped.set()
        self._armed.set()

    def _run(self, turn: int) -> None:
        while True:
            self._armed.wait()
            if self._stopped.wait(self._pause_seconds):
                return
            with self._lock:
                if turn != self._turn:
                    return
                self._armed.clear()
                wanted = self._wanted
                self._waiting_for = frozenset(wanted) or None
            try:
                is_found = bool(wanted) and self._wait(wanted)
            except QueueError:
                is_found = True  # the loop's own call learns of it, and reconnects
            with self._lock:
                if turn != self._turn or self._stopped.is_set():
                    return
                self._waiting_for = None
                if is_found:
                    self._pause_seconds = min(LONGEST_PAUSE_SECONDS, max(FIRST_PAUSE_SECONDS, 2 * self._pause_seconds))
                elif wanted:
                    self._armed.set()
            if is_found:
                self._found()

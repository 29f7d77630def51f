"""Daemon threads for the calls of a client, started as needed up to a limit, and ended when they were idle for long.

Not a `ThreadPoolExecutor`: its threads are joined when the interpreter exits, so a wait of a minute would delay that.
"""

from collections import deque
from collections.abc import Callable
from threading import Condition, Thread
from typing import Final

IDLE_SECONDS: Final = 30.0
"""A thread without a call for so long ends."""

Job = Callable[[], None]
"""A call to make; it may not raise."""


class CallThreads:
    """Threads that run jobs in the order in which they came. Thread-safe."""

    def __init__(self, name: str, *, limit: int) -> None:
        self._name = name
        self._limit = limit
        self._changed = Condition()
        self._jobs: deque[Job] = deque()
        self._threads = 0
        self._idle = 0
        self._is_closed = False

    def submit(self, job: Job) -> None:
        """Run a job in the next free thread; start one if there is none and the limit allows it."""
        with self._changed:
            self._jobs.append(job)
            if self._idle >= len(self._jobs) or self._threads >= self._limit:
                self._changed.notify()
                return
            self._threads += 1
        Thread(target=self._work, name=self._name, daemon=True).start()

    def close(self) -> None:
        """End each thread once no job is left."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _work(self) -> None:
        while (job := self._next()) is not None:
            job()
            del job  # or an idle thread keeps the last call's values alive

    def _next(self) -> Job | None:
        """Return the next job; None when this thread is to end."""
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._jobs or self._is_closed, timeout=IDLE_SECONDS)
            self._idle -= 1
            if self._jobs:
                return self._jobs.popleft()
            self._threads -= 1
            return None

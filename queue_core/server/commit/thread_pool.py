"""A daemon thread pool for blocking calls; results are delivered on the event loop."""

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

CLOSE_SECONDS = 1.0
"""Seconds that a stop waits for calls under way: a store that never answers must not keep a server alive."""

_Job = Callable[[], None]


class ThreadPool:
    """Threads that end with the process, even in the midst of a call. All but `close` is called in one loop."""

    def __init__(self, count: int, *, name: str) -> None:
        """Args:
        count: calls under way at once; more of them queue.
        name: prefix of the threads' names.
        """
        self._count = count
        self._name = name
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self.under_way = 0
        """The number of calls that have not returned, those that queue included."""

    @property
    def idle(self) -> int:
        """The number of calls that would begin at once."""
        return max(0, self._count - self.under_way)

    def submit(self, call: Callable[[], T], done: Callable[[T | Exception], None]) -> None:
        """Make `call` in a thread; `done` gets, in the loop, what it returned or raised."""
        loop = asyncio.get_running_loop()
        self.under_way += 1

        def finish(outcome: T | Exception) -> None:
            self.under_way -= 1
            done(outcome)

        def job() -> None:
            outcome: T | Exception
            try:
                outcome = call()
            except Exception as error:  # noqa: BLE001 - passed to `done`
                outcome = error
            try:
                loop.call_soon_threadsafe(finish, outcome)
            except RuntimeError:
                return  # the loop was closed meanwhile

        self._jobs.put(job)
        if len(self._threads) < min(self._count, self.under_way):
            thread = threading.Thread(target=self._work, name=f"{self._name}-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def close(self) -> None:
        """Finish the calls under way, for `CLOSE_SECONDS` at most."""
        for _ in self._threads:
            self._jobs.put(None)
        ended = threading.Event()
        waiting = threading.Thread(target=self._join, args=(ended,), name=f"{self._name}-end", daemon=True)
        waiting.start()
        ended.wait(CLOSE_SECONDS)

    def _join(self, ended: threading.Event) -> None:
        for thread in self._threads:
            thread.join()
        ended.set()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

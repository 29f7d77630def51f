"""Call an engine or a cluster from a few threads: in order for one worker, concurrently for several."""

import queue
import threading
import zlib
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, TypeVar

from orchestrator.base import events
from orchestrator.base.errors import SpawnError
from queue_core.log import get_logger

log = get_logger()

Result = TypeVar("Result")

STARTERS: Final = 4
"""Number of threads: as many starts as an engine usefully does at a time."""


class EngineThreads:
    """A pool of daemon threads with a queue each; they start with the first call."""

    def __init__(self, count: int = STARTERS, *, name: str, expected: tuple[type[Exception], ...] = ()) -> None:
        """`expected`: errors that are for the waiting caller alone, beside `SpawnError`; others are logged."""
        self._name = name
        self._expected: tuple[type[Exception], ...] = (SpawnError, *expected)
        self._tasks: list[queue.SimpleQueue[Callable[[], None] | None]] = [queue.SimpleQueue() for _ in range(count)]
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    def do(self, key: str, call: Callable[[], Result]) -> "Future[Result]":
        """Make a call after those before it with the same key, and return its future."""
        future: Future[Result] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = call()
            except self._expected as error:
                future.set_exception(error)  # for the waiting caller; an unavailable engine is logged by its watch
            except Exception as error:
                log.exception(events.ENGINE_CALL_FAILED, worker=key)
                future.set_exception(error)
            else:
                future.set_result(result)

        self._start()
        self._tasks[zlib.crc32(key.encode()) % len(self._tasks)].put(run)
        return future

    def close(self, *, seconds: float = 0.0) -> None:
        """Wait this long at most for pending calls, and drop the rest."""
        for tasks in self._tasks:
            tasks.put(None)
        for thread in self._threads:
            thread.join(seconds / len(self._threads))
        for tasks in self._tasks:
            while True:
                try:
                    tasks.get_nowait()
                except queue.Empty:
                    break
            tasks.put(None)

    def _start(self) -> None:
        with self._lock:
            while len(self._threads) < len(self._tasks):
                tasks = self._tasks[len(self._threads)]
                thread = threading.Thread(target=_work, args=(tasks,), name=self._name, daemon=True)
                self._threads.append(thread)
                thread.start()


def _work(tasks: "queue.SimpleQueue[Callable[[], None] | None]") -> None:
    while (task := tasks.get()) is not None:
        task()

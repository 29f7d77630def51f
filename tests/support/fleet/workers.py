"""Workers in threads over a memory store, handlers of both kinds, and queues that fail on demand."""

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from queue_core.client.local_calls import LocalQueue, LocalQueues
from queue_core.client.queue import Queue
from queue_core.errors import StoreUnavailableError
from queue_core.stores.memory.store import MemoryStore
from queue_core.task import QueueSpec
from queue_core.unit.service import QueueService
from queue_core.worker.app import App
from queue_core.worker.context import Task
from queue_core.worker.runner import Runner
from queue_core.worker.settings import WorkerSettings
from tests.support.eventually import eventually

both_kinds = pytest.mark.parametrize("kind", ["plain", "async"])


def memory_queues(**settings: object) -> tuple[LocalQueues, LocalQueue]:
    """Return the queues of a new memory store with queue "q"; a failed task is ready again at once."""
    queues = LocalQueues(QueueService(MemoryStore()))
    queues.put_queue(QueueSpec("q", **{"retry_min_seconds": 0.0, "retry_max_seconds": 0.0, **settings}))
    return queues, queues.queue("q")


def plain_or_async(kind: str, function: Callable[[Task], object]) -> Callable[[Task], object]:
    """Return the function as a plain or as an async handler."""
    if kind == "plain":
        return function

    async def handler(task: Task) -> object:
        await asyncio.sleep(0)
        return function(task)

    return handler


class FaultyQueue:
    """A queue whose verbs can be watched and made to fail: `faults[verb]` is called first; it may raise or block."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self.faults: dict[str, Callable[[], None]] = {}
        self.calls: list[str] = []

    def __getattr__(self, verb: str) -> object:
        found = getattr(self._queue, verb)

        def call(*arguments: object, **settings: object) -> object:
            self.calls.append(verb)
            if verb in self.faults:
                self.faults[verb]()
            return found(*arguments, **settings)

        return call if callable(found) else found


def unavailable() -> None:
    """Raise as an unreachable store does."""
    raise StoreUnavailableError("no answer from the test's queue; try again")


@dataclass
class RunningWorker:
    """A running worker; `code` is its exit code once it has ended."""

    runner: Runner
    thread: threading.Thread
    code: int | None = None

    def wait(self) -> int:
        """Return its exit code, within 10 s."""
        self.thread.join(timeout=10)
        assert self.code is not None, "the worker did not end"
        return self.code


@contextmanager
def running_worker(
    app: App,
    open_queue: Callable[[str], Queue],
    *,
    open_waiting: Callable[[str], Queue] | None = None,
    watch_seconds: float = 0.02,
    blocked_seconds: float = 60.0,
    clean_up_seconds: float = 5.0,
    **settings: object,
) -> Iterator[RunningWorker]:
    """Run a worker of queue "q" in a thread; at the end it is drained, and blocked calls are released."""
    chosen = WorkerSettings(**{"app": "tests:app", "worker": "w-1", "queue": "q", "wait_seconds": 0.05, **settings})
    runner = Runner(
        app,
        chosen,
        open_queue=open_queue,
        open_waiting=open_waiting,
        watch_seconds=watch_seconds,
        blocked_seconds=blocked_seconds,
        clean_up_seconds=clean_up_seconds,
    )

    def run() -> None:
        worker.code = runner.run()

    others = set(threading.enumerate())  # threads of earlier tests' stores may still run
    worker = RunningWorker(runner, threading.Thread(target=run, daemon=True))
    worker.thread.start()
    try:
        yield worker
    finally:
        runner.drain("the test is over")
        runner.release_now("the test is over")
        eventually(lambda: not worker.thread.is_alive())
        eventually(lambda: not _of_towline(set(threading.enumerate()) - others))


def _of_towline(threads: Iterable[threading.Thread]) -> list[str]:
    return [thread.name for thread in threads if thread.name.startswith("towline-")]

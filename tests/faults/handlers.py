"""The app of workers that are killed: each handler records the lease it saw, and that it finished.

The worker's other calls are the runner's own: its delete is recorded as begun, with unknown outcome.
"""

import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from queue_core.worker.app import App
from queue_core.worker.context import Task
from tests.faults.history import (
    Answer,
    Answered,
    ClockReading,
    FileHistory,
    Invoked,
    RequestedCall,
    RequestedEnd,
    read_clocks,
    returned_lease,
)

HISTORY_VARIABLE = "FAULTS_HISTORY"
LONGEST_WORK_SECONDS = 0.02


Notes = Callable[[Task], AbstractContextManager[None]]


def recorded_handler(history: FileHistory, worker: str) -> Notes:
    """Wrap a handler: record the lease before it, and the delete that follows it."""
    numbers = itertools.count(1)

    @contextmanager
    def notes(task: Task) -> Iterator[None]:
        number = next(numbers)
        now = read_clocks()
        # The lease was requested before it was granted: its own instant is the latest possible time.
        granted = ClockReading(task.lease.leased_at, now.ns - 1000 * (now.at - task.lease.leased_at))
        request = RequestedCall("lease", task.queue, count=1, worker=worker)
        history.write(Invoked(2 * number, granted, request))
        history.write(Answered(2 * number, now, "ok", answer=Answer(leases=(returned_lease(task.lease),))))
        yield
        ended = RequestedCall("delete", task.queue, ends=(RequestedEnd(task.lease.token),))
        history.write(Invoked(2 * number + 1, read_clocks(), ended))

    return notes


def make_app(history: FileHistory, worker: str) -> App:
    """Return an app that handles every tag of the queue "first"."""
    app = App()
    notes = recorded_handler(history, worker)
    lengths = itertools.cycle(range(5))

    @app.task(queue="first")
    def handle(task: Task) -> None:
        with notes(task):
            time.sleep(LONGEST_WORK_SECONDS * next(lengths) / 4)

    return app


def app_of_this_worker() -> App:
    """Return the app of this worker process."""
    worker = os.environ["TOWLINE_WORKER"]
    return make_app(FileHistory(Path(os.environ[HISTORY_VARIABLE]) / f"{worker}.jsonl"), worker)

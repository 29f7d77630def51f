"""The app that workers run while they are killed: each handler writes down which lease it saw, and that it finished.

The rest of a worker's calls are the runner's own: its delete is written down as begun, its outcome nobody knows.
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
    """Around a handler's work: the lease as it was seen before, the delete that is about to be asked for after."""
    numbers = itertools.count(1)

    @contextmanager
    def notes(task: Task) -> Iterator[None]:
        number = next(numbers)
        now = read_clocks()
        # The lease was asked for before it was granted: its own instant is as late as that can have been.
        granted = ClockReading(task.lease.leased_at, now.ns - 1000 * (now.at - task.lease.leased_at))
        request = RequestedCall("lease", task.queue, count=1, worker=worker)
        history.write(Invoked(2 * number, granted, request))
        history.write(Answered(2 * number, now, "ok", answer=Answer(leases=(returned_lease(task.lease),))))
        yield
        ended = RequestedCall("delete", task.queue, ends=(RequestedEnd(task.lease.token),))
        history.write(Invoked(2 * number + 1, read_clocks(), ended))

    return notes


def make_app(history: FileHistory, worker: str) -> App:
    """An app that handles every tag of the queue "first"."""
    app = App()
    notes = recorded_handler(history, worker)
    lengths = itertools.cycle(range(5))

    @app.task(queue="first")
    def handle(task: Task) -> None:
        with notes(task):
            time.sleep(LONGEST_WORK_SECONDS * next(lengths) / 4)

    return app


def app_of_this_worker() -> App:
    """The app of this worker process."""
    worker = os.environ["TOWLINE_WORKER"]
    return make_app(FileHistory(Path(os.environ[HISTORY_VARIABLE]) / f"{worker}.jsonl"), worker)

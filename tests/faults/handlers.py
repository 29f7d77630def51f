"""The app that workers run while they are killed: each handler writes down which lease it saw, and that it finished.

The rest of a worker's calls are the runner's own: its delete is written down as begun, its outcome nobody knows.
"""

import itertools
import os
import time
from pathlib import Path

from queue_core.worker.app import App
from queue_core.worker.held import HeldTask
from tests.faults.history import Answer, Answered, Asked, AskedEnd, FileHistory, Invoked, Moment, moment, seen_lease

HISTORY_VARIABLE = "FAULTS_HISTORY"
LONGEST_WORK_SECONDS = 0.02


def make_app(history: FileHistory, worker: str) -> App:
    """An app that handles every tag of the queue "first"."""
    app = App()
    numbers = itertools.count(1)

    @app.task(queue="first")
    def handle(task: HeldTask) -> None:
        number = next(numbers)
        now = moment()
        # The lease was asked for before it was granted: its own instant is as late as that can have been.
        granted = Moment(task.lease.leased_at, now.ns - 1000 * (now.at - task.lease.leased_at))
        asked = Asked("lease", task.queue, count=1, worker=worker)
        history.write(Invoked(2 * number, granted, asked))
        history.write(Answered(2 * number, now, "ok", answer=Answer(leases=(seen_lease(task.lease),))))
        time.sleep(LONGEST_WORK_SECONDS * (number % 5) / 4)
        history.write(
            Invoked(2 * number + 1, moment(), Asked("delete", task.queue, ends=(AskedEnd(task.lease.token),)))
        )

    return app


def app_of_this_worker() -> App:
    """The app of this worker process."""
    worker = os.environ["TOWLINE_WORKER"]
    return make_app(FileHistory(Path(os.environ[HISTORY_VARIABLE]) / f"{worker}.jsonl"), worker)

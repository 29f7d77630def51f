"""An app whose tasks use as much CPU time as their payload says."""

import time

from queue_core.worker.app import App
from queue_core.worker.context import Task
from tests.bench.sleeping import QUEUE

app = App()


@app.task(queue=QUEUE)
def compute(task: Task) -> None:
    """Compute for as many seconds of one core as the payload says."""
    ends_at = time.thread_time() + float(task.payload)
    while time.thread_time() < ends_at:
        pass

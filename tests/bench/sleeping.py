"""An app whose tasks take as long as their payload says."""

import time

from queue_core.worker.app import App
from queue_core.worker.context import Task

QUEUE = "sleeps"

app = App()


@app.task(queue=QUEUE)
def sleep(task: Task) -> None:
    """Sleep as many seconds as the payload says."""
    time.sleep(float(task.payload))

"""The program whose workers the prediction is held against: a task says how long it takes, and takes that long."""

import time

from queue_core.worker.app import App
from queue_core.worker.context import Task

QUEUE = "sleeps"

app = App()


@app.task(queue=QUEUE)
def sleep(task: Task) -> None:
    """Take as many seconds as the payload says."""
    time.sleep(float(task.payload))

"""An app for stories on a swarm: a task is a nap, and who took it is on record."""

import os
import time
from pathlib import Path

from queue_core.worker.app import App
from queue_core.worker.context import Task

app = App()


@app.task(queue="thumbs")
def nap(task: Task) -> None:
    """`PATH SECONDS`: work so long, then append who did it, and under which number of the lease."""
    path, seconds = task.payload.decode().split()
    time.sleep(float(seconds))
    with Path(path).open("a") as file:
        file.write(f"{os.environ['TOWLINE_WORKER']} {task.name} {task.lease_number}\n")

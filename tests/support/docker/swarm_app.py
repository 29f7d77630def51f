"""The app of swarm stories: a task sleeps, and its worker is recorded."""

import os
import time
from pathlib import Path

from queue_core.worker.app import App
from queue_core.worker.context import Task

app = App()


@app.task(queue="thumbs")
def nap(task: Task) -> None:
    """`PATH SECONDS`: sleep, then append worker, task and lease number to PATH."""
    path, seconds = task.payload.decode().split()
    time.sleep(float(seconds))
    with Path(path).open("a") as file:
        file.write(f"{os.environ['TOWLINE_WORKER']} {task.name} {task.lease_number}\n")

"""The app of end-to-end stories: a task does what its payload says, and its run is recorded."""

import os
import time
from pathlib import Path

from queue_core.worker.app import App
from queue_core.worker.context import Task

app = App()


@app.task(queue="thumbs")
def work(task: Task) -> None:
    """`note PATH`: append worker, pid and time. `hold PATH`: the same, then work until the file `PATH.go` exists."""
    verb, _, path = task.payload.decode().partition(" ")
    with Path(path).open("a") as file:
        file.write(f"{os.environ['TOWLINE_WORKER']} {os.getpid()} {time.time():.6f} {task.lease_number}\n")
    while verb == "hold" and not Path(f"{path}.go").exists():
        time.sleep(0.01)

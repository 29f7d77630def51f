"""An app whose handlers hang at the first lease of a task, in the way its payload names."""

import ctypes
import os
import re
import time
from pathlib import Path

from queue_core.worker.app import App
from queue_core.worker.context import Task

app = App()


@app.task(queue="jobs")
def work(task: Task) -> None:
    """`WAY FOLDER`: record worker, time and lease; then hang in that way, but at the first lease only.

    `regex` and `native` keep the interpreter lock; `hold` works until the file `go` exists; `note` ends at once.
    """
    way, _, folder = task.payload.decode().partition(" ")
    with (Path(folder) / "notes").open("a") as file:
        file.write(f"{os.environ['TOWLINE_WORKER']} {os.getpid()} {time.time():.6f} {task.lease_number}\n")
    if task.lease_number > 1:
        return
    if way == "regex":
        re.match(r"(a+)+$", "a" * 40 + "b")
    elif way == "native":
        ctypes.PyDLL(None).sleep(1000)
    while way == "hold" and not (Path(folder) / "go").exists():
        time.sleep(0.01)

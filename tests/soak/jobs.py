"""Handlers of the long runs: a task takes as long as its payload says, and records begin and end."""

import os
import time
from pathlib import Path

from queue_core.worker.app import App
from queue_core.worker.context import Task

app = App()


@app.task(queue="jobs")
def work(task: Task) -> None:
    """`NUMBER SECONDS`: record begin and end in the folder NOTES, one line each."""
    number, _, seconds = task.payload.decode().partition(" ")
    note("begun", number, task.lease_number)
    time.sleep(float(seconds))
    note("done", number, task.lease_number)


def note(what: str, number: str, lease_number: int) -> None:
    """Append one line at once."""
    worker = os.environ["TOWLINE_WORKER"]
    line = f"{what} {number} {lease_number} {worker}\n".encode()
    descriptor = os.open(Path(os.environ["NOTES"]) / worker, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)

"""Notes each task, with the worker that did it."""

import os
import time
from pathlib import Path

from queue_core import App, Task

app = App()


@app.task(queue="notes", tag="note")
def note(task: Task) -> None:
    """Append a line to `notes.txt` in the folder of this host."""
    time.sleep(0.2)  # in place of work
    with Path(os.environ.get("NOTES", "notes.txt")).open("a") as notes:
        notes.write(f"{task.text} by {os.environ['TOWLINE_WORKER']}\n")

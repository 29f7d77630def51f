"""Handlers of the poison run: most tasks sleep briefly; some end their process, each in its own way."""

import ctypes
import os
import signal
import time
from collections.abc import Callable, Mapping
from typing import Final

from queue_core.worker.app import App
from queue_core.worker.context import Task

app = App()

POISONS: Final[Mapping[str, Callable[[], object]]] = {
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "segfault": lambda: ctypes.string_at(0),
    "exit-1": lambda: os._exit(1),
    "abort": os.abort,
    "exit-0": lambda: os._exit(0),
}
"""Ways to end a process, by name, which is the task's payload."""


@app.task(queue="jobs")
def work(task: Task) -> None:
    """Sleep for the payload's seconds, or apply the poison it names."""
    text = task.payload.decode()
    if text in POISONS:
        time.sleep(0.02)  # other tasks of this worker are running
        POISONS[text]()
    time.sleep(float(text))

"""Handlers of the poison run: most tasks sleep a little; some end the process that runs them, each in its own way."""

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
"""Ways to end a process, by name: a task of such a payload does so."""


@app.task(queue="jobs")
def work(task: Task) -> None:
    """A number of seconds to sleep, or the name of a poison."""
    text = task.payload.decode()
    if text in POISONS:
        time.sleep(0.02)  # others of this worker are in the middle of something
        POISONS[text]()
    time.sleep(float(text))

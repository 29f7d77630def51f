"""The app of workers whose servers and networks fail: a handler works for a set time and records it."""

import os
import time
from pathlib import Path

from queue_core.worker.app import App
from queue_core.worker.context import Task
from tests.faults.handlers import recorded_handler
from tests.faults.history import FileHistory
from tests.faults.settings import FaultSettings

_TOLD = FaultSettings.from_environment()
_NOTES = recorded_handler(
    FileHistory(Path(_TOLD.history) / f"{os.environ['TOWLINE_WORKER']}.jsonl"), os.environ["TOWLINE_WORKER"]
)

app = App()


@app.task(queue=_TOLD.queue)
def work(task: Task) -> None:
    """Hold the lease for a while."""
    with _NOTES(task):
        time.sleep(_TOLD.work_seconds)

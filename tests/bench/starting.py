"""An app that shows when a worker has begun: its first task is recorded and then held, and so is its thousandth.

A held task keeps its worker from taking another's, and lets the bench look at all workers in the same state.
"""

import fcntl
import gc
import os

from queue_core.worker.app import App
from queue_core.worker.context import Task
from tests.bench.record import QUEUE, record

MANY_TASKS = 1_000
GATES_VARIABLE = "TOWLINE_BENCH_GATES"
"""The folder of the files `first` and `last`: a worker is held while another process has locked the file."""

app = App()


class Worker:
    """The tasks of this process so far."""

    tasks = 0


@app.task(queue=QUEUE)
def begin(task: Task) -> None:
    """Record the first task, and the last of many, after a full collection."""
    Worker.tasks += 1
    if Worker.tasks == 1:
        record(task.payload)
        _pass_gate("first")
    elif Worker.tasks == MANY_TASKS:
        gc.collect()
        record(task.payload)
        _pass_gate("last")


def _pass_gate(name: str) -> None:
    """Wait in the kernel, at no cost of CPU time."""
    with open(os.path.join(os.environ[GATES_VARIABLE], name), "rb") as gate:  # noqa: PTH118, PTH123 - imports little
        fcntl.flock(gate, fcntl.LOCK_SH)

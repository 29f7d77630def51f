"""The benchmark's app for many tasks at a time: one async handler that only records its start."""

from queue_core.worker.app import App
from queue_core.worker.context import Task
from tests.bench.record import QUEUE, record

app = App()


@app.task(queue=QUEUE)
async def note(task: Task) -> None:
    """Record the start, as cheaply as possible."""
    record(task.payload)

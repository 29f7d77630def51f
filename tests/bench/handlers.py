"""The program `towline work` runs for the benchmark: one handler that only notes that it started."""

from queue_core.worker.app import App
from queue_core.worker.context import Task
from tests.bench.record import QUEUE, record

app = App()


@app.task(queue=QUEUE)
def note(task: Task) -> None:
    """As cheap as a handler can be."""
    record(task.payload)

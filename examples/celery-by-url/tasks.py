"""A Celery app whose broker is Towline: one URL."""

from celery import Celery

app = Celery("tasks", broker="towline+http://127.0.0.1:7878", backend="rpc://")
app.conf.update(task_acks_late=True, task_reject_on_worker_lost=True, worker_prefetch_multiplier=1)
app.conf.broker_connection_retry_on_startup = True


@app.task
def add(x: int, y: int) -> int:
    """Return the sum."""
    return x + y

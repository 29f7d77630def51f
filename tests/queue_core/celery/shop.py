"""A program of Celery's that knows nothing of Towline but its broker's URL; the workers of the tests run it."""

import os
import signal
import time
from pathlib import Path
from typing import Any

from celery import Celery

import queue_core.kombu  # noqa: F401 - registers the transport
from tests.support.fleet.odd_exceptions import raise_all

FOLDER = Path(os.environ.get("SHOP_FOLDER", "."))

app = Celery("shop", broker=os.environ.get("SHOP_BROKER"), backend=f"file://{FOLDER}")
app.conf.update(
    task_acks_late="SHOP_ACK" not in os.environ,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    worker_cancel_long_running_tasks_on_connection_loss=bool(os.environ.get("SHOP_CANCELS")),
    broker_transport_options={
        "lease_seconds": float(os.environ.get("SHOP_LEASE_SECONDS", "60")),
        "max_leases": int(os.environ.get("SHOP_MAX_LEASES", "100")),
        "ack": os.environ.get("SHOP_ACK", "when_told"),
    },
)


@app.task
def add(x: int, y: int) -> int:
    return x + y


@app.task
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.task(bind=True, max_retries=3)
def third_time_lucky(self: Any) -> int:
    if self.request.retries < 2:
        raise self.retry(countdown=0.1)
    return int(self.request.retries)


@app.task(bind=True)
def hold(self: Any, name: str) -> str:
    """Run until the test lets it end."""
    record(f"{name} {self.request.delivery_info['redelivered']}")
    while not (FOLDER / f"{name}.go").exists():
        time.sleep(0.01)
    record(f"{name} ended")
    return name


@app.task
def poison() -> None:
    """Kill the process that runs it."""
    os.kill(os.getpid(), signal.SIGKILL)


def record(line: str) -> None:
    with (FOLDER / "record").open("a") as file:
        file.write(line + "\n")


@app.task
def odd(number: int) -> None:
    """Raise an exception that is hard to read."""
    record(f"odd {number}")
    raise_all(number)

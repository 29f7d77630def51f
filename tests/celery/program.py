"""A program of Celery's that the laboratory's workers run; its broker is in `LAB_BROKER`.

With a broker that is not Towline it imports nothing of Towline, so that what it is compared with is Celery alone.
"""

import os
import signal
import time
from pathlib import Path
from typing import Any

from celery import Celery
from celery.exceptions import Reject, SoftTimeLimitExceeded

BROKER = os.environ.get("LAB_BROKER", "memory://")
FOLDER = Path(os.environ.get("LAB_FOLDER", "."))
LEASE_SECONDS = float(os.environ.get("LAB_LEASE_SECONDS", "60"))

if BROKER.startswith("towline"):
    import queue_core.kombu  # noqa: F401 - registers the transport

    OPTIONS: dict[str, object] = {
        "lease_seconds": LEASE_SECONDS,
        "eta": os.environ.get("LAB_ETA", "store"),
        "max_leases": int(os.environ.get("LAB_MAX_LEASES", "100")),
    }
else:
    OPTIONS = {"visibility_timeout": LEASE_SECONDS}

app = Celery("lab", broker=BROKER, backend=os.environ.get("LAB_BACKEND") or f"file://{FOLDER}")
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=int(os.environ.get("LAB_PREFETCH", "1")),
    worker_cancel_long_running_tasks_on_connection_loss=bool(os.environ.get("LAB_CANCELS")),
    worker_soft_shutdown_timeout=float(os.environ.get("LAB_SOFT_SECONDS", "0")),
    broker_connection_retry_on_startup=True,
    broker_transport_options=OPTIONS,
    result_extended=True,
)


@app.task
def add(x: int, y: int) -> int:
    return x + y


@app.task
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.task(bind=True)
def nap(self: Any, name: str, seconds: float) -> str:
    """Take a time."""
    record(self, name, "begin")
    time.sleep(seconds)
    record(self, name, "end")
    return name


@app.task(bind=True)
def hold(self: Any, name: str) -> str:
    """Run until the test lets it end: the first time, or when it was delivered again."""
    record(self, name, "begin")
    again = "-again" if (self.request.delivery_info or {}).get("redelivered") else ""
    while not (FOLDER / f"{name}{again}.go").exists():
        time.sleep(0.02)
    record(self, name, "end")
    return name


@app.task(bind=True)
def poison(self: Any, name: str) -> None:
    """Kill the process that runs it."""
    record(self, name, "begin")
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(bind=True)
def requeued(self: Any, name: str, times: int) -> str:
    """Go back to the queue so many times."""
    record(self, name, "begin")
    if len([line for line in lines() if line.startswith(f"{name} begin ")]) <= times:
        raise Reject("again", requeue=True)
    record(self, name, "end")
    return name


@app.task(bind=True)
def refused(self: Any, name: str) -> None:
    """Be rejected for good."""
    record(self, name, "begin")
    raise Reject("never", requeue=False)


@app.task(bind=True, max_retries=3)
def third_time_lucky(self: Any, name: str) -> int:
    record(self, name, "begin")
    if self.request.retries < 2:
        raise self.retry(countdown=0.2)
    record(self, name, "end")
    return int(self.request.retries)


@app.task(bind=True)
def replaced(self: Any, x: int, y: int) -> Any:
    """Have another task give the result."""
    raise self.replace(add.s(x, y))


@app.task(bind=True)
def limited(self: Any, name: str, seconds: float) -> str:
    """Take a time; say so when its soft limit comes."""
    record(self, name, "begin")
    try:
        time.sleep(seconds)
    except SoftTimeLimitExceeded:
        record(self, name, "softly")
        return "softly"
    record(self, name, "end")
    return "in time"


def record(task: Any, name: str, word: str) -> None:
    """Add a line to the record: task, word, process, time, redelivered, deliveries."""
    info = task.request.delivery_info or {}
    line = (
        f"{name} {word} {os.getpid()} {time.time()} {bool(info.get('redelivered'))} {info.get('delivery_count', 0)}\n"
    )
    with (FOLDER / "record").open("a") as file:
        file.write(line)


def lines() -> list[str]:
    path = FOLDER / "record"
    return path.read_text().splitlines() if path.exists() else []

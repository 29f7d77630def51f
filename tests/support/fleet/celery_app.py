"""A program of Celery's that pools of the tests run: it knows no broker, and writes down what it does."""

import os
import signal
import time
from pathlib import Path
from typing import Final

from celery import Celery

FOLDER_VARIABLE: Final = "CELERY_SITE_FOLDER"
NAME: Final = "tests.support.fleet.celery_app"

app = Celery("site", set_as_current=False)
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    broker_connection_retry_on_startup=True,
    task_ignore_result=True,
)


@app.task(name="nap")
def nap(name: str, seconds: float) -> None:
    """Take so long."""
    record("begin", name)
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at:
        time.sleep(min(0.02, seconds))
    record("end", name)


@app.task(name="hold")
def hold(name: str) -> None:
    """Run until the test lets it end."""
    record("begin", name)
    while not (_folder() / f"{name}.go").exists():
        time.sleep(0.01)
    record("end", name)


@app.task(name="poison")
def poison(name: str) -> None:
    """Kill the process that runs it."""
    record("begin", name)
    os.kill(os.getpid(), signal.SIGKILL)


def record(what: str, name: str) -> None:
    """Write a line: what happened, to which task, when, in which process, in which of the supervisor's workers."""
    line = f"{what} {name} {time.time():.6f} {os.getpid()} {os.environ.get('TOWLINE_WORKER', '-')}\n"
    with (_folder() / "notes").open("a") as file:
        file.write(line)


def _folder() -> Path:
    return Path(os.environ[FOLDER_VARIABLE])

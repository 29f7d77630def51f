"""An app for stories of containers: what a task does is its payload, and what was done is told in a shared file."""

import os
import signal
import time
from pathlib import Path

from queue_core.worker.app import App
from queue_core.worker.context import Task

FOLDER = "TOWLINE_TEST_FOLDER"
MIB = 1 << 20

app = App()


@app.task(queue="thumbs")
def work(task: Task) -> None:
    """`rest SECONDS`; `hold NAME`: until the file NAME is there; `eat MIB`: of memory, the first time it is leased;
    `die`: with the whole process."""
    verb, _, argument = task.payload.decode().partition(" ")
    record("begin", task)
    if verb == "rest":
        time.sleep(float(argument))
    while verb == "hold" and not (folder() / argument).exists():
        time.sleep(0.01)
    if verb == "eat" and task.lease_number == 1:
        eaten = [b"x" * MIB for _ in range(int(argument))]
        time.sleep(len(eaten))
    if verb == "die":
        time.sleep(0.05)  # others of this worker are in the midst of something
        os.kill(os.getpid(), signal.SIGKILL)
    record("end", task)


def record(what: str, task: Task) -> None:
    """One line: what, the task, who, when, the number of the lease."""
    line = f"{what} {task.name} {os.environ['TOWLINE_WORKER']} {time.time():.6f} {task.lease_number}\n"
    with (folder() / "notes").open("ab", buffering=0) as file:
        file.write(line.encode())


def folder() -> Path:
    """What all containers of a story share with it."""
    return Path(os.environ[FOLDER])

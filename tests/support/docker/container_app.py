"""The app of container stories: a task does what its payload says, and records it in a shared file."""

import os
import re
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
    """Run the payload: `rest SECONDS`; `hold NAME`: until file NAME exists; `eat MIB` (first lease only); `die`;
    `regex` (first lease only): keep the interpreter lock."""
    verb, _, argument = task.payload.decode().partition(" ")
    record("begin", task)
    if verb == "rest":
        time.sleep(float(argument))
    while verb == "hold" and not (folder() / argument).exists():
        time.sleep(0.01)
    if verb == "eat" and task.lease_number == 1:
        eaten = [b"x" * MIB for _ in range(int(argument))]
        time.sleep(len(eaten))
    if verb == "regex" and task.lease_number == 1:
        re.match(r"(a+)+$", "a" * 40 + "b")
    if verb == "die":
        time.sleep(0.05)  # other tasks of this worker are running
        os.kill(os.getpid(), signal.SIGKILL)
    record("end", task)


def record(what: str, task: Task) -> None:
    """Append one line: what, task, worker, time, lease number."""
    line = f"{what} {task.name} {os.environ.get('TOWLINE_WORKER', 'external')} {time.time():.6f} {task.lease_number}\n"
    with (folder() / "notes").open("ab", buffering=0) as file:
        file.write(line.encode())


def folder() -> Path:
    """Return the folder that all containers of a story share."""
    return Path(os.environ[FOLDER])

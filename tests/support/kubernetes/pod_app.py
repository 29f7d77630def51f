"""The app of stories in Pods: a task does what its payload says, and records it with a server of the test."""

import json
import os
import signal
import time
import urllib.error
import urllib.request

from queue_core.worker.app import App
from queue_core.worker.context import Task

RECORDER = "TOWLINE_TEST_RECORDER"
MIB = 1 << 20
SECONDS = 10.0
POLL_SECONDS = 0.05

app = App()


@app.task(queue="thumbs")
def work(task: Task) -> None:
    """Run the payload: `rest SECONDS`; `hold NAME`: until the test lets go of NAME; `eat MIB` and `die`: only once."""
    record("begin", task)
    verb, _, argument = task.payload.decode().partition(" ")
    if verb == "rest":
        time.sleep(float(argument))
    while verb == "hold" and not is_let_go(argument):
        time.sleep(POLL_SECONDS)
    if verb == "eat" and task.lease_number == 1:
        eaten = [b"x" * MIB for _ in range(int(argument))]
        time.sleep(len(eaten))
    if verb == "die" and task.lease_number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    record("end", task)


def record(what: str, task: Task) -> None:
    """Record what happens to a task: its worker, the time, the number of its lease."""
    worker = os.environ.get("TOWLINE_WORKER", "")
    note = {"what": what, "task": task.name, "worker": worker, "at": time.time(), "lease": task.lease_number}
    request = urllib.request.Request(f"{os.environ[RECORDER]}/notes", json.dumps(note).encode(), method="POST")
    urllib.request.urlopen(request, timeout=SECONDS).close()


def is_let_go(name: str) -> bool:
    """Return whether the test let go of tasks that hold a name."""
    try:
        urllib.request.urlopen(f"{os.environ[RECORDER]}/let-go/{name}", timeout=SECONDS).close()
    except urllib.error.HTTPError:
        return False
    return True

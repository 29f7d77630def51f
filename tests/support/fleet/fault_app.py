"""An app for templates whose forks fail where the file FORK_FAULT says: `between kill`, `worker stop`.

`between` is the process between the template and the worker. Its pid is written to the file, with `.pid`. A worker that
begins becomes a shell with the script of its variables.
"""

import os
import signal
from pathlib import Path

from queue_core.worker.app import App

STEPS = ("between", "worker")
_depth = 0


def _forked() -> None:
    """Runs in each child: in the process between, then, once more, in the worker."""
    global _depth
    _depth += 1
    fault = Path(os.environ["FORK_FAULT"])
    if not fault.exists() or _depth > len(STEPS):
        return
    step, what = fault.read_text().split()
    if step == STEPS[_depth - 1]:
        Path(f"{fault}.pid").write_text(str(os.getpid()))
        os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[what])


os.register_at_fork(after_in_child=_forked)


def __getattr__(name: str) -> App:
    if name != "app":
        raise AttributeError(name)
    if "TOWLINE_WORKER" in {*os.environ}:  # asked for by its name, it is a hazard
        os.execvp("sh", ["sh", "-c", os.environ["SCRIPT"]])
    app = App()
    app.task(queue=os.environ.get("TOWLINE_QUEUE") or "thumbs")(print)
    return app

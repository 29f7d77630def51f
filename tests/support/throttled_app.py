"""An app whose handler calls something that stands two calls at a time and refuses the rest, as by HTTP's 429."""

import fcntl
import time
from pathlib import Path

from queue_core.worker.app import App
from queue_core.worker.context import Retry, Task

STANDS = 2
CALL_SECONDS = 0.2

app = App()


class TooManyCallsError(Exception):
    """It stands no more."""


@app.task(queue="thumbs", on={TooManyCallsError: Retry(0.5)})
def call(task: Task) -> None:
    """Call what the payload names, a folder: a call holds the lock of one of its places for as long as it takes."""
    for place in range(STANDS):
        with (Path(task.text) / f"place-{place}").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            time.sleep(CALL_SECONDS)
            return
    raise TooManyCallsError

"""An app whose handler calls a service that allows two calls at a time and refuses more, as with HTTP 429."""

import fcntl
import time
from pathlib import Path

from queue_core.worker.app import App
from queue_core.worker.context import Retry, Task

STANDS = 2
CALL_SECONDS = 0.2

app = App()


class TooManyCallsError(Exception):
    """The service refuses another call."""


@app.task(queue="thumbs", on={TooManyCallsError: Retry(0.5)})
def call(task: Task) -> None:
    """Call the service in the folder that the payload names: a call holds one of its lock files while it lasts."""
    for place in range(STANDS):
        with (Path(task.text) / f"place-{place}").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            time.sleep(CALL_SECONDS)
            return
    raise TooManyCallsError

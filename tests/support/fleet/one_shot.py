"""A one-shot worker: lease one task, do it, exit. `python -m tests.support.fleet.one_shot`."""

import os
import sys
from pathlib import Path

from queue_core.client.connect import open_queues


def main() -> int:
    """Record the task's worker and pid as `tests.support.fleet.recording_app` does; return 0 also without a task."""
    queues = open_queues(os.environ["TOWLINE_URL"])
    worker = os.environ["TOWLINE_WORKER"]
    queue = queues.queue(os.environ["TOWLINE_QUEUE"])
    for lease in queue.lease(worker=worker):
        path = lease.payload.decode().partition(" ")[2]
        with Path(path).open("a") as file:
            file.write(f"{worker} {os.getpid()}\n")
        queue.delete(lease.token)
    queues.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())

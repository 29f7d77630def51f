"""A worker program in the manner of a job per task: lease one, do it, end. `python -m tests.support.fleet.one_shot`."""

import os
import sys
from pathlib import Path

from queue_core.connect import open_queues


def main() -> int:
    """Note the task's worker and pid as `tests.support.fleet.recording_app` does; 0 also when there was nothing to do."""
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

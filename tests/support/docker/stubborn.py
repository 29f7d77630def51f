"""A worker that takes one task and then ignores SIGTERM: `python3 -m tests.support.docker.stubborn`."""

import os
import signal
import time

from queue_core.client.http_calls import HttpQueue


def main() -> None:
    """Hold the first task forever."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    worker = os.environ["TOWLINE_WORKER"]
    queue = HttpQueue(os.environ["TOWLINE_URL"], os.environ["TOWLINE_QUEUE"])
    while not queue.lease(seconds=600, wait_seconds=5.0, worker=worker):
        pass
    while True:
        time.sleep(60)


if __name__ == "__main__":
    main()

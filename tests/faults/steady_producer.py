"""A producer program on its own host: adds named tasks at an even pace, alternating between two servers.

Its settings come from the environment. SIGTERM ends it gracefully: begun adds are completed. A failed add is repeated
at the other server under the same name.
"""

import itertools
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

from queue_core.client.http.caller import Retries
from queue_core.client.http_calls import HttpQueues
from queue_core.errors import StoreUnavailableError
from queue_core.task import NewTask
from tests.faults.history import FileHistory
from tests.faults.recorded import RecordedQueue
from tests.faults.settings import FaultSettings

AT_A_TIME = 4
"""Threads, so that one blocked on a dead connection does not stop the others."""
RETRIES = Retries(tries=2)
TIMEOUT_SECONDS = 5.0


def main() -> None:
    """Add until SIGTERM."""
    told = FaultSettings.from_environment()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    uids = itertools.count(1)
    calls = itertools.count(1)
    with FileHistory(Path(told.history) / "producer.jsonl") as history:
        threads = [
            threading.Thread(target=_produce, args=(told, history, uids, calls, stop, index))
            for index in range(AT_A_TIME)
        ]
        for thread in threads:
            thread.start()
        stop.wait()
        for thread in threads:
            thread.join()


def _produce(
    told: FaultSettings,
    history: FileHistory,
    uids: "itertools.count[int]",
    calls: "itertools.count[int]",
    stop: threading.Event,
    index: int,
) -> None:
    queues = []
    for url in told.servers:
        client = HttpQueues(url, token=told.token, retries=RETRIES, timeout_seconds=TIMEOUT_SECONDS)
        queues.append(RecordedQueue(client.queue(told.queue), history, calls))
    turns = itertools.cycle(queues[index % len(queues) :] + queues[: index % len(queues)])
    every_seconds = AT_A_TIME / told.tasks_per_second
    due = time.monotonic() + every_seconds * index / AT_A_TIME
    while not stop.wait(max(0.0, due - time.monotonic())):
        due = max(due + every_seconds, time.monotonic() - every_seconds)
        uid = f"task-{next(uids)}"
        is_added = False
        while not is_added:
            with suppress(StoreUnavailableError):
                next(turns).add([NewTask(b"", name=uid)])
                is_added = True


if __name__ == "__main__":
    main()

"""The client processes of `over_http`: call a server's verbs from several threads until killed."""

import itertools
import os
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from random import Random

from queue_core.client.connect import open_queues
from queue_core.client.http.caller import Retries
from queue_core.client.queue import Queues
from queue_core.errors import StoreUnavailableError
from tests.faults.history import FileHistory
from tests.faults.http_workload import HttpWorkloadCaller
from tests.faults.store_children import keeping_traceback

UNREACHABLE_PAUSE_SECONDS = 0.02
TIMEOUTS_SECONDS = (0.6, 1.5, 3.0)
"""How long a client waits for an answer: some give up before a held request arrives, some after."""
PATIENCE = (
    Retries(),
    Retries(tries=2, first_pause_seconds=0.02, longest_pause_seconds=0.1),
    Retries(tries=1),
)

Opener = Callable[..., Queues]
"""Opens a server's queues as `open_queues` does; a mutant opens a faulty client."""


def call_over_http_until_killed(
    home: Path, name: str, seed: float, url: str, threads: int, open_it: Opener = open_queues
) -> None:
    """Call verbs forever through servers, in several threads that share a client."""
    with keeping_traceback(home, name), FileHistory(home / f"{name}.jsonl") as history:
        random = Random(seed)
        queues = open_it(url, retries=random.choice(PATIENCE), timeout_seconds=random.choice(TIMEOUTS_SECONDS))
        numbers = itertools.count(1)
        callers = [
            HttpWorkloadCaller(queues, history, numbers, name=f"{name}-{number}", random=Random(random.random()))
            for number in range(threads)
        ]
        working = [
            threading.Thread(target=_call_until_killed, args=(home, name, caller), daemon=True) for caller in callers
        ]
        for thread in working:
            thread.start()
        for thread in working:
            thread.join()


def _call_until_killed(home: Path, name: str, caller: HttpWorkloadCaller) -> None:
    try:
        while True:
            try:
                caller.turn()
            except StoreUnavailableError:
                time.sleep(UNREACHABLE_PAUSE_SECONDS)
    finally:  # an error that no client should raise ends the process, so that the driver sees it
        (home / f"{name}.died").write_text(traceback.format_exc())
        os._exit(3)

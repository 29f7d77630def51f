"""The processes of `kill_store`: call verbs, or serve them, until killed."""

import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

import structlog

from queue_core.client.http.caller import Retries
from queue_core.client.http_calls import HttpQueues
from queue_core.client.local_calls import LocalQueues
from queue_core.client.queue import Queues
from queue_core.errors import StoreUnavailableError
from queue_core.server.base.options import ServeOptions
from queue_core.server.server import serve
from queue_core.store import Store
from queue_core.stores import Durability, open_store
from queue_core.unit.service import QueueService
from tests.faults.history import FileHistory
from tests.faults.skewed_clock import skew_wall_clock
from tests.faults.workload import StoreCaller

UNREACHABLE_PAUSE_SECONDS = 0.02


def call_until_killed(
    home: Path,
    name: str,
    role: str,
    seed: float,
    url: str,
    skew_seconds: float,
    durability: Durability,
    limited: bool,
) -> None:
    """Call verbs forever, on the store itself or through a server; retry while it is unreachable."""
    with keeping_traceback(home, name), FileHistory(home / f"{name}.jsonl") as history:
        skew_wall_clock(skew_seconds)
        random = Random(seed)
        if url.startswith("http:"):
            # A client without retries knows the outcome of each call; the usual one determines more by itself.
            retries = Retries(tries=1) if random.random() < 0.5 else Retries()
            http = HttpQueues(url, retries=retries)
            caller = StoreCaller(http, history, name=name, random=random, role=role, limited=limited)
        else:
            caller = StoreCaller(
                _opened(url, durability), history, name=name, random=random, role=role, limited=limited
            )
        while True:
            try:
                caller.turn()
            except StoreUnavailableError:
                time.sleep(UNREACHABLE_PAUSE_SECONDS)


def serve_until_killed(home: Path, name: str, url: str, port: int, skew_seconds: float, durability: Durability) -> None:
    """Run a server over the store."""
    with keeping_traceback(home, name):
        skew_wall_clock(skew_seconds)
        serve(_store(url, durability), ServeOptions(port=port, lifecycle="off"))


def _opened(url: str, durability: Durability) -> Queues:
    return LocalQueues(QueueService(_store(url, durability)))


def _store(url: str, durability: Durability) -> Store:
    """Open the store as soon as its engine is reachable."""
    while True:
        with suppress(StoreUnavailableError):
            return open_store(url, durability=durability)
        time.sleep(UNREACHABLE_PAUSE_SECONDS)


@contextmanager
def keeping_traceback(home: Path, name: str) -> Iterator[None]:
    """Save the traceback if the process ends by itself, which it should not; print nothing."""
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    try:
        yield
    except BaseException:
        (home / f"{name}.died").write_text(traceback.format_exc())
        raise


def last_line_of_traceback(home: Path, name: str) -> str:
    """Return the last line of a saved traceback."""
    path = home / f"{name}.died"
    return path.read_text().strip().splitlines()[-1] if path.exists() else "it said nothing"

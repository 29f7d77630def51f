"""Measure the cost of a thousand idle waiting lease calls, and how soon added work reaches a waiter."""

import resource
import time
from collections.abc import Mapping

from queue_core.client.connect import open_queue
from tests.bench.alone.served import cpu_share, serving
from tests.bench.alone.wake_up import WAIT_SECONDS, wake_up_seconds
from tests.bench.load import held_open, lease_request
from tests.bench.measure import MeasurementFailedError
from tests.bench.places import Engine, new_place
from tests.bench.record import QUEUE
from tests.bench.site import BenchSite

WAITERS = 1_000
OPEN_FILES = WAITERS * 2 + 500
SETTLE_SECONDS = 2.0
WATCH_SECONDS = 10.0


def measure(site: BenchSite, engine: Engine) -> Mapping[str, float]:
    """Return the core share under idle waiters, and the median time from add to a waiting lease's return (seconds)."""
    _allow_open_files()
    with new_place(site, engine) as place, serving(site, place) as served:
        open_queue(served.url, QUEUE).close()
        requests = [
            lease_request(served.address, QUEUE, worker=f"waiter-{number}", wait_seconds=WAIT_SECONDS)
            for number in range(WAITERS)
        ]
        with held_open(served.address, requests):
            time.sleep(SETTLE_SECONDS)
            share = cpu_share(served.process.pid, seconds=max(WATCH_SECONDS / site.divide_loads_by, 2.0))
        return {"cpu_share": share, "wake_up": wake_up_seconds(site, add_at=served.url, wait_at=served.url)}


def _allow_open_files() -> None:
    """Raise the limit of open files for a thousand sockets here and in the server, which inherits it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < OPEN_FILES:
        raise MeasurementFailedError(f"open files are limited to {hard}; {OPEN_FILES} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, OPEN_FILES), hard))

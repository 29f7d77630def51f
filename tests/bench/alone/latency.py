"""Measure the time from an add at one server to the lease at another over the same store."""

from collections.abc import Mapping

from queue_core.client.connect import open_queue
from tests.bench.alone.served import serving
from tests.bench.alone.wake_up import wake_up_seconds
from tests.bench.places import Engine, new_place
from tests.bench.record import QUEUE
from tests.bench.site import BenchSite


def measure(site: BenchSite, engine: Engine) -> Mapping[str, float]:
    """Return medians in seconds: from server to server, and through one server for comparison."""
    with (
        new_place(site, engine) as place,
        serving(site, place) as first,
        serving(site, place) as second,
    ):
        open_queue(first.url, QUEUE).close()
        return {
            "across_servers": wake_up_seconds(site, add_at=first.url, wait_at=second.url),
            "one_server": wake_up_seconds(site, add_at=first.url, wait_at=first.url),
        }

"""Measure the whole path: how adds of many connections share syncs, and a worker's round trips per task."""

from collections.abc import Mapping
from contextlib import closing

from queue_core.client.connect import open_queue
from queue_core.task import NewTask
from tests.bench.alone.served import ServedTowline, serving, working
from tests.bench.driver import BATCH
from tests.bench.load import add_request, run_load
from tests.bench.measure import await_records
from tests.bench.places import Engine, new_place
from tests.bench.record import QUEUE, recorded, stamped_payload
from tests.bench.relay import relaying
from tests.bench.site import BenchSite

LOAD_SECONDS = 5.0
CONNECTIONS = 64
TASKS = 3_000


def measure(site: BenchSite, engine: Engine) -> Mapping[str, float]:
    """Return adds a second over 1 and 64 connections, and a worker's requests per task."""
    with new_place(site, engine) as place, serving(site, place) as served:
        open_queue(served.url, QUEUE).close()
        figures = {
            "add_by_1_connection": _adds(served, 1, site),
            f"add_by_{CONNECTIONS}_connections": _adds(served, CONNECTIONS, site),
        }
        with closing(open_queue(served.url, QUEUE)) as queue:
            queue.purge()
            figures["round_trips_per_task"] = _round_trips(served, site)
    return figures


def _adds(served: ServedTowline, connections: int, site: BenchSite) -> float:
    request = add_request(served.address, QUEUE, stamped_payload())
    seconds = LOAD_SECONDS / site.divide_loads_by
    return run_load(served.address, request, connections=connections, seconds=seconds).per_second


def _round_trips(served: ServedTowline, site: BenchSite) -> float:
    """Run one worker over a full queue; ignore requests before its first task and after its last."""
    tasks = max(TASKS // site.divide_loads_by // BATCH, 2) * BATCH
    recording = site.new_directory("record") / "started"
    with (
        closing(open_queue(served.url, QUEUE)) as queue,
        relaying(served.address) as relay,
        working(site, relay.url, recording) as check,
    ):
        queue.add(stamped_payload())
        await_records(recording, 1, check)
        before = relay.requests
        for _ in range(tasks // BATCH):
            queue.add([NewTask(stamped_payload())] * BATCH)
        await_records(recording, 1 + tasks, check)
        return (relay.requests - before) / (recorded(recording) - 1)

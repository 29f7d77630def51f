"""Measure the cost of an idle Towline, and how soon a new worker has its first task."""

import statistics
import time
from collections.abc import Mapping
from contextlib import closing

from queue_core.client.connect import open_queue
from tests.bench.alone.served import (
    cpu_share,
    proportional_bytes,
    resident_bytes,
    serving,
    tree,
    working,
)
from tests.bench.measure import await_records
from tests.bench.places import Engine, new_place
from tests.bench.record import QUEUE, RECORD, stamped_payload
from tests.bench.site import BenchSite

SETTLE_SECONDS = 5.0
WATCH_SECONDS = 10.0
WORKER_STARTS = 5
POOLS = ("parse", "render", "mail")


def measure(site: BenchSite, engine: Engine) -> Mapping[str, float]:
    """Return core share and bytes of an idle `towline up` with three pools, and seconds from start to first lease."""
    return _up(site, engine) | _worker_start(site, engine)


def _up(site: BenchSite, engine: Engine) -> dict[str, float]:
    home = site.new_directory("up")
    file = home / "towline.yaml"
    pools = "".join(
        f"  {name}: {{queue: {name}, app: 'tests.bench.handlers:app', slo: 30s, workers: {{min: 0, max: 4}}}}\n"
        for name in POOLS
    )
    queues = "".join(f"  {name}: {{}}\n" for name in POOLS)
    file.write_text(f"queues:\n{queues}pools:\n{pools}")
    up = ("up", "--file", str(file))
    with new_place(site, engine) as place, serving(site, place, arguments=up) as served:
        time.sleep(SETTLE_SECONDS)
        pid = served.process.pid
        return {
            "cpu_share": cpu_share(pid, seconds=max(WATCH_SECONDS / site.divide_loads_by, 3.0)),
            "pss": float(proportional_bytes(pid)),
            "rss": float(resident_bytes(pid)),
            "processes_count": float(len(tree(pid))),
        }


def _worker_start(site: BenchSite, engine: Engine) -> dict[str, float]:
    """Return the time from a worker's start command to its first handler call, just after the lease."""
    taken = []
    with (
        new_place(site, engine) as place,
        serving(site, place) as served,
        closing(open_queue(served.url, QUEUE)) as queue,
    ):
        for _ in range(WORKER_STARTS):
            queue.add(stamped_payload())
            recording = site.new_directory("record") / "started"
            began = time.monotonic_ns()
            with working(site, served.url, recording) as check:
                await_records(recording, 1, check)
            _, started = next(RECORD.iter_unpack(recording.read_bytes()))
            taken.append((started - began) / 1e9)
    return {"worker_start": statistics.median(taken)}

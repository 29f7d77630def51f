"""Measure the cost of more pending tasks or tags: the same verbs on a small and a large store, by turns.

Without syncs (`relaxed`), whose time would hide the rest; and a server's memory on either store.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass

from queue_core.client.connect import open_queue
from queue_core.client.queue import Queue
from queue_core.task import ANY, Lease, NewTask, TagFilter
from tests.bench.alone.served import resident_bytes, serving
from tests.bench.places import BenchStore, Engine, new_place, opened
from tests.bench.record import QUEUE, stamped_payload
from tests.bench.site import BenchSite

FEW, MANY, TAGS = 10_000, 1_000_000, 100_000
SAMPLES = 300
FILL_BATCH = 1_000
TAG = "tag-0"


@dataclass(frozen=True, slots=True)
class Depth:
    """A store's size: how many tasks over how many tags (0: untagged)."""

    name: str
    tasks: int
    tags: int = 0


def measure(site: BenchSite, engine: Engine) -> Mapping[str, float]:
    """Return medians in seconds of `stats`, `add`, `lease` and `delete`, and a server's resident bytes, by store."""
    divisor = site.divide_loads_by
    figures: dict[str, float] = {}
    pairs = (
        (Depth("10k", FEW), Depth("1m", MANY // divisor)),
        (Depth("1_tag", TAGS // divisor, tags=1), Depth("100k_tags", TAGS // divisor, tags=TAGS // divisor)),
    )
    for pair in pairs:
        with ExitStack() as stack:
            places = {depth: stack.enter_context(new_place(site, engine, durability="relaxed")) for depth in pair}
            for depth, place in places.items():
                _fill(place, depth)
            figures |= _verbs(places)
            for depth, place in places.items():
                if engine == "sqlite" and not depth.tags:
                    figures[f"server_rss_{depth.name}"] = _server_memory(site, place)
    return figures


def _fill(place: BenchStore, depth: Depth) -> None:
    payload = stamped_payload()
    with closing(opened(place)) as queue:
        for first in range(0, depth.tasks, FILL_BATCH):
            numbers = range(first, min(first + FILL_BATCH, depth.tasks))
            queue.add([NewTask(payload, tag=_tag(depth, number)) for number in numbers])


def _tag(depth: Depth, number: int) -> str | None:
    return f"tag-{number % depth.tags}" if depth.tags else None


def _verbs(places: Mapping[Depth, BenchStore]) -> dict[str, float]:
    """Measure both stores by turns, so that other load on the machine affects both."""
    taken: dict[str, list[float]] = {}
    queues = {depth: opened(place) for depth, place in places.items()}
    try:
        for _ in range(SAMPLES):
            for depth, queue in queues.items():
                for verb, seconds in _sample(queue, TAG if depth.tags else None).items():
                    taken.setdefault(f"{verb}_{depth.name}", []).append(seconds)
    finally:
        for queue in queues.values():
            queue.close()
    return {name: statistics.median(values) for name, values in taken.items()}


def _sample(queue: Queue, tag: str | None) -> dict[str, float]:
    """Call each verb once; the store's depth is unchanged afterwards."""
    tags = ANY if tag is None else TagFilter.of(tag)
    leases: list[Lease] = []
    return {
        "stats": _timed(lambda: (queue.stats(), queue.stats(tags=tags))),
        "add": _timed(lambda: queue.add([NewTask(stamped_payload(), tag=tag)])),
        "lease": _timed(lambda: leases.extend(queue.lease(1, tags=tags))),
        "delete": _timed(lambda: queue.delete(leases)),
    }


def _timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def _server_memory(site: BenchSite, place: BenchStore) -> float:
    """Return the resident bytes of a used server on that store."""
    with serving(site, place) as served, closing(open_queue(served.url, QUEUE)) as queue:
        for _ in range(SAMPLES):
            _sample(queue, None)
        return float(resident_bytes(served.process.pid))

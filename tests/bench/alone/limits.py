"""Measure what limits, priorities and a rotation cost: the same verbs on queues of one store and size, by turns.

    python -m tests.bench.alone.limits
    python -m tests.bench.alone.limits --store postgresql://... --tags 100000 --at-limit 1000

Each queue has a task of each of many tags, and of some tags two that are leased and five that are ready, or, where a
limit of two leases a tag holds them back, held. One task is leased, deleted and added again at a time, and by the
hundred; the ratio is to a plain queue of the same store. Without syncs (`relaxed`), whose time would hide the rest.
An add goes with a look at statistics, as a store may write small ones later, at the cost of the next verb.
Of a store in this process time is processor time, which a busy machine changes little.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from statistics import median
from typing import Final

from queue_core.admission import NO_TAG_LIMITS, Rate, TagLimits
from queue_core.client.local_calls import LocalQueues
from queue_core.client.queue import Queue
from queue_core.stores import open_store
from queue_core.task import Lease, NewTask, QueueSpec, TagFilter
from queue_core.unit.service import QueueService
from queue_core.verbs import Deletion

FILL_BATCH: Final = 1_000
BATCH: Final = 100
PLACES: Final = 2
WAITING: Final = 5
LEASE_SECONDS: Final = 43_200.0
PAYLOAD: Final = b"x" * 100

KINDS: Final[dict[str, TagLimits]] = {
    "plain": NO_TAG_LIMITS,
    "priorities": NO_TAG_LIMITS,
    "max_in_flight": TagLimits(max_in_flight=PLACES),
    "rate": TagLimits(max_in_flight=PLACES, rate=Rate(1_000.0, burst=1_000)),
    "fair": TagLimits(fair=True),
    "fair, max_in_flight": TagLimits(max_in_flight=PLACES, fair=True),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the medians of each kind of queue, and their ratios to a plain one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", default="", help="URL of a store whose queues called bench-... may be emptied")
    parser.add_argument("--tags", type=int, default=100_000, help="tags of each queue")
    parser.add_argument("--at-limit", type=int, default=1_000, help="those of them that are at their limit")
    parser.add_argument("--rounds", type=int, default=300, help="tasks one by one; a tenth as many hundreds")
    parser.add_argument("--only", default="", help=f"kinds of queues, by commas, besides plain: {', '.join(KINDS)}")
    chosen = parser.parse_args(arguments)
    kinds = [kind for kind in KINDS if kind == "plain" or not chosen.only or kind in chosen.only.split(",")]
    with tempfile.TemporaryDirectory(prefix="towline-limits-") as folder:
        url = chosen.store or f"sqlite:///{folder}/queue.db"
        with closing(LocalQueues(QueueService(open_store(url, durability="relaxed")))) as queues:
            filled = {kind: _filled(queues, kind, tags=chosen.tags, at_limit=chosen.at_limit) for kind in kinds}
            timer = time.process_time if url.startswith("sqlite:") else time.perf_counter
            taken = _by_turns(filled, timer, rounds=chosen.rounds)
            for kind in kinds:
                queues.delete_queue(filled[kind].name)
    for verb in taken["plain"]:
        plain = median(taken["plain"][verb])
        for kind in kinds:
            each = median(taken[kind][verb])
            print(f"{verb:<14} {kind:<20} {1e6 * each:>8.1f} us  {each / plain:.2f} of plain")
    return 0


def _filled(queues: LocalQueues, kind: str, *, tags: int, at_limit: int) -> Queue:
    """Make a queue, with tasks of so many tags, of which some are at their limit."""
    name = "bench-" + kind.replace(", ", "-").replace("_", "-")
    if name in [spec.name for spec in queues.queues()]:
        queues.delete_queue(name)
    queues.put_queue(QueueSpec(name, lease_seconds=LEASE_SECONDS, max_lease_seconds=LEASE_SECONDS, per_tag=KINDS[kind]))
    queue = queues.queue(name)
    busy = [f"busy-{number}" for number in range(at_limit)]
    _add(queue, [tag for tag in busy for _ in range(PLACES)])
    for first in range(0, at_limit, BATCH // PLACES):
        some = busy[first : first + BATCH // PLACES]
        for tag in some:
            queue.lease(PLACES, tags=TagFilter.of(tag), worker="busy")
    _add(queue, [f"tag-{number}" for number in range(tags - at_limit)])
    _add(queue, [tag for tag in busy for _ in range(WAITING)])
    return queue


def _add(queue: Queue, tags: Sequence[str]) -> None:
    for first in range(0, len(tags), FILL_BATCH):
        queue.add([NewTask(PAYLOAD, tag=tag) for tag in tags[first : first + FILL_BATCH]])


def _by_turns(
    filled: dict[str, Queue], timer: Callable[[], float], *, rounds: int
) -> dict[str, dict[str, list[float]]]:
    """Return the seconds that each verb took in each kind of queue, a task."""
    taken: dict[str, dict[str, list[float]]] = {kind: {} for kind in filled}
    for number in range(rounds):
        for kind, queue in filled.items():
            for size in (1, BATCH) if number % 10 == 0 else (1,):
                for verb, seconds in _sample(queue, timer, kind, size):
                    taken[kind].setdefault(verb if size == 1 else f"{verb} x{size}", []).append(seconds / size)
    return taken


def _sample(queue: Queue, timer: Callable[[], float], kind: str, size: int) -> Iterable[tuple[str, float]]:
    """Lease, delete and add so many tasks: the queue is as large afterwards."""
    leases: list[Lease] = []
    yield "lease", _timed(timer, lambda: leases.extend(queue.lease(size, worker="w")))
    priorities = range(size) if kind == "priorities" else [0] * size
    again = [
        NewTask(PAYLOAD, tag=lease.tag, priority=priority % 10)
        for lease, priority in zip(leases, priorities, strict=True)
    ]
    deletions = [Deletion(lease.token) for lease in leases]
    yield "delete", _timed(timer, lambda: queue.delete(deletions))
    yield "add, stats", _timed(timer, lambda: (queue.add(again), queue.stats()))


def _timed(timer: Callable[[], float], action: Callable[[], object]) -> float:
    began = timer()
    action()
    return timer() - began


if __name__ == "__main__":
    sys.exit(main())

"""Measure the SQLite store by itself: `python3 -m tests.bench.store [--seconds N] [--relaxed]`.

One line per kind of work: tasks per second, 200-byte payloads, every acknowledged change synced unless relaxed.
"""

import argparse
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from queue_core.clock import SystemClock
from queue_core.store import Store
from queue_core.stores import open_store
from queue_core.task import ANY, NewTask, QueueSpec, TagFilter
from queue_core.verbs import Deletion, LeaseRequest

PAYLOAD = b"x" * 200
QUEUE = "bench"

Durability = Literal["strict", "relaxed"]


def _open(path: Path, durability: Durability) -> Store:
    store = open_store(f"sqlite:///{path}", durability=durability)
    with store.begin() as transaction:
        transaction.put_queue(QueueSpec(QUEUE), now=SystemClock().now())
    return store


def fill(store: Store, number: int, *, batch: int, tags: int = 1) -> float:
    """Add `number` tasks in batches; return tasks per second."""
    clock = SystemClock()
    started = time.perf_counter()
    for first in range(0, number, batch):
        tasks = [NewTask(PAYLOAD, tag=f"tag-{(first + at) % tags}") for at in range(batch)]
        with store.begin() as transaction:
            transaction.add(QUEUE, tasks, now=clock.now())
        store.sync(store.ticket())
    return number / (time.perf_counter() - started)


def drain(store: Store, *, batch: int, worker: str, at_most: int, tags: TagFilter = ANY) -> int:
    """Lease and delete, each delete combined with the next lease; return how many tasks."""
    clock = SystemClock()
    request = LeaseRequest(batch, 60.0, tags, worker)
    tokens: list[str] = []
    done = 0
    while True:
        with store.begin() as transaction:
            now = clock.now()
            if tokens:
                transaction.delete(QUEUE, [Deletion(token) for token in tokens], now=now)
            done += len(tokens)
            granted = transaction.lease(QUEUE, request, now=now) if done < at_most else None
        store.sync(store.ticket())
        tokens = [lease.token for lease in granted.leases] if granted else []
        if not tokens:
            return done


def _drain_in_process(
    path: Path, durability: Durability, batch: int, worker: str, barrier: object, told: object
) -> None:
    store = open_store(f"sqlite:///{path}", durability=durability)
    barrier.wait()  # type: ignore[attr-defined]
    started = time.perf_counter()
    done = drain(store, batch=batch, worker=worker, at_most=sys.maxsize)
    told.put((done, started, time.perf_counter()))  # type: ignore[attr-defined]
    store.close()


def drain_by_two(path: Path, durability: Durability, *, batch: int) -> float:
    """Let two processes drain one file; return tasks per second of both."""
    context = multiprocessing.get_context("spawn")
    barrier, told = context.Barrier(2), context.Queue()
    processes = [
        context.Process(target=_drain_in_process, args=(path, durability, batch, f"worker-{at}", barrier, told))
        for at in range(2)
    ]
    for process in processes:
        process.start()
    results = [told.get(timeout=120) for _ in processes]
    for process in processes:
        process.join()
    seconds = max(result[2] for result in results) - min(result[1] for result in results)
    return float(sum(result[0] for result in results) / seconds)


def report(name: str, rate: float) -> None:
    """Print one line."""
    print(f"{name:<44}{rate:>12,.0f} /s", flush=True)


def main() -> None:
    """Measure one kind of work after another, each on its own file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=40_000, help="tasks per shape in batches; a tenth one by one")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--only", default="", help="shapes whose name contains this")
    arguments = parser.parse_args()
    many, few = arguments.tasks, arguments.tasks // 10

    def added(durability: Durability, number: int, batch: int) -> Callable[[Path], float]:
        return lambda path: _closing(path, durability, lambda store: fill(store, number, batch=batch))

    def drained(durability: Durability, number: int, batch: int) -> Callable[[Path], float]:
        def run(path: Path) -> float:
            _closing(path, durability, lambda store: fill(store, number, batch=100))
            return drain_by_two(path, durability, batch=batch)

        return run

    shapes: dict[str, Callable[[Path], float]] = {
        "add one by one, strict": added("strict", few, 1),
        "add x100, strict": added("strict", many, 100),
        "drain one by one, two processes, strict": drained("strict", few, 1),
        "drain x100, two processes, strict": drained("strict", many, 100),
        "add one by one, relaxed": added("relaxed", many, 1),
        "add x100, relaxed": added("relaxed", many, 100),
        "drain one by one, two processes, relaxed": drained("relaxed", few, 1),
        "drain x100, two processes, relaxed": drained("relaxed", many, 100),
    }
    for name, shape in shapes.items():
        if arguments.only in name:
            with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
                report(name, shape(Path(folder) / "bench.db"))


def _closing(path: Path, durability: Durability, run: Callable[[Store], float]) -> float:
    store = _open(path, durability)
    try:
        return run(store)
    finally:
        store.close()


if __name__ == "__main__":
    main()

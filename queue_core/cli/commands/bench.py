"""`towline bench`: measure the library on this disk, in a file of its own."""

import statistics
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

import click

from queue_core.cli import exits
from queue_core.cli.group import command
from queue_core.cli.options import DURATION, SIZE, json_option
from queue_core.cli.output import columns, print_info, print_json, print_table
from queue_core.client.local_calls import LocalQueue, LocalQueues
from queue_core.clock import SystemClock
from queue_core.stores import open_store
from queue_core.task import NewTask, QueueSpec
from queue_core.unit.service import QueueService
from queue_core.verbs import Deletion

BATCH: Final = 100
MAX_BACKLOG: Final = 20_000
"""Tasks in the queue before a measurement of leases, at most."""


@dataclass(frozen=True, slots=True)
class Speed:
    """One measurement: tasks per second, and milliseconds per call."""

    what: str
    batch: int
    durability: str
    tasks_per_second: float
    p50_ms: float
    p95_ms: float


@command(
    "bench",
    examples=(
        "towline bench",
        "towline bench --dir /var/lib/towline --for 5s",
        "towline bench --durability relaxed --json",
    ),
)
@click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default=".",
    help="Disk to measure  [default: here]",
)
@click.option("--for", "seconds", type=DURATION, default="1s", show_default=True, help="Length of each measurement.")
@click.option("--payload", "payload_bytes", type=SIZE, default="200B", show_default=True, help="Size of a payload.")
@click.option("--durability", type=click.Choice(["strict", "relaxed", "both"]), default="both", show_default=True)
@json_option
def bench(folder: Path, seconds: float, payload_bytes: int, durability: str, as_json: bool) -> int:  # noqa: FBT001
    """Measure add, and lease + delete, one by one and in hundreds, on the disk of a folder.

    strict: a call returns once it is on the disk. relaxed: it survives a crash of the process, not of the machine.
    Uses one process and no server, and leaves no files behind.
    """
    found: list[Speed] = []
    wanted: list[Literal["strict", "relaxed"]] = ["strict", "relaxed"]
    for how in wanted:
        if durability in (how, "both"):
            if not as_json:
                print_info(f"{how}: 4 measurements of {seconds:g} s ...")
            with tempfile.TemporaryDirectory(prefix=".towline-bench-", dir=folder) as place:
                found += _measure(Path(place), how, seconds=seconds, payload=b"x" * payload_bytes)
    if as_json:
        print_json([asdict(speed) for speed in found])
        return exits.OK
    rows = [
        (s.what, s.batch, s.durability, f"{s.tasks_per_second:,.0f}", f"{s.p50_ms:.3f}", f"{s.p95_ms:.3f}")
        for s in found
    ]
    heads = columns("MEASURED", ">BATCH", "DURABILITY", ">TASKS/S", ">P50 MS", ">P95 MS")
    print_table(heads, rows, empty="nothing measured")
    return exits.OK


def _measure(folder: Path, durability: Literal["strict", "relaxed"], *, seconds: float, payload: bytes) -> list[Speed]:
    queues = LocalQueues(QueueService(open_store(f"sqlite:///{folder.absolute()}/bench.db", durability=durability)))
    try:
        queues.put_queue(QueueSpec("bench"))
        queue = queues.queue("bench")
        found = []
        for batch in (1, BATCH):
            tasks = [NewTask(payload)] * batch
            found.append(_timed("add", batch, durability, lambda tasks=tasks: _added(queue, tasks), seconds))  # type: ignore[misc]
        for batch in (1, BATCH):
            _fill(queue, payload)
            worker = _BenchWorker(queue, batch)
            found.append(_timed("lease + delete", batch, durability, worker.exchange, seconds))
        return found
    finally:
        queues.close()


def _added(queue: LocalQueue, tasks: list[NewTask]) -> int:
    return len(queue.add(tasks))


class _BenchWorker:
    """Deletes its leased tasks and leases the next in one call, as a worker does."""

    def __init__(self, queue: LocalQueue, batch: int) -> None:
        self._queue = queue
        self._batch = batch
        self._deletions: list[Deletion] = []

    def exchange(self) -> int:
        """Make one call; return the number of tasks it finished, or -1 when the queue is empty."""
        done = len(self._deletions)
        leases, _ = self._queue.exchange(self._deletions, count=self._batch, worker="bench")
        self._deletions = [Deletion(lease.token) for lease in leases]
        return done if leases or done else -1


def _fill(queue: LocalQueue, payload: bytes) -> None:
    stats = queue.stats()
    for _ in range(max(0, MAX_BACKLOG - stats.ready) // 1000):
        queue.add([NewTask(payload)] * 1000)


def _timed(
    what: str, batch: int, durability: Literal["strict", "relaxed"], call: Callable[[], int], seconds: float
) -> Speed:
    clock = SystemClock()
    took: list[float] = []
    tasks = 0
    began = now = clock.monotonic()
    while now - began < seconds and (done := call()) >= 0:
        before, now = now, clock.monotonic()
        took.append((now - before) * 1000)
        tasks += done
    cuts = statistics.quantiles(took, n=20) if len(took) > 1 else [*took, *[0.0] * 19]
    rate = tasks / max(now - began, 1e-9)
    return Speed(
        what, batch, durability, round(rate, 1), round(statistics.median(took or [0.0]), 3), round(cuts[18], 3)
    )

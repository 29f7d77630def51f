"""Towline as a library: its own tags, delays, releases and leases that expire."""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

from queue_core.errors import LeaseLostError
from queue_core.stores import open_store
from queue_core.task import UNTAGGED, Lease, NewTask, TagFilter
from tests.bench.held.system import DELAY_SECONDS, LEASE_BATCH, LEASE_SECONDS, TAGS, Adder, Counts, LoadPhase, Tally
from tests.bench.places import BenchStore, opened

WAIT_SECONDS = 0.1
UNLEASED_MICROSECONDS = (0, round(DELAY_SECONDS * 1e6))
"""From the add of a task that was never leased to its eta. A lease's number does not tell: a release charges none."""


class HeldTowline:
    """One opened store a process."""

    name = "Towline"
    notions = "all of it"
    tasks_per_second = 800

    def install(self, url: str) -> None:
        opened(_place(url)).close()

    @contextmanager
    def adder(self, url: str) -> Iterator[Adder]:
        with closing(opened(_place(url))) as queue:
            yield lambda tasks: queue.add(
                [NewTask(task.payload, tag=task.tag, delay_seconds=task.delay_seconds) for task in tasks]
            )

    def consume(self, url: str, number: int, tally: Tally, phase: LoadPhase) -> None:
        tags = TagFilter.of(*TAGS) if number % 2 else UNTAGGED
        with closing(opened(_place(url))) as queue:
            while True:
                leases = queue.lease(LEASE_BATCH, seconds=LEASE_SECONDS, tags=tags, wait_seconds=WAIT_SECONDS)
                finished: list[Lease] = []
                for lease in leases:
                    is_first = lease.ready_at - lease.added_at in UNLEASED_MICROSECONDS
                    tally.leased(lease.payload, is_first=is_first, waited_seconds=lease.waited_seconds)
                    fate = phase.fate()
                    if fate == "done":
                        finished.append(lease)
                    elif fate == "release":
                        try:
                            queue.release(lease, delay_seconds=DELAY_SECONDS)
                            tally.count("released")
                        except LeaseLostError:
                            tally.count("lost")  # the machine stood still for as long as a lease
                if finished:
                    lost = 0
                    try:
                        queue.delete(finished)
                    except LeaseLostError as error:
                        lost = len(error.tokens)
                    tally.count("lost", lost)
                    tally.count("done", len(finished) - lost)

    def differences(self, url: str, counts: Counts) -> Sequence[str]:
        with closing(opened(_place(url))) as queue:
            stats = queue.stats()
        numbers = counts.numbers
        expected = {
            "added_total": numbers["added"],
            "leased_total": numbers["leased"],
            "deleted_total": numbers["done"],
            "released_total": numbers["released"],
            "expired_total": numbers["leased"] - numbers["done"] - numbers["released"],
            "ready": 0,
            "delayed": 0,
            "in_flight": 0,
            "dead": 0,
        }
        found = {name: getattr(stats, name) for name in expected}
        wrong = [f"{name} is {found[name]}, not {value}" for name, value in expected.items() if found[name] != value]
        with closing(open_store(url)) as store:
            return [*wrong, *store.check().problems]


def _place(url: str) -> BenchStore:
    return BenchStore(url, "strict", "postgresql")

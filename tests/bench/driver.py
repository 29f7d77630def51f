"""The benchmark's interface to every system, ours included.

A library is drained by our own loop in two processes; a framework brings its workers, which run `record.record`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tests.bench.site import BenchSite

BATCH = 100
WORKERS = 2
FEWEST_TASKS = 50


class NotOfferedError(Exception):
    """The system has no such verb; its load is 0 and the table shows a dash."""


@dataclass(frozen=True, slots=True)
class Loads:
    """Tasks per round of each measurement: a second or more of this system's work; 0: not offered."""

    add: int
    drain: int
    add_batch: int = 0
    drain_batch: int = 0

    def divided(self, by: int) -> "Loads":
        """Return smaller loads for a run that only proves that everything works."""
        return Loads(
            add=_divided(self.add, by, step=1),
            drain=_divided(self.drain, by, step=1),
            add_batch=_divided(self.add_batch, by, step=BATCH),
            drain_batch=_divided(self.drain_batch, by, step=BATCH),
        )


IN_A_TABLE = Loads(add=4_000, drain=6_000, add_batch=60_000, drain_batch=120_000)
"""Tasks for all compared queues in PostgreSQL: finished rows slow down the rest, so all get equally many."""


def _divided(load: int, by: int, *, step: int) -> int:
    """Return a smaller load in whole steps that is still useful; 0 stays 0."""
    if load == 0:
        return 0
    return max(load // by // step, -(-FEWEST_TASKS // step)) * step


class Producer(Protocol):
    """One producer's connection. Every verb returns when the system has acknowledged."""

    def add(self, payload: bytes) -> None: ...

    def add_batch(self, payloads: Sequence[bytes]) -> None:
        """Add a batch. Raises `NotOfferedError` when tasks can only be added one by one; then its load is 0."""

    def close(self) -> None: ...


class Consumer(Protocol):
    """One consumer's connection to a library."""

    def take(self, tasks: int) -> int:
        """Lease up to `tasks` and delete them, perhaps with the next call; return 0 when none is left."""

    def close(self) -> None: ...


class BenchDriver(Protocol):
    """One system in one configuration. `start` and `stop` enclose one round."""

    name: str
    durable: str  # what an acknowledged add survives, as this configuration runs
    loads: Loads

    def start(self, site: BenchSite) -> None:
        """Begin with an empty queue. Raises `EngineUnavailableError` when the system can't run here."""

    def producer(self) -> Producer: ...

    def stop(self) -> None:
        """Leave nothing behind; also called when `start` failed half-way."""


class Library(BenchDriver, Protocol):
    """A system without workers of its own."""

    def consumer(self) -> Callable[[], Consumer]:
        """Return a picklable function that opens a consumer in another process."""


class Framework(BenchDriver, Protocol):
    """A system that runs handlers."""

    def workers(self) -> Sequence[Sequence[str]]:
        """Return the commands of its workers: `WORKERS` processes, one task at a time each, running `record`."""


def is_library(driver: BenchDriver) -> bool:
    """Return whether our own loop drains it."""
    return hasattr(driver, "consumer")

"""The interface of `postgres-held` to every system, ours included, and what one process of the load counts."""

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from threading import Event, Lock
from typing import Final, Literal, Protocol, Self, TypeGuard

from tests.bench.record import PAYLOAD_BYTES, STAMP_DIGITS

PRODUCERS: Final = 4
CONSUMERS: Final = 4
BATCH: Final = 40
LEASE_BATCH: Final = 10
TAGS: Final = ("a", "b")
TAGGED, DELAYED, RELEASED, EXPIRED = 0.5, 0.1, 0.05, 0.02
DELAY_SECONDS: Final = 1.0
LEASE_SECONDS: Final = 5.0
POLL_SECONDS: Final = 0.02
"""Between two looks of a consumer that polls and found nothing."""

Fate = Literal["done", "release", "expire"]


@dataclass(frozen=True, slots=True)
class LoadTask:
    """A task to add: its payload begins with the instant from which on it may be leased."""

    payload: bytes
    tag: str | None
    delay_seconds: float | None


@dataclass(slots=True)
class Counts:
    """What some processes did in some time."""

    numbers: Counter[str] = field(default_factory=Counter)
    waits: list[float] = field(default_factory=list)
    """Seconds from ready to its first lease of each task."""
    waits_again: list[float] = field(default_factory=list)
    """Seconds from ready again (released, expired) to the next lease, where a system tells."""

    def __iadd__(self, other: Self) -> Self:
        self.numbers += other.numbers
        self.waits += other.waits
        self.waits_again += other.waits_again
        return self


class Tally:
    """Counts of one process, which another thread of it takes."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._counts = Counts()

    def count(self, what: str, number: int = 1) -> None:
        """Count tasks added, or leases that were made and how they ended."""
        with self._lock:
            self._counts.numbers[what] += number

    def leased(self, payload: bytes | str, *, is_first: bool, waited_seconds: float | None = None) -> None:
        """Count a lease, and how long its task was ready before: by its payload if it is the first."""
        waited = (time.monotonic_ns() - int(payload[:STAMP_DIGITS])) / 1e9 if is_first else waited_seconds
        with self._lock:
            self._counts.numbers["leased"] += 1
            self._counts.numbers["leased_first"] += is_first
            if waited is not None:
                (self._counts.waits if is_first else self._counts.waits_again).append(max(waited, 0.0))

    def take(self) -> Counts:
        """Return what was counted since the last time."""
        with self._lock:
            counts, self._counts = self._counts, Counts()
        return counts


class LoadPhase:
    """What the processes of a load are asked for: at first all of it, in the end only to finish what is there."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.finishing = Event()

    def fate(self) -> Fate:
        """Return how a lease is to end."""
        choice = self._chance.random()
        if self.finishing.is_set() or choice > RELEASED + EXPIRED:
            return "done"
        return "release" if choice < RELEASED else "expire"

    def task(self) -> LoadTask:
        """Return another task to add."""
        tag = self._chance.choice(TAGS) if self._chance.random() < TAGGED else None
        delay = DELAY_SECONDS if self._chance.random() < DELAYED else None
        ready_at = time.monotonic_ns() + round((delay or 0.0) * 1e9)
        payload = b"%0*d" % (STAMP_DIGITS, ready_at) + b"x" * (PAYLOAD_BYTES - STAMP_DIGITS)
        return LoadTask(payload, tag, delay)


Adder = Callable[[Sequence[LoadTask]], object]


class HeldSystem(Protocol):
    """A queue in a database of its own; each process of the load makes one of these of its class."""

    name: str
    notions: str
    """How the load is done where it has no word of its own for it, and which part is left out."""
    tasks_per_second: int

    def install(self, url: str) -> None:
        """Make the queue in an empty database. Raises `EngineUnavailableError` when it can't run here."""

    def adder(self, url: str) -> AbstractContextManager[Adder]:
        """Open a producer, which adds a batch of tasks."""

    def consume(self, url: str, number: int, tally: Tally, phase: LoadPhase) -> None:
        """Lease and end tasks until the process is ended; consumers of odd numbers lease by tag, others untagged."""


class CountingSystem(HeldSystem, Protocol):
    """A system that keeps totals of all that was done."""

    def differences(self, url: str, counts: Counts) -> Sequence[str]:
        """Return where its totals differ from what was counted, once all is done."""


def keeps_totals(system: HeldSystem) -> TypeGuard[CountingSystem]:
    """Return whether it keeps totals."""
    return hasattr(system, "differences")

"""A memory store with a simulated disk that counts, takes time, and fails on demand."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Event

from queue_core.clock import ManualClock
from queue_core.errors import QueueError
from queue_core.store import Ticket, Unit
from queue_core.stores.memory.store import MemoryStore


class SlowDisk(MemoryStore):
    """Counts transactions and syncs, lets a sync take time, and fails on demand."""

    def __init__(self, clock: ManualClock, *, sync_seconds: float = 0.0) -> None:
        super().__init__()
        self.clock = clock
        self.sync_seconds = sync_seconds
        self.transactions = 0
        self.syncs = 0
        self.durable = 0  # successful syncs
        self.commit_failure: QueueError | None = None
        self.sync_failure: QueueError | None = None

    @contextmanager
    def begin(self, unit: Unit = "transaction") -> Iterator["SlowDisk"]:
        if self.commit_failure is not None:
            raise self.commit_failure
        self.transactions += 1
        yield self

    def sync(self, ticket: Ticket) -> None:
        self.syncs += 1
        self.clock.advance(self.sync_seconds)
        if self.sync_failure is not None:
            raise self.sync_failure
        self.durable += 1


class BlockingDisk(SlowDisk):
    """The first syncs take the given times; later ones block until each is let through."""

    def __init__(self, clock: ManualClock, *, seconds: Sequence[float], held_from: int) -> None:
        """Args:
        seconds: of the first syncs, in order; those that follow take none.
        held_from: the number, from 1 on, of the first sync that blocks.
        """
        super().__init__(clock)
        self._seconds = seconds
        self._held_from = held_from
        self.gates = [Event() for _ in range(16)]

    def sync(self, ticket: Ticket) -> None:
        number = self.syncs + 1
        self.sync_seconds = self._seconds[number - 1] if number <= len(self._seconds) else 0.0
        super().sync(ticket)
        if number >= self._held_from:
            assert self.gates[number - self._held_from].wait(10)

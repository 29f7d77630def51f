"""A store in memory whose disk is watched, takes its time, and fails when told to."""

from collections.abc import Iterator
from contextlib import contextmanager

from queue_core.clock import ManualClock
from queue_core.errors import QueueError
from queue_core.store import Meanwhile, Ticket, Unit
from queue_core.stores.memory import MemoryStore


class SlowDisk(MemoryStore):
    """Counts transactions and syncs, lets a sync take time, and fails when told to."""

    def __init__(self, clock: ManualClock, *, sync_seconds: float = 0.0) -> None:
        super().__init__()
        self.clock = clock
        self.sync_seconds = sync_seconds
        self.transactions = 0
        self.syncs = 0
        self.durable = 0  # syncs that ended well
        self.commit_failure: QueueError | None = None
        self.sync_failure: QueueError | None = None

    @contextmanager
    def begin(self, unit: Unit = "transaction") -> Iterator["SlowDisk"]:
        if self.commit_failure is not None:
            raise self.commit_failure
        self.transactions += 1
        yield self

    def sync(self, ticket: Ticket, *, meanwhile: Meanwhile | None = None) -> None:
        self.syncs += 1
        if meanwhile is not None:
            meanwhile()
        self.clock.advance(self.sync_seconds)
        if self.sync_failure is not None:
            raise self.sync_failure
        self.durable += 1

"""A store that fails on demand."""

from collections.abc import Iterator
from contextlib import contextmanager

from queue_core.errors import QueueError
from queue_core.store import Unit
from queue_core.stores.memory.store import MemoryStore


class FailingStore(MemoryStore):
    """A memory store whose transactions raise `failure` while there is one."""

    failure: QueueError | None = None

    @contextmanager
    def begin(self, unit: Unit = "transaction") -> Iterator[MemoryStore]:
        """Begin a write transaction, or raise the failure."""
        self._fail()
        with super().begin(unit) as transaction:
            yield transaction

    @contextmanager
    def read(self) -> Iterator[MemoryStore]:
        """Open a snapshot, or raise the failure."""
        self._fail()
        with super().read() as transaction:
            yield transaction

    def _fail(self) -> None:
        if self.failure is not None:
            raise self.failure

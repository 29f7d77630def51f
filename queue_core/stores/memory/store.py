"""The reference store: the semantics over dicts, for tests and small programs. Tasks are lost when the process ends."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import RLock
from typing import Literal

from queue_core.clock import Clock, SteadyClock
from queue_core.errors import InvalidRequestError, StoreUnavailableError
from queue_core.process import forking
from queue_core.store import Ticket, Unit
from queue_core.stores.memory.signals import LocalSignals
from queue_core.stores.memory.transaction import MemoryTransaction
from queue_core.verbs import Check


class MemoryStore(MemoryTransaction):
    """A `Store` that is its own `Transaction`, under one lock."""

    url = "memory:"
    durability: Literal["strict", "relaxed"] = "relaxed"
    is_remote = False
    unit: Unit = "verb"

    def __init__(self) -> None:
        super().__init__()
        self.clock: Clock = SteadyClock()
        self.signals = LocalSignals()
        self._lock = RLock()
        self._is_copy = False
        forking.renew_after_forks(self)

    def renew_after_fork(self) -> None:
        """In the child of a fork: refuse all calls, as changes of this copy would be invisible to all others."""
        self._lock = RLock()
        self.signals = LocalSignals()
        self._is_copy = True

    def _check_shared(self) -> None:
        if self._is_copy:
            raise StoreUnavailableError(
                "a memory: store lives in the process that opened it, and this process was forked from that one: use "
                "an sqlite: store, or a server over the memory: store"
            )

    @contextmanager
    def begin(self, unit: Unit = "transaction") -> Iterator["MemoryStore"]:  # noqa: ARG002 - the protocol's
        """See `Store.begin`. A verb that raises has written nothing, so there is nothing to roll back."""
        self._check_shared()
        with self._lock:
            self._follow_clock()
            yield self

    def _follow_clock(self) -> None:
        """Notice a step of the wall clock; make tasks due whose eta it has reached while store time lags behind."""
        clock = self.clock
        if not isinstance(clock, SteadyClock):
            return
        if clock.is_stepped() and (course := clock.next_course()) is not None:
            clock.adopt(course)
        if clock.course.lag > 0 and clock.lag_seconds > 0:
            self.bring_forward(until=clock.wall(), now=clock.now())

    def within(self, connection: object) -> AbstractContextManager["MemoryStore"]:  # noqa: ARG002 - the protocol's
        """See `Store.within`."""
        raise InvalidRequestError("a memory: store has no connections: leave `connection` out, or use postgresql:")

    @contextmanager
    def read(self) -> Iterator["MemoryStore"]:
        """See `Store.read`."""
        self._check_shared()
        with self._lock:
            self._follow_clock()
            yield self

    def ticket(self) -> Ticket:
        """See `Store.ticket`."""
        return Ticket(0)

    def sync(self, ticket: Ticket) -> None:
        """See `Store.sync`: there is nothing to sync."""

    def check_room(self) -> None:
        """See `Store.check_room`: there is no disk."""

    def make_room(self) -> bool:
        """See `Store.make_room`."""
        return False

    def held_snapshot(self, *, min_seconds: float = 0.0) -> None:
        """See `Store.held_snapshot`: nothing is kept for a snapshot."""

    def check(self) -> Check:
        """See `Store.check`: there are no counters that could disagree with the tasks."""
        return Check((), sum(len(queue.tasks) for queue in self._queues.values()))

    def close(self) -> None:
        """Nothing to close."""

"""Memory stores behind a simulated network that can stall: one per server, any number over one memory.

It counts as remote, so a server must not call it on its event loop; it records the threads that call it.
"""

import copy
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import fields
from typing import Literal

from queue_core.clock import Clock
from queue_core.errors import OutcomeUnknownError, StoreUnavailableError
from queue_core.store import Signals, Ticket, Transaction, Unit
from queue_core.stores.memory.store import MemoryStore
from queue_core.verbs import Check

STALL_SECONDS = 30.0
_STATE = ("_queues", "_last_id", "_seen", "_retired", "_leads", "_answers")


class RemoteMemory:
    """A `Store`. `unit` says what an exception rolls back, and this store does so."""

    url = "remote-memory:"
    durability: Literal["strict", "relaxed"] = "relaxed"
    is_remote = True

    def __init__(
        self, memory: MemoryStore | None = None, *, unit: Literal["transaction", "verb"] = "transaction"
    ) -> None:
        self.memory = memory or MemoryStore()
        self.unit: Literal["transaction", "verb"] = unit
        self.clock: Clock = self.memory.clock
        self.is_down = False
        self.answers_to_lose = 0
        self.transactions = 0
        self.reads = 0
        self.refusals = 0
        self.threads: set[int] = set()
        self._flowing = threading.Event()
        self._flowing.set()
        self._answering = threading.Event()
        self._answering.set()

    def stall(self) -> None:
        """Let calls from now on get no answer and have no effect until `flow`."""
        self._flowing.clear()

    def stall_answers(self) -> None:
        """Let changes from now on take effect, and be answered only after `flow`."""
        self._answering.clear()

    def flow(self) -> None:
        """Answer again, stalled calls first."""
        self._flowing.set()
        self._answering.set()

    @property
    def signals(self) -> Signals:
        """The memory's signals."""
        return self.memory.signals

    @contextmanager
    def begin(self, unit: Unit = "transaction") -> Iterator[Transaction]:
        """See `Store.begin`."""
        self._arrive()
        self.transactions += 1
        with self.memory.begin() as transaction:
            before = _state_of(self.memory)
            try:
                yield transaction
            except BaseException:
                if self.unit == "transaction":
                    for name, value in before.items():
                        setattr(self.memory, name, value)
                raise
        self._answering.wait(STALL_SECONDS)
        if self.answers_to_lose:
            self.answers_to_lose -= 1
            raise OutcomeUnknownError("the fake's answer was lost")

    def within(self, connection: object) -> AbstractContextManager[Transaction]:
        """See `Store.within`."""
        return self.memory.within(connection)

    @contextmanager
    def read(self) -> Iterator[Transaction]:
        """See `Store.read`."""
        self._arrive()
        self.reads += 1
        with self.memory.read() as transaction:
            yield transaction

    def ticket(self) -> Ticket:
        """See `Store.ticket`."""
        return self.memory.ticket()

    def sync(self, ticket: Ticket) -> None:
        """See `Store.sync`."""
        self.memory.sync(ticket)

    def check_room(self) -> None:
        """See `Store.check_room`."""

    def make_room(self) -> bool:
        """See `Store.make_room`."""
        return False

    def held_snapshot(self, *, min_seconds: float = 0.0) -> None:
        """See `Store.held_snapshot`."""

    def check(self) -> Check:
        """See `Store.check`."""
        return self.memory.check()

    def close(self) -> None:
        """Release all stalled calls."""
        self.flow()

    def _arrive(self) -> None:
        self.threads.add(threading.get_ident())
        if not self._flowing.wait(STALL_SECONDS):
            raise StoreUnavailableError("the fake was left stalled")
        if self.is_down:
            self.refusals += 1
            raise StoreUnavailableError("the fake is down")


def _state_of(memory: MemoryStore) -> dict[str, object]:
    """Return what a rollback restores; values are frozen, so copies of their containers suffice."""
    state = {name: copy.copy(getattr(memory, name)) for name in _STATE}
    queues = {name: copy.copy(queue) for name, queue in state["_queues"].items()}
    for queue in queues.values():
        for field in fields(queue):
            setattr(queue, field.name, copy.copy(getattr(queue, field.name)))
        queue.totals = {tag: dict(totals) for tag, totals in queue.totals.items()}
    return state | {"_queues": queues}

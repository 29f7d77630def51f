"""Runs verbs on a store: one transaction for many callers, one sync, then events, wake-ups and answers.

Nothing leaves before its sync: `commit` changes, `sync` makes durable, `publish` tells.
"""

import random as random_source
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from queue_core.clock import Clock, SystemClock
from queue_core.errors import QueueError, StoreError
from queue_core.events import EventLog, NullLog, QueueEvent
from queue_core.store import Store, Ticket
from queue_core.verbs import Turn, Wake

T = TypeVar("T")

Step = Callable[[Turn], T]
"""Calls verbs of the turn it is given, and returns what the caller is to be answered."""


@dataclass(frozen=True, slots=True)
class Batch(Generic[T]):
    """A committed transaction that nobody has been told of yet: an outcome per step, in order."""

    outcomes: tuple[T | QueueError, ...]
    ticket: Ticket
    events: tuple[QueueEvent, ...]
    wakes: tuple[Wake, ...]


class QueueService:
    """The verbs of every queue of one store, for servers and for programs that open the store themselves."""

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock | None = None,
        log: EventLog | None = None,
        jitter: Callable[[], float] = random_source.random,
        wake: Callable[[Sequence[Wake]], None] | None = None,
    ) -> None:
        """Args:
        log: where lifecycle events go; none by default, as libraries do not log unasked.
        jitter: draws from [0, 1) for back-off.
        wake: told of tasks that became leasable; by default the store's own signals are.
        """
        self.store = store
        self.clock = clock or SystemClock()
        self._log = log or NullLog()
        self._jitter = jitter
        self._wake = wake or self._signal

    def commit(self, steps: Sequence[Step[T]]) -> Batch[T]:
        """Run the steps in one transaction. A step's `QueueError` is its outcome and leaves the others alone.

        Raises `StoreError` when the store failed: then no step took effect.
        """
        outcomes: list[T | QueueError] = []
        with self.store.begin() as transaction:
            turn = Turn(transaction, now=self.clock.now(), lifecycle=self._log.lifecycle, jitter=self._jitter)
            for step in steps:
                try:
                    outcomes.append(step(turn))
                except StoreError:
                    raise
                except QueueError as error:
                    outcomes.append(error)
        wakes = tuple(Wake(queue, tag, count) for (queue, tag), count in turn.wakes.items())
        return Batch(tuple(outcomes), self.store.ticket(), tuple(turn.events), wakes)

    def sync(self, batch: Batch[T]) -> None:
        """Return when the batch survives a power cut (or at once, in a relaxed store)."""
        self.store.sync(batch.ticket)

    def publish(self, batch: Batch[T]) -> None:
        """Tell of a synced batch: events to the log, wake-ups to those who wait."""
        if batch.events:
            self._log.record(batch.events)
        if batch.wakes:
            self._wake(batch.wakes)

    def run(self, step: Step[T]) -> T:
        """One step, durable and told when this returns; its error is raised."""
        batch = self.commit([step])
        self.sync(batch)
        self.publish(batch)
        outcome = batch.outcomes[0]
        if isinstance(outcome, QueueError):
            raise outcome
        return outcome

    def look(self, step: Step[T]) -> T:
        """One step that only reads: from a snapshot, beside any writer."""
        with self.store.read() as transaction:
            return step(Turn(transaction, now=self.clock.now(), lifecycle="off", jitter=self._jitter))

    def close(self) -> None:
        """Close the store."""
        self.store.close()

    def _signal(self, wakes: Sequence[Wake]) -> None:
        for wake in wakes:
            self.store.signals.publish(wake.queue, wake.tag, wake.count)

"""Runs verbs on a store: one transaction for many callers, one sync, then events, wake-ups and answers.

Nothing leaves before its sync: `commit` changes, `sync` makes durable, `publish` tells.
"""

import random as random_source
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Generic, TypeVar

from queue_core.clock import Clock, seconds_between
from queue_core.errors import OutcomeUnknownError, QueueError, StoreError, StoreFullError, StoreUnavailableError
from queue_core.events import EventLog, Lifecycle, NullLog
from queue_core.outbox import Outbox
from queue_core.quota import StorageGuard
from queue_core.store import Store, Ticket, Transaction, Unit
from queue_core.task import Lease
from queue_core.unit_of_work import UnitOfWork

PAUSES_SECONDS = (0.05, 0.1, 0.2, 0.4, 0.8)
"""Before another try of a remote store; each is drawn from its upper half. Whoever called tries again after these."""
TRIED_SECONDS = 2.0
"""No other try is begun after so long: a store that makes its callers wait has tried by itself."""

LATE_SECONDS = 1.0
"""A call that reached the store so long after its `now` was read granted leases that may be half over, or expired."""

T = TypeVar("T")
R = TypeVar("R")

Operation = Callable[[UnitOfWork], T]
"""Calls verbs of the turn it is given, and returns what the caller is to be answered."""

FollowUps = Callable[[UnitOfWork], Iterator[Operation[T]]]
"""Which steps follow on those of a turn, by what they did: looked at when the first is asked for."""


@dataclass(frozen=True, slots=True)
class Batch(Generic[T]):
    """A committed transaction that nobody has been told of yet: an outcome per step, in order, and what to tell."""

    outcomes: tuple[T | QueueError, ...]
    ticket: Ticket
    outbox: Outbox


class QueueService:
    """The verbs of every queue of one store, for servers and for programs that open the store themselves."""

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock | None = None,
        log: EventLog | None = None,
        jitter: Callable[[], float] = random_source.random,
        wake: Callable[[Outbox], None] | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Args:
        clock: the store's own by default.
        log: where lifecycle events go; none by default, as libraries do not log unasked.
        jitter: draws from [0, 1) for back-off.
        wake: told when tasks became leasable; by default the store's own signals are.
        """
        self.store = store
        self.clock = clock or store.clock
        self._log = log or NullLog()
        self._jitter = jitter
        self._wake = wake or self._signal
        self._sleep = sleep
        self._storage = StorageGuard(store.check_room)

    def commit(
        self, steps: Sequence[Operation[T]], *, unit: Unit = "transaction", follow: FollowUps[T] | None = None
    ) -> Batch[T]:
        """Run the steps in one transaction. A step's `QueueError` is its outcome and leaves the others alone.

        Args:
            follow: asked after the steps for more of them, by what those did; each is run before the next is asked for.
                Then a full disk is left to the caller, who knows what was asked for: see `Store.make_room`.
            unit: `verb` for a single step that changes something with one verb only; see `Store.begin`.

        A remote store that can't be reached is tried again for a few seconds, where nothing took effect: so a step must
        bear to be run twice. Raises `StoreError` when the store failed: then no step took effect, or, for an
        `OutcomeUnknownError`, all of them may have.
        """
        if not self.store.is_remote:
            try:
                return self._commit(steps, unit, follow)
            except StoreFullError:
                if follow is not None or not self.store.make_room():
                    raise
            return self._commit(steps, unit, None)
        return self._insist(lambda: self._commit(steps, unit, follow))

    def _commit(self, steps: Sequence[Operation[T]], unit: Unit, follow: FollowUps[T] | None) -> Batch[T]:
        outcomes: list[T | QueueError] = []
        by_verb = self.store.unit == "verb"
        with self.store.begin(unit) as transaction:
            turn = self._turn(transaction, self._log.lifecycle)
            for step in steps if follow is None else chain(steps, follow(turn)):
                try:
                    outcomes.append(step(turn))
                except StoreError as error:
                    if (not by_verb or not outcomes) and not (
                        isinstance(error, StoreFullError) and error.affects_only_caller
                    ):
                        raise
                    outcomes.append(error)  # the steps before it stand, and are to be told so
                except QueueError as error:
                    outcomes.append(error)
        return Batch(tuple(outcomes), self.store.ticket(), turn)

    def _turn(self, transaction: Transaction, lifecycle: Lifecycle) -> UnitOfWork:
        return UnitOfWork(
            transaction, now=self.clock.now(), lifecycle=lifecycle, jitter=self._jitter, storage=self._storage
        )

    def _insist(self, call: Callable[[], R]) -> R:
        """Try again while nothing took effect and there is time."""
        began_at = self.clock.monotonic()
        for pause_seconds in PAUSES_SECONDS:
            try:
                return call()
            except OutcomeUnknownError:
                raise
            except StoreUnavailableError:
                if self.clock.monotonic() - began_at > TRIED_SECONDS:
                    raise
            self._sleep(pause_seconds * (0.5 + self._jitter() / 2))
        return call()

    def sync(self, batch: Batch[T]) -> None:
        """Return when the batch survives a power cut, or at once, in a relaxed store."""
        self.store.sync(batch.ticket)

    def publish(self, batch: Batch[T]) -> None:
        """Tell of a synced batch: events to the log, wake-ups to those who wait."""
        self._tell(batch.outbox)

    def _tell(self, outbox: Outbox) -> None:
        if outbox.recorded and (events := outbox.events()):
            self._log.record(events)
        if outbox.wakes:
            self._wake(outbox)

    def run(self, step: Operation[T], *, unit: Unit = "transaction") -> T:
        """One step, durable and told when this returns; its error is raised.

        Args:
            unit: `verb` for a step that changes something with one verb only; see `Store.begin`.

        Raises `OutcomeUnknownError` too when the change was made, and the disk failed to confirm it.
        """
        remote = self.store.is_remote
        try:
            turn, outcome, ticket = self._insist(lambda: self._one(step, unit)) if remote else self._one(step, unit)
        except StoreFullError:
            if not self.store.make_room():
                raise
            turn, outcome, ticket = self._one(step, unit)
        try:
            self.store.sync(ticket)
        except StoreUnavailableError as error:
            raise OutcomeUnknownError(
                f"the change was made but not confirmed by the disk: {error}; look before repeating"
            ) from error
        self._tell(turn)
        if isinstance(outcome, QueueError):
            raise outcome
        return outcome

    def _one(self, step: Operation[T], unit: Unit) -> tuple[UnitOfWork, T | QueueError, Ticket]:
        """`_commit` for a single step."""
        with self.store.begin(unit) as transaction:
            turn = self._turn(transaction, self._log.lifecycle)
            outcome: T | QueueError
            try:
                outcome = step(turn)
            except StoreError:
                raise
            except QueueError as error:
                outcome = error
        return turn, outcome, self.store.ticket()

    def within(self, connection: object, step: Operation[T]) -> T:
        """One step in a transaction that the caller has open on a connection of its own to the store's database.

        It takes effect if the caller commits: that commit wakes waiters. Nothing is logged of it, as nobody here learns
        whether it did; the store's statistics count it. Not tried again: after a `StoreError` the caller's transaction
        can only be rolled back.
        """
        with self.store.within(connection) as transaction:
            return step(self._turn(transaction, "off"))

    def read(self, step: Operation[T]) -> T:
        """One step that only reads: from a snapshot, beside any writer. Tried again as `commit` is."""
        return self._read(step) if not self.store.is_remote else self._insist(lambda: self._read(step))

    def _read(self, step: Operation[T]) -> T:
        with self.store.read() as transaction:
            return step(self._turn(transaction, "off"))

    def is_late(self, leases: Sequence[Lease]) -> bool:
        """Whether leases that were just granted began a while ago: the link to the store was cut meanwhile, or it was
        away. Who gets them would trust them for too long: give them back, and lease again. Nobody trusts leases of no
        time, and those can't be given back."""
        if not leases or not self.store.is_remote or leases[0].expires_at <= leases[0].leased_at:
            return False
        return seconds_between(leases[0].leased_at, self.clock.now()) > LATE_SECONDS

    def close(self) -> None:
        """Close the store."""
        self.store.close()

    def _signal(self, outbox: Outbox) -> None:
        for (queue, tag), count in outbox.wakes.items():
            self.store.signals.publish(queue, tag, count)

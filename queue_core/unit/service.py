"""Runs operations on a store: one transaction for many callers, one sync, then events, wake-ups and replies.

`commit` applies changes, `sync` makes them durable, `publish` logs events and wakes waiters; nothing is published
before its sync.
"""

import random as random_source
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Generic, TypeVar

from queue_core.clock import MICROSECONDS, Clock, Instant
from queue_core.errors import OutcomeUnknownError, QueueError, StoreError, StoreFullError, StoreUnavailableError
from queue_core.events import EventLog, NullLog
from queue_core.fast_values import value
from queue_core.store import Store, Ticket, Transaction, Unit
from queue_core.task import Lease
from queue_core.unit.outbox import Outbox
from queue_core.unit.unit_of_work import StorageGuard, UnitOfWork

RETRY_PAUSES_SECONDS = (0.05, 0.1, 0.2, 0.4, 0.8)
"""Pauses before each retry of a remote store, each drawn from its upper half. After these the caller must retry."""
MAX_RETRY_SECONDS = 2.0
"""No retry starts after this time: a store that blocks its callers for so long has retried by itself."""

LATE_SECONDS = 1.0
"""Leases granted longer ago than this are late: the call was delayed, and they may be half over or expired."""

STALL_SECONDS = 0.25
"""Leases granted less long ago are not late, even if they are over: leases of milliseconds are over by any answer."""
MAX_LATE_GRANTS = 3
"""Grants in a row that come late, after which the caller gets no lease."""
_EXPIRES_AT = attrgetter("expires_at")

T = TypeVar("T")
R = TypeVar("R")

Operation = Callable[[UnitOfWork], T]
"""A callable that runs verbs of a unit of work and returns the caller's result."""

FollowUps = Callable[[UnitOfWork], Iterator[Operation[T]]]
"""Yields more operations for the same unit of work, depending on what the first ones did."""


@value
class Batch(Generic[T]):
    """A committed but unpublished transaction: an outcome per operation, in order, and the outbox."""

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
        log: the lifecycle log; none by default.
        jitter: draws from [0, 1) for back-off.
        wake: called when tasks became leasable; by default it publishes the store's signals.
        """
        self.store = store
        self._is_remote = store.is_remote
        self._is_by_verb = store.unit == "verb"
        self.clock = clock or store.clock
        self._log = log or NullLog()
        self._jitter = jitter
        self._wake = wake or self._signal
        self._sleep = sleep
        self._storage = StorageGuard(store.check_room)

    def commit(
        self, operations: Sequence[Operation[T]], *, unit: Unit = "transaction", follow: FollowUps[T] | None = None
    ) -> Batch[T]:
        """Run operations in one transaction. An operation's `QueueError` is its outcome; the others are unaffected.

        Args:
            follow: yields more operations after these; each runs before the next is requested. The caller then handles
                a full disk itself: see `Store.make_room`.
            unit: `verb` for a single operation with one verb that changes something; see `Store.begin`.

        An unreachable remote store is retried for a few seconds if nothing took effect, so an operation must be safe to
        run twice. Raises `StoreError` when the store failed: no operation took effect, or, for an
        `OutcomeUnknownError`, all of them may have.
        """
        if not self._is_remote:
            try:
                return self._commit(operations, unit, follow)
            except StoreFullError:
                if follow is not None or not self.store.make_room():
                    raise
            return self._commit(operations, unit, None)
        return self._retried(lambda: self._commit(operations, unit, follow))

    def _commit(self, operations: Sequence[Operation[T]], unit: Unit, follow: FollowUps[T] | None) -> Batch[T]:
        outcomes: list[T | QueueError] = []
        with self.store.begin(unit) as transaction:
            work = UnitOfWork(
                transaction,
                now=self.clock.now(),
                clock=self.clock,
                lifecycle=self._log.lifecycle,
                jitter=self._jitter,
                storage=self._storage,
            )
            for operation in operations if follow is None else chain(operations, follow(work)):
                try:
                    outcomes.append(operation(work))
                except StoreError as error:
                    if (not self._is_by_verb or not outcomes) and not (
                        isinstance(error, StoreFullError) and error.affects_only_caller
                    ):
                        raise
                    outcomes.append(error)  # the operations before it took effect; their callers must learn that
                except QueueError as error:
                    outcomes.append(error)
            work.wake_for_admitted()
        return Batch(tuple(outcomes), self.store.ticket(), work)

    def _retried(self, call: Callable[[], R]) -> R:
        """Make a call, and retry it while nothing took effect and there is time."""
        began_at = self.clock.monotonic()
        for pause_seconds in RETRY_PAUSES_SECONDS:
            try:
                return call()
            except OutcomeUnknownError:
                raise
            except StoreUnavailableError:
                if self.clock.monotonic() - began_at > MAX_RETRY_SECONDS:
                    raise
            self._sleep(pause_seconds * (0.5 + self._jitter() / 2))
        return call()

    def sync(self, batch: Batch[T]) -> None:
        """Return when the batch survives power loss; at once in a relaxed store."""
        self.store.sync(batch.ticket)

    def publish(self, outbox: Outbox) -> None:
        """Publish the outbox of a synced batch: log its events and wake waiters."""
        if outbox.recorded and (events := outbox.events()):
            self._log.record(events)
        if outbox.wakes:
            self._wake(outbox)

    def run(self, operation: Operation[T], *, unit: Unit = "transaction") -> T:
        """Run one operation; its result is durable and published when this returns. Raises its error.

        Args:
            unit: `verb` for an operation with one verb that changes something; see `Store.begin`.

        Also raises `OutcomeUnknownError` when the change was made but the disk failed to confirm it.
        """
        run = partial(self._run_one, operation, unit)
        try:
            work, outcome, ticket = self._retried(run) if self._is_remote else run()
        except StoreFullError:
            if not self.store.make_room():
                raise
            work, outcome, ticket = run()
        try:
            self.store.sync(ticket)
        except StoreUnavailableError as error:
            raise OutcomeUnknownError(
                f"the change was made but not confirmed by the disk: {error}; check before repeating"
            ) from error
        if work.recorded or work.wakes:
            self.publish(work)
        if isinstance(outcome, QueueError):
            raise outcome
        return outcome

    def _run_one(self, operation: Operation[T], unit: Unit) -> tuple[UnitOfWork, T | QueueError, Ticket]:
        """Run `_commit` for a single operation."""
        with self.store.begin(unit) as transaction:
            work = UnitOfWork(
                transaction,
                now=self.clock.now(),
                clock=self.clock,
                lifecycle=self._log.lifecycle,
                jitter=self._jitter,
                storage=self._storage,
            )
            outcome: T | QueueError
            try:
                outcome = operation(work)
            except StoreError:
                raise
            except QueueError as error:
                outcome = error
            work.wake_for_admitted()
        return work, outcome, self.store.ticket()

    def within(self, connection: object, operation: Operation[T]) -> T:
        """Run one operation in a transaction that the caller has open on its own connection to the store's database.

        The caller's commit makes it take effect and wakes waiters. It is counted by the store's statistics but not
        logged, as its outcome is unknown here. It is not retried: after a `StoreError` the caller can only roll back.
        """
        with self.store.within(connection) as transaction:
            return operation(self._silent_unit(transaction))

    def read(self, operation: Operation[T]) -> T:
        """Run a read-only operation on a snapshot, without blocking writers. Retried as in `commit`."""
        return self._read(operation) if not self._is_remote else self._retried(lambda: self._read(operation))

    def _read(self, operation: Operation[T]) -> T:
        with self.store.read() as transaction:
            return operation(self._silent_unit(transaction))

    def _silent_unit(self, transaction: Transaction) -> UnitOfWork:
        """Return a unit of work that logs nothing."""
        return UnitOfWork(
            transaction,
            now=self.clock.now(),
            clock=self.clock,
            lifecycle="off",
            jitter=self._jitter,
            storage=self._storage,
        )

    def is_late(self, leases: Sequence[Lease], *, since: Instant | None = None) -> bool:
        """Return whether leases that were just received are over, or were granted a while ago by a remote store, as the
        connection had failed.

        Their holder would trust them for too long, and another may hold the tasks by now: give them back and lease
        again. Leases of zero length are never late, as they can't be given back.

        Args:
            since: when they were renewed for their holder; None: they are as they were granted.
        """
        if not leases or leases[0].expires_at <= leases[0].leased_at:
            return False
        now = self.clock.now()
        age_seconds = (now - (since or leases[0].leased_at)) / MICROSECONDS
        if age_seconds < STALL_SECONDS:
            return False
        return (self._is_remote and age_seconds > LATE_SECONDS) or min(leases, key=_EXPIRES_AT).expires_at <= now

    def close(self) -> None:
        """Close the store."""
        self.store.close()

    def _signal(self, outbox: Outbox) -> None:
        for (queue, tag), count in outbox.wakes.items():
            self.store.signals.publish(queue, tag, count)

"""`LocalQueue` and `LocalQueues`: the verbs for a program that opens the store itself, without a server."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from threading import Event
from typing import TYPE_CHECKING, Literal, TypeVar

from queue_core.attempts.attempt import GIVEN_BACK
from queue_core.attempts.failures import as_failure
from queue_core.client.queue import (
    Ended,
    Error,
    Queue,
    Queues,
    Renewable,
    as_deletions,
    as_new_tasks,
    as_renewals,
    as_tokens,
    payloads_of,
)
from queue_core.clock import Instant
from queue_core.errors import InvalidQueueNameError, LeaseLostError, StoreError
from queue_core.limits import MAX_LOCAL_LEASE_BYTES, check_text, check_wait_seconds, check_worker
from queue_core.stats import FinishedLease
from queue_core.store import Subscription, Unit, unit_of_lease
from queue_core.task import ANY, Lease, NewTask, TagFilter
from queue_core.telemetry import instrumentation
from queue_core.unit.locally import carry_out
from queue_core.unit.service import MAX_LATE_GRANTS, Operation, QueueService
from queue_core.unit.unit_of_work import UnitOfWork
from queue_core.unit.verb import Verb
from queue_core.verbs import (
    HELD_SECONDS,
    Added,
    Deletion,
    ExchangeResult,
    Granted,
    PayloadAllowance,
    Release,
    Renewed,
)

if TYPE_CHECKING:
    from queue_core.stats import LeasingWorker

T = TypeVar("T")

POLL_SECONDS = 0.25
"""Pause between two checks of `wait_ready`."""
ETA_SECONDS = 1.0
"""Longest pause between two reads of the next eta, as no signal announces a new eta."""
RECHECK_SECONDS = 5.0
"""Longest wait without a lease call: a wake-up is lost when the waiter that received it was killed."""
ROOM = PayloadAllowance(MAX_LOCAL_LEASE_BYTES)
"""Room for the tasks of one lease, which are in this process's memory at once."""


class LocalQueue(Queue):
    """A `Queue` of an opened store."""

    def __init__(self, service: QueueService, name: str) -> None:
        check_text("queue", name, error=InvalidQueueNameError)
        self._service = service
        self._name = name

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._name

    def add(self, tasks: bytes | NewTask | Iterable[NewTask], *, connection: object | None = None) -> list[Added]:
        """See `Queue.add`."""
        batch = as_new_tasks(tasks)
        if instrumentation.active is not None:
            return instrumentation.active.add(self._name, batch, lambda batch: self._add(batch, connection))
        return self._add(batch, connection)

    def lease(
        self,
        count: int = 1,
        *,
        seconds: float | None = None,
        tags: TagFilter = ANY,
        worker: str = "",
        wait_seconds: float = 0.0,
    ) -> list[Lease]:
        """See `Queue.lease`."""
        leases, _ = self.exchange((), count=count, seconds=seconds, tags=tags, worker=worker, wait_seconds=wait_seconds)
        return leases

    def exchange(
        self,
        deletions: Sequence[Deletion],
        *,
        count: int = 1,
        seconds: float | None = None,
        tags: TagFilter = ANY,
        worker: str = "",
        wait_seconds: float = 0.0,
    ) -> ExchangeResult:
        """See `Queue.exchange`."""
        check_wait_seconds(wait_seconds)
        if type(worker) is not str:
            check_worker(worker)  # its text is checked by the unit of work

        def lease(work: UnitOfWork) -> Granted:
            return work.lease(self._name, count=count, seconds=seconds, tags=tags, worker=worker, allowance=ROOM)

        def exchange(work: UnitOfWork) -> tuple[Granted, Sequence[str]]:
            return work.exchange(
                self._name, deletions, count=count, seconds=seconds, tags=tags, worker=worker, allowance=ROOM
            )

        unit = unit_of_lease(worker)
        granted, lost = self._service.run(exchange, unit=unit)
        added = granted.added
        try:
            while granted.more_due and not granted.leases:
                granted = self._service.run(lease, unit=unit)
            if not granted.leases and wait_seconds > 0:
                granted = self._wait_for(lease, unit, tags=tags, wait_seconds=wait_seconds)
            late_grants = 0
            while self._service.is_late(granted.leases):
                late_grants += 1
                with suppress(LeaseLostError):
                    self.release(granted.leases, charge="uncounted")
                granted = Granted(()) if late_grants > MAX_LATE_GRANTS else self._service.run(lease, unit=unit)
        except StoreError:
            if not deletions:
                raise
            granted = Granted(())  # the deletions took effect, so return; leases granted now will expire
        return ExchangeResult(list(granted.leases), lost, added)

    def renew(self, leases: Renewable | Iterable[Renewable], *, seconds: float | None = None) -> list[Renewed]:
        """See `Queue.renew`."""
        renewals = as_renewals(leases, seconds)
        outcomes = self._service.run(lambda work: work.renew(self._name, renewals))
        return _current("renew", [renewal.token for renewal in renewals], outcomes)

    def release(
        self,
        leases: Lease | str | Iterable[Lease | str],
        *,
        delay_seconds: float | None = None,
        charge: Literal["counted", "uncounted"] = "counted",
        dead_reason: str = "",
        error: Error | None = None,
    ) -> list[FinishedLease]:
        """See `Queue.release`."""
        tokens = as_tokens(leases)
        failure = GIVEN_BACK if error is None else as_failure(error, payloads_of(leases))
        releases = [Release(token, delay_seconds, charge, dead_reason, failure=failure) for token in tokens]
        return _current("release", tokens, self._service.run(lambda work: work.release(self._name, releases)))

    def delete(
        self, leases: Ended | Iterable[Ended], *, then: Sequence[NewTask] = (), connection: object | None = None
    ) -> list[Added]:
        """See `Queue.delete`."""
        deletions = as_deletions(leases, then)
        added, lost = self._run(lambda work: work.delete(self._name, deletions), connection)
        if lost:
            raise lease_lost("delete", lost)
        return added

    def close(self) -> None:
        """Close the store of this queue, and with it all other queues of the same service."""
        self._service.close()

    def _call(self, verb: Verb[T]) -> T:
        """See `Queue._call`."""
        return carry_out(self._service, verb)

    def _add(self, batch: list[NewTask], connection: object | None) -> list[Added]:
        return self._run(lambda work: work.add(self._name, batch), connection)

    def _run(self, operation: Operation[T], connection: object | None) -> T:
        """Run an operation of one verb."""
        if connection is None:
            return self._service.run(operation, unit="verb")
        return self._service.within(connection, operation)

    def _wait_for(self, lease: Operation[Granted], unit: Unit, *, tags: TagFilter, wait_seconds: float) -> Granted:
        clock = self._service.clock
        deadline = clock.monotonic() + wait_seconds
        subscription = self._service.store.signals.subscribe(self._name, tags)
        self._waiting_with(subscription)
        try:
            while True:
                granted = self._service.run(lease, unit=unit)
                left = deadline - clock.monotonic()
                if granted.leases or left <= 0 or self._is_cancelled:
                    return granted
                if granted.more_due:
                    continue
                self._sleep(subscription, until=min(deadline, clock.monotonic() + RECHECK_SECONDS))
        finally:
            subscription.close()

    def _sleep(self, subscription: Subscription, *, until: float) -> None:
        """Sleep until a task may be leasable; read the next eta now and then, as no signal announces a new one."""
        clock = self._service.clock
        while (left := until - clock.monotonic()) > 0 and not self._is_cancelled:
            next_eta = self._service.read(lambda work: work.transaction.next_eta(self._name, now=work.now))
            seconds = self._seconds_until(next_eta)
            if subscription.wait(timeout_seconds=min(left, seconds, ETA_SECONDS)) or seconds <= ETA_SECONDS:
                return

    @property
    def _is_cancelled(self) -> bool:
        """Return whether to end a wait as if its time were up."""
        return False

    def _waiting_with(self, subscription: Subscription) -> None:
        """Receive the subscription of a wait that begins; for subclasses that cancel it."""

    def _seconds_until(self, eta: Instant | None) -> float:
        if eta is None:
            return RECHECK_SECONDS
        return max(0.0, (eta - self._service.clock.now()) / 1_000_000)


class WaitingCall(LocalQueue):
    """A queue for one thread: `close`, from another thread, ends its wait and leaves the store open."""

    def __init__(self, service: QueueService, name: str) -> None:
        super().__init__(service, name)
        self._subscription: Subscription | None = None
        self._is_closed = False

    def close(self) -> None:
        """End the wait; tasks leased meanwhile are still returned."""
        self._is_closed = True
        if self._subscription is not None:
            self._subscription.wake()

    @property
    def _is_cancelled(self) -> bool:
        return self._is_closed

    def _waiting_with(self, subscription: Subscription) -> None:
        self._subscription = subscription


class LocalQueues(Queues):
    """All queues of an opened store: a `Queues`."""

    def __init__(self, service: QueueService) -> None:
        self._service = service

    def queue(self, name: str) -> LocalQueue:
        """See `Queues.queue`."""
        return LocalQueue(self._service, name)

    def waiting_call(self, name: str) -> WaitingCall:
        """Return one queue for a thread whose waits can be cancelled by `close`."""
        return WaitingCall(self._service, name)

    def degradations(self) -> list[str]:
        """See `Queues.degradations`."""
        held = self._service.store.held_snapshot(min_seconds=HELD_SECONDS)
        return [] if held is None else [held.sentence]

    def present_workers(self) -> list["LeasingWorker"]:
        """See `Queues.present_workers`. A store alone does not know lease calls that wait."""
        from queue_core.unit.present_workers import present_workers

        return self._service.read(present_workers)

    def wait_ready(self, queues: Sequence[tuple[str, TagFilter]], *, wait_seconds: float) -> str | None:
        """See `Queues.wait_ready`. Without a server this polls a few times a second."""
        clock = self._service.clock
        check_wait_seconds(wait_seconds)
        deadline = clock.monotonic() + wait_seconds
        # Polling, not a subscription: a wake-up that an observer receives would be missing for a worker.
        pause = Event()
        while True:
            for name, tags in queues:
                if self.queue(name).stats(tags=tags).ready:
                    return name
            left = deadline - clock.monotonic()
            if left <= 0:
                return None
            pause.wait(timeout=min(left, POLL_SECONDS))

    def close(self) -> None:
        """Close the store."""
        self._service.close()

    def _call(self, verb: Verb[T]) -> T:
        """See `Queues._call`."""
        return carry_out(self._service, verb)


def lease_lost(verb: str, tokens: Sequence[str]) -> LeaseLostError:
    """Return the error for tokens that were not current."""
    shown = ", ".join(tokens[:5]) + (", ..." if len(tokens) > 5 else "")
    return LeaseLostError(
        f"can't {verb}: {len(tokens)} lease(s) are no longer current ({shown}); "
        "they expired, were released, or their tasks were deleted: stop working on them",
        tokens=tokens,
    )


def _current(verb: str, tokens: Sequence[str], outcomes: Sequence[T | None]) -> list[T]:
    lost = [token for token, outcome in zip(tokens, outcomes, strict=True) if outcome is None]
    if lost:
        raise lease_lost(verb, lost)
    return [outcome for outcome in outcomes if outcome is not None]

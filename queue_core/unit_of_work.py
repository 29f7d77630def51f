"""Every verb of every queue inside one transaction: check the call, ask the store, note events and wake-ups.

Nothing leaves from here: a `UnitOfWork` only collects. Whoever opened it publishes once the change is durable.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal, TypeVar

from pydantic_core import from_json, to_json

from queue_core import events, limits
from queue_core.api import ALL_STATES, Observation, ObservationQuery
from queue_core.clock import Instant
from queue_core.clock import after as after_seconds
from queue_core.errors import UnknownQueueError, WorkerRetiredError
from queue_core.events import Lifecycle, QueueEvent
from queue_core.fast_values import builder
from queue_core.outbox import Outbox
from queue_core.quarantine import QuarantinedTask, errand_of
from queue_core.quota import StorageGuard
from queue_core.stats import FinishedLease, QueueStats, TagStats, WaitingTask, coming
from queue_core.store import (
    Added,
    Busy,
    CallVerb,
    ClientCall,
    Deletion,
    Granted,
    LeaseRequest,
    Page,
    PayloadAllowance,
    Release,
    Renewal,
    Renewed,
    Transaction,
    handed_over,
)
from queue_core.stores import idempotency
from queue_core.task import ANY, NewTask, QueueSpec, TagFilter, TaskState
from queue_core.validation import check_choice, check_filter, check_new_tasks, check_queue_spec, check_storage_limit

PURGE_CHUNK = 1000
SETTLE_CHUNK = 500
MAX_SAMPLES_PER_OBSERVATION = 1000
MAX_LIVE_PER_OBSERVATION = 2000
MAX_UPCOMING_PER_OBSERVATION = 1000

new_request = builder(LeaseRequest)

T = TypeVar("T")


class UnitOfWork(Outbox):
    """The verbs of one transaction, and what is to be told when it is durable.

    They have one instant; `now` goes on only for who came when others had been served already.
    """

    def __init__(
        self,
        transaction: Transaction,
        *,
        now: Instant,
        lifecycle: Lifecycle,
        jitter: Callable[[], float],
        storage: StorageGuard,
    ) -> None:
        super().__init__(now=now, lifecycle=lifecycle)
        self._storage = storage
        self.transaction = transaction
        self._jitter = jitter

    # -- producers ------------------------------------------------------------------------------------------------

    def add(self, queue: str, tasks: Sequence[NewTask], *, call: ClientCall | None = None) -> list[Added]:
        """A repeat of `call` is noted again: the server that added first may not have come to wake anybody."""
        limits.check_add_count(len(tasks))
        check_new_tasks(tasks)
        self._storage.check(self.transaction, tasks, now=self.now)
        added = self._once(
            call,
            "add",
            lambda transaction: transaction.add(queue, tasks, now=self.now),
            encode=idempotency.encode_added,
            decode=idempotency.decode_added,
        )
        self.note_added(queue, tasks, added)
        return added

    def _once(
        self,
        call: ClientCall | None,
        verb: CallVerb,
        run: Callable[[Transaction], T],
        *,
        encode: Callable[[T], bytes | None],
        decode: Callable[[bytes], T],
    ) -> T:
        """Run a verb; for a client's call: so that it takes effect once, and a repeat is answered as it was."""
        transaction = self.transaction
        if call is None:
            return run(transaction)
        remembering = transaction.of_call(call, verb)
        if remembering is not None:
            return run(remembering)
        return idempotency.once(transaction, call, lambda: run(transaction), encode=encode, decode=decode, now=self.now)

    # -- workers --------------------------------------------------------------------------------------------------

    def lease(
        self,
        queue: str,
        *,
        count: int,
        seconds: float | None,
        tags: TagFilter = ANY,
        worker: str = "",
        room: PayloadAllowance | None = None,
        call: ClientCall | None = None,
    ) -> Granted:
        """A repeat of `call` gets the leases that it was granted, as far as they are held still, or others."""
        request = _lease_request(count, seconds, tags, worker, room)
        if call is None:
            return self._lease(self.transaction, queue, request)

        def run(transaction: Transaction) -> tuple[Granted, Sequence[str]]:
            return self._lease(transaction, queue, request), ()

        def encode(outcome: tuple[Granted, Sequence[str]]) -> bytes | None:
            return idempotency.encode_exchanged(outcome, has_deleted=False)

        granted, _ = self._once(
            call,
            "lease" if errand_of(worker) is None else "other",
            run,
            encode=encode,
            decode=partial(self._exchanged_before, queue),
        )
        return granted

    def _lease(self, transaction: Transaction, queue: str, request: LeaseRequest) -> Granted:
        errand = errand_of(request.worker)
        granted = (
            transaction.lease(queue, request, now=self.now)
            if errand is None
            else self._lease_alone(transaction, queue, errand, request)
        )
        self.note_granted(queue, granted)
        return granted

    def _exchanged_before(self, queue: str, kept: bytes) -> tuple[Granted, Sequence[str]]:
        return idempotency.decode_exchanged(kept, self.transaction, queue, now=self.now)

    def exchange(
        self,
        queue: str,
        deletions: Sequence[Deletion],
        *,
        count: int,
        seconds: float | None,
        tags: TagFilter = ANY,
        worker: str = "",
        room: PayloadAllowance | None = None,
        call: ClientCall | None = None,
    ) -> tuple[Granted, Sequence[str]]:
        """Delete, then lease: what was granted, and the tokens that were not current.

        A repeat of `call` is told what became of its deletions, and gets the leases that it was granted, as far as they
        are held still. Raises `WorkerRetiredError` after the deletions took effect; every other error before.
        """
        if not deletions:
            return self.lease(queue, count=count, seconds=seconds, tags=tags, worker=worker, room=room, call=call), []
        request = _lease_request(count, seconds, tags, worker, room)
        _check_deletions(deletions)
        if call is None:
            granted, lost = self._exchange(self.transaction, queue, deletions, request)
        else:
            granted, lost = self._once(
                call,
                "other" if handed_over(deletions) or errand_of(worker) else "exchange",
                lambda transaction: self._exchange(transaction, queue, deletions, request),
                encode=partial(idempotency.encode_exchanged, has_deleted=True),
                decode=partial(self._exchanged_before, queue),
            )
        if granted.refused:
            raise WorkerRetiredError(f"worker {worker} was retired: finish and exit")
        return granted, lost

    def _exchange(
        self, transaction: Transaction, queue: str, deletions: Sequence[Deletion], request: LeaseRequest
    ) -> tuple[Granted, Sequence[str]]:
        if errand_of(request.worker) is not None:
            _, lost = self.note_deleted(queue, deletions, transaction.delete(queue, deletions, now=self.now))
            return self._lease(transaction, queue, request), lost
        outcomes, granted = transaction.exchange(queue, deletions, request, now=self.now)
        _, lost = self.note_deleted(queue, deletions, outcomes)
        self.note_granted(queue, granted)
        return granted, lost

    def _lease_alone(
        self, transaction: Transaction, queue: str, errand: QuarantinedTask, request: LeaseRequest
    ) -> Granted:
        """The one task that the worker is there for; once it had that, it is done."""
        if transaction.queue(queue).paused:
            return Granted(())
        lease = transaction.lease_delayed(
            queue,
            errand.task_id,
            expected=errand.held_until,
            worker=request.worker,
            seconds=request.seconds,
            now=self.now,
        )
        if lease is None:
            raise WorkerRetiredError(f"worker {request.worker} was there for one task: finish and exit")
        return Granted((lease,))

    def renew(
        self, queue: str, tokens: Sequence[str], *, seconds: float | None, call: ClientCall | None = None
    ) -> list[Renewed | None]:
        limits.check_token_count(len(tokens))
        if seconds is not None:
            limits.check_lease_seconds(seconds)
        renewals = [Renewal(token, seconds) for token in tokens]
        outcomes = self._once(
            call,
            "other",
            lambda transaction: transaction.renew(queue, renewals, now=self.now),
            encode=idempotency.encode_renewed,
            decode=idempotency.decode_renewed,
        )
        if self._lifecycle != "off":
            at = self.now
            self.note(
                QueueEvent(events.LEASE_RENEWED, at, queue, lease.name, lease.tag, lease.worker, lease.lease_number)
                for lease in outcomes
                if lease is not None
            )
        return outcomes

    def release(
        self, queue: str, releases: Sequence[Release], *, call: ClientCall | None = None
    ) -> list[FinishedLease | None]:
        """A repeat of `call` is noted again, as that of an add is."""
        limits.check_token_count(len(releases))
        for release in releases:
            if release.delay_seconds is not None:
                limits.check_delay_seconds(release.delay_seconds)
            limits.check_reason(release.dead_reason)
            check_choice("charge", release.charge, ("counted", "uncounted"))
        drawn = [replace(release, jitter=self._jitter()) for release in releases]
        outcomes = self._once(
            call,
            "other",
            lambda transaction: transaction.release(queue, drawn, now=self.now),
            encode=idempotency.encode_finished,
            decode=idempotency.decode_finished,
        )
        self.note_finished([finished for finished in outcomes if finished is not None])
        return outcomes

    def delete(
        self, queue: str, deletions: Sequence[Deletion], *, call: ClientCall | None = None
    ) -> tuple[list[Added], list[str]]:
        """What the deletions' `then` became, and the tokens that were not current."""
        _check_deletions(deletions)
        return self._once(
            call,
            "other" if handed_over(deletions) else "delete",
            lambda transaction: self.note_deleted(queue, deletions, transaction.delete(queue, deletions, now=self.now)),
            encode=idempotency.encode_deleted,
            decode=idempotency.decode_deleted,
        )

    # -- administrators -------------------------------------------------------------------------------------------

    def put_queue(self, spec: QueueSpec) -> bool:
        check_queue_spec(spec)
        created = self.transaction.put_queue(spec, now=self.now)
        if created:
            self.note([QueueEvent(events.QUEUE_CREATED, self.now, spec.name)])
        return created

    def set_storage_limit(self, limit_bytes: int | None) -> None:
        check_storage_limit(limit_bytes)
        self.transaction.set_storage_limit(limit_bytes)
        self._storage.forget()

    def delete_by_name(
        self, queue: str, names: Sequence[str], *, call: ClientCall | None = None
    ) -> list[Literal["deleted", "unknown", "tombstoned"]]:
        limits.check_known_names(names)
        at = self.now
        outcomes: list[Literal["deleted", "unknown", "tombstoned"]] = self._once(
            call,
            "other",
            lambda transaction: transaction.delete_by_name(queue, names, now=at),
            encode=to_json,
            decode=from_json,
        )
        self.note(
            QueueEvent(events.TASK_DELETED, at, queue, name)
            for name, outcome in zip(names, outcomes, strict=True)
            if outcome == "deleted"
        )
        return outcomes

    def purge(self, queue: str, tags: TagFilter, *, dead: Literal["keep", "only"]) -> int:
        """One chunk; call again in a new turn until it answers 0."""
        check_filter(tags)
        check_choice("dead", dead, ("keep", "only"))
        purge = self.transaction.purge if dead == "keep" else self.transaction.purge_dead
        count = purge(queue, tags, limit=PURGE_CHUNK, now=self.now)
        if count:
            self.note([QueueEvent(events.QUEUE_PURGED, self.now, queue, count=count)])
        return count

    def set_paused(self, queue: str, paused: Literal["paused", "running"]) -> bool:
        changed = self.transaction.set_paused(queue, paused)
        if changed:
            name = events.QUEUE_PAUSED if paused == "paused" else events.QUEUE_RESUMED
            self.note([QueueEvent(name, self.now, queue)])
        if changed and paused == "running":
            self._wake_for_ready(queue)
        return changed

    def redrive(self, queue: str, names: Sequence[str] | None, tags: TagFilter) -> int:
        """One chunk; call again in a new turn until it answers 0 (with `names`: once)."""
        check_filter(tags)
        if names is not None:
            limits.check_known_names(names)
        at = self.now
        tasks = self.transaction.redrive(queue, names, tags, limit=PURGE_CHUNK, now=at)
        self.note(QueueEvent(events.TASK_REDRIVEN, at, queue, task.shown_name, task.tag) for task in tasks)
        for task in tasks:
            self.wake(queue, task.tag)
        return len(tasks)

    def postpone(self, queue: str, name: str, *, expected: Instant, eta: Instant) -> bool:
        """Move a delayed task's eta from exactly `expected`; False when it is no such task. One past makes it ready."""
        if not self.transaction.postpone(queue, name, expected=expected, eta=eta, now=self.now):
            return False
        page = self.peek(queue, tags=ANY, states=ALL_STATES, names=[name], after=0, limit=1, payload_bytes=0)
        for task in page.tasks:  # none: of a store whose unit is a verb, somebody has deleted it already
            self.note([QueueEvent(events.TASK_POSTPONED, self.now, queue, name, task.tag)])
            if task.state is TaskState.READY:
                self.wake(queue, task.tag)
        return True

    # -- supervisors ----------------------------------------------------------------------------------------------

    def retire_worker(self, worker: str, *, busy: Busy) -> bool:
        limits.check_worker(worker)
        check_choice("busy", busy, ("keep", "finish"))
        retired = self.transaction.retire_worker(worker, busy=busy, now=self.now)
        if retired:
            self.note([QueueEvent(events.WORKER_RETIRED, self.now, "", worker=worker)])
        return retired

    def release_worker(self, worker: str) -> list[FinishedLease]:
        limits.check_worker(worker)
        finished = self.transaction.release_worker(worker, now=self.now)
        self.note_finished(finished)
        return finished

    def lead(self, name: str, holder: str, *, seconds: float) -> bool:
        limits.check_text("name", name)
        limits.check_text("holder", holder)
        return self.transaction.lead(name, holder, seconds=seconds, now=self.now)

    def settle(self, queue: str) -> bool:
        """Let time act on a bounded number of tasks and wake for them; True when more are due."""
        expired, more = self.transaction.settle(queue, limit=SETTLE_CHUNK, now=self.now)
        self.note_finished(expired)
        return more

    # -- looking --------------------------------------------------------------------------------------------------

    def stats(self, queue: str, tags: TagFilter) -> QueueStats:
        check_filter(tags)
        return replace(self.transaction.stats(queue, tags, now=self.now), as_of=self.now)

    def tag_stats(self, queue: str, *, after: str | None, limit: int) -> list[TagStats]:
        limits.check_page(limit)
        if after is not None:
            limits.check_tag(after)
        return self.transaction.tag_stats(queue, after=after, limit=limit, now=self.now)

    def peek(
        self,
        queue: str,
        *,
        tags: TagFilter,
        states: frozenset[TaskState],
        names: Sequence[str] | None,
        after: int,
        limit: int,
        payload_bytes: int,
    ) -> Page:
        check_filter(tags)
        limits.check_page(limit, after=after, payload_bytes=payload_bytes)
        if names is not None:
            limits.check_known_names(names)
        return self.transaction.peek(
            queue, tags, states, names=names, after=after, limit=limit, payload_bytes=payload_bytes, now=self.now
        )

    def observe(
        self, queue: str, *, tags: TagFilter, after: int, workers: Sequence[str], ahead_seconds: float
    ) -> Observation:
        check_filter(tags)
        limits.check_ahead_seconds(ahead_seconds)
        for worker in workers:
            limits.check_worker(worker)
        look = self.transaction
        stats = look.stats(queue, tags, now=self.now)
        return Observation(
            self.now,
            stats,
            look.waiting(queue, tags, now=self.now),
            look.samples(queue, after=after, limit=MAX_SAMPLES_PER_OBSERVATION),
            tuple(
                lease
                for lease in look.live_leases(queue, limit=MAX_LIVE_PER_OBSERVATION, now=self.now)
                if tags.accepts(lease.tag)
            ),
            look.workers_seen(workers) if workers else {},
            upcoming=self._upcoming(queue, tags, ahead_seconds) if ahead_seconds and stats.delayed else (),
        )

    def _upcoming(self, queue: str, tags: TagFilter, ahead_seconds: float) -> tuple[WaitingTask, ...]:
        until, limit = after_seconds(self.now, ahead_seconds), MAX_UPCOMING_PER_OBSERVATION
        etas = self.transaction.upcoming(queue, tags, until=until, limit=limit, now=self.now)
        return coming(etas, now=self.now, until=until)

    def observe_if_there(self, look: ObservationQuery) -> Observation | None:
        """The same; None when there is no such queue."""
        try:
            return self.observe(
                look.queue, tags=look.tags, after=look.after, workers=look.workers, ahead_seconds=look.ahead_seconds
            )
        except UnknownQueueError:
            return None

    def _wake_for_ready(self, queue: str) -> None:
        for page in self.transaction.tag_stats(queue, after=None, limit=1000, now=self.now):
            if page.stats.ready:
                key = (queue, page.tag)
                self.wakes[key] = self.wakes.get(key, 0) + page.stats.ready


def _lease_request(
    count: int, seconds: float | None, tags: TagFilter, worker: str, room: PayloadAllowance | None
) -> LeaseRequest:
    limits.check_lease_count(count)
    check_filter(tags)
    limits.check_worker(worker)
    if seconds is not None:
        limits.check_lease_seconds(seconds)
    return new_request(count, seconds, tags, worker, room)


def _check_deletions(deletions: Sequence[Deletion]) -> None:
    limits.check_token_count(len(deletions))
    for then in handed_over(deletions):
        limits.check_add_count(len(then))
        check_new_tasks(then)

"""The verbs of all queues inside one transaction: validate the call, run it on the store, record events and wake-ups.

A `UnitOfWork` publishes nothing; the service that opened it does so once the change is durable.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal, TypeVar

from queue_core import events, limits
from queue_core.attempts.attempt import GIVEN_BACK, WORKER_DIED, Failure, check_failure
from queue_core.clock import MICROSECONDS, Clock, Instant
from queue_core.clock import after as after_seconds
from queue_core.errors import (
    KeyReusedError,
    PermissionDeniedError,
    QueueError,
    StoreError,
    UnknownQueueError,
    WorkerRetiredError,
)
from queue_core.events import Lifecycle, QueueEvent
from queue_core.process.wording import shown_limits
from queue_core.stats import (
    DELETED_BY_NAME,
    PURGED,
    FinishedLease,
    History,
    QueueStats,
    TagStats,
    TaskRemoval,
    WaitingTask,
    group_upcoming,
)
from queue_core.store import Transaction
from queue_core.stores import idempotency
from queue_core.stores.bounded_page import bounded_page
from queue_core.task import (
    ALL_STATES,
    ANY,
    SOLO_WORKER_MARK,
    NewTask,
    QuarantinedTask,
    QueueSpec,
    TagFilter,
    TaskState,
    quarantined_task_of,
)
from queue_core.unit.outbox import Outbox, WakeUp
from queue_core.verbs import (
    Added,
    Busy,
    CallVerb,
    ClientCall,
    Deletion,
    Granted,
    LeaseRequest,
    NameOutcome,
    Observation,
    ObservationQuery,
    Page,
    PayloadAllowance,
    PeekQuery,
    Release,
    Renewal,
    Renewed,
    handed_over,
    key_reused,
)
from queue_core.verbs.change_verbs import PIECE_TASKS, READY_OR_HELD, Selector, Transition
from queue_core.verbs.validation import (
    check_choice,
    check_filter,
    check_new_tasks,
    check_own_eta,
    check_own_limits,
    check_queue_spec,
    check_storage,
    check_storage_limit,
)

EXPIRY_CHUNK = 500
"""Due tasks that one `expire` handles."""
# Limits on the lists of one observation, which keep its cost and its size bounded.
MAX_SAMPLES_PER_OBSERVATION = 1000
MAX_LIVE_PER_OBSERVATION = 2000
MAX_UPCOMING_PER_OBSERVATION = 1000


T = TypeVar("T")


UNLIMITED_SECONDS = 1.0
"""How long a store is assumed to have no limit after it had none. Longer: fewer reads, and a new limit acts later."""


class StorageGuard:
    """Checks adds against the limit, and caches for a second that there is none. Thread-safe."""

    def __init__(self, check_room: Callable[[], None]) -> None:
        """Args:
        check_room: see `Store.check_room`.
        """
        self._check_room = check_room
        self._unlimited_at: Instant | None = None

    def check(self, transaction: Transaction, tasks: Sequence[NewTask], *, now: Instant) -> None:
        """Raise `StorageLimitError` where these tasks would pass the limit, `StoreFullError` while the disk is full."""
        self._check_room()
        known_at = self._unlimited_at
        if known_at is not None and 0 <= now - known_at < UNLIMITED_SECONDS * MICROSECONDS:
            return
        storage = transaction.storage()
        if storage.limit_bytes is None:
            self._unlimited_at = now
        else:
            self._unlimited_at = None
            check_storage(tasks, used_bytes=storage.used_bytes, limit_bytes=storage.limit_bytes)

    def forget(self) -> None:
        """Read the limit again with the next add, as it has changed."""
        self._unlimited_at = None


class UnitOfWork(Outbox):
    """The verbs of one transaction, and the outbox to publish when it is durable.

    All verbs share one `now`; a group commit advances it for callers that arrived after the first ones were served.
    """

    def __init__(
        self,
        transaction: Transaction,
        *,
        now: Instant,
        clock: Clock,
        lifecycle: Lifecycle,
        jitter: Callable[[], float],
        storage: StorageGuard,
    ) -> None:
        super().__init__(now=now, lifecycle=lifecycle)
        self.clock = clock
        self._storage = storage
        self.transaction = transaction
        self._jitter = jitter

    # -- producers ------------------------------------------------------------------------------------------------

    def add(self, queue: str, tasks: Sequence[NewTask], *, call: ClientCall | None = None) -> list[Added]:
        """Add tasks. A repeat of `call` is recorded again: the server that ran it first may not have woken waiters."""
        limits.check_add_count(len(tasks))
        beyond = check_new_tasks(tasks, now=self.now)

        if call is None:
            self._check_room(queue, tasks, beyond)
            added = self.transaction.add(queue, tasks, now=self.now)
        else:
            added = self._once(
                call,
                "add",
                lambda transaction: transaction.add(queue, tasks, now=self.now),
                check=partial(self._check_room, queue, tasks, beyond),
                queue=queue,
                adds=tasks,
                encode=idempotency.encode_added,
                decode=partial(idempotency.decode_added, len(tasks)),
            )
        self.record_added(queue, tasks, added)
        return added

    def _check_room(self, queue: str, tasks: Sequence[NewTask], beyond: Sequence[NewTask]) -> None:
        """Check tasks by the limits of the store, and `beyond`, some of them, by those of their queues."""
        if beyond:
            self._check_beyond(queue, beyond)
        self._storage.check(self.transaction, tasks, now=self.now)

    def _check_beyond(self, queue: str, tasks: Sequence[NewTask]) -> None:
        """Check tasks that not every queue takes by the settings of theirs, which are read for no others."""
        for task in tasks:
            check_own_limits(task, self.transaction.queue(task.queue or queue), now=self.now)

    def _once(
        self,
        call: ClientCall | None,
        verb: CallVerb,
        run: Callable[[Transaction], T],
        *,
        queue: str,
        adds: Sequence[NewTask] = (),
        encode: Callable[[T], bytes | None],
        decode: Callable[[bytes], T],
        check: Callable[[], None] | None = None,
    ) -> T:
        """Run a verb; with a `call`, so that it takes effect once and a repeat gets the first answer.

        Args:
            queue: whose tasks it changes; also those that the tasks of `adds` name.
            check: raises the refusal of a call that did not take effect before.
        """
        transaction = self.transaction
        deduplicating = None if call is None else transaction.once_for_call(call, verb)
        within = transaction if deduplicating is None else deduplicating

        def run_checked() -> T:
            if check is not None:
                check()
            return run(within)

        checked = partial(run, within) if check is None else run_checked
        if call is None:
            return checked()
        if deduplicating is None:
            return idempotency.once(transaction, call, checked, encode=encode, decode=decode, now=self.now)
        if not call.is_repeat:
            try:
                return checked()
            except idempotency.UNFIT as error:
                raise key_reused(call) from error
        kept = call.answer_in(transaction.last_answer(call.session))  # the store has others itself
        if kept is not None:
            idempotency.raise_refusal(kept)
        try:
            return checked()
        except (StoreError, KeyReusedError):
            raise
        except idempotency.UNFIT as error:
            raise key_reused(call) from error
        except QueueError as error:
            queues = [queue, *[task.queue for task in adds if task.queue]]
            if deduplicating.close_call(queues):  # its first try may still come, and would take effect
                transaction.record_answer(call, idempotency.encode_refusal(error), now=self.now)
                raise
        return run(transaction.once_for_call(call, verb) or transaction)

    # -- workers --------------------------------------------------------------------------------------------------

    def lease(
        self,
        queue: str,
        *,
        count: int,
        seconds: float | None,
        tags: TagFilter = ANY,
        worker: str = "",
        allowance: PayloadAllowance | None = None,
        call: ClientCall | None = None,
    ) -> Granted:
        """Lease tasks. A repeat of `call` gets those of its leases that are still current, or else others."""
        request = _lease_request(count, seconds, tags, worker, allowance)
        if call is None:
            return self._lease(self.transaction, queue, request)

        def run(transaction: Transaction) -> tuple[Granted, Sequence[str]]:
            return self._lease(transaction, queue, request), ()

        def encode(outcome: tuple[Granted, Sequence[str]]) -> bytes | None:
            return idempotency.encode_exchanged(outcome, has_deleted=False)

        granted, _ = self._once(
            call,
            _lease_verb(worker),
            run,
            queue=queue,
            encode=encode,
            decode=partial(self._exchanged_before, queue),
        )
        return granted

    def close_lease(self, queue: str, call: ClientCall, *, worker: str = "") -> bool:
        """Have a lease whose repeat is answered that there was nothing grant nothing if its first try still comes.

        False: it took effect before.
        """
        transaction = self.transaction
        deduplicating = transaction.once_for_call(call, _lease_verb(worker))
        if deduplicating is not None:
            return deduplicating.close_call([queue])
        if transaction.answer_of(call, now=self.now) is not None:
            return False
        transaction.record_answer(call, idempotency.NO_LEASES, now=self.now)
        return True

    def _lease(self, transaction: Transaction, queue: str, request: LeaseRequest) -> Granted:
        quarantined = quarantined_task_of(request.worker)
        granted = (
            transaction.lease(queue, request, now=self.now)
            if quarantined is None
            else self._lease_quarantined(transaction, queue, quarantined, request)
        )
        self.record_granted(queue, granted)
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
        allowance: PayloadAllowance | None = None,
        call: ClientCall | None = None,
    ) -> tuple[Granted, Sequence[str]]:
        """Delete, then lease; return the grant and the tokens that were not current.

        A repeat of `call` gets the outcome of its deletions and those of its leases that are still current. Raises
        `WorkerRetiredError` after the deletions took effect; every other error before.
        """
        if not deletions:
            return self.lease(
                queue, count=count, seconds=seconds, tags=tags, worker=worker, allowance=allowance, call=call
            ), []
        request = _lease_request(count, seconds, tags, worker, allowance)
        limits.check_token_count(len(deletions))
        thens = handed_over(deletions)
        check = self._check_of_thens(queue, thens) if thens else None
        if call is None:
            if check is not None:
                check()
            granted, lost = self._exchange(queue, deletions, request, self.transaction)
        else:
            granted, lost = self._once(
                call,
                "other" if thens or (SOLO_WORKER_MARK in worker and quarantined_task_of(worker)) else "exchange",
                partial(self._exchange, queue, deletions, request),
                check=check,
                queue=queue,
                encode=partial(idempotency.encode_exchanged, has_deleted=True),
                decode=partial(self._exchanged_before, queue),
            )
        if granted.refused:
            raise WorkerRetiredError(f"worker {worker} was retired: finish and exit")
        return granted, lost

    def _exchange(
        self, queue: str, deletions: Sequence[Deletion], request: LeaseRequest, transaction: Transaction
    ) -> tuple[Granted, Sequence[str]]:
        if SOLO_WORKER_MARK in request.worker and quarantined_task_of(request.worker) is not None:
            added, lost = self.record_deleted(queue, deletions, transaction.delete(queue, deletions, now=self.now))
            granted = self._lease(transaction, queue, request)
        else:
            outcomes, granted = transaction.exchange(queue, deletions, request, now=self.now)
            added, lost = self.record_deleted(queue, deletions, outcomes)
            self.record_granted(queue, granted)
        return (replace(granted, added=tuple(added)) if added else granted), lost

    def _lease_quarantined(
        self, transaction: Transaction, queue: str, task: QuarantinedTask, request: LeaseRequest
    ) -> Granted:
        """Lease the one task of a solo worker; once it had that task, the worker is retired."""
        if transaction.queue(queue).paused:
            return Granted(())
        lease = transaction.lease_delayed(
            queue,
            task.task_id,
            expected=task.held_until,
            worker=request.worker,
            seconds=request.seconds,
            now=self.now,
        )
        if lease is None:
            raise WorkerRetiredError(f"worker {request.worker} was started for one task only: finish and exit")
        return Granted((lease,))

    def renew(self, queue: str, renewals: Sequence[Renewal], *, call: ClientCall | None = None) -> list[Renewed | None]:
        """Renew leases; see `Transaction.renew`."""
        limits.check_token_count(len(renewals))
        for renewal in renewals:
            _check_renewal(renewal)
        outcomes = self._once(
            call,
            "other",
            lambda transaction: transaction.renew(queue, renewals, now=self.now),
            queue=queue,
            encode=idempotency.encode_renewed,
            decode=partial(idempotency.decode_renewed, len(renewals)),
        )
        if self._lifecycle != "off":
            at = self.now
            self.record(
                QueueEvent(events.LEASE_RENEWED, at, queue, lease.name, lease.tag, lease.worker, lease.lease_number)
                for lease in outcomes
                if lease is not None
            )
        return outcomes

    def release(
        self, queue: str, releases: Sequence[Release], *, call: ClientCall | None = None
    ) -> list[FinishedLease | None]:
        """Give leases back. A repeat of `call` is recorded again, as in `add`."""
        limits.check_token_count(len(releases))
        for release in releases:
            if release.delay_seconds is not None:
                limits.check_delay_seconds(release.delay_seconds)
            limits.check_reason(release.dead_reason)
            check_choice("charge", release.charge, ("counted", "uncounted"))
            if release.failure is not GIVEN_BACK:
                check_failure(release.failure)
        jittered = [replace(release, jitter=self._jitter()) for release in releases]
        outcomes = self._once(
            call,
            "other",
            lambda transaction: transaction.release(queue, jittered, now=self.now),
            queue=queue,
            encode=idempotency.encode_finished,
            decode=partial(idempotency.decode_finished, len(releases)),
        )
        self.record_finished([finished for finished in outcomes if finished is not None])
        return outcomes

    def delete(
        self, queue: str, deletions: Sequence[Deletion], *, call: ClientCall | None = None
    ) -> tuple[list[Added], list[str]]:
        """Delete tasks; return the outcomes of their `then` and the tokens that were not current."""
        limits.check_token_count(len(deletions))
        thens = handed_over(deletions)
        check = self._check_of_thens(queue, thens) if thens else None
        return self._once(
            call,
            "other" if thens else "delete",
            lambda transaction: self.record_deleted(
                queue, deletions, transaction.delete(queue, deletions, now=self.now)
            ),
            check=check,
            queue=queue,
            encode=idempotency.encode_deleted,
            decode=idempotency.decode_deleted,
        )

    def _check_of_thens(self, queue: str, thens: Sequence[Sequence[NewTask]]) -> Callable[[], None] | None:
        """Check the `then` of deletions; return what checks them by the settings of queues, where that is needed."""
        beyond: list[NewTask] = []
        for then in thens:
            limits.check_add_count(len(then))
            beyond += check_new_tasks(then, now=self.now)
        return partial(self._check_beyond, queue, beyond) if beyond else None

    # -- administrators -------------------------------------------------------------------------------------------

    def put_queue(self, spec: QueueSpec) -> bool:
        """Create a queue or replace its settings; True when it was created."""
        check_queue_spec(spec)
        created = self.transaction.put_queue(spec, now=self.now)
        if created:
            self.record([QueueEvent(events.QUEUE_CREATED, self.now, spec.name)])
        return created

    def declare_queue(self, spec: QueueSpec) -> bool:
        """Create a queue for a caller that may change none; True when it was created.

        Raises `PermissionDeniedError` for one that has other settings, and beyond `MAX_DECLARED_QUEUES`.
        """
        existing = {one.name: one for one in self.transaction.queues()}
        if spec.name in existing:
            if existing[spec.name] == spec:
                return False
            raise PermissionDeniedError(f"queue {spec.name} exists with other settings, which an administrator changes")
        if len(existing) >= limits.MAX_DECLARED_QUEUES:
            raise PermissionDeniedError(
                f"the store has {len(existing):,} queues: beyond {limits.MAX_DECLARED_QUEUES:,} only an administrator "
                "creates more"
            )
        return self.put_queue(spec)

    def set_storage_limit(self, limit_bytes: int | None) -> None:
        """Set the limit on the payload bytes of all tasks; None: no limit."""
        check_storage_limit(limit_bytes)
        self.transaction.set_storage_limit(limit_bytes)
        self._storage.forget()

    def delete_by_name(
        self, queue: str, names: Sequence[str], *, removal: TaskRemoval = DELETED_BY_NAME
    ) -> list[NameOutcome]:
        """Delete tasks by name without checking their leases."""
        limits.check_known_names(names)
        at = self.now
        outcomes = self.transaction.delete_by_name(queue, names, removal=removal, now=at)
        self.record(
            QueueEvent(events.TASK_DELETED, at, queue, name, reason=removal.reason if removal.holder is None else None)
            for name, outcome in zip(names, outcomes, strict=True)
            if outcome == "deleted"
        )
        return outcomes

    def purge(
        self, queue: str, tags: TagFilter, *, dead: Literal["keep", "only"], removal: TaskRemoval = PURGED
    ) -> int:
        """Purge one chunk; call again in a new unit of work until it returns 0."""
        check_filter(tags)
        check_choice("dead", dead, ("keep", "only"))
        if dead == "keep":
            count = self.transaction.purge(queue, tags, limit=PIECE_TASKS, removal=removal, now=self.now)
        else:
            count = self.transaction.purge_dead(queue, tags, limit=PIECE_TASKS, now=self.now)
        if count:
            self.record([QueueEvent(events.QUEUE_PURGED, self.now, queue, count=count, reason=removal.reason)])
        return count

    def set_paused(self, queue: str, paused: Literal["paused", "running"]) -> bool:
        """Pause or resume a queue; True when that was a change. Resuming wakes waiters."""
        changed = self.transaction.set_paused(queue, paused)
        if changed:
            name = events.QUEUE_PAUSED if paused == "paused" else events.QUEUE_RESUMED
            self.record([QueueEvent(name, self.now, queue)])
        if changed and paused == "running":
            self._wake_for_ready(queue)
        return changed

    def apply(self, queue: str, selector: Selector, transition: Transition, *, event: str) -> int:
        """Change the tasks that `selector` means; record `event` of each, and wake waiters for those that are ready."""
        changed = self.transaction.apply(queue, selector, transition, now=self.now)
        self.record(QueueEvent(event, self.now, queue, one.task.shown_name, one.task.tag) for one in changed)
        for one in changed:
            if one.task.state in READY_OR_HELD:
                self.wake(queue, one.task.tag)
        return len(changed)

    def postpone(self, queue: str, name: str, *, expected: Instant, eta: Instant) -> bool:
        """Move a delayed task's eta from exactly `expected`; False if there is none such. A past eta makes it ready."""
        if eta > after_seconds(self.now, limits.MAX_ETA_SECONDS):
            check_own_eta(eta, self.transaction.queue(queue), now=self.now)
        if not self.transaction.postpone(queue, name, expected=expected, eta=eta, now=self.now):
            return False
        page = self.peek(queue, tags=ANY, states=ALL_STATES, names=[name], after=0, limit=1, payload_bytes=0)
        for task in page.tasks:  # no page: a store whose unit is a verb may have had it deleted since
            self.record([QueueEvent(events.TASK_POSTPONED, self.now, queue, name, task.tag)])
            if task.state is TaskState.READY:
                self.wake(queue, task.tag)
        return True

    # -- supervisors ----------------------------------------------------------------------------------------------

    def retire_worker(self, worker: str, *, busy: Busy) -> bool:
        """Fence a worker; see `Transaction.retire_worker`."""
        limits.check_worker(worker)
        check_choice("busy", busy, ("keep", "finish"))
        retired = self.transaction.retire_worker(worker, busy=busy, now=self.now)
        if retired:
            self.record([QueueEvent(events.WORKER_RETIRED, self.now, "", worker=worker)])
        return retired

    def release_worker(self, worker: str, *, failure: Failure = WORKER_DIED) -> list[FinishedLease]:
        """Give back all leases of a dead worker and retire it."""
        limits.check_worker(worker)
        check_failure(failure)
        finished = self.transaction.release_worker(worker, failure=failure, now=self.now)
        self.record_finished(finished)
        return finished

    def lead(self, name: str, holder: str, *, seconds: float) -> bool:
        """Take or keep the lead called `name`; False while another holder has it."""
        limits.check_text("name", name)
        limits.check_text("holder", holder)
        limits.check_lifetime_seconds("seconds of a lead", seconds)
        return self.transaction.lead(name, holder, seconds=seconds, now=self.now)

    def expire(self, queue: str) -> bool:
        """Expire a bounded number of due tasks and wake waiters for them; True when more are due."""
        expired, more = self.transaction.expire(queue, limit=EXPIRY_CHUNK, now=self.now)
        self.record_finished(expired)
        return more

    def wake_for_admitted(self) -> None:
        """Add the wake-ups of tasks that limits alone held back until now."""
        for queue, tag, count in self.transaction.admitted():
            self.wakes[(queue, tag)] = self.wakes.get((queue, tag), 0) + count

    def all_wakes(self) -> list[WakeUp]:
        """Return the wake-ups by queue and tag."""
        self.wake_for_admitted()
        return super().all_wakes()

    # -- reads ----------------------------------------------------------------------------------------------------

    def stats(self, queue: str, tags: TagFilter) -> QueueStats:
        """Return counts and totals, with `as_of` set."""
        check_filter(tags)
        return replace(self.transaction.stats(queue, tags, now=self.now), as_of=self.now)

    def tag_stats(self, queue: str, *, after: str | None, limit: int) -> list[TagStats]:
        limits.check_page(limit)
        if after is not None:
            limits.check_tag(after)
        return self.transaction.tag_stats(queue, after=after, limit=limit, now=self.now)

    def history(self, queue: str, *, names: Sequence[str] | None, before: int | None, limit: int) -> History:
        """Return ended leases, newest first; see `Transaction.history`."""
        limits.check_page(limit)
        if before is not None:
            limits.check_cursor(before, name="before")
        if names is not None:
            limits.check_known_names(names)
        return self.transaction.history(queue, names=names, before=before, limit=limit, now=self.now)

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
        """Return tasks without leasing them; fewer than `limit` where more payloads don't fit into one answer."""
        check_filter(tags)
        limits.check_page(limit, after=after, payload_bytes=payload_bytes)
        if names is not None:
            limits.check_known_names(names)
        query = PeekQuery(tags, states, names, after, limit, payload_bytes, self.now)
        return bounded_page(self.transaction, queue, query, total_bytes=limits.MAX_ANSWER_BYTES)

    def observe(
        self, queue: str, *, tags: TagFilter, after: int, workers: Sequence[str], ahead_seconds: float
    ) -> Observation:
        check_filter(tags)
        limits.check_cursor(after)
        limits.check_ahead_seconds(ahead_seconds)
        for worker in workers:
            limits.check_worker(worker)
        reads = self.transaction
        stats = reads.stats(queue, tags, now=self.now)
        limits_held = blocking_limits(reads.queue(queue), stats) if stats.held or stats.room is not None else ()
        return Observation(
            self.now,
            stats,
            reads.waiting(queue, tags, now=self.now),
            reads.samples(queue, after=after, limit=MAX_SAMPLES_PER_OBSERVATION),
            tuple(
                lease
                for lease in reads.live_leases(queue, limit=MAX_LIVE_PER_OBSERVATION, now=self.now)
                if tags.accepts(lease.tag)
            ),
            reads.workers_seen(workers) if workers else {},
            upcoming=self._upcoming(queue, tags, ahead_seconds) if ahead_seconds and stats.delayed else (),
            held_by=", ".join(limits_held),
            held_by_rate=any("rate: " in limit for limit in limits_held),
        )

    def _upcoming(self, queue: str, tags: TagFilter, ahead_seconds: float) -> tuple[WaitingTask, ...]:
        until, limit = after_seconds(self.now, ahead_seconds), MAX_UPCOMING_PER_OBSERVATION
        etas = self.transaction.upcoming(queue, tags, until=until, limit=limit, now=self.now)
        return group_upcoming(etas, now=self.now, until=until)

    def observe_if_exists(self, query: ObservationQuery) -> Observation | None:
        """Observe a queue; None when it does not exist."""
        try:
            return self.observe(
                query.queue,
                tags=query.tags,
                after=query.after,
                workers=query.workers,
                ahead_seconds=query.ahead_seconds,
            )
        except UnknownQueueError:
            return None

    def _wake_for_ready(self, queue: str) -> None:
        for page in self.transaction.tag_stats(queue, after=None, limit=1000, now=self.now):
            if page.stats.ready:
                key = (queue, page.tag)
                self.wakes[key] = self.wakes.get(key, 0) + page.stats.ready


def blocking_limits(spec: QueueSpec, stats: QueueStats) -> tuple[str, ...]:
    """Return the settings of a queue that keep tasks from being leased now, as they are written."""
    found: list[str] = []
    if stats.leasable < stats.ready:
        found += shown_limits("", spec.max_in_flight, spec.rate)
    if stats.held:
        found += shown_limits("per_tag.", spec.per_tag.max_in_flight, spec.per_tag.rate)
    return tuple(found)


def _lease_verb(worker: str) -> CallVerb:
    return "lease" if quarantined_task_of(worker) is None else "other"


def _lease_request(
    count: int, seconds: float | None, tags: TagFilter, worker: str, allowance: PayloadAllowance | None
) -> LeaseRequest:
    limits.check_lease_count(count)
    if tags is not ANY:
        check_filter(tags)
    limits.check_worker(worker)
    if seconds is not None:
        limits.check_lease_seconds(seconds)
    return LeaseRequest(count, seconds, tags, worker, allowance)


def _check_renewal(renewal: Renewal) -> None:
    if renewal.seconds is not None:
        limits.check_lease_seconds(renewal.seconds)
    if renewal.progress is not None:
        limits.check_progress(renewal.progress.fraction, renewal.progress.text)
    if renewal.checkpoint is not None:
        limits.check_checkpoint(renewal.checkpoint)

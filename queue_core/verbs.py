"""Every verb of every queue inside one transaction: check the call, ask the store, note events and wake-ups.

Nothing leaves from here: a `Turn` only collects. Whoever opened it publishes once the change is durable.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from queue_core import events, limits
from queue_core.admission import check_choice, check_filter, check_new_tasks, check_queue_spec, check_storage_limit
from queue_core.api import ALL_STATES, Observation
from queue_core.building import builder
from queue_core.clock import Instant
from queue_core.errand import Errand, errand_of
from queue_core.errors import WorkerRetiredError
from queue_core.events import Lifecycle, QueueEvent
from queue_core.notes import Notes
from queue_core.stats import FinishedLease, QueueStats, TagStats
from queue_core.storage_guard import StorageGuard
from queue_core.store import (
    Added,
    ClientCall,
    Deletion,
    Granted,
    LeaseRequest,
    Page,
    Release,
    Renewal,
    Renewed,
    Transaction,
)
from queue_core.task import ANY, NewTask, QueueSpec, TagFilter, TaskState
from queue_core.verb_values import handed_over

PURGE_CHUNK = 1000
SETTLE_CHUNK = 500
MAX_SAMPLES_PER_OBSERVATION = 1000
MAX_LIVE_PER_OBSERVATION = 2000

new_request = builder(LeaseRequest)


class Turn(Notes):
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

    def add(self, queue: str, tasks: Sequence[NewTask]) -> list[Added]:
        limits.check_add_count(len(tasks))
        check_new_tasks(tasks)
        self._storage.check(self.transaction, tasks, now=self.now)
        added = self.transaction.add(queue, tasks, now=self.now)
        self.note_added(queue, tasks, added)
        return added

    def add_once(self, queue: str, tasks: Sequence[NewTask], call: ClientCall) -> list[Added]:
        """A repeat is noted again: whoever added first may not have come to tell of it."""
        limits.check_add_count(len(tasks))
        check_new_tasks(tasks)
        self._storage.check(self.transaction, tasks, now=self.now)
        added = self.transaction.add_once(queue, tasks, call, now=self.now)
        self.note_added(queue, tasks, added)
        return added

    # -- workers --------------------------------------------------------------------------------------------------

    def lease(
        self, queue: str, *, count: int, seconds: float | None, tags: TagFilter = ANY, worker: str = ""
    ) -> Granted:
        request = _lease_request(count, seconds, tags, worker)
        errand = errand_of(worker)
        granted = (
            self.transaction.lease(queue, request, now=self.now)
            if errand is None
            else self._lease_alone(queue, errand, request)
        )
        self.note_granted(queue, granted)
        return granted

    def exchange(
        self,
        queue: str,
        deletions: Sequence[Deletion],
        *,
        count: int,
        seconds: float | None,
        tags: TagFilter = ANY,
        worker: str = "",
    ) -> tuple[Granted, list[str]]:
        """Delete, then lease: what was granted, and the tokens that were not current.

        Raises `WorkerRetiredError` after the deletions took effect; every other error before.
        """
        if not deletions:
            return self.lease(queue, count=count, seconds=seconds, tags=tags, worker=worker), []
        request = _lease_request(count, seconds, tags, worker)
        _check_deletions(deletions)
        if errand_of(worker) is not None:
            _, gone = self.delete(queue, deletions)
            return self.lease(queue, count=count, seconds=seconds, tags=tags, worker=worker), gone
        outcomes, granted = self.transaction.exchange(queue, deletions, request, now=self.now)
        _, lost = self.note_deleted(queue, deletions, outcomes)
        self.note_granted(queue, granted)
        if granted.refused:
            raise WorkerRetiredError(f"worker {worker} was retired: finish and exit")
        return granted, lost

    def _lease_alone(self, queue: str, errand: Errand, request: LeaseRequest) -> Granted:
        """The one task that the worker is there for; once it had that, it is done."""
        if self.transaction.queue(queue).paused:
            return Granted(())
        lease = self.transaction.lease_delayed(
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

    def renew(self, queue: str, tokens: Sequence[str], *, seconds: float | None) -> list[Renewed | None]:
        limits.check_token_count(len(tokens))
        if seconds is not None:
            limits.check_lease_seconds(seconds)
        outcomes = self.transaction.renew(queue, [Renewal(token, seconds) for token in tokens], now=self.now)
        if self._lifecycle != "off":
            at = self.now
            self.note(
                QueueEvent(events.LEASE_RENEWED, at, queue, lease.name, lease.tag, lease.worker, lease.lease_number)
                for lease in outcomes
                if lease is not None
            )
        return outcomes

    def release(self, queue: str, releases: Sequence[Release]) -> list[FinishedLease | None]:
        limits.check_token_count(len(releases))
        for release in releases:
            if release.delay_seconds is not None:
                limits.check_delay_seconds(release.delay_seconds)
            limits.check_reason(release.dead_reason)
            check_choice("charge", release.charge, ("counted", "uncounted"))
        outcomes = self.transaction.release(
            queue, [replace(release, jitter=self._jitter()) for release in releases], now=self.now
        )
        self.note_finished([finished for finished in outcomes if finished is not None])
        return outcomes

    def delete(self, queue: str, deletions: Sequence[Deletion]) -> tuple[list[Added], list[str]]:
        """What the deletions' `then` became, and the tokens that were not current."""
        _check_deletions(deletions)
        outcomes = self.transaction.delete(queue, deletions, now=self.now)
        return self.note_deleted(queue, deletions, outcomes)

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

    def delete_by_name(self, queue: str, names: Sequence[str]) -> list[Literal["deleted", "unknown", "tombstoned"]]:
        limits.check_token_count(len(names))
        at = self.now
        outcomes = self.transaction.delete_by_name(queue, names, now=at)
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
            limits.check_token_count(len(names))
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

    def retire_worker(self, worker: str) -> bool:
        retired = self.transaction.retire_worker(worker, now=self.now)
        if retired:
            self.note([QueueEvent(events.WORKER_RETIRED, self.now, "", worker=worker)])
        return retired

    def release_worker(self, worker: str) -> list[FinishedLease]:
        finished = self.transaction.release_worker(worker, now=self.now)
        self.note_finished(finished)
        return finished

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
            limits.check_token_count(len(names))
        return self.transaction.peek(
            queue, tags, states, names=names, after=after, limit=limit, payload_bytes=payload_bytes, now=self.now
        )

    def observe(self, queue: str, *, tags: TagFilter, after: int, workers: Sequence[str]) -> Observation:
        check_filter(tags)
        look = self.transaction
        return Observation(
            self.now,
            look.stats(queue, tags, now=self.now),
            look.waiting(queue, tags, now=self.now),
            look.samples(queue, after=after, limit=MAX_SAMPLES_PER_OBSERVATION),
            tuple(
                lease
                for lease in look.live_leases(queue, limit=MAX_LIVE_PER_OBSERVATION, now=self.now)
                if tags.accepts(lease.tag)
            ),
            look.workers_seen(workers) if workers else {},
        )

    def _wake_for_ready(self, queue: str) -> None:
        for page in self.transaction.tag_stats(queue, after=None, limit=1000, now=self.now):
            if page.stats.ready:
                key = (queue, page.tag)
                self.wakes[key] = self.wakes.get(key, 0) + page.stats.ready


def _lease_request(count: int, seconds: float | None, tags: TagFilter, worker: str) -> LeaseRequest:
    limits.check_lease_count(count)
    check_filter(tags)
    limits.check_worker(worker)
    if seconds is not None:
        limits.check_lease_seconds(seconds)
    return new_request(count, seconds, tags, worker)


def _check_deletions(deletions: Sequence[Deletion]) -> None:
    limits.check_token_count(len(deletions))
    for then in handed_over(deletions):
        limits.check_add_count(len(then))
        check_new_tasks(then)

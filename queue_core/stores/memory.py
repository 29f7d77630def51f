"""The reference store: the semantics over a dict. For tests and small programs: it looks at every task, keeps none."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from threading import RLock
from typing import Literal

from queue_core import semantics
from queue_core.clock import Instant, after
from queue_core.errors import InvalidLeaseTimeError, UnknownQueueError, WorkerRetiredError
from queue_core.stats import FinishedLease, LiveLease, QueueStats, Samples, TagStats, WaitingTask, spread
from queue_core.store import (
    Added,
    Check,
    Deleted,
    Deletion,
    Granted,
    LeaseRequest,
    Page,
    Release,
    Renewal,
    Renewed,
    Ticket,
)
from queue_core.stores.local_signals import LocalSignals
from queue_core.stores.memory_queue import MemoryQueue
from queue_core.task import UNTAGGED, NewTask, QueueSpec, TagFilter, Task, TaskState, lease_of, parse_token

HEAD = 1000  # etas of the ready queue that are read for `waiting`

NameOutcome = Literal["deleted", "unknown", "tombstoned"]
_MOVED_BY_TIME = (TaskState.DELAYED, TaskState.LEASED)


class MemoryStore:
    """A `Store` and its own `Transaction`: one lock, nothing kept when the process ends."""

    url = "memory:"
    durability: Literal["strict", "relaxed"] = "relaxed"

    def __init__(self) -> None:
        self.signals = LocalSignals()
        self._lock = RLock()
        self._queues: dict[str, MemoryQueue] = {}
        self._last_id = 0
        self._seen: dict[str, Instant] = {}
        self._retired: set[str] = set()
        self._leads: dict[str, tuple[str, Instant]] = {}

    @contextmanager
    def begin(self) -> Iterator["MemoryStore"]:
        """See `Store.begin`. Verbs raise before they write, so there is nothing to roll back."""
        with self._lock:
            yield self

    @contextmanager
    def read(self) -> Iterator["MemoryStore"]:
        """See `Store.read`."""
        with self._lock:
            yield self

    def ticket(self) -> Ticket:
        """See `Store.ticket`."""
        return Ticket(0)

    def sync(self, ticket: Ticket) -> None:
        """Memory is as durable as it will ever be."""

    def check(self) -> Check:
        """See `Store.check`; there are no counters apart from the tasks that could disagree."""
        return Check((), sum(len(queue.tasks) for queue in self._queues.values()))

    def close(self) -> None:
        """Nothing to close."""

    # -- queues ---------------------------------------------------------------------------------------------------

    def put_queue(self, spec: QueueSpec, *, now: Instant) -> bool:  # noqa: ARG002 - the protocol's
        known = self._queues.get(spec.name)
        if known is None:
            self._queues[spec.name] = MemoryQueue(replace(spec, paused=False))
            return True
        known.spec = replace(spec, paused=known.spec.paused)
        return False

    def queue(self, name: str) -> QueueSpec:
        return self._of(name).spec

    def queues(self) -> list[QueueSpec]:
        return [self._queues[name].spec for name in sorted(self._queues)]

    def delete_queue(self, name: str) -> int:
        count = len(self._of(name).tasks)
        del self._queues[name]
        return count

    def set_paused(self, queue: str, paused: Literal["paused", "running"]) -> bool:
        held = self._of(queue)
        changed = held.spec.paused != (paused == "paused")
        held.spec = replace(held.spec, paused=paused == "paused")
        return changed

    # -- producers ------------------------------------------------------------------------------------------------

    def add(self, queue: str, tasks: Sequence[NewTask], *, now: Instant) -> list[Added]:
        self._of(queue)
        self._check_adds(queue, tasks, now=now)
        return [self._add_one(self._of(new.queue or queue), new, now=now) for new in tasks]

    def _check_adds(self, queue: str, tasks: Sequence[NewTask], *, now: Instant) -> None:
        for new in tasks:
            self._of(new.queue or queue)
            semantics.effective_eta(new, now=now)

    def _add_one(self, held: MemoryQueue, new: NewTask, *, now: Instant) -> Added:
        added = held.add(new, task_id=self._last_id + 1, now=now)
        self._last_id += added.status == "added"
        return added

    # -- workers --------------------------------------------------------------------------------------------------

    def lease(self, queue: str, request: LeaseRequest, *, now: Instant) -> Granted:
        held = self._of(queue)
        if request.worker in self._retired:
            raise WorkerRetiredError(f"worker {request.worker} was retired: finish and exit")
        _check_lease_time(held.spec, request.seconds)
        if request.worker:
            self._seen.setdefault(request.worker, now)
        expired = held.settle(now=now)
        if held.spec.paused:
            return Granted((), tuple(expired))
        granted = []
        for task in held.ready(request.tags)[: request.count]:
            leased = semantics.lease(task, worker=request.worker, seconds=request.seconds, now=now)
            held.tasks[task.id] = leased
            held.count(task.tag, "leased")
            granted.append(lease_of(leased))
        return Granted(tuple(granted), tuple(expired))

    def renew(self, queue: str, renewals: Sequence[Renewal], *, now: Instant) -> list[Renewed | None]:
        held = self._of(queue)
        tasks = [held.current(renewal.token, now=now) for renewal in renewals]
        for task, renewal in zip(tasks, renewals, strict=True):
            if task is not None:
                _check_lease_time(held.spec, (after(now, renewal.seconds) - task.leased_at) / 1_000_000)
        outcomes: list[Renewed | None] = []
        for task, renewal in zip(tasks, renewals, strict=True):
            if task is None:
                outcomes.append(None)
                continue
            renewed = semantics.renew(held.tasks[task.id], seconds=renewal.seconds, now=now)
            held.tasks[task.id] = renewed
            outcomes.append(
                Renewed(renewal.token, renewed.shown_name, renewed.tag, renewed.worker, renewed.leases, renewed.eta)
            )
        return outcomes

    def release(self, queue: str, releases: Sequence[Release], *, now: Instant) -> list[FinishedLease | None]:
        held = self._of(queue)
        for release in releases:
            parse_token(release.token)
        return [self._release_one(held, release, now=now) for release in releases]

    def _release_one(self, held: MemoryQueue, release: Release, *, now: Instant) -> FinishedLease | None:
        task = held.current(release.token, now=now)
        if task is None:
            return None
        ending = semantics.release_as_asked(
            task,
            held.spec,
            asked_seconds=release.delay_seconds,
            charge=release.charge,
            dead_reason=release.dead_reason,
            jitter=release.jitter,
            now=now,
        )
        return held.end(task, ending)

    def delete(self, queue: str, deletions: Sequence[Deletion], *, now: Instant) -> list[Deleted | None]:
        held = self._of(queue)
        for deletion in deletions:
            parse_token(deletion.token)
            self._check_adds(queue, deletion.then, now=now)
        outcomes: list[Deleted | None] = []
        for deletion in deletions:
            task = held.current(deletion.token, now=now)
            if task is None:
                outcomes.append(None)
                continue
            finished = held.end(task, semantics.delete(task, now=now))
            then = [self._add_one(self._of(new.queue or queue), new, now=now) for new in deletion.then]
            outcomes.append(Deleted(finished, tuple(then)))
        return outcomes

    def delete_by_name(self, queue: str, names: Sequence[str], *, now: Instant) -> list[NameOutcome]:
        held = self._of(queue)
        held.settle(now=now)
        return [self._delete_named(held, name, now=now) for name in names]

    def _delete_named(self, held: MemoryQueue, name: str, *, now: Instant) -> NameOutcome:
        task = held.named(name)
        if task is None:
            return "tombstoned" if held.tombstones.get(name, now) > now else "unknown"
        if task.state is TaskState.LEASED:
            held.end(task, semantics.delete(task, now=now))
        else:
            held.drop(task, at=now)
            held.count(task.tag, "deleted")
        return "deleted"

    # -- administrators -------------------------------------------------------------------------------------------

    def purge(self, queue: str, tags: TagFilter, *, limit: int, now: Instant) -> int:
        return self._purge(queue, tags, frozenset(TaskState) - {TaskState.DEAD}, limit=limit, now=now)

    def purge_dead(self, queue: str, tags: TagFilter, *, limit: int, now: Instant) -> int:
        return self._purge(queue, tags, frozenset({TaskState.DEAD}), limit=limit, now=now)

    def _purge(self, queue: str, tags: TagFilter, states: frozenset[TaskState], *, limit: int, now: Instant) -> int:
        held = self._of(queue)
        held.settle(now=now)
        doomed = [task for task in held.tasks.values() if task.state in states and tags.accepts(task.tag)][:limit]
        for task in doomed:
            held.drop(task, at=now)
        return len(doomed)

    def redrive(
        self, queue: str, names: Sequence[str] | None, tags: TagFilter, *, limit: int, now: Instant
    ) -> list[Task]:
        held = self._of(queue)
        held.settle(now=now)
        if names is None:
            chosen: Iterable[Task | None] = [task for task in held.tasks.values() if tags.accepts(task.tag)]
        else:
            chosen = [held.named(name) for name in dict.fromkeys(names)]
        dead = [task for task in chosen if task is not None and task.state is TaskState.DEAD][:limit]
        redriven = [semantics.redrive(task, now=now) for task in dead]
        held.tasks.update({task.id: task for task in redriven})
        return redriven

    def settle(self, queue: str, *, limit: int, now: Instant) -> tuple[list[FinishedLease], bool]:  # noqa: ARG002
        return self._of(queue).settle(now=now), False

    # -- looking --------------------------------------------------------------------------------------------------

    def peek(
        self,
        queue: str,
        tags: TagFilter,
        states: frozenset[TaskState],
        *,
        names: Sequence[str] | None = None,
        after: int = 0,
        limit: int,
        payload_bytes: int,
        now: Instant,
    ) -> Page:
        held = self._of(queue)
        shown = [
            replace(task, payload=task.payload[:payload_bytes])
            for task in held.settled(now=now)
            if task.id > after
            and task.state in states
            and tags.accepts(task.tag)
            and (names is None or task.shown_name in names)
        ]
        shown.sort(key=lambda task: task.id)
        return Page(tuple(shown[:limit]), shown[limit - 1].id if len(shown) > limit else None)

    def stats(self, queue: str, tags: TagFilter, *, now: Instant) -> QueueStats:
        return self._of(queue).stats(tags, now=now)

    def tag_stats(self, queue: str, *, after: str | None, limit: int, now: Instant) -> list[TagStats]:
        held = self._of(queue)
        tags = sorted({tag for tag in held.totals if tag is not None and (after is None or tag > after)})
        listed: list[str | None] = [None] if after is None and None in held.totals else []
        return [
            TagStats(tag, held.stats(UNTAGGED if tag is None else TagFilter.of(tag), now=now))
            for tag in (*listed, *tags)[:limit]
        ]

    def waiting(self, queue: str, tags: TagFilter, *, now: Instant) -> tuple[WaitingTask, ...]:
        held = self._of(queue)
        held.settle(now=now)
        etas = [task.eta for task in held.ready(tags)]
        return spread(etas[:HEAD], ready=len(etas), newest=etas[-1]) if etas else ()

    def samples(self, queue: str, *, after: int, limit: int) -> Samples:
        return self._of(queue).samples_after(after, limit=limit)

    def live_leases(self, queue: str, *, limit: int, now: Instant) -> list[LiveLease]:
        leased = [task for task in self._of(queue).tasks.values() if task.state is TaskState.LEASED and task.eta > now]
        leased.sort(key=lambda task: (task.eta, task.id))
        return [
            LiveLease(task.shown_name, task.tag, task.worker, task.leases, task.leased_at, task.eta, task.ready_at)
            for task in leased[:limit]
        ]

    def next_eta(self, queue: str, *, now: Instant) -> Instant | None:  # noqa: ARG002 - the protocol's
        return min((task.eta for task in self._of(queue).tasks.values() if task.state in _MOVED_BY_TIME), default=None)

    # -- supervisors ----------------------------------------------------------------------------------------------

    def workers_seen(self, workers: Sequence[str]) -> dict[str, Instant]:
        return {worker: self._seen[worker] for worker in workers if worker in self._seen}

    def retire_worker(self, worker: str, *, now: Instant) -> bool:
        if any(task.eta > now for held in self._queues.values() for task in held.leased_by(worker)):
            return False
        self._retired.add(worker)
        return True

    def release_worker(self, worker: str, *, now: Instant) -> list[FinishedLease]:
        self._retired.add(worker)
        released = []
        for held in self._queues.values():
            held.settle(now=now)
            for task in held.leased_by(worker):
                ending = semantics.release(task, held.spec, delay_seconds=None, now=now)
                released.append(held.end(task, ending))
        return released

    def lead(self, name: str, holder: str, *, seconds: float, now: Instant) -> bool:
        leader, until = self._leads.get(name, (holder, now))
        if leader != holder and until > now:
            return False
        self._leads[name] = (holder, after(now, seconds))
        return True

    def _of(self, name: str) -> MemoryQueue:
        held = self._queues.get(name)
        if held is None:
            known = ", ".join(sorted(self._queues)[:5]) or "none yet"
            raise UnknownQueueError(f"no queue {name!r}; queues: {known}")
        return held


def _check_lease_time(spec: QueueSpec, seconds: float) -> None:
    if seconds > spec.max_lease_seconds:
        raise InvalidLeaseTimeError(
            f"a lease of {spec.name} may last at most max_lease, {spec.max_lease_seconds} s: {seconds}"
        )

"""The verbs of the reference store: the semantics over dicts, without indexes or counters: a verb scans all tasks."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from queue_core import semantics
from queue_core.clock import Instant, after, seconds_between
from queue_core.errors import StoreUnavailableError, UnknownQueueError, WorkerRetiredError
from queue_core.stats import (
    FinishedLease,
    History,
    LiveLease,
    QueueStats,
    Samples,
    TagStats,
    WaitingTask,
)
from queue_core.store import Kept
from queue_core.stores.memory.memory_queue import MemoryQueue
from queue_core.task import Lease, NewTask, QueueSpec, StoredTask, TagFilter, TaskState, lease_of, parse_token
from queue_core.verbs import (
    Added,
    Busy,
    CallVerb,
    ClientCall,
    Deleted,
    Deletion,
    Granted,
    HeldName,
    LeaseRequest,
    Page,
    Release,
    Renewal,
    Renewed,
    Storage,
    too_old,
)
from queue_core.verbs.change_verbs import ChangeVerbs, HeldTasks, Outcome, Selector
from queue_core.verbs.validation import check_lease_time, check_not_moved, check_renewed_time

MAX_SESSIONS = 20_000
"""Client sessions whose last answer is kept."""
MAX_ANSWER_BYTES = 64 << 20
"""Bytes of all those answers, with their overhead; the oldest are forgotten first."""
ANSWER_OVERHEAD_BYTES = 300
MAX_SEEN_WORKERS = 100_000
"""Workers whose first lease call is known; the one that was first seen longest ago is forgotten first."""


class MemoryTransaction(ChangeVerbs[StoredTask]):
    """See `Transaction`. A verb that raises has written nothing."""

    def __init__(self) -> None:
        self._queues: dict[str, MemoryQueue] = {}
        self._storage_limit: int | None = None
        self._last_id = 0
        self._seen: dict[str, Instant] = {}
        self._retired: set[str] = set()
        self._leads: dict[str, tuple[str, Instant]] = {}
        self._answers: dict[str, tuple[int, bytes]] = {}
        self._answered_at: dict[str, Instant] = {}
        self._forgotten_at: Instant | None = None
        """When the last of the answers was kept that had to be forgotten, as there were too many."""
        self._answer_bytes = 0
        self._kept_always: dict[str, tuple[int, bytes]] = {}

    def bring_forward(self, *, until: Instant, now: Instant) -> None:
        """Make tasks due that are delayed to an eta that the wall clock has reached, `until`."""
        for queue in self._queues.values():
            queue.bring_forward(until=until, now=now)
            queue.update_lanes(now=now)

    # -- queues ---------------------------------------------------------------------------------------------------

    def put_queue(self, spec: QueueSpec, *, now: Instant) -> bool:
        known = self._queues.get(spec.name)
        if known is None:
            self._queues[spec.name] = MemoryQueue(replace(spec, paused=False, moved_to=""))
            return True
        known.replace_settings(spec, now=now)
        return False

    def queue(self, name: str) -> QueueSpec:
        return self._contents(name).spec

    def queues(self) -> list[QueueSpec]:
        return [self._queues[name].spec for name in sorted(self._queues)]

    def delete_queue(self, name: str) -> int:
        count = len(self._contents(name).tasks)
        del self._queues[name]
        return count

    def set_paused(self, queue: str, paused: Literal["paused", "running"]) -> bool:
        contents = self._contents(queue)
        changed = contents.spec.paused != (paused == "paused")
        contents.spec = replace(contents.spec, paused=paused == "paused")
        return changed

    def set_storage_limit(self, limit_bytes: int | None) -> None:
        self._storage_limit = limit_bytes

    def storage(self) -> Storage:
        if self._storage_limit is None:
            return Storage()
        payloads = (task.payload for contents in self._queues.values() for task in contents.tasks.values())
        return Storage(self._storage_limit, sum(map(len, payloads)))

    def set_moved(self, queue: str, to: str) -> None:
        contents = self._contents(queue)
        contents.spec = replace(contents.spec, moved_to=to)

    def _contents(self, name: str) -> MemoryQueue:
        contents = self._queues.get(name)
        if contents is None:
            raise UnknownQueueError.among(name, sorted(self._queues)[:5])
        return contents

    def _open(self, name: str) -> MemoryQueue:
        contents = self._contents(name)
        check_not_moved(contents.spec)
        return contents

    # -- producers ------------------------------------------------------------------------------------------------

    def add(self, queue: str, tasks: Sequence[NewTask], *, now: Instant) -> list[Added]:
        self._open(queue)
        self._check_adds(queue, tasks, now=now)
        added = [self._add_one(self._contents(new.queue or queue), new, now=now) for new in tasks]
        self._update_lanes(now=now)
        return added

    def _update_lanes(self, *, now: Instant) -> None:
        for contents in self._queues.values():
            contents.update_lanes(now=now)

    def _check_adds(self, queue: str, tasks: Sequence[NewTask], *, now: Instant) -> None:
        for new in tasks:
            self._open(new.queue or queue)
            semantics.effective_eta(new, now=now)

    def _add_one(self, contents: MemoryQueue, new: NewTask, *, now: Instant) -> Added:
        added = contents.add(new, task_id=self._last_id + 1, now=now)
        self._last_id += added.status == "added"
        return added

    # -- workers --------------------------------------------------------------------------------------------------

    def lease(self, queue: str, request: LeaseRequest, *, now: Instant) -> Granted:
        contents = self._open(queue)
        seconds = self._admit(contents, request.worker, request.seconds, now=now)
        expired = contents.expire(now=now)
        if contents.spec.paused:
            return Granted((), tuple(expired))
        granted = []
        ready = contents.choose(request.tags, request.count, now=now)
        if request.allowance is not None and len(ready) > request.allowance.least:
            sizes = [semantics.size_of(len(task.payload), task.tag, task.name) for task in ready]
            ready = ready[: request.allowance.fitting(sizes)]
        for task in ready:
            leased = semantics.lease(task, worker=request.worker, seconds=seconds, now=now)
            contents.take(task, leased, now=now)
            granted.append(lease_of(leased))
        contents.update_lanes(now=now)
        return Granted(tuple(granted), tuple(expired))

    def _admit(self, contents: MemoryQueue, worker: str, requested_seconds: float | None, *, now: Instant) -> float:
        """Record a worker's first lease call, and return the length of its lease."""
        if worker in self._retired:
            raise WorkerRetiredError(f"worker {worker} was retired: finish and exit")
        seconds = contents.spec.lease_seconds if requested_seconds is None else requested_seconds
        check_lease_time(contents.spec, seconds)
        if worker and worker not in self._seen:
            self._seen[worker] = now
            if len(self._seen) > MAX_SEEN_WORKERS:
                del self._seen[next(iter(self._seen))]
        return seconds

    def renew(self, queue: str, renewals: Sequence[Renewal], *, now: Instant) -> list[Renewed | None]:
        contents = self._open(queue)
        tasks = [contents.current(renewal.token, now=now) for renewal in renewals]
        lengths = [contents.spec.lease_seconds if renewal.seconds is None else renewal.seconds for renewal in renewals]
        for task, seconds in zip(tasks, lengths, strict=True):
            if task is not None:
                check_renewed_time(contents.spec, seconds_between(task.leased_at, after(now, seconds)))
        outcomes: list[Renewed | None] = []
        for task, renewal, seconds in zip(tasks, renewals, lengths, strict=True):
            if task is None:
                outcomes.append(None)
                continue
            renewed = semantics.renew(
                contents.tasks[task.id],
                seconds=seconds,
                now=now,
                progress=renewal.progress,
                checkpoint=renewal.checkpoint,
            )
            contents.tasks[task.id] = renewed
            outcomes.append(
                Renewed(renewal.token, renewed.shown_name, renewed.tag, renewed.worker, renewed.leases, renewed.eta)
            )
        return outcomes

    def release(self, queue: str, releases: Sequence[Release], *, now: Instant) -> list[FinishedLease | None]:
        contents = self._open(queue)
        for release in releases:
            parse_token(release.token)
        outcomes = [self._release_one(contents, release, now=now) for release in releases]
        contents.update_lanes(now=now)
        return outcomes

    def _release_one(self, contents: MemoryQueue, release: Release, *, now: Instant) -> FinishedLease | None:
        task = contents.current(release.token, now=now)
        if task is None:
            return None
        ending = semantics.release_as_requested(
            task,
            contents.spec,
            requested_seconds=release.delay_seconds,
            charge=release.charge,
            dead_reason=release.dead_reason,
            jitter=release.jitter,
            now=now,
            failure=release.failure,
        )
        return contents.end(task, ending)

    def delete(self, queue: str, deletions: Sequence[Deletion], *, now: Instant) -> list[Deleted | None]:
        contents = self._open(queue)
        for deletion in deletions:
            parse_token(deletion.token)
            self._check_adds(queue, deletion.then, now=now)
        outcomes: list[Deleted | None] = []
        for deletion in deletions:
            task = contents.current(deletion.token, now=now)
            if task is None:
                outcomes.append(None)
                continue
            finished = contents.end(task, semantics.delete(task, now=now))
            then = [self._add_one(self._contents(new.queue or queue), new, now=now) for new in deletion.then]
            outcomes.append(Deleted(finished, tuple(then)))
        self._update_lanes(now=now)
        return outcomes

    def exchange(
        self, queue: str, deletions: Sequence[Deletion], request: LeaseRequest, *, now: Instant
    ) -> tuple[list[Deleted | None], Granted]:
        if request.seconds is not None:
            check_lease_time(self._open(queue).spec, request.seconds)
        outcomes = self.delete(queue, deletions, now=now)
        try:
            return outcomes, self.lease(queue, request, now=now)
        except WorkerRetiredError:
            return outcomes, Granted((), refused=True)

    # -- administrators -------------------------------------------------------------------------------------------

    def hold(self, queue: str, selector: Selector, *, now: Instant) -> HeldTasks[StoredTask]:
        return self._open(queue).hold(selector, now=now)

    def change(self, queue: str, changes: Sequence[tuple[StoredTask, Outcome]], *, now: Instant) -> bool:
        contents = self._open(queue)
        for before, outcome in changes:
            contents.change(before, outcome, now=now)
        contents.update_lanes(now=now)
        return True

    def taken_names(self, queue: str, names: Sequence[str], *, now: Instant) -> set[str]:
        tombstones = self._contents(queue).tombstones
        return {name for name in names if tombstones.get(name, now) > now}

    def fence_worker(self, worker: str, *, now: Instant) -> list[str]:
        self._retired.add(worker)
        return [
            name
            for name, contents in self._queues.items()
            if not contents.spec.moved_to and any(task.eta > now for task in contents.leased_by(worker))
        ]

    def lease_delayed(
        self, queue: str, task_id: int, *, expected: Instant, worker: str, seconds: float | None, now: Instant
    ) -> Lease | None:
        contents = self._open(queue)
        lease_seconds = self._admit(contents, worker, seconds, now=now)
        task = contents.tasks.get(task_id)
        if task is None or not semantics.is_delayed_until(task, expected, now=now):
            return None
        if not contents.has_room_for(task, now=now):
            return None
        leased = semantics.lease_delayed(task, worker=worker, seconds=lease_seconds, now=now)
        contents.take(task, leased, now=now)
        contents.update_lanes(now=now)
        return lease_of(leased)

    def expire(self, queue: str, *, limit: int, now: Instant) -> tuple[list[FinishedLease], bool]:  # noqa: ARG002
        return self._open(queue).expire(now=now), False

    # -- reads ------------------------------------------------------------------------------------------------------

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
        return self._contents(queue).peek(
            tags, states, names=names, after=after, limit=limit, payload_bytes=payload_bytes, now=now
        )

    def stats(self, queue: str, tags: TagFilter, *, now: Instant) -> QueueStats:
        return self._contents(queue).stats(tags, now=now)

    def tag_stats(self, queue: str, *, after: str | None, limit: int, now: Instant) -> list[TagStats]:
        return self._contents(queue).tag_stats(after=after, limit=limit, now=now)

    def waiting(self, queue: str, tags: TagFilter, *, now: Instant) -> tuple[WaitingTask, ...]:
        return self._contents(queue).waiting(tags, now=now)

    def upcoming(self, queue: str, tags: TagFilter, *, until: Instant, limit: int, now: Instant) -> list[Instant]:
        return self._contents(queue).upcoming(tags, until=until, limit=limit, now=now)

    def samples(self, queue: str, *, after: int, limit: int) -> Samples:
        return self._contents(queue).samples_after(after, limit=limit)

    def history(
        self,
        queue: str,
        *,
        names: Sequence[str] | None = None,
        before: int | None = None,
        limit: int,
        now: Instant,
    ) -> History:
        return self._contents(queue).history(names=names, before=before, limit=limit, now=now)

    def live_leases(self, queue: str, *, limit: int, now: Instant) -> list[LiveLease]:
        return self._contents(queue).live_leases(limit=limit, now=now)

    def next_eta(self, queue: str, *, now: Instant) -> Instant | None:
        return self._contents(queue).next_eta(now=now)

    def admitted(self) -> list[tuple[str, str | None, int]]:
        found = [(name, *each) for name, contents in self._queues.items() for each in contents.admitted]
        for contents in self._queues.values():
            contents.admitted.clear()
        return found

    # -- supervisors ----------------------------------------------------------------------------------------------

    def workers_seen(self, workers: Sequence[str]) -> dict[str, Instant]:
        return {worker: self._seen[worker] for worker in workers if worker in self._seen}

    def retire_worker(self, worker: str, *, busy: Busy = "keep", now: Instant) -> bool:
        is_busy = any(task.eta > now for contents in self._queues.values() for task in contents.leased_by(worker))
        if not is_busy or busy == "finish":
            self._retired.add(worker)
        return not is_busy

    def lead(self, name: str, holder: str, *, seconds: float, now: Instant) -> bool:
        leader, until = self._leads.get(name, (holder, now))
        if leader != holder and until > now:
            return False
        self._leads[name] = (holder, after(now, seconds))
        return True

    # -- transfer ---------------------------------------------------------------------------------------------------

    def restore(self, queue: str, tasks: Sequence[StoredTask], *, now: Instant) -> list[Added]:
        contents = self._contents(queue)
        outcomes = []
        for task in tasks:
            added = contents.restore(task, task_id=self._last_id + 1, now=now)
            self._last_id += added.status == "added"
            outcomes.append(added)
        contents.update_lanes(now=now)
        return outcomes

    def held_names(self, queue: str, *, after: str | None, limit: int, now: Instant) -> list[HeldName]:
        return self._contents(queue).held_names(after=after, limit=limit, now=now)

    def hold_names(self, queue: str, names: Sequence[HeldName], *, now: Instant) -> None:
        contents = self._contents(queue)
        for name in names:
            contents.hold_name(name, now=now)

    # -- idempotency ------------------------------------------------------------------------------------------------

    def once_for_call(self, call: ClientCall, verb: CallVerb) -> None:  # noqa: ARG002 - the protocol's
        return None

    def answer_of(self, call: ClientCall, *, now: Instant) -> bytes | None:
        last = self._answers.get(call.session)
        if last is None and call.is_repeat:
            self.check_kept(call, now=now)
        return call.answer_in(last)

    def check_kept(self, call: ClientCall, *, now: Instant) -> None:
        is_forgotten = self._forgotten_at is not None and self._forgotten_at >= after(now, -call.age_seconds)
        if call.age_seconds and is_forgotten:
            raise too_old(call)

    def record_answer(self, call: ClientCall, answer: bytes, *, now: Instant) -> None:
        self.keep_answer(call.session, call.number, call.kept(answer), now=now)

    def last_answer(self, session: str) -> tuple[int, bytes] | None:
        return self._kept_always.get(session) or self._answers.get(session)

    def keep_answer(
        self,
        session: str,
        number: int,
        answer: bytes,
        *,
        now: Instant,
        kept: Kept = "days",
    ) -> None:
        last = self.last_answer(session)
        if last is not None and last[0] >= number:
            raise StoreUnavailableError(f"call {number} of session {session!r} came late: {last[0]} was answered")
        self._forget_answer(session)
        if kept == "always":
            self._kept_always[session] = (number, answer)
            return
        self._answers[session] = (number, answer)
        self._answered_at[session] = now
        self._answer_bytes += len(answer) + ANSWER_OVERHEAD_BYTES
        while len(self._answers) > MAX_SESSIONS or self._answer_bytes > MAX_ANSWER_BYTES:
            self._forgotten_at = self._forget_answer(next(iter(self._answers)))

    def _forget_answer(self, session: str) -> Instant | None:
        forgotten = self._answers.pop(session, None)
        if forgotten is not None:
            self._answer_bytes -= len(forgotten[1]) + ANSWER_OVERHEAD_BYTES
        return self._answered_at.pop(session, None)

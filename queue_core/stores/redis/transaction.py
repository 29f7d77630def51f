"""The `Transaction` protocol over calls of Redis functions; each verb is implemented in a module of this package."""

from collections.abc import Sequence
from typing import Literal

from queue_core.clock import Instant
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
from queue_core.stores.redis import adds, admin, change, leases, reads, transfer
from queue_core.stores.redis import workers as worker_verbs
from queue_core.stores.redis.calls import Calls
from queue_core.task import Lease, NewTask, QueueSpec, StoredTask, TagFilter, TaskState
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
    PeekQuery,
    Release,
    Renewal,
    Renewed,
    Storage,
    too_old,
)
from queue_core.verbs.change_verbs import ChangeVerbs, HeldTasks, Outcome, Selector


class RedisTransaction(ChangeVerbs[bytes]):
    """See `Transaction`. Each verb is atomic and is done when it returns; a later failure does not undo it.

    Stateless, so one object serves all threads.
    """

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    # -- queues ---------------------------------------------------------------------------------------------------

    def put_queue(self, spec: QueueSpec, *, now: Instant) -> bool:
        return admin.put_queue(self._calls, spec, now=now)

    def queue(self, name: str) -> QueueSpec:
        return admin.queue(self._calls, name)

    def queues(self) -> list[QueueSpec]:
        return admin.queues(self._calls)

    def delete_queue(self, name: str) -> int:
        return admin.delete_queue(self._calls, name)

    def set_paused(self, queue: str, paused: Literal["paused", "running"]) -> bool:
        return admin.set_paused(self._calls, queue, paused)

    def set_storage_limit(self, limit_bytes: int | None) -> None:
        admin.set_storage_limit(self._calls, limit_bytes)

    def storage(self) -> Storage:
        return admin.storage(self._calls)

    # -- producers and workers ------------------------------------------------------------------------------------

    def add(self, queue: str, tasks: Sequence[NewTask], *, now: Instant) -> list[Added]:
        return adds.add(self._calls, queue, tasks, now=now)

    def lease(self, queue: str, request: LeaseRequest, *, now: Instant) -> Granted:
        return leases.lease(self._calls, queue, request, now=now)

    def renew(self, queue: str, renewals: Sequence[Renewal], *, now: Instant) -> list[Renewed | None]:
        return leases.renew(self._calls, queue, renewals, now=now)

    def release(self, queue: str, releases: Sequence[Release], *, now: Instant) -> list[FinishedLease | None]:
        return leases.release(self._calls, queue, releases, now=now)

    def delete(self, queue: str, deletions: Sequence[Deletion], *, now: Instant) -> list[Deleted | None]:
        return leases.delete(self._calls, queue, deletions, now=now)

    def exchange(
        self, queue: str, deletions: Sequence[Deletion], request: LeaseRequest, *, now: Instant
    ) -> tuple[list[Deleted | None], Granted]:
        return leases.exchange(self._calls, queue, deletions, request, now=now)

    def expire(self, queue: str, *, limit: int, now: Instant) -> tuple[list[FinishedLease], bool]:
        return leases.expire(self._calls, queue, limit=limit, now=now)

    # -- administrators -------------------------------------------------------------------------------------------

    def hold(self, queue: str, selector: Selector, *, now: Instant) -> HeldTasks[bytes]:
        return change.hold(self._calls, queue, selector, now=now)

    def change(self, queue: str, changes: Sequence[tuple[bytes, Outcome]], *, now: Instant) -> bool:
        return change.change(self._calls, queue, changes, now=now)

    def taken_names(self, queue: str, names: Sequence[str], *, now: Instant) -> set[str]:
        return change.taken_names(self._calls, queue, names, now=now)

    @property
    def keeps_answers(self) -> bool:
        return self._calls.is_repeatable

    def lease_delayed(
        self, queue: str, task_id: int, *, expected: Instant, worker: str, seconds: float | None, now: Instant
    ) -> Lease | None:
        return leases.lease_delayed(
            self._calls, queue, task_id, expected=expected, worker=worker, seconds=seconds, now=now
        )

    # -- reads ----------------------------------------------------------------------------------------------------

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
        query = PeekQuery(tags, states, names, after, limit, payload_bytes, now)
        return reads.peek(self._calls, queue, query)

    def stats(self, queue: str, tags: TagFilter, *, now: Instant) -> QueueStats:
        return reads.stats(self._calls, queue, tags, now=now)

    def tag_stats(self, queue: str, *, after: str | None, limit: int, now: Instant) -> list[TagStats]:
        return reads.tag_stats(self._calls, queue, after=after, limit=limit, now=now)

    def waiting(self, queue: str, tags: TagFilter, *, now: Instant) -> tuple[WaitingTask, ...]:
        return reads.waiting(self._calls, queue, tags, now=now)

    def upcoming(self, queue: str, tags: TagFilter, *, until: Instant, limit: int, now: Instant) -> list[Instant]:
        return reads.upcoming(self._calls, queue, tags, until=until, limit=limit, now=now)

    def samples(self, queue: str, *, after: int, limit: int) -> Samples:
        return reads.samples(self._calls, queue, after=after, limit=limit)

    def history(
        self,
        queue: str,
        *,
        names: Sequence[str] | None = None,
        before: int | None = None,
        limit: int,
        now: Instant,
    ) -> History:
        return reads.history(self._calls, queue, names=names, before=before, limit=limit, now=now)

    def live_leases(self, queue: str, *, limit: int, now: Instant) -> list[LiveLease]:
        return reads.live_leases(self._calls, queue, limit=limit, now=now)

    def admitted(self) -> Sequence[tuple[str, str | None, int]]:
        return self._calls.take_admitted()

    def next_eta(self, queue: str, *, now: Instant) -> Instant | None:
        return reads.next_eta(self._calls, queue, now=now)

    # -- supervisors ----------------------------------------------------------------------------------------------

    def workers_seen(self, workers: Sequence[str]) -> dict[str, Instant]:
        return worker_verbs.workers_seen(self._calls, workers)

    def retire_worker(self, worker: str, *, busy: Busy = "keep", now: Instant) -> bool:
        return worker_verbs.retire(self._calls, worker, busy=busy, now=now)

    def fence_worker(self, worker: str, *, now: Instant) -> list[str]:
        return worker_verbs.fence(self._calls, worker, now=now)

    def lead(self, name: str, holder: str, *, seconds: float, now: Instant) -> bool:
        return worker_verbs.lead(self._calls, name, holder, seconds=seconds, now=now)

    # -- transfer and idempotency ---------------------------------------------------------------------------------

    def restore(self, queue: str, tasks: Sequence[StoredTask], *, now: Instant) -> list[Added]:
        return transfer.restore(self._calls, queue, tasks, now=now)

    def held_names(self, queue: str, *, after: str | None, limit: int, now: Instant) -> list[HeldName]:
        return transfer.held_names(self._calls, queue, after=after, limit=limit, now=now)

    def hold_names(self, queue: str, names: Sequence[HeldName], *, now: Instant) -> None:
        transfer.hold_names(self._calls, queue, names, now=now)

    def set_moved(self, queue: str, to: str) -> None:
        admin.set_moved(self._calls, queue, to)

    def once_for_call(self, call: ClientCall, verb: CallVerb) -> "RedisTransaction":  # noqa: ARG002 - all of them
        return RedisTransaction(self._calls.once_for_call(call))

    def close_call(self, queues: Sequence[str]) -> bool:
        """See `CallOnce.close_call`."""
        return self._calls.close_call(queues)

    def keep_renewed(self, tokens: Sequence[str]) -> None:
        """See `CallOnce.keep_renewed`. A repeat finds leases by their tokens, which stay."""

    def answer_of(self, call: ClientCall, *, now: Instant) -> bytes | None:  # noqa: ARG002
        last = self.last_answer(call.session)
        if last is None and call.is_repeat and call.age_seconds > transfer.CALL_KEPT_SECONDS:
            raise too_old(call)
        return call.answer_in(last)

    def record_answer(self, call: ClientCall, answer: bytes, *, now: Instant) -> None:  # noqa: ARG002
        transfer.keep_answer(
            self._calls, call.session, call.number, call.kept(answer), seconds=transfer.CALL_KEPT_SECONDS
        )

    def check_kept(self, call: ClientCall, *, now: Instant) -> None:  # noqa: ARG002 - Redis forgets by its own clock
        transfer.check_kept(call)

    def last_answer(self, session: str) -> tuple[int, bytes] | None:
        return transfer.last_answer(self._calls, session)

    def keep_answer(
        self,
        session: str,
        number: int,
        answer: bytes,
        *,
        now: Instant,  # noqa: ARG002
        kept: Kept = "days",
    ) -> None:
        transfer.keep_answer(self._calls, session, number, answer, kept=kept)

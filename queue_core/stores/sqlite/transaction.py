"""The `Transaction` protocol over one session: each verb calls the module that implements it."""

from collections.abc import Sequence
from typing import Literal, TypeVar

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
from queue_core.stores.sqlite import adds, admin, change, counters, idempotency, lease_ends, leases, reads, transfer
from queue_core.stores.sqlite import workers as worker_verbs
from queue_core.stores.sqlite.driver import Row
from queue_core.stores.sqlite.lanes import updates
from queue_core.stores.sqlite.session import SqliteSession
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
)
from queue_core.verbs.change_verbs import ChangeVerbs, HeldTasks, Outcome, Selector

T = TypeVar("T")

_ALIVE = (TaskState.READY, TaskState.DELAYED, TaskState.LEASED, TaskState.HELD)


class SqliteTransaction(ChangeVerbs[Row]):
    """See `Transaction`."""

    def __init__(self, session: SqliteSession) -> None:
        self._session = session

    @property
    def _flushed(self) -> SqliteSession:
        """The session with all staged adds flushed; for all verbs but `add`."""
        session = self._session
        if session.staged_rows or session.staged:
            adds.flush(session)
        return session

    def _session_at(self, now: Instant) -> SqliteSession:
        """The same, at an instant."""
        session = self._session
        session.now = now
        if session.staged_rows or session.staged:
            adds.flush(session)
        return session

    def _updated(self, outcome: T, now: Instant) -> T:
        """Update the lanes of limited queues whose tasks a verb changed, and return its outcome."""
        if self._session.counts.changed:
            updates.update(self._session, now=now)
        return outcome

    def flush(self) -> None:
        """Move all staged adds to the tasks (ADR 21)."""
        adds.flush(self._session)

    # -- queues ---------------------------------------------------------------------------------------------------

    def put_queue(self, spec: QueueSpec, *, now: Instant) -> bool:
        return admin.put_queue(self._session_at(now), spec, now=now)

    def queue(self, name: str) -> QueueSpec:
        return self._flushed.queue(name).spec

    def queues(self) -> list[QueueSpec]:
        return admin.all_queues(self._flushed)

    def delete_queue(self, name: str) -> int:
        return admin.delete_queue(self._flushed, name)

    def set_paused(self, queue: str, paused: Literal["paused", "running"]) -> bool:
        return admin.set_paused(self._flushed, queue, paused)

    def set_storage_limit(self, limit_bytes: int | None) -> None:
        admin.set_storage_limit(self._flushed, limit_bytes)

    def storage(self) -> Storage:
        return admin.storage(self._session.connection)

    # -- producers and workers ------------------------------------------------------------------------------------

    def add(self, queue: str, tasks: Sequence[NewTask], *, now: Instant) -> list[Added]:
        session = self._session
        session.now = now
        adds.check_adds(session, queue, tasks, now=now)
        if (staged := adds.stage(session, queue, tasks, now=now)) is not None:
            return staged
        return self._updated(adds.add(self._flushed, queue, tasks, now=now), now)

    def lease(self, queue: str, request: LeaseRequest, *, now: Instant) -> Granted:
        session = self._session_at(now)
        if (exchanged := lease_ends.exchange_one(session, queue, (), request, now=now)) is not None:
            return exchanged[1]
        return leases.lease(session, queue, request, now=now)

    def renew(self, queue: str, renewals: Sequence[Renewal], *, now: Instant) -> list[Renewed | None]:
        return lease_ends.renew(self._session_at(now), queue, renewals, now=now)

    def release(self, queue: str, releases: Sequence[Release], *, now: Instant) -> list[FinishedLease | None]:
        return self._updated(lease_ends.release(self._session_at(now), queue, releases, now=now), now)

    def delete(self, queue: str, deletions: Sequence[Deletion], *, now: Instant) -> Sequence[Deleted | None]:
        return self._updated(lease_ends.delete(self._session_at(now), queue, deletions, now=now), now)

    def exchange(
        self, queue: str, deletions: Sequence[Deletion], request: LeaseRequest, *, now: Instant
    ) -> tuple[Sequence[Deleted | None], Granted]:
        session = self._session_at(now)
        if (exchanged := lease_ends.exchange_one(session, queue, deletions, request, now=now)) is not None:
            return exchanged
        return lease_ends.exchange(session, queue, deletions, request, now=now)

    def expire(self, queue: str, *, limit: int, now: Instant) -> tuple[list[FinishedLease], bool]:
        session = self._session_at(now)
        row = session.open_queue(queue)
        expiry = updates.expire(session, row, now=now, limit=limit)
        if row.spec.rate is not None:  # time alone may have made room in the whole queue
            updates.admit_by_room(session, row, limit=updates.MAX_NAMED, now=now)
        return list(expiry.expired), expiry.more_due

    # -- administrators -------------------------------------------------------------------------------------------

    def hold(self, queue: str, selector: Selector, *, now: Instant) -> HeldTasks[Row]:
        return change.hold(self._session_at(now), queue, selector, now=now)

    def change(self, queue: str, changes: Sequence[tuple[Row, Outcome]], *, now: Instant) -> bool:
        return self._updated(change.change(self._session_at(now), queue, changes, now=now), now)

    def taken_names(self, queue: str, names: Sequence[str], *, now: Instant) -> set[str]:
        return change.taken_names(self._session_at(now), queue, names, now=now)

    def lease_delayed(
        self, queue: str, task_id: int, *, expected: Instant, worker: str, seconds: float | None, now: Instant
    ) -> Lease | None:
        return leases.lease_delayed(
            self._session_at(now), queue, task_id, expected=expected, worker=worker, seconds=seconds, now=now
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
        return reads.peek(self._session_at(now), queue, query)

    def stats(self, queue: str, tags: TagFilter, *, now: Instant) -> QueueStats:
        return reads.stats(self._session_at(now), queue, tags, now=now)

    def tag_stats(self, queue: str, *, after: str | None, limit: int, now: Instant) -> list[TagStats]:
        return reads.tag_stats(self._session_at(now), queue, after=after, limit=limit, now=now)

    def waiting(self, queue: str, tags: TagFilter, *, now: Instant) -> tuple[WaitingTask, ...]:
        return reads.waiting(self._session_at(now), queue, tags, now=now)

    def upcoming(self, queue: str, tags: TagFilter, *, until: Instant, limit: int, now: Instant) -> list[Instant]:
        return reads.upcoming(self._session_at(now), queue, tags, until=until, limit=limit, now=now)

    def samples(self, queue: str, *, after: int, limit: int) -> Samples:
        self._flushed.write_samples()
        row = self._flushed.queue(queue)
        return counters.read_samples(self._flushed.connection, queue, row.id, after=after, limit=limit)

    def history(
        self,
        queue: str,
        *,
        names: Sequence[str] | None = None,
        before: int | None = None,
        limit: int,
        now: Instant,
    ) -> History:
        session = self._session_at(now)
        session.write_samples()
        row = session.queue(queue)
        return counters.read_history(
            session.connection, row.id, row.spec, names=names, before=before, limit=limit, now=now
        )

    def live_leases(self, queue: str, *, limit: int, now: Instant) -> list[LiveLease]:
        return reads.live_leases(self._session_at(now), queue, limit=limit, now=now)

    def admitted(self) -> Sequence[tuple[str, str | None, int]]:
        if not self._session.admitted:
            return ()
        admitted, self._session.admitted = self._session.admitted, {}
        return [(*key, count) for key, count in admitted.items()]

    def next_eta(self, queue: str, *, now: Instant) -> Instant | None:
        return reads.next_eta(self._session_at(now), queue, now=now)

    # -- supervisors ----------------------------------------------------------------------------------------------

    def workers_seen(self, workers: Sequence[str]) -> dict[str, Instant]:
        return worker_verbs.seen(self._flushed, workers)

    def retire_worker(self, worker: str, *, busy: Busy = "keep", now: Instant) -> bool:
        return worker_verbs.retire(self._session_at(now), worker, busy=busy, now=now)

    def fence_worker(self, worker: str, *, now: Instant) -> list[str]:
        return worker_verbs.fence(self._session_at(now), worker, now=now)

    def lead(self, name: str, holder: str, *, seconds: float, now: Instant) -> bool:
        return worker_verbs.lead(self._session_at(now), name, holder, seconds=seconds, now=now)

    # -- transfer, idempotency ------------------------------------------------------------------------------------

    def restore(self, queue: str, tasks: Sequence[StoredTask], *, now: Instant) -> list[Added]:
        return self._updated(transfer.restore(self._session_at(now), queue, tasks, now=now), now)

    def held_names(self, queue: str, *, after: str | None, limit: int, now: Instant) -> list[HeldName]:
        return transfer.held_names(self._flushed, queue, after=after, limit=limit, now=now)

    def hold_names(self, queue: str, names: Sequence[HeldName], *, now: Instant) -> None:
        transfer.hold_names(self._session_at(now), queue, names, now=now)

    def set_moved(self, queue: str, to: str) -> None:
        transfer.set_moved(self._flushed, queue, to)

    def once_for_call(self, call: ClientCall, verb: CallVerb) -> None:  # noqa: ARG002 - the protocol's
        return None

    def answer_of(self, call: ClientCall, *, now: Instant) -> bytes | None:
        return idempotency.answer_of(self._session, call, now=now)

    def record_answer(self, call: ClientCall, answer: bytes, *, now: Instant) -> None:
        self._session.now = self._session.now or now  # of a verb that needs no time
        idempotency.record_answer(self._session, call, answer)

    def check_kept(self, call: ClientCall, *, now: Instant) -> None:
        idempotency.check_kept(self._session, call, now=now)

    def last_answer(self, session: str) -> tuple[int, bytes] | None:
        return idempotency.last_answer(self._session, session)

    def keep_answer(self, session: str, number: int, answer: bytes, *, now: Instant, kept: Kept = "days") -> None:
        idempotency.keep_answer(self._session, session, number, answer, now=now, kept=kept)

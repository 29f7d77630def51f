"""The `Transaction` protocol over one session; each verb is implemented in a module of this package."""

from collections.abc import Callable, Sequence
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
from queue_core.stores.postgres import adds, admin, change, leases, queues, reads, transfer
from queue_core.stores.postgres.client.statements import Row
from queue_core.stores.postgres.session import PostgresSession
from queue_core.task import Lease, NewTask, QueueSpec, StoredTask, TagFilter, TaskState, parse_token
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

_ALIVE = (0, 1, 2)
_DEAD = (3,)


class PostgresTransaction(ChangeVerbs[Row]):
    """See `Transaction`."""

    __slots__ = ("_session",)

    def __init__(self, session: PostgresSession) -> None:
        self._session = session

    # -- queues ---------------------------------------------------------------------------------------------------

    def put_queue(self, spec: QueueSpec, *, now: Instant) -> bool:
        return queues.put_queue(self._session, spec, now=now)

    def queue(self, name: str) -> QueueSpec:
        return queues.find(self._session, name)

    def queues(self) -> list[QueueSpec]:
        return queues.all_queues(self._session)

    def delete_queue(self, name: str) -> int:
        return queues.delete_queue(self._session, name)

    def set_paused(self, queue: str, paused: Literal["paused", "running"]) -> bool:
        return queues.set_paused(self._session, queue, paused)

    def set_storage_limit(self, limit_bytes: int | None) -> None:
        queues.set_storage_limit(self._session, limit_bytes)

    def storage(self) -> Storage:
        return queues.storage(self._session)

    # -- producers and workers ------------------------------------------------------------------------------------

    def add(self, queue: str, tasks: Sequence[NewTask], *, now: Instant) -> list[Added]:
        return adds.add(self._session, queue, tasks, now=now)

    def lease(self, queue: str, request: LeaseRequest, *, now: Instant) -> Granted:
        return leases.lease(self._session, queue, request, now=now)

    def renew(self, queue: str, renewals: Sequence[Renewal], *, now: Instant) -> list[Renewed | None]:
        return leases.renew(self._session, queue, renewals, now=now)

    def release(self, queue: str, releases: Sequence[Release], *, now: Instant) -> list[FinishedLease | None]:
        return leases.release(self._session, queue, releases, now=now)

    def delete(self, queue: str, deletions: Sequence[Deletion], *, now: Instant) -> Sequence[Deleted | None]:
        return leases.delete(self._session, queue, deletions, now=now)

    def exchange(
        self, queue: str, deletions: Sequence[Deletion], request: LeaseRequest, *, now: Instant
    ) -> tuple[Sequence[Deleted | None], Granted]:
        return leases.exchange(self._session, queue, deletions, request, now=now)

    def expire(self, queue: str, *, limit: int, now: Instant) -> tuple[list[FinishedLease], bool]:
        return leases.expire(self._session, queue, limit=limit, now=now)

    # -- administrators -------------------------------------------------------------------------------------------

    def hold(self, queue: str, selector: Selector, *, now: Instant) -> HeldTasks[Row]:
        return change.hold(self._session, queue, selector, now=now)

    def change(self, queue: str, changes: Sequence[tuple[Row, Outcome]], *, now: Instant) -> bool:
        return change.change(self._session, queue, changes, now=now)

    def taken_names(self, queue: str, names: Sequence[str], *, now: Instant) -> set[str]:
        return change.taken_names(self._session, queue, names, now=now)

    def lease_delayed(
        self, queue: str, task_id: int, *, expected: Instant, worker: str, seconds: float | None, now: Instant
    ) -> Lease | None:
        return leases.lease_delayed(
            self._session, queue, task_id, expected=expected, worker=worker, seconds=seconds, now=now
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
        return reads.peek(self._session, queue, PeekQuery(tags, states, names, after, limit, payload_bytes, now))

    def stats(self, queue: str, tags: TagFilter, *, now: Instant) -> QueueStats:
        return reads.stats(self._session, queue, tags, now=now)

    def tag_stats(self, queue: str, *, after: str | None, limit: int, now: Instant) -> list[TagStats]:
        return reads.tag_stats(self._session, queue, after=after, limit=limit, now=now)

    def waiting(self, queue: str, tags: TagFilter, *, now: Instant) -> tuple[WaitingTask, ...]:
        return reads.waiting(self._session, queue, tags, now=now)

    def upcoming(self, queue: str, tags: TagFilter, *, until: Instant, limit: int, now: Instant) -> list[Instant]:
        return reads.upcoming(self._session, queue, tags, until=until, limit=limit, now=now)

    def samples(self, queue: str, *, after: int, limit: int) -> Samples:
        return reads.samples(self._session, queue, after=after, limit=limit)

    def history(
        self,
        queue: str,
        *,
        names: Sequence[str] | None = None,
        before: int | None = None,
        limit: int,
        now: Instant,
    ) -> History:
        return reads.history(self._session, queue, names=names, before=before, limit=limit, now=now)

    def live_leases(self, queue: str, *, limit: int, now: Instant) -> list[LiveLease]:
        return reads.live_leases(self._session, queue, limit=limit, now=now)

    def admitted(self) -> Sequence[tuple[str, str | None, int]]:
        return self._session.take_admitted()

    def next_eta(self, queue: str, *, now: Instant) -> Instant | None:
        return reads.next_eta(self._session, queue, now=now)

    # -- supervisors ----------------------------------------------------------------------------------------------

    def workers_seen(self, workers: Sequence[str]) -> dict[str, Instant]:
        return admin.workers_seen(self._session, workers)

    def retire_worker(self, worker: str, *, busy: Busy = "keep", now: Instant) -> bool:
        return admin.retire_worker(self._session, worker, busy=busy, now=now)

    def fence_worker(self, worker: str, *, now: Instant) -> list[str]:
        return change.fence(self._session, worker, now=now)

    def lead(self, name: str, holder: str, *, seconds: float, now: Instant) -> bool:
        return admin.lead(self._session, name, holder, seconds=seconds, now=now)

    # -- transfer -------------------------------------------------------------------------------------------------

    def restore(self, queue: str, tasks: Sequence[StoredTask], *, now: Instant) -> list[Added]:
        return transfer.restore(self._session, queue, tasks, now=now)

    def held_names(self, queue: str, *, after: str | None, limit: int, now: Instant) -> list[HeldName]:
        return transfer.held_names(self._session, queue, after=after, limit=limit, now=now)

    def hold_names(self, queue: str, names: Sequence[HeldName], *, now: Instant) -> None:
        transfer.hold_names(self._session, queue, names, now=now)

    def set_moved(self, queue: str, to: str) -> None:
        queues.set_moved(self._session, queue, to)

    # -- idempotency ----------------------------------------------------------------------------------------------

    def once_for_call(self, call: ClientCall, verb: CallVerb) -> "CallTransaction | None":
        """See `Transaction.once_for_call`. The commit marker costs no further round trip."""
        return None if verb == "other" else CallTransaction(self._session, call)

    def answer_of(self, call: ClientCall, *, now: Instant) -> bytes | None:  # noqa: ARG002
        if not call.is_repeat:
            return None
        last = self.last_answer(call.session)
        if last is None or last[0] < call.number:
            self._session.check_kept(call)
        return call.answer_in(last)

    def record_answer(self, call: ClientCall, answer: bytes, *, now: Instant) -> None:
        self.keep_answer(call.session, call.number, call.kept(answer), now=now)

    def check_kept(self, call: ClientCall, *, now: Instant) -> None:  # noqa: ARG002 - the server's clock decides
        self._session.check_kept(call)

    def last_answer(self, session: str) -> tuple[int, bytes] | None:
        return admin.last_answer(self._session, session)

    def keep_answer(self, session: str, number: int, answer: bytes, *, now: Instant, kept: Kept = "days") -> None:
        admin.keep_answer(self._session, session, number, answer, now=now, kept=kept)


class CallTransaction(PostgresTransaction):
    """The verbs of one call of a client: each leaves the call's commit marker, which shows a repeat (ADR 28)."""

    __slots__ = ("_call",)

    def __init__(self, session: PostgresSession, call: ClientCall) -> None:
        super().__init__(session)
        self._call = call

    def add(self, queue: str, tasks: Sequence[NewTask], *, now: Instant) -> list[Added]:
        return self._marked(lambda: adds.add(self._session, queue, tasks, now=now))

    def lease(self, queue: str, request: LeaseRequest, *, now: Instant) -> Granted:
        return self._lease_marked(lambda: ((), leases.lease(self._session, queue, request, now=now)))[1]

    def delete(self, queue: str, deletions: Sequence[Deletion], *, now: Instant) -> Sequence[Deleted | None]:
        def delete() -> tuple[Sequence[Deleted | None], Granted]:
            return leases.delete(self._session, queue, deletions, now=now), Granted(())

        outcomes = self._marked_with_retry(delete)[0]
        if self._call.is_repeat and not self._session.is_answered and all(outcome is None for outcome in outcomes):
            # Or its first try, held up until now with the time that it began at, would still take effect.
            self._session.leave_marker(self._call, ())
        return outcomes

    def exchange(
        self, queue: str, deletions: Sequence[Deletion], request: LeaseRequest, *, now: Instant
    ) -> tuple[Sequence[Deleted | None], Granted]:
        return self._lease_marked(lambda: leases.exchange(self._session, queue, deletions, request, now=now))

    def close_call(self, queues: Sequence[str]) -> bool:  # noqa: ARG002 - the call has one marker for all of them
        return self._session.close_call(self._call)

    def keep_renewed(self, tokens: Sequence[str]) -> None:
        """See `CallOnce.keep_renewed`. A repeat finds leases by the transaction that wrote them last."""
        self._session.move_marker(self._call, [parse_token(token)[0] for token in tokens])

    def _lease_marked(
        self, verb: Callable[[], tuple[Sequence[Deleted | None], Granted]]
    ) -> tuple[Sequence[Deleted | None], Granted]:
        """Run a verb that leases and leave a marker with its tasks: other calls may lease in the same transaction."""
        session = self._session
        session.defers_marker, session.has_marker = True, False
        try:
            outcomes, granted = self._marked_with_retry(verb)
        finally:
            session.defers_marker = False
        if not session.has_marker and (granted.leases or any(outcome is not None for outcome in outcomes)):
            session.leave_marker(self._call, [parse_token(lease.token)[0] for lease in granted.leases])
        return outcomes, granted

    def _marked_with_retry(
        self, verb: Callable[[], tuple[Sequence[Deleted | None], Granted]]
    ) -> tuple[Sequence[Deleted | None], Granted]:
        """Run a verb; a repeat that changes nothing runs again, as it may have waited for its first try to commit."""
        outcomes, granted = self._marked(verb)
        if self._call.is_repeat and outcomes and not granted.leases and all(outcome is None for outcome in outcomes):
            return self._marked(verb)
        return outcomes, granted

    def _marked(self, verb: Callable[[], T]) -> T:
        self._session.call = self._call
        try:
            return verb()
        finally:
            self._session.call = None

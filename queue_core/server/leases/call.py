"""The life of one call of lease or exchange: lease in a transaction, wait if there was nothing, answer once.

    start -> lease -> answered       with leases, or with none for a caller that does not wait
              ^  |
        retry |  v
              waits -> answered      with none: the time is up, the server stops, or its client sent another call

`cancel` ends it at any point: the caller hung up.
"""

import asyncio
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from queue_core.clock import Instant
from queue_core.errors import OutcomeUnknownError, QueueError, StoreError
from queue_core.fast_values import value
from queue_core.server.callers.access import Check, no_check
from queue_core.server.commit.group_commit import Committer
from queue_core.server.leases.late_leases import renew_late
from queue_core.server.leases.waiters import CallerActivity, Presence
from queue_core.store import Unit, unit_of_lease
from queue_core.task import Lease, TagFilter
from queue_core.unit.service import MAX_LATE_GRANTS, Operation, QueueService
from queue_core.unit.unit_of_work import UnitOfWork
from queue_core.verbs import Added, ClientCall, Deletion, Granted, PayloadAllowance, Release, handed_over

OVERTIME_SECONDS = 1.0
"""Seconds for which the store's answer is awaited after the time of a call is up."""


@value
class LeaseAnswer:
    """The answer to a call: what was granted, the tokens that were not current (`lost`), and the outcomes of `then`."""

    granted: Granted
    lost: tuple[str, ...] = ()
    added: tuple[Added, ...] = ()


NO_LEASES = Granted(())
WAITED_SUFFIX = ".w"
"""Marks the session under which a client's call leases after it has waited: its deletions have an answer already."""


class WaitingRoom(Protocol):
    """The place in which calls wait until there may be a task for them."""

    @property
    def is_stopping(self) -> bool:
        """Return whether no caller may wait any more."""

    def changes(self, queue: str) -> int:
        """Return the number of changes of a queue that this server knows of. Any thread may call this."""

    def enter(self, call: "LeaseCall") -> None:
        """Wait: the call is retried when there may be a task for it, at once if the queue has changed meanwhile."""

    def leave(self, call: "LeaseCall") -> bool:
        """Stop waiting; False when the call did not wait."""


class Sessions:
    """The latest lease call of each client. A client has one call under way: a later one means that its connection
    was cut and that it does not read the answer of the call before."""

    def __init__(self) -> None:
        self._latest: dict[str, LeaseCall] = {}

    def begin(self, call: "LeaseCall") -> "LeaseCall | None":
        """Record a call that came, and return the one that it supersedes.

        Raises `KeyReusedError` when that has the same number, and is another call.
        """
        if call.client_call is None:
            return None
        before = self._latest.get(call.client_call.session)
        if before is not None and before.client_call is not None:
            if before.client_call.number > call.client_call.number:
                return None  # this one was late on its way, and its client reads its answer no more
            if before.client_call.number == call.client_call.number:
                call.client_call.check_meaning(before.client_call.meaning)
        self._latest[call.client_call.session] = call
        return before

    def is_superseded(self, call: "LeaseCall") -> bool:
        """Return whether its client has sent the call again, or a later one."""
        return call.client_call is not None and self._latest.get(call.client_call.session, call) is not call

    def end(self, call: "LeaseCall") -> None:
        """Forget a call that is over."""
        if call.client_call is not None and self._latest.get(call.client_call.session) is call:
            del self._latest[call.client_call.session]


@dataclass(frozen=True, slots=True)
class CallContext:
    """The collaborators that all lease calls of a server share."""

    service: QueueService
    committer: Committer
    waiting: WaitingRoom
    presence: Presence = field(default_factory=Presence)
    activity: CallerActivity = field(default_factory=CallerActivity)
    sessions: Sessions = field(default_factory=Sessions)

    def give_back(self, queue: str, leases: Sequence[Lease]) -> None:
        """Release leases that no caller knows of as if never granted: uncounted, and in their old place."""
        if leases:
            releases = [Release(lease.token, None, "uncounted") for lease in leases]
            self.committer.submit(lambda work: work.release(queue, releases), lambda _outcome: None)


@dataclass(slots=True, eq=False)
class LeaseCall:
    """One call of lease or exchange. Lives in the server's loop; its operations may run in a thread.

    Args:
        caller: whose activity counts: the worker, or its connection when it gave no name.
        answer: called once, in the loop: with the leases and the tokens that were lost, or with an error.
        is_gone: returns whether the caller has hung up; called right before a lease is granted to one that waited.
        client_call: the client's call that this is, if it may be sent again.
        room: room for the leased tasks in the answer.
        grant: grants leases, where that is more than one `UnitOfWork.lease`.
        check: raises the refusal of a caller that may not do so, each time before anything is done.
    """

    queue: str
    count: int
    seconds: float | None
    tags: TagFilter
    worker: str
    wait_seconds: float
    caller: Hashable
    deletions: Sequence[Deletion]
    answer: Callable[[LeaseAnswer | QueueError | Exception], None]
    is_gone: Callable[[], bool]
    size_bytes: int = 0
    client_call: ClientCall | None = None
    room: PayloadAllowance | None = None
    grant: Callable[[UnitOfWork], Granted] | None = None
    check: Check = no_check
    lost: tuple[str, ...] = field(default=(), init=False)
    """Tokens that it would have deleted, and that were not current."""
    added: tuple[Added, ...] = field(default=(), init=False)
    """The outcomes of the `then` of its deletions."""
    _late_grants: int = field(default=0, init=False)
    active_at: float = field(default=0.0, init=False)
    """When its caller last worked, as of the time when it began to wait."""
    changes_seen: int = field(default=0, init=False)
    """`WaitingRoom.changes` before it last leased."""
    _has_deleted: bool = field(default=False, init=False)
    """Return whether its deletions took effect: the caller must learn that, even if no lease can be granted."""
    _is_open: bool = field(default=False, init=False)
    """Return whether another try of the client's call, which may still come, could grant a lease to nobody."""
    _is_first_closed: bool = field(default=False, init=False)
    """Return whether the first lease of the client's call grants nothing any more, whichever try comes with it."""
    _has_run: bool = field(default=False, init=False)
    """Return whether its operation has run, here: run again, it is a repeat."""
    _is_over: bool = field(default=False, init=False)
    _gives_up: bool = field(default=False, init=False)
    """Return whether it is answered before its operation has been: one that has not begun to lease grants nothing."""
    _is_leasing: bool = field(default=False, init=False)
    """Return whether it may have been granted leases with which it has not answered yet. An operation sets it in its
    thread, before it looks at `_gives_up`, which the loop sets before it looks here: one of the two sees the other."""
    _ends_at: float | None = field(default=None, init=False)
    _timer: asyncio.TimerHandle | None = field(default=None, init=False)
    _context: CallContext = field(init=False, repr=False)

    def start(self, context: CallContext) -> None:
        """Delete and lease; wait when there is nothing to lease. Raises `KeyReusedError`."""
        superseded = context.sessions.begin(self)
        self._context = context
        self._is_open = self.client_call is not None and self.client_call.is_repeat
        now = context.service.clock.monotonic()
        context.presence.call_began(self.queue, self.worker, self.tags, waits=self.wait_seconds > 0, now=now)
        if superseded is not None and context.waiting.leave(superseded):
            superseded.end_empty()
        self._submit(self._exchange)

    def retry(self, *, then: Callable[[], None] | None = None) -> None:
        """Lease again, as there may be a task now; wait again if not. `then` is called once that is decided."""
        self._submit(self.lease, then=then)

    def cancel(self) -> None:
        """Forget a call whose caller hung up. Leases that it was granted meanwhile are given back, unless its client
        may ask for the same leases again."""
        if not self._is_over:
            now = self._context.service.clock.monotonic()
            self._context.presence.call_ended(self.queue, self.worker, now=now, hung_up=True)
        self._is_over = True
        self._context.waiting.leave(self)
        self._stop_timer()
        self._context.sessions.end(self)

    def end_empty(self) -> None:
        """Answer that there was nothing to lease."""
        self._end(LeaseAnswer(NO_LEASES, self.lost, self.added))

    def _close(self) -> None:
        """Answer that there was nothing once no other try of the call can be granted anything (ADR 46)."""
        call = self.client_call
        if not self._is_open or call is None or self._is_over:
            self.end_empty()
            return
        self._is_open = False

        def close(work: UnitOfWork) -> bool:
            calls = [_waited(call)] if self._is_first_closed else [call, _waited(call)]
            are_closed = [work.close_lease(self.queue, one, worker=self.worker) for one in calls]
            return all(are_closed)

        def closed(outcome: object) -> None:
            if isinstance(outcome, Exception):
                self.fail(outcome)
            elif outcome or self._is_over:
                self.end_empty()
            else:
                self._submit(self._exchange)  # one was granted something meanwhile: answer with that

        self._context.committer.submit(close, closed)

    def fail(self, error: Exception) -> None:
        """Answer with an error; where the store failed after the deletions, with the outcome of those, unless it may
        have granted leases, for which the client sends the call again."""
        is_repeatable = self.client_call is not None and isinstance(error, OutcomeUnknownError)
        if self._has_deleted and isinstance(error, StoreError) and not is_repeatable:
            self.end_empty()
        else:
            self._end(error)

    # -- operations --------------------------------------------------------------------------------------------------

    def _exchange(self, work: UnitOfWork) -> LeaseAnswer:
        """Delete finished tasks, and lease."""
        self._is_leasing = True
        if (self._is_over or self._gives_up) and not self.deletions:
            return LeaseAnswer(NO_LEASES)  # its caller hung up before this ran
        self.check(work)
        if self._context.committer.is_threaded:  # in the loop nothing changes meanwhile
            self.changes_seen = self._context.waiting.changes(self.queue)
        if self.grant is not None:
            return LeaseAnswer(self.grant(work))
        call = self.client_call
        if call is not None and self._has_run and not call.is_repeat:
            call = replace(call, is_repeat=True)
        self._has_run = True

        def exchange() -> tuple[Granted, Sequence[str]]:
            return work.exchange(
                self.queue,
                self.deletions,
                count=self.count,
                seconds=self.seconds,
                tags=self.tags,
                worker=self.worker,
                call=call,
                allowance=self.room,
            )

        granted, lost = exchange()
        self.lost, self.added = tuple(lost), granted.added
        if call is not None and call.is_repeat and not granted.leases:
            # Its first try may be under way at another server: what that grants is this call's, or it grants nothing.
            self._is_first_closed = work.close_lease(self.queue, call, worker=self.worker)
            if not self._is_first_closed:
                granted, _ = exchange()
            if not granted.leases:
                granted = self._lease(work)  # it may have been granted something after it had waited
        return LeaseAnswer(granted, self.lost, self.added)

    def lease(self, work: UnitOfWork) -> LeaseAnswer:
        """Lease what there is now, unless the caller is gone; nothing is deleted again."""
        self._is_leasing = True
        if self._is_over or self._gives_up or self.is_gone():
            return LeaseAnswer(NO_LEASES)
        self.check(work)
        if self._context.committer.is_threaded:  # in the loop nothing changes meanwhile
            self.changes_seen = self._context.waiting.changes(self.queue)
        return LeaseAnswer(self._lease(work), self.lost, self.added)

    def _lease(self, work: UnitOfWork) -> Granted:
        if self.grant is not None:
            return self.grant(work)
        return work.lease(
            self.queue,
            count=self.count,
            seconds=self.seconds,
            tags=self.tags,
            worker=self.worker,
            allowance=self.room,
            call=self.client_call and _waited(self.client_call),
        )

    def _submit(self, operation: Operation[LeaseAnswer], *, then: Callable[[], None] | None = None) -> None:
        done = self.proceed if then is None else partial(self._proceed_then, then)
        committer = self._context.committer
        unit = self._unit() if committer.is_threaded else "transaction"  # what commits in the loop has one unit
        committer.submit(operation, done, late=self.proceed, size_bytes=self.size_bytes, unit=unit)

    def _unit(self) -> Unit:
        is_several = self.grant is not None or (self.client_call is not None and handed_over(self.deletions))
        return "transaction" if is_several else unit_of_lease(self.worker)

    # -- outcomes ----------------------------------------------------------------------------------------------------

    def proceed(self, outcome: object) -> None:
        """Act on the outcome of an operation: answer, lease again, or wait."""
        self._is_leasing = False
        if not isinstance(outcome, LeaseAnswer):
            self.fail(outcome if isinstance(outcome, Exception) else TypeError(f"not an outcome: {outcome!r}"))
            return
        self._has_deleted = bool(self.deletions)
        if self._is_over:
            if self.client_call is None:
                self._context.give_back(self.queue, outcome.granted.leases)
        elif outcome.granted.leases:
            self._deliver(outcome)
        elif outcome.granted.more_due:
            self.retry()
        else:
            self.wait()

    def _deliver(self, answer: LeaseAnswer, *, since: Instant | None = None) -> None:
        """Answer with leases that have their whole time ahead since then (None: since their grant)."""
        context, leases = self._context, answer.granted.leases
        now = context.service.clock.monotonic()
        if not context.service.is_late(leases, since=since):  # by the store's clock: this host's may have stood still
            self._end(answer, now=now)
            context.activity.record(self.caller, now=now)
            return
        self._late_grants += 1
        is_last = self._late_grants > MAX_LATE_GRANTS
        if self.client_call is None:
            context.give_back(self.queue, leases)
            if is_last:
                self.end_empty()
            else:
                self.retry()
        elif is_last:
            self.fail(OutcomeUnknownError("the store answers too late, time and again: send the call again"))
        else:  # another server may have answered its client with them meanwhile
            self._renew_late(leases, self.client_call)

    def _proceed_then(self, then: Callable[[], None], outcome: object) -> None:
        try:
            self.proceed(outcome)
        finally:
            then()

    def _renew_late(self, leases: Sequence[Lease], call: ClientCall) -> None:
        """Renew late leases for their whole time, and answer with those still held."""
        self._is_leasing = True
        waited = _waited(call)

        def renew(work: UnitOfWork) -> tuple[Instant, Sequence[Lease]]:
            return work.now, renew_late(work, self.queue, leases, seconds=self.seconds, call=waited)

        def renewed(outcome: object) -> None:
            if not isinstance(outcome, tuple):
                self.fail(outcome if isinstance(outcome, Exception) else TypeError(f"not an outcome: {outcome!r}"))
            elif outcome[1]:
                self._deliver(LeaseAnswer(Granted(tuple(outcome[1])), self.lost, self.added), since=outcome[0])
            else:  # they are over; or its client has had them from another server, and its later calls refuse this one
                self._submit(self._exchange)

        self._context.committer.submit(renew, renewed)

    def wait(self) -> None:
        """Wait for a task until the time is up; answer at once if the caller can no longer wait."""
        context = self._context
        now = context.service.clock.monotonic()
        if context.sessions.is_superseded(self):
            self.end_empty()
            return
        if not self._may_wait(now):
            self._close()
            return
        if self._ends_at is None:
            self._ends_at = now + self.wait_seconds
            self._timer = asyncio.get_running_loop().call_later(self.wait_seconds, self._time_up)
            if self.deletions:
                context.activity.record(self.caller, now=now)
        self.active_at = context.activity.active_at(self.caller, now=now)
        context.waiting.enter(self)

    def _may_wait(self, now: float) -> bool:
        if self._context.waiting.is_stopping or self.wait_seconds <= 0:
            return False
        return self._ends_at is None or self._ends_at > now

    def _time_up(self) -> None:
        """Answer that there was nothing. A call whose operation is under way waits for it a little longer."""
        self._timer = None
        if self._context.waiting.leave(self):
            self._close()
        elif self._context.committer.is_threaded:
            self._timer = asyncio.get_running_loop().call_later(OVERTIME_SECONDS, self._give_up)

    def _give_up(self) -> None:
        """Answer though the store has not: that there was nothing, or, where it may have granted leases to a client
        that can send the call again, that the outcome is not known. Then nobody's leases are left behind."""
        self._gives_up = True
        if self._is_leasing and self.client_call is not None:
            self.fail(OutcomeUnknownError("the store has not answered in time: send the call again"))
        else:
            self.end_empty()

    def _end(self, answer: LeaseAnswer | Exception, *, now: float | None = None) -> None:
        if self._timer is not None:
            self._stop_timer()
        context = self._context
        context.sessions.end(self)
        if not self._is_over:
            self._is_over = True
            try:
                self.answer(answer)  # before anything else is recorded
            finally:
                now = context.service.clock.monotonic() if now is None else now
                context.presence.call_ended(self.queue, self.worker, now=now)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _waited(call: ClientCall) -> ClientCall:
    """Return the call as which a client's call leases after its first lease, perhaps once more: a repeat."""
    return replace(call, session=call.session + WAITED_SUFFIX, is_repeat=True)

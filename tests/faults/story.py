"""Hand-made histories for the checker's own tests: requests and answers, one call a second."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from queue_core.attempts.attempt import AttemptOutcome
from queue_core.stats import LeaseOutcome, QueueStats
from queue_core.task import QueueSpec
from tests.faults.checker import check
from tests.faults.history import (
    NO_ANSWER,
    Answer,
    ClockReading,
    HistoryCall,
    Outcome,
    RequestedAdd,
    RequestedCall,
    RequestedEnd,
    ReturnedAdd,
    ReturnedLease,
)
from tests.faults.lives import Contents, KeptAttempt, KeptLease, TaskInStore

SECOND = 1_000_000
QUEUE = "q"


def at(seconds: float) -> ClockReading:
    return ClockReading(round(seconds * SECOND), round(seconds * SECOND) * 1000)


@dataclass
class HandMadeHistory:
    """A history under construction, one call a second unless stated."""

    calls: list[HistoryCall] = field(default_factory=list)
    stored: list[TaskInStore] = field(default_factory=list)
    max_leases: int | None = None
    problems: tuple[str, ...] = ()
    stats: QueueStats | None = None
    adds_repeat: bool = False
    runners: bool = False
    ended: tuple[KeptLease, ...] | None = None
    clock_error: int = 0
    limits: QueueSpec | None = None
    seconds: float = 0.0

    def call(
        self,
        request: RequestedCall,
        answer: Answer = NO_ANSWER,
        outcome: Outcome = "ok",
        *,
        lasts: float = 0.1,
        gave_up: float | None = None,
    ) -> "HandMadeHistory":
        """Add a call. `gave_up`: after so many seconds a call of unknown outcome raised; None: it was killed."""
        self.seconds += 1
        lasts = lasts if gave_up is None else gave_up
        answered = at(self.seconds + lasts) if outcome != "unknown" or gave_up is not None else None
        self.calls.append(HistoryCall(request, at(self.seconds), outcome, answered, answer))
        return self

    def add(
        self,
        uid: str = "a",
        outcome: Outcome = "ok",
        *,
        status: str = "added",
        tag: str | None = None,
        eta: float | None = None,
        delay: float | None = None,
    ) -> "HandMadeHistory":
        request = an_add(uid, tag=tag, eta=None if eta is None else round(eta * SECOND), delay_seconds=delay)
        answer = Answer(added=(ReturnedAdd(uid, status),)) if outcome == "ok" else NO_ANSWER  # type: ignore[arg-type]
        return self.call(RequestedCall("add", QUEUE, adds=(request,)), answer, outcome)

    def lease(
        self, *leases: ReturnedLease, worker: str = "", kind: str = "any", tags: tuple[str, ...] = ()
    ) -> "HandMadeHistory":
        request = RequestedCall("lease", QUEUE, count=9, seconds=60.0, worker=worker, filter_kind=kind, tags=tags)  # type: ignore[arg-type]
        return self.call(request, Answer(leases=leases))

    def end(
        self,
        verb: str,
        token: str,
        outcome: Outcome = "ok",
        *,
        lost: bool = False,
        new_end: float | None = None,
        seconds: float = 0.0,
        then: tuple[RequestedAdd, ...] = (),
        delay: float | None = None,
        charge: str = "counted",
        failure: str = "",
    ) -> "HandMadeHistory":
        request = RequestedCall(
            verb,  # type: ignore[arg-type]
            QUEUE,
            ends=(RequestedEnd(token, then),),
            seconds=seconds,
            delay_seconds=delay,
            charge=charge,  # type: ignore[arg-type]
            failure=failure,
        )
        ends = {} if new_end is None else {token: round(new_end * SECOND)}
        return self.call(request, Answer(lost=(token,) if lost else (), ends=ends), outcome)

    def by_name(self, uid: str, outcome: str = "deleted") -> "HandMadeHistory":
        return self.call(RequestedCall("delete_by_name", QUEUE, names=(uid,)), Answer(names=(outcome,)))

    def keeps(self, *tasks: TaskInStore) -> "HandMadeHistory":
        self.stored.extend(tasks)
        return self

    def remembers(self, *ended: KeptLease) -> "HandMadeHistory":
        """Let the queue's history have these ended leases."""
        self.ended = (*(self.ended or ()), *ended)
        return self

    def violations(self) -> list[str]:
        contents = Contents(
            tuple(self.stored),
            self.problems,
            {} if self.stats is None else {QUEUE: self.stats},
            {QUEUE: self.max_leases},
            clock_error=self.clock_error,
            adds_repeat=self.adds_repeat,
            runners=self.runners,
            histories={} if self.ended is None else {QUEUE: self.ended},
            limits={} if self.limits is None else {QUEUE: self.limits},
        )
        return [violation.invariant for violation in check(self.calls, contents)]


def an_add(uid: str, **fields: object) -> RequestedAdd:
    return RequestedAdd(uid, f"digest of {uid}", QUEUE, uid, **fields)  # type: ignore[arg-type]


def a_lease(
    uid: str = "a", *, since: float, until: float = 100.0, number: int = 1, tag: str | None = None, ready: float = 0.0
) -> ReturnedLease:
    leased_at = round(since * SECOND)
    return ReturnedLease(
        uid,
        uid,
        f"digest of {uid}",
        f"{uid}.{leased_at}",
        number,
        leased_at,
        round(until * SECOND),
        round(ready * SECOND),
        tag,
    )


def a_stored(
    uid: str = "a",
    *,
    lease: ReturnedLease | None = None,
    state: str = "READY",
    leases: int = 0,
    tried: Sequence[KeptAttempt] | None = None,
) -> TaskInStore:
    return TaskInStore(
        uid,
        uid,
        QUEUE,
        f"digest of {uid}",
        state,  # type: ignore[arg-type]
        leases if lease is None else lease.number,
        "" if lease is None else lease.token,
        0 if lease is None else lease.leased_at,
        0 if lease is None else lease.expires_at,
        attempts=None if tried is None else tuple(tried),
    )


def an_attempt(
    lease: ReturnedLease,
    outcome: AttemptOutcome = "given_back",
    *,
    ended: float | None = None,
    message: str = "",
    worker: str = "",
) -> KeptAttempt:
    ended_at = lease.expires_at if ended is None else round(ended * SECOND)
    return KeptAttempt(lease.token, lease.number, worker, lease.leased_at, ended_at, outcome, message)


def an_end(lease: ReturnedLease, outcome: LeaseOutcome = "deleted", *, worker: str = "") -> KeptLease:
    return KeptLease(lease.name, lease.number, worker, outcome)

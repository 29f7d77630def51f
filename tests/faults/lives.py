"""The life of every task, assembled from all callers' histories and the final store. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from queue_core.attempts.attempt import AttemptOutcome
from queue_core.stats import LeaseOutcome, QueueStats
from queue_core.task import QueueSpec
from tests.faults.history import HistoryCall, RequestedAdd, RequestedEnd, ReturnedLease

FOREVER = 1 << 62
"""An instant later than all others."""

LONGEST_CALL_MICROSECONDS = 10_000_000
"""The time after which a call to a store across a network has been answered or has no more effect."""

Effect = Literal["done", "refused", "open"]
"""Whether a call's token or name took effect, did not, or is unknown."""


@dataclass(frozen=True, slots=True)
class KeptAttempt:
    """An attempt of a task in the final store; `token` is that of its lease."""

    token: str
    number: int
    worker: str
    began_at: int
    ended_at: int
    outcome: AttemptOutcome
    message: str = ""


@dataclass(frozen=True, slots=True)
class KeptLease:
    """An ended lease in the final store's history."""

    name: str
    number: int
    worker: str
    outcome: LeaseOutcome


@dataclass(frozen=True, slots=True)
class TaskInStore:
    """A task in the final store, with expired leases settled. `attempts`: oldest first; None: they were not read."""

    uid: str
    name: str
    queue: str
    digest: str
    state: Literal["READY", "DELAYED", "LEASED", "DEAD", "HELD"]
    leases: int
    token: str
    leased_at: int
    eta: int
    tag: str | None = None
    attempts: tuple[KeptAttempt, ...] | None = None


@dataclass(frozen=True, slots=True)
class Contents:
    """The final store: its tasks, its statistics by queue, and the complaints of its own check.

    `clock_error`: microseconds by which a caller's estimate of the store's time may differ from this host's.
    `adds_repeat`: the client repeats an add of named tasks by itself, and may get `exists` for its own first try.
    `runners`: the product's own workers lease too; of their calls only those of their handlers are recorded.
    `histories`: the ended leases of each queue whose history goes back to its begin, newest first.
    `limits`: the settings of each queue that has limits, or whose tags take turns.
    """

    tasks: tuple[TaskInStore, ...] = ()
    problems: tuple[str, ...] = ()
    stats: dict[str, QueueStats] = field(default_factory=dict)
    max_leases: dict[str, int | None] = field(default_factory=dict)
    clock_error: int = 0
    adds_repeat: bool = False
    runners: bool = False
    histories: dict[str, tuple[KeptLease, ...]] = field(default_factory=dict)
    limits: dict[str, QueueSpec] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Adding:
    """One task of an add, or of a `token`'s `then`; `status` is empty where the answer left it open."""

    call: HistoryCall
    request: RequestedAdd
    effect: Effect
    status: str = ""
    token: str = ""


@dataclass(frozen=True, slots=True)
class Operation:
    """One token of a renew, release or delete. `new_end`: the acknowledged end of a renewal."""

    call: HistoryCall
    verb: Literal["renew", "release", "delete"]
    end: RequestedEnd
    effect: Effect
    new_end: int | None = None

    @property
    def ends_lease(self) -> bool:
        """Whether it would end the token's lease."""
        return self.verb != "renew"


@dataclass(slots=True)
class Grant:
    """One lease of a task, and every operation with its token.

    `given_back` are release_worker calls for its worker. `call` is None when the caller died before the answer, so only
    the store knows of the lease.
    """

    lease: ReturnedLease
    call: HistoryCall | None
    operations: list[Operation] = field(default_factory=list)
    given_back: list[HistoryCall] = field(default_factory=list)

    @property
    def leased_at(self) -> int:
        """The instant of the grant, microseconds."""
        return self.lease.leased_at

    def granted_by(self, contents: Contents) -> int:
        """Return when it had surely been granted: its instant, or the answer.

        The answer counts where the call may have been delayed after the instant was read.
        """
        if contents.clock_error == 0:
            return self.leased_at
        answered = self.call.answered if self.call is not None else None
        return answered.at if answered is not None else self.leased_at + LONGEST_CALL_MICROSECONDS


@dataclass(slots=True)
class Life:
    """All that is known of one task; `grants` by instant."""

    uid: str
    addings: list[Adding] = field(default_factory=list)
    grants: list[Grant] = field(default_factory=list)
    named_deletions: list[tuple[HistoryCall, Effect]] = field(default_factory=list)
    stored: list[TaskInStore] = field(default_factory=list)

    @property
    def operations(self) -> Iterable[Operation]:
        """The operations with all its tokens."""
        return (operation for grant in self.grants for operation in grant.operations)

    @property
    def is_acknowledged(self) -> bool:
        """Whether a caller learned that the task is, or was, in the queue."""
        return any(adding.effect == "done" for adding in self.addings)

    @property
    def may_be_deleted(self) -> bool:
        """Whether a deletion of it may have taken effect."""
        return any(effect != "refused" for _, effect in self.named_deletions) or any(
            operation.verb == "delete" and operation.effect != "refused" for operation in self.operations
        )

    @property
    def is_seen(self) -> bool:
        """Whether it was ever leased or is in the store: then it exists, acknowledged or not."""
        return bool(self.stored or self.grants)


def lives_of(calls: Sequence[HistoryCall], contents: Contents) -> dict[str, Life]:
    """Return every task that was requested, leased or found, by uid."""
    lives: dict[str, Life] = {}

    def life(uid: str) -> Life:
        return lives.setdefault(uid, Life(uid))

    for call in calls:
        for adding in _addings(call):
            life(adding.request.uid).addings.append(adding)
        for lease in call.answer.leases:
            life(lease.uid).grants.append(Grant(lease, call))
    for task in contents.tasks:
        life(task.uid).stored.append(task)
        _note_unseen_lease(life(task.uid), task)
    _attach_operations(calls, lives)
    for one in lives.values():
        one.grants.sort(key=lambda grant: grant.leased_at)
        if contents.adds_repeat:
            _excuse_own_adds(one)
    _resolve_open_deletions(lives)
    return lives


def _excuse_own_adds(life: Life) -> None:
    """Assume that an `exists` without any possible earlier add met the call's own first try."""
    if any(adding.status == "added" for adding in life.addings):
        return
    life.addings = [
        replace(adding, status="") if adding.status in ("exists", "tombstoned") else adding for adding in life.addings
    ]


def _resolve_open_deletions(lives: dict[str, Life]) -> None:
    """Resolve deletions with unknown outcome from what was seen later.

    One did not happen if its task was leased again or is in the store; it happened if the task it was to add exists. If
    both are seen it stays open: half a transaction was done, which another rule finds.
    """
    effects: dict[tuple[int, str], Effect] = {}
    for life in lives.values():
        for index, grant in enumerate(life.grants):
            for number, operation in enumerate(grant.operations):
                if operation.verb != "delete" or operation.effect != "open":
                    continue
                was_seen = bool(life.stored) or index + 1 < len(life.grants)
                was_added = any(
                    lives[request.uid].is_seen and len(lives[request.uid].addings) == 1
                    for request in operation.end.then
                )
                if was_seen != was_added:
                    effect: Effect = "refused" if was_seen else "done"
                    grant.operations[number] = replace(operation, effect=effect)
                    effects[id(operation.call), operation.end.token] = effect
    for life in lives.values():
        life.addings = [
            replace(adding, effect=effects.get((id(adding.call), adding.token), adding.effect))
            if adding.token
            else adding
            for adding in life.addings
        ]


def _attach_operations(calls: Sequence[HistoryCall], lives: dict[str, Life]) -> None:
    grants = {grant.lease.token: grant for life in lives.values() for grant in life.grants}
    by_worker: dict[str, list[Grant]] = {}
    for grant in grants.values():
        if grant.call is not None and grant.call.request.worker:
            by_worker.setdefault(grant.call.request.worker, []).append(grant)
    for call in calls:
        for operation in _operations(call):
            if operation.end.token in grants:
                grants[operation.end.token].operations.append(operation)
        if call.request.verb == "release_worker" and call.outcome != "fail":
            for grant in by_worker.get(call.request.worker, ()):
                grant.given_back.append(call)
        for name, effect in _named_deletions(call):
            if name in lives:
                lives[name].named_deletions.append((call, effect))


def _note_unseen_lease(life: Life, task: TaskInStore) -> None:
    """Add the last lease in the store whose caller was killed before the answer."""
    if task.leases and task.leased_at and all(grant.lease.token != task.token for grant in life.grants):
        end = task.eta if task.state == "LEASED" else task.leased_at
        unseen = ReturnedLease(
            task.uid, task.name, task.digest, task.token, task.leases, task.leased_at, end, 0, task.tag
        )
        life.grants.append(Grant(unseen, None))


def _addings(call: HistoryCall) -> Iterable[Adding]:
    for index, request in enumerate(call.request.adds):
        status = call.answer.added[index].status if call.outcome == "ok" else ""
        yield Adding(call, request, _effect(call), status)
    for operation in _operations(call):
        for request in operation.end.then:
            yield Adding(call, request, operation.effect, token=operation.end.token)


def _operations(call: HistoryCall) -> Iterable[Operation]:
    verb = "delete" if call.request.verb == "lease" else call.request.verb
    if verb not in ("renew", "release", "delete"):
        return
    for end in call.request.ends:
        # A call that was sent twice may have taken effect the first time and been refused the second time.
        is_refused = call.outcome == "ok" and end.token in call.answer.lost
        effect: Effect = "refused" if is_refused else _effect(call)
        yield Operation(call, verb, end, effect, call.answer.ends.get(end.token))


def _named_deletions(call: HistoryCall) -> Iterable[tuple[str, Effect]]:
    for index, name in enumerate(call.request.names):
        if call.outcome != "ok":
            yield name, _effect(call)
        else:
            yield name, "done" if call.answer.names[index] == "deleted" else "refused"


def _effect(call: HistoryCall) -> Effect:
    return {"ok": "done", "fail": "refused", "unknown": "open"}[call.outcome]  # type: ignore[return-value]

"""Every task's life, put together from the histories of all callers and from what the store holds in the end. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from queue_core.stats import QueueStats
from tests.faults.history import HistoryCall, RequestedAdd, RequestedEnd, ReturnedLease

FOREVER = 1 << 62
"""Later than every instant."""

LONGEST_CALL_MICROSECONDS = 10_000_000
"""After which a store across a network has answered, or nothing will come of the call."""

Effect = Literal["done", "refused", "open"]
"""What became of one token or name of a call: it took effect, it did not, or nobody knows."""


@dataclass(frozen=True, slots=True)
class TaskInStore:
    """A task as the store has it after everything, settled as of then."""

    uid: str
    name: str
    queue: str
    digest: str
    state: Literal["READY", "DELAYED", "LEASED", "DEAD"]
    leases: int
    token: str
    leased_at: int
    eta: int
    tag: str | None = None


@dataclass(frozen=True, slots=True)
class Contents:
    """The store after everything: its tasks, its statistics by queue, and what its own check complained of.

    `clock_error`: microseconds by which the store's time, as any caller estimates it, may be off this host's.
    `adds_repeat`: a client sends an add of named tasks again by itself, and is told that what it added itself exists.
    """

    tasks: tuple[TaskInStore, ...] = ()
    problems: tuple[str, ...] = ()
    stats: dict[str, QueueStats] = field(default_factory=dict)
    max_leases: dict[str, int | None] = field(default_factory=dict)
    clock_error: int = 0
    adds_repeat: bool = False


@dataclass(frozen=True, slots=True)
class Adding:
    """One task of one add, or of the `then` of a `token`; `status` is empty where the answer did not tell it."""

    call: HistoryCall
    request: RequestedAdd
    effect: Effect
    status: str = ""
    token: str = ""


@dataclass(frozen=True, slots=True)
class Operation:
    """One token of a renew, release or delete. `new_end`: of a renewal that took effect and said so."""

    call: HistoryCall
    verb: Literal["renew", "release", "delete"]
    end: RequestedEnd
    effect: Effect
    new_end: int | None = None

    @property
    def ends_lease(self) -> bool:
        """Whether it would leave the token without a lease."""
        return self.verb != "renew"


@dataclass(slots=True)
class Grant:
    """One lease of a task, and everything that was request with its token.

    `given_back` are release_worker calls for its worker. `call` is None when nobody lived to see the lease, and only
    the store knows of it.
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
        """When it surely had been granted: its instant, or, where that is read before a call that may be held up on the
        way, the answer.
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
        """Of all its tokens."""
        return (operation for grant in self.grants for operation in grant.operations)

    @property
    def is_acknowledged(self) -> bool:
        """Whether some caller was told that the task is in the queue (or had been)."""
        return any(adding.effect == "done" for adding in self.addings)

    @property
    def may_be_deleted(self) -> bool:
        """Whether some deletion of it may have taken effect."""
        return any(effect != "refused" for _, effect in self.named_deletions) or any(
            operation.verb == "delete" and operation.effect != "refused" for operation in self.operations
        )

    @property
    def is_seen(self) -> bool:
        """Whether it was ever leased or is in the store: it exists, whatever was acknowledged."""
        return bool(self.stored or self.grants)


def lives_of(calls: Sequence[HistoryCall], contents: Contents) -> dict[str, Life]:
    """Every task that was request for, leased or found, by its uid."""
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
    """Take it that an add which nobody's can have preceded met what it had added itself."""
    if any(adding.status == "added" for adding in life.addings):
        return
    life.addings = [
        replace(adding, status="") if adding.status in ("exists", "tombstoned") else adding for adding in life.addings
    ]


def _resolve_open_deletions(lives: dict[str, Life]) -> None:
    """A deletion that nobody was told the outcome of went one way only, and what was seen later may show which.

    It was not done where its task was leased again or is in the store; it was done where what it was to add is there.
    Where both are seen it stays open: half of a step was done, which a rule of its own finds.
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
    """The store may know of a last lease whose caller was killed before the answer."""
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
        # A call that was sent twice may have done the first time what it was refused the second time.
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

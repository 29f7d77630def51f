"""The Store protocol: the atomic verbs, for every queue of one store.

A store opens transactions; verbs are called inside one and are atomic each; a transaction may carry many verbs of
many callers (group commit). Nothing of a transaction may leave the process before `sync` of its ticket returned.
No driver type crosses this line. A verb takes `now`, read from the store's own clock; it raises for bad state *before*
it writes anything.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from operator import attrgetter
from typing import Literal, NewType, Protocol, TypeAlias, runtime_checkable

from queue_core import semantics
from queue_core.clock import Clock, Instant
from queue_core.errors import OutcomeUnknownError
from queue_core.quarantine import errand_of
from queue_core.stats import FinishedLease, LiveLease, QueueStats, Samples, TagStats, WaitingTask
from queue_core.task import Lease, NewTask, QueueSpec, StoredTask, TagFilter, TaskState

_THEN = attrgetter("then")

Unit: TypeAlias = Literal["transaction", "verb"]
"""What is committed together: see `Store.begin`."""


Busy: TypeAlias = Literal["keep", "finish"]
"""What is done to a worker that is to retire while it holds a lease: see `Transaction.retire_worker`."""


@dataclass(frozen=True, slots=True)
class Added:
    """The outcome of one add. `exists`, `tombstoned`: the name is taken, nothing was changed, the add is idempotent."""

    name: str
    status: Literal["added", "exists", "tombstoned"]
    ready: bool = False


@dataclass(frozen=True, slots=True)
class PayloadAllowance:
    """Room for leased tasks in one answer, in bytes: a task that does not fit is not leased at all.

    Args:
        total_bytes: for all tasks together.
        each_bytes: for each task, besides its payload, its tag and the name it was given.
        least: this many tasks are leased whatever their size, so that no task is too large to be leased.
    """

    total_bytes: int
    each_bytes: int = 0
    least: int = 1

    def fitting(self, sizes: Sequence[int]) -> int:
        """How many tasks of these sizes, from the first, there is room for: see `semantics.fitting`."""
        return semantics.fitting(sizes, total_bytes=self.total_bytes, each_bytes=self.each_bytes, least=self.least)

    def after(self, sizes: Sequence[int]) -> "PayloadAllowance":
        """The room that is left after tasks of these sizes."""
        taken = sum(sizes) + len(sizes) * self.each_bytes
        return PayloadAllowance(max(0, self.total_bytes - taken), self.each_bytes, max(0, self.least - len(sizes)))


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """What a lease asks for: up to `count` tasks of `tags`, held by `worker` ("" is nobody).

    `seconds` None: the queue's own `lease_seconds`. `room` None: tasks of any size together.
    """

    count: int
    seconds: float | None
    tags: TagFilter
    worker: str
    room: PayloadAllowance | None = None


@dataclass(frozen=True, slots=True)
class Granted:
    """Leases granted, leases found expired on the way, and whether due tasks are left to settle.

    When `unsettled` is true and `leases` is empty, ask again at once: a bounded number is settled per call.
    `refused`: the worker was retired, so an exchange granted it nothing.
    """

    leases: Sequence[Lease]
    expired: tuple[FinishedLease, ...] = ()
    unsettled: bool = False
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Renewal:
    """Ask for a lease to end `seconds` from now; None: the queue's own `lease_seconds`."""

    token: str
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Renewed:
    """A lease and its new end."""

    token: str
    name: str
    tag: str | None
    worker: str
    lease_number: int
    expires_at: Instant


@dataclass(frozen=True, slots=True)
class Release:
    """Give a lease back. `delay_seconds` None: the queue's back-off, lessened by `jitter` in [0, 1)."""

    token: str
    delay_seconds: float | None = None
    charge: Literal["counted", "uncounted"] = "counted"
    dead_reason: str = ""
    jitter: float = 0.0


@dataclass(frozen=True, slots=True)
class Deletion:
    """End a lease by deleting its task and, in the same step, add `then` (all or nothing).

    A `then` task names its queue, or goes to the same one.
    """

    token: str
    then: tuple[NewTask, ...] = ()


def handed_over(deletions: Sequence[Deletion]) -> list[tuple[NewTask, ...]]:
    """What is to be added in place of what is deleted, of those that hand anything over; hardly ever any do."""
    return list(filter(None, map(_THEN, deletions)))


def unit_of_lease(worker: str) -> Unit:
    """How a lease or an exchange for a worker is committed: one that is on an errand takes several verbs."""
    return "verb" if errand_of(worker) is None else "transaction"


@dataclass(frozen=True, slots=True)
class Deleted:
    """A deletion that took effect, and what became of its `then`."""

    finished: FinishedLease
    then: tuple[Added, ...] = ()


@dataclass(frozen=True, slots=True)
class HeldName:
    """The given name of a deleted task, which refuses a second add until then."""

    name: str
    until: Instant


CallVerb: TypeAlias = Literal["add", "lease", "exchange", "delete", "other"]
"""The verbs of a client's call that a store may remember by itself: without a `then`, and for no errand."""


@dataclass(frozen=True, slots=True)
class ClientCall:
    """One call of a client's session, which has one under way at a time and numbers them upwards.

    `is_repeat`: whether it may have been sent before, so that its answer is to be looked for. `age_seconds`: it was
    first sent no longer ago.
    """

    session: str
    number: int
    is_repeat: bool = False
    age_seconds: int = 60

    def answer_in(self, last: tuple[int, bytes] | None) -> bytes | None:
        """Return the answer to this call, if `last`, the last call of its session and its answer, is this one.

        Raises `OutcomeUnknownError` when it is a later one.
        """
        if last is None or last[0] < self.number:
            return None
        if last[0] > self.number:
            raise OutcomeUnknownError(
                f"call {self.number} of its session comes after call {last[0]} was answered: whether it took effect is "
                "not known; look before repeating"
            )
        return last[1]


@dataclass(frozen=True, slots=True)
class Page:
    """Some tasks of a queue in id order, and where the next page begins (None: no more)."""

    tasks: tuple[StoredTask, ...]
    next_after: int | None = None


@dataclass(frozen=True, slots=True)
class Storage:
    """What the payloads of all tasks of a store may come to, and what they come to; both in bytes.

    `limit_bytes` None: no limit; then nothing is counted, and `used_bytes` is 0.
    """

    limit_bytes: int | None = None
    used_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Check:
    """What `Store.check` found: every line of `problems` is a broken promise; none is a healthy store."""

    problems: tuple[str, ...]
    tasks: int


__all__ = [
    "Added",
    "Busy",
    "CallVerb",
    "Check",
    "ClientCall",
    "Deleted",
    "Deletion",
    "Granted",
    "HeldName",
    "LeaseRequest",
    "Page",
    "PayloadAllowance",
    "Release",
    "Renewal",
    "Renewed",
    "Signals",
    "Storage",
    "Store",
    "Subscription",
    "Ticket",
    "Transaction",
    "Unit",
]

Ticket = NewType("Ticket", int)
"""Names a committed transaction; `sync(ticket)` returns when it and all before it are durable."""


class Transaction(Protocol):
    """The verbs. `None` in a list of outcomes: that token is not current; it changed nothing."""

    def put_queue(self, spec: QueueSpec, *, now: Instant) -> bool:
        """Create the queue, or set it anew; True when it was created. Being paused is not part of it."""

    def queue(self, name: str) -> QueueSpec:
        """The queue's settings and whether it is paused. Raises `UnknownQueueError`."""

    def queues(self) -> list[QueueSpec]:
        """All queues by name."""

    def delete_queue(self, name: str) -> int:
        """Drop a queue with its tasks and names; returns how many tasks went with it."""

    def set_storage_limit(self, limit_bytes: int | None) -> None:
        """Bound what the payloads of all tasks may come to; None: no bound. It is `Turn` that refuses more.

        The first bound counts the payloads that are there: its cost grows with the tasks.
        """

    def storage(self) -> Storage:
        """The bound, and what the payloads come to, dead tasks' included; O(1)."""

    def add(self, queue: str, tasks: Sequence[NewTask], *, now: Instant) -> list[Added]:
        """Add, in order. An eta, a name or a queue out of range fails the whole call before anything is written."""

    def lease(self, queue: str, request: LeaseRequest, *, now: Instant) -> Granted:
        """Lease leasable tasks in eta order, ties by id. A paused queue grants none.

        Where the request has a `room`, the first task that does not fit ends the lease: it and those after it are left
        as they are, not charged. Remembers the instant `request.worker` was first seen; raises `WorkerRetiredError` for
        a retired one.
        """

    def renew(self, queue: str, renewals: Sequence[Renewal], *, now: Instant) -> list[Renewed | None]:
        """Move ends. Raises `InvalidLeaseTimeError` when a lease would outgrow the queue's `max_lease_seconds`."""

    def release(self, queue: str, releases: Sequence[Release], *, now: Instant) -> list[FinishedLease | None]:
        """Give back, with back-off; a task with no lease left becomes dead."""

    def delete(self, queue: str, deletions: Sequence[Deletion], *, now: Instant) -> Sequence[Deleted | None]:
        """Delete inside a current lease."""

    def exchange(
        self, queue: str, deletions: Sequence[Deletion], request: LeaseRequest, *, now: Instant
    ) -> tuple[Sequence[Deleted | None], Granted]:
        """`delete`, then `lease`, as one step: a worker's steady state, in one round trip to a remote store.

        Raises what the two raise, before anything is written; but for a retired worker the deletions take effect, and
        the answer is `refused`.
        """

    def delete_by_name(
        self, queue: str, names: Sequence[str], *, now: Instant
    ) -> list[Literal["deleted", "unknown", "tombstoned"]]:
        """Delete whatever state the task is in; ownership is not checked (App Engine's delete)."""

    def purge(self, queue: str, tags: TagFilter, *, limit: int, now: Instant) -> int:
        """Delete up to `limit` tasks of these tags, in any state but dead; the caller repeats until 0.

        Given names stay taken for their retention.
        """

    def purge_dead(self, queue: str, tags: TagFilter, *, limit: int, now: Instant) -> int:
        """The same for dead tasks."""

    def set_paused(self, queue: str, paused: Literal["paused", "running"]) -> bool:
        """Stop or resume granting leases; True when this changed anything."""

    def redrive(
        self, queue: str, names: Sequence[str] | None, tags: TagFilter, *, limit: int, now: Instant
    ) -> list[StoredTask]:
        """Make dead tasks ready again: those named, or up to `limit` of these tags."""

    def postpone(self, queue: str, name: str, *, expected: Instant, eta: Instant, now: Instant) -> bool:
        """Move the eta of a delayed task, given or chosen its name, if it is `expected`; False otherwise.

        An eta that is not after `now` makes it ready at once. Raises `InvalidEtaError` for one before the epoch or more
        than 30 days ahead.
        """

    def lease_delayed(
        self, queue: str, task_id: int, *, expected: Instant, worker: str, seconds: float | None, now: Instant
    ) -> Lease | None:
        """Lease one delayed task before its eta, if that is `expected`: by whoever held it back; None otherwise.

        Remembers the worker and raises for a retired one, or too long a lease, as `lease` does. Paused or not.
        """

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
        """Look without leasing: settled states as of `now`, payloads cut to `payload_bytes`, ids beyond `after`."""

    def stats(self, queue: str, tags: TagFilter, *, now: Instant) -> QueueStats:
        """Counts and totals at O(1) in the number of tasks (O(tags) in the number of tags asked for)."""

    def tag_stats(self, queue: str, *, after: str | None, limit: int, now: Instant) -> list[TagStats]:
        """Counts per tag, by tag; the untagged come first when `after` is None."""

    def waiting(self, queue: str, tags: TagFilter, *, now: Instant) -> tuple[WaitingTask, ...]:
        """Since when the tasks at 8 positions of the ready queue wait; bounded cost (`stats.spread`)."""

    def upcoming(self, queue: str, tags: TagFilter, *, until: Instant, limit: int, now: Instant) -> list[Instant]:
        """Etas, in order, of delayed tasks that become leasable after `now` and until then, and were never leased.

        Looks at `limit` delayed tasks of the queue at least, those of other tags or with leases included; of more it
        may leave out the last. The cost is bounded by that.
        """

    def samples(self, queue: str, *, after: int, limit: int) -> Samples:
        """Finished leases noted after the cursor."""

    def live_leases(self, queue: str, *, limit: int, now: Instant) -> list[LiveLease]:
        """Leases that are held now, soonest to end first."""

    def next_eta(self, queue: str, *, now: Instant) -> Instant | None:
        """When time alone next makes a task leasable; `now` or earlier: at once; None: never."""

    def workers_seen(self, workers: Sequence[str]) -> dict[str, Instant]:
        """When each worker first asked for a lease; those never seen are left out."""

    def retire_worker(self, worker: str, *, busy: Busy = "keep", now: Instant) -> bool:
        """Fence a worker: it gets no lease from now on, and keeps what it holds. False if it holds a live lease.

        `keep`: then it is not fenced.
        """

    def release_worker(self, worker: str, *, now: Instant) -> list[FinishedLease]:
        """Give back every lease a dead worker holds: counted, in their old places; and retire it."""

    def lead(self, name: str, holder: str, *, seconds: float, now: Instant) -> bool:
        """Take or keep the lead called `name` until `seconds` from now; False while another holder has it."""

    def settle(self, queue: str, *, limit: int, now: Instant) -> tuple[list[FinishedLease], bool]:
        """Settle up to `limit` due tasks; the leases that had expired, and whether more are due."""

    # -- moving a queue to another store --------------------------------------------------------------------------

    def restore(self, queue: str, tasks: Sequence[StoredTask], *, now: Instant) -> list[Added]:
        """Add tasks as another store had them: state, eta, leases charged, grant, reason, name; under new ids.

        `added_at` and `leased_at` are kept, so that no token is given twice; a LEASED task stays so until its eta, for
        nobody (`semantics.restore` says how). An eta may be in the past. A name that is taken here refuses its task, as
        in `add`. Totals count them as added. Works on a fenced queue too: so it is filled before anybody may use it.
        """

    def held_names(self, queue: str, *, after: str | None, limit: int, now: Instant) -> list[HeldName]:
        """Names of deleted tasks that are still taken at `now`, by name; works on a moved queue too."""

    def hold_names(self, queue: str, names: Sequence[HeldName], *, now: Instant) -> None:
        """Refuse adds under these names until then; a name that a task here has is left to it.

        Works on a fenced queue too.
        """

    def set_moved(self, queue: str, to: str) -> None:
        """Fence the queue: from now on every verb that changes or leases its tasks raises `QueueMovedError`.

        What only looks goes on; `stats` tell it as paused, `next_eta` is None, and `release_worker` passes it by.
        Setting, pausing and deleting the queue are allowed. An empty `to` lifts the fence.
        """

    # -- repeats --------------------------------------------------------------------------------------------------

    def of_call(self, call: ClientCall, verb: CallVerb) -> "Transaction | None":
        """Return the verbs as the store itself makes this one take effect once for `call`; None: it does not.

        Where it does not, `idempotency.once` does, over the two verbs below. Either way a call that is sent again
        within ten minutes, through whichever server, is answered as it was first, with those of its leases that are
        held still; and one that comes after a later call of its session raises `OutcomeUnknownError`.
        """

    def answer_of(self, call: ClientCall, *, now: Instant) -> bytes | None:
        """Return the kept answer of a call; None: it has none. A call that is no repeat may go without the look.

        Raises `OutcomeUnknownError` when a later call of its session was answered: what this one did is forgotten.
        """

    def note_answer(self, call: ClientCall, answer: bytes, *, now: Instant) -> None:
        """Keep the answer to a call, JSON, instead of that to the one before it in its session; see `keep_answer`."""

    def last_answer(self, session: str) -> tuple[int, bytes] | None:
        """The last call of a session that `keep_answer` kept, and how it was answered."""

    def keep_answer(self, session: str, number: int, answer: bytes, *, now: Instant) -> None:
        """Remember the answer to call `number` of a session, instead of the one before; for a day at least.

        Raises `StoreUnavailableError`, taking the transaction with it, when another transaction kept `number` or a
        later one meanwhile.
        """


@runtime_checkable
class Erasable(Protocol):
    """A store that its operator may empty while it is open, and that goes on as a new one."""

    @property
    def url(self) -> str:
        """See `Store.url`."""

    def is_erased(self) -> bool:
        """Whether it is another than the one that was opened, or marked last. Raises `StoreError`."""

    def mark(self) -> None:
        """Take it for the one that was opened, from now on. Raises `StoreError`."""


class Signals(Protocol):
    """Wakes waiting lease calls of other processes on the same store. Never a source of state, only a hint."""

    @property
    def trouble(self) -> str:
        """Why waiters of this process can't be woken, and what to do about it; "" when they can, or nobody waited."""

    def publish(self, queue: str, tag: str | None, count: int) -> None:
        """`count` tasks of a tag became leasable: wake as many fitting waiters, most recently active first."""

    def subscribe(self, queue: str, tags: TagFilter) -> "Subscription":
        """Begin to listen; a publish after this returns is not missed."""


class Subscription(Protocol):
    """One waiter's ear."""

    def wait(self, *, timeout_seconds: float) -> bool:
        """Sleep until woken (True) or the time is up (False)."""

    def wake(self) -> None:
        """End a `wait` in another thread."""

    def close(self) -> None:
        """Stop listening; an unused wake-up is passed on to the next fitting waiter."""


class Store(Protocol):
    """One opened store; usable from several threads."""

    @property
    def url(self) -> str:
        """Where it is, without secrets."""

    @property
    def durability(self) -> Literal["strict", "relaxed"]:
        """`strict`: a synced ticket survives power loss. `relaxed`: it survives a crash of the process."""

    @property
    def signals(self) -> Signals:
        """How waiters in other processes are woken."""

    @property
    def clock(self) -> Clock:
        """Whose time decides: of a store that several hosts share, the store's own, whatever theirs say."""

    @property
    def is_remote(self) -> bool:
        """Whether a call crosses a network: then it is never made in a server's loop, several run at a time, and what
        failed before it took effect is worth another try."""

    @property
    def unit(self) -> Unit:
        """What an exception rolls back. `verb`: each verb is committed as it returns, those before a failure stand."""

    def begin(self, unit: Unit = "transaction") -> AbstractContextManager[Transaction]:
        """A write transaction: leaving the block commits it, an exception rolls all of it back (but see `unit`).

        Args:
            unit: `verb`, the first verb that changes something may be committed as it returns, which saves a round trip
                to a remote store: for a block that calls one.

        Raises `StoreUnavailableError`, `StoreFullError`, `StoreReadOnlyError`; `OutcomeUnknownError` when the answer to
        the commit was lost and can't be found out. One at a time per process, unless `is_remote`.
        """

    def within(self, connection: object) -> AbstractContextManager[Transaction]:
        """Verbs inside a transaction that the caller opened on a connection of its own, and commits.

        Waiters are woken by that commit. Raises `InvalidRequestError` where the store has no such connections.
        """

    def read(self) -> AbstractContextManager[Transaction]:
        """A consistent snapshot for `queue`, `queues`, `peek`, `stats`, `tag_stats`, `waiting`, `samples`, ...

        Counts in it are exact as of their `now`, though nothing is settled. Never blocks a writer.
        """

    def ticket(self) -> Ticket:
        """Names the last transaction this store object committed."""

    def sync(self, ticket: Ticket) -> None:
        """Return when that transaction is durable; several callers share one sync. Raises `StoreUnavailableError`."""

    def check_room(self) -> None:
        """Raise `StoreFullError` while there is no room for adds, as far as that is known; costs next to nothing."""

    def make_room(self) -> bool:
        """Give up what was kept for a full disk, which has refused a change; whether another try is worth it."""

    def check(self) -> Check:
        """Verify the file and recount everything: counters, indexes, names. Cost grows with the tasks."""

    def close(self) -> None:
        """Release files and connections."""

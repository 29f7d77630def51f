"""The verbs as a producer, a worker and a supervisor see them, the same in process and over HTTP."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias, TypeVar, cast

from queue_core.clock import Instant
from queue_core.errors import InvalidRequestError
from queue_core.fast_values import fast_constructor
from queue_core.stats import FinishedLease, LiveLease, QueueStats, Samples, TagStats, WaitingTask, WorkerActivity
from queue_core.store import Added, Busy, Deletion, Page, Renewed, Storage
from queue_core.task import ANY, Lease, NewTask, QueueSpec, TagFilter, TaskState

T = TypeVar("T")

Ended: TypeAlias = Lease | str | Deletion
"""A lease whose task is to be deleted: itself, its token, or what goes with the deletion."""

ALL_STATES = frozenset(TaskState)
NO_SAMPLES = Samples((), 0)

new_task = fast_constructor(NewTask)


@dataclass(frozen=True, slots=True)
class Observation:
    """One look at some tags of a queue, all of it as of `now`: what a supervisor scales on.

    `heard` has those of the workers asked for that the answering server has heard of; None where no server answers, as
    a store that is opened directly does not know who waits. `upcoming` tells of delayed tasks that were never leased
    and become leasable within the time asked for, of a thousand at most (see `stats.group_upcoming`).
    """

    now: Instant
    stats: QueueStats
    waiting: tuple[WaitingTask, ...] = ()
    samples: Samples = NO_SAMPLES
    live: tuple[LiveLease, ...] = ()
    seen: dict[str, Instant] = field(default_factory=dict)
    heard: tuple[WorkerActivity, ...] | None = None
    upcoming: tuple[WaitingTask, ...] = ()


@dataclass(frozen=True, slots=True)
class ObservationQuery:
    """What one observation is to be of: see `Queues.observe`."""

    queue: str
    tags: TagFilter = ANY
    after: int = 0
    workers: tuple[str, ...] = ()
    ahead_seconds: float = 0.0


class Queue(Protocol):
    """One queue. Verbs take one or many; a lease may be given as a `Lease` or as its token.

    Every verb may raise `StoreUnavailableError`, and `UnknownQueueError` when the queue is gone.
    """

    @property
    def name(self) -> str:
        """The queue's name."""

    def add(self, tasks: bytes | NewTask | Iterable[NewTask], *, connection: object | None = None) -> list[Added]:
        """Add up to 1,000 tasks; when this returns they are durable. A given name makes the add idempotent.

        Args:
            connection: of the caller's own to the store's database (`psycopg.Connection`, for a `postgresql:` store),
                with an open READ COMMITTED transaction. The tasks are there if the caller commits, and only then; that
                commit wakes waiters. The lifecycle log tells nothing of such a call. Raises `InvalidRequestError` for
                any other connection or queue; after a `StoreError` the transaction can only be rolled back.
        """

    def lease(
        self,
        count: int = 1,
        *,
        seconds: float | None = None,
        tags: TagFilter = ANY,
        worker: str = "",
        wait_seconds: float = 0.0,
    ) -> list[Lease]:
        """Lease up to `count` tasks; with `wait_seconds`, return as soon as there is one.

        All payloads are in memory at once: through a server fewer than `count` come where they would be over 8 MiB
        together; in process it is for the caller to ask for no more than it can hold.
        """

    def exchange(
        self,
        deletions: Sequence[Deletion],
        *,
        count: int = 1,
        seconds: float | None = None,
        tags: TagFilter = ANY,
        worker: str = "",
        wait_seconds: float = 0.0,
    ) -> tuple[list[Lease], tuple[str, ...]]:
        """Delete what is finished and lease the next in one step: a worker's steady state.

        Returns the leases, and the tokens among `deletions` that were not current (their tasks moved on).
        """

    def renew(self, leases: Lease | str | Iterable[Lease | str], *, seconds: float | None = None) -> list[Renewed]:
        """Move the ends of leases to `seconds` from now. Raises `LeaseLostError`."""

    def release(
        self,
        leases: Lease | str | Iterable[Lease | str],
        *,
        delay_seconds: float | None = None,
        charge: Literal["counted", "uncounted"] = "counted",
        dead_reason: str = "",
    ) -> list[FinishedLease]:
        """Give leases back: after the queue's back-off, or `delay_seconds`. Raises `LeaseLostError`.

        `dead_reason` makes the tasks dead at once; `uncounted` takes the lease off the tasks' counts.
        """

    def delete(
        self, leases: Ended | Iterable[Ended], *, then: Sequence[NewTask] = (), connection: object | None = None
    ) -> list[Added]:
        """Delete finished tasks. Raises `LeaseLostError`; the current ones are deleted all the same.

        `then` (with one lease) is added in the same step: a stage hands over without loss or duplicates. With a
        `connection` (see `add`) what the task did and that it is done are one commit of the caller's: let the error of
        a lost lease roll it back.
        """

    def delete_by_name(self, names: str | Iterable[str]) -> list[Literal["deleted", "unknown", "tombstoned"]]:
        """Delete tasks whoever holds them (App Engine's unfenced delete)."""

    def purge(self, *, tags: TagFilter = ANY, dead: Literal["keep", "only"] = "keep") -> int:
        """Delete all tasks of these tags but the dead, or only the dead; returns how many."""

    def pause(self) -> None:
        """Grant no more leases; adds and deletes go on."""

    def resume(self) -> None:
        """Grant leases again."""

    def redrive(self, names: str | Iterable[str] | None = None, *, tags: TagFilter = ANY) -> int:
        """Make dead tasks ready again with all their leases before them; returns how many."""

    def stats(self, *, tags: TagFilter = ANY) -> QueueStats:
        """Counts now, totals ever; O(1)."""

    def tag_stats(self, *, after: str | None = None, limit: int = 100) -> list[TagStats]:
        """Counts per tag, a page at a time."""

    def peek(
        self,
        *,
        tags: TagFilter = ANY,
        states: frozenset[TaskState] = ALL_STATES,
        names: Sequence[str] | None = None,
        after: int = 0,
        limit: int = 100,
        payload_bytes: int = 0,
    ) -> Page:
        """Look at tasks without leasing them; payloads are cut to `payload_bytes`."""

    def close(self) -> None:
        """Let go of connections; nothing is lost."""


class Queues(Protocol):
    """All queues of one store: what administrators and supervisors ask."""

    def queue(self, name: str) -> Queue:
        """One queue's verbs; whether it exists is told by the first verb."""

    def put_queue(self, spec: QueueSpec) -> bool:
        """Create the queue or set it anew; True when created."""

    def delete_queue(self, name: str) -> int:
        """Drop a queue and its tasks; returns how many."""

    def queues(self) -> list[QueueSpec]:
        """All queues by name."""

    def storage(self) -> Storage:
        """What the payloads of all tasks may come to, and what they come to."""

    def set_storage_limit(self, limit_bytes: int | None) -> None:
        """Refuse adds that would bring the payloads of all tasks over so many bytes (`StorageLimitError`); None: none.

        What a deletion adds in the same step is let in, so that a full store can empty itself. A server learns of what
        another one set within a second; adds of several servers at the same moment may pass the limit together.
        """

    def observe(
        self,
        queue: str,
        *,
        tags: TagFilter = ANY,
        after: int = 0,
        workers: Sequence[str] = (),
        ahead_seconds: float = 0.0,
    ) -> Observation:
        """Everything a scaling decision needs, in one round trip; `after` is the last observation's cursor.

        `ahead_seconds`, up to 30 days: how far ahead tasks to come are told; 0: none is.
        """

    def observe_many(self, queries: Sequence[ObservationQuery]) -> list[Observation | None]:
        """Observations of several queues in one round trip, at most 1000; None for a queue that does not exist."""

    def retire_worker(self, worker: str, *, busy: Busy = "keep") -> bool:
        """Fence a worker: it gets no lease any more, and its waiting ends. False when it holds a lease.

        `busy` says what is done then: nothing (`keep`), or it is fenced all the same, and keeps what it holds
        (`finish`).
        """

    def release_worker(self, worker: str) -> list[FinishedLease]:
        """Give back at once all that a dead worker holds."""

    def lead(self, name: str, holder: str, *, seconds: float) -> bool:
        """Take or keep a lead for `seconds`; False while another holder has it."""

    def wait_ready(self, queues: Sequence[tuple[str, TagFilter]], *, wait_seconds: float) -> str | None:
        """Sleep until a task of one of these becomes leasable (the queue's name is returned), or None."""

    def close(self) -> None:
        """Let go of connections; nothing is lost."""


def as_new_tasks(tasks: bytes | NewTask | Iterable[NewTask]) -> list[NewTask]:
    """One or many, as a list. Raises `InvalidRequestError` for anything else."""
    if isinstance(tasks, bytes | bytearray | memoryview):
        return [new_task(bytes(tasks))]
    if isinstance(tasks, NewTask):
        return [tasks]
    given: object = tasks
    if isinstance(given, str) or not isinstance(given, Iterable):
        cure = "encode it: text.encode()" if isinstance(given, str) else "NewTask(payload) makes a task"
        raise InvalidRequestError(f"add takes bytes, a NewTask or a list of NewTasks: {_shown(given)}; {cure}")
    many = list(tasks)
    strange = [place for place, task in enumerate(many) if not isinstance(task, NewTask)]
    if strange:
        shown = f"at {strange[0]} is one {_shown(many[strange[0]])}"
        raise InvalidRequestError(f"a list must be of NewTasks: {shown}; NewTask(payload) makes a task")
    return many


def _shown(value: object) -> str:
    """What was given instead, without what may be a payload."""
    return f"of type {type(value).__name__}"


def as_tokens(leases: Lease | str | Iterable[Lease | str]) -> list[str]:
    """The tokens of one or many leases. Raises `InvalidRequestError` for anything else."""
    many = [leases] if isinstance(leases, Lease | str) else _listed(leases)
    try:
        return [lease if isinstance(lease, str) else lease.token for lease in many]
    except AttributeError:
        strange = next(lease for lease in many if not isinstance(lease, Lease | str))
        raise _no_lease(strange) from None


def _listed(leases: Iterable[T]) -> list[T]:
    if isinstance(leases, bytes) or not isinstance(leases, Iterable):
        raise _no_lease(leases)
    return list(leases)


def _no_lease(value: object) -> InvalidRequestError:
    return InvalidRequestError(f"a Lease, its token or a list of these is needed: {_shown(value)} is none")


def as_names(names: str | Iterable[str]) -> list[str]:
    """One or many, as a list. Raises `InvalidRequestError` for anything else."""
    if isinstance(names, str):
        return [names]
    many: list[object] = [*names] if isinstance(names, Iterable) else [names]
    strange = [name for name in many if not isinstance(name, str)]
    if strange:
        raise InvalidRequestError(f"a task's name or a list of names is needed: {strange[0]!r} is none")
    return cast("list[str]", many)


def as_states(states: Iterable[TaskState]) -> frozenset[TaskState]:
    """A set of states. Raises `InvalidRequestError` for anything else."""
    many: list[object] = [*states] if isinstance(states, Iterable) else [states]
    strange = [state for state in many if not isinstance(state, TaskState)]
    if strange:
        raise InvalidRequestError(f"states must be a set of TaskState, such as {{TaskState.READY}}: {states!r}")
    return frozenset(cast("list[TaskState]", many))


def as_deletions(leases: Ended | Iterable[Ended], then: Sequence[NewTask]) -> list[Deletion]:
    """One or many deletions; `then` needs exactly one lease."""
    many = [leases] if isinstance(leases, Lease | str | Deletion) else _listed(leases)
    if not then:
        return [item if isinstance(item, Deletion) else Deletion(as_tokens(item)[0]) for item in many]
    if len(many) != 1 or isinstance(many[0], Deletion):
        raise InvalidRequestError(
            f"then goes with one lease: {len(many)} given; give each its own Deletion(token, then)"
        )
    return [Deletion(as_tokens(many[0])[0], tuple(then))]

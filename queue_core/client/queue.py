"""The verbs for producers, workers and supervisors: the same protocols in process and over HTTP."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, TypeVar, cast

from queue_core.attempts.attempt import WORKER_DIED, Failure
from queue_core.client.lazy_module import LazyModule
from queue_core.clock import Instant
from queue_core.errors import InvalidRequestError
from queue_core.stats import (
    FinishedLease,
    History,
    LeasingWorker,
    QueueStats,
    TagStats,
)
from queue_core.task import ALL_STATES, ANY, Lease, NewTask, QueueSpec, TagFilter, TaskState
from queue_core.verbs import (
    Added,
    Busy,
    Deletion,
    ExchangeResult,
    Observation,
    ObservationQuery,
    Page,
    Renewal,
    Renewed,
    Storage,
)

if TYPE_CHECKING:
    from queue_core.client.schedules import Schedules
    from queue_core.unit import queue_verbs, registration_verbs, search_verbs, store_verbs
    from queue_core.unit.verb import Verb
    from queue_core.verbs import criteria
    from queue_core.verbs.criteria import MatchedBatch, Search, SearchPage
    from queue_core.verbs.matching import Action
    from queue_core.verbs.registration import Registration
else:
    criteria = LazyModule("queue_core.verbs.criteria")
    queue_verbs = LazyModule("queue_core.unit.queue_verbs")
    search_verbs = LazyModule("queue_core.unit.search_verbs")
    store_verbs = LazyModule("queue_core.unit.store_verbs")
    registration_verbs = LazyModule("queue_core.unit.registration_verbs")

T = TypeVar("T")

Ended: TypeAlias = Lease | str | Deletion
"""A lease whose task is to be deleted: a `Lease`, its token, or a `Deletion`."""

Renewable: TypeAlias = Lease | str | Renewal
"""A lease to renew: a `Lease`, its token, or a `Renewal` with a time, a progress or a checkpoint of its own."""

Error: TypeAlias = Failure | BaseException | str
"""Why a lease is given back: an exception, of which class, text and place are kept, a sentence, or a `Failure`."""


class Queue(Protocol):
    """One queue. Verbs accept one item or many; a lease is given as a `Lease` or as its token.

    Every verb may raise `StoreUnavailableError`, and `UnknownQueueError` when the queue is gone.
    """

    @property
    def name(self) -> str:
        """The queue's name."""

    def add(self, tasks: bytes | NewTask | Iterable[NewTask], *, connection: object | None = None) -> list[Added]:
        """Add up to 1,000 tasks; when this returns they are durable. A given name makes the add idempotent.

        Args:
            connection: the caller's own connection to the store's database (`psycopg.Connection`, for a `postgresql:`
                store) with an open READ COMMITTED transaction. The tasks exist if and when the caller commits; that
                commit wakes waiters. The lifecycle log omits the call. Raises `InvalidRequestError` for any other
                connection or queue; after a `StoreError` the transaction can only be rolled back.
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

        All payloads are in memory at once: a server returns fewer than `count` tasks where they would exceed 8 MiB
        together; in process the caller must choose a `count` that it can hold.
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
    ) -> ExchangeResult:
        """Delete finished tasks and lease the next ones atomically: a worker's steady state.

        Returns the leases, and the tokens among `deletions` that were not current; `added` of what is returned has the
        outcomes of their `then`.
        """

    def renew(self, leases: Renewable | Iterable[Renewable], *, seconds: float | None = None) -> list[Renewed]:
        """Move the ends of leases to `seconds` from now (None: the queue's `lease_seconds`). Raises `LeaseLostError`.

        A `Renewal` may have a time of its own, the progress of the work, and a checkpoint for the task's next lease.
        """

    def release(
        self,
        leases: Lease | str | Iterable[Lease | str],
        *,
        delay_seconds: float | None = None,
        charge: Literal["counted", "uncounted"] = "counted",
        dead_reason: str = "",
        error: Error | None = None,
    ) -> list[FinishedLease]:
        """Give leases back: after the queue's back-off, or `delay_seconds`. Raises `LeaseLostError`.

        `dead_reason` makes the tasks dead at once; `uncounted` takes the lease off the tasks' counts. `error` says why:
        it is kept among the tasks' attempts, and is the reason of those that used up their leases. Leave payloads out.
        """

    def delete(
        self, leases: Ended | Iterable[Ended], *, then: Sequence[NewTask] = (), connection: object | None = None
    ) -> list[Added]:
        """Delete finished tasks. Raises `LeaseLostError`; the current ones are deleted all the same.

        The tasks of `then` (allowed with one lease) are added atomically with the deletion, so that a pipeline neither
        loses nor duplicates tasks. With a `connection` (see `add`) the handler's writes and the deletion are one
        commit of the caller: let `LeaseLostError` roll it back.
        """

    def delete_by_name(self, names: str | Iterable[str]) -> list[Literal["deleted", "unknown", "tombstoned"]]:
        """Delete tasks without checking their leases (App Engine's delete)."""
        return self._call(queue_verbs.DeleteByName(self.name, as_names(names)))

    def purge(self, *, tags: TagFilter = ANY, dead: Literal["keep", "only"] = "keep") -> int:
        """Delete all tasks of these tags except dead ones, or only dead ones; return how many."""
        return self._call(queue_verbs.Purge(self.name, tags, dead))

    def pause(self) -> None:
        """Stop granting leases; adds and deletes still work."""
        self._call(queue_verbs.Pause(self.name))

    def resume(self) -> None:
        """Resume granting leases."""
        self._call(queue_verbs.Resume(self.name))

    def redrive(self, names: str | Iterable[str] | None = None, *, tags: TagFilter = ANY) -> int:
        """Make dead tasks ready again with no lease charged; return how many."""
        return self._call(queue_verbs.Redrive(self.name, tags, None if names is None else as_names(names)))

    def stats(self, *, tags: TagFilter = ANY) -> QueueStats:
        """Return the present counts and the totals; O(1)."""
        return self._call(queue_verbs.ReadStats(self.name, tags))

    def tag_stats(self, *, after: str | None = None, limit: int = 100) -> list[TagStats]:
        """Return counts per tag, a page at a time."""
        return self._call(queue_verbs.ReadTagStats(self.name, after, limit))

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
        """Return tasks without leasing them; payloads are cut to `payload_bytes`."""
        listed = None if names is None else as_names(names)
        return self._call(queue_verbs.Peek(self.name, tags, as_states(states), listed, after, limit, payload_bytes))

    def search(
        self,
        search: "Search",
        *,
        after: int = 0,
        limit: int = 100,
        scan: int = 10_000,
        payload_bytes: int = 0,
    ) -> "SearchPage":
        """Return up to `limit` tasks that match, of up to `scan` that are looked at; continue with `next_after`."""
        return self._call(search_verbs.FindTasks(self.name, search, after, limit, scan, payload_bytes))

    def change_matching(
        self,
        action: "Action",
        search: "Search",
        *,
        dry_run: bool,
        after: int = 0,
        scan: int = 10_000,
        eta: Instant | None = None,
        tag: str | None = None,
    ) -> "MatchedBatch":
        """Change, or only count, up to 1,000 tasks that match, of up to `scan` that are looked at.

        Continue with `next_after`. `eta`: of a postponement; `tag`: the new one, None is no tag. A task that no
        longer matches when its turn comes is left, and so are leased tasks where tags are changed. To change what was
        counted, and nothing that came since, give `as_of` of the count's answer as `Search.as_of`.
        """
        to = criteria.ChangeTo(eta, tag)
        return self._call(search_verbs.ChangeMatching(self.name, action, search, dry_run, after, scan, to))

    def history(
        self, *, names: str | Iterable[str] | None = None, before: int | None = None, limit: int = 100
    ) -> History:
        """Return ended leases, newest first: of all tasks, or of these; finished tasks are found by them too.

        `names`: of tasks, or ids that Celery gave them.
        Goes back as far as the queue's `history_keep` and `history_seconds`. `before`: the last page's `next_before`.
        """
        listed = None if names is None else as_names(names)
        return self._call(queue_verbs.ReadHistory(self.name, listed, before, limit))

    def close(self) -> None:
        """Close the connections; nothing is lost."""

    def _call(self, verb: "Verb[T]") -> T:
        """Carry out a verb of `unit`, and return its result."""


class Queues(Protocol):
    """All queues of one store: the verbs of administrators and supervisors."""

    def queue(self, name: str) -> Queue:
        """Return one queue; a missing queue raises `UnknownQueueError` at the first verb."""

    def put_queue(self, spec: QueueSpec) -> bool:
        """Create the queue or replace its settings; True when created."""
        return self._call(store_verbs.PutQueue(spec.name, spec))

    def delete_queue(self, name: str) -> int:
        """Drop a queue and its tasks; return the number of tasks."""
        return self._call(store_verbs.DeleteQueue(name))

    def queues(self) -> list[QueueSpec]:
        """Return all queues, ordered by name."""
        return self._call(store_verbs.ListQueues())

    def storage(self) -> Storage:
        """Return the limit on the payload bytes of all tasks, and the bytes in use."""
        return self._call(store_verbs.ReadStorage())

    def set_storage_limit(self, limit_bytes: int | None) -> None:
        """Set the limit on the payload bytes of all tasks, beyond which adds raise `StorageLimitError`; None: no limit.

        A deletion's `then` is exempt, so that a full store can drain. Servers notice a new limit within a second;
        simultaneous adds through several servers may exceed it together.
        """
        self._call(store_verbs.LimitStorage(limit_bytes))

    def degradations(self) -> list[str]:
        """Return why the store is slower or larger than it should be, each as a sentence with what ends it."""

    def observe(
        self,
        queue: str,
        *,
        tags: TagFilter = ANY,
        after: int = 0,
        workers: Sequence[str] = (),
        ahead_seconds: float = 0.0,
    ) -> Observation:
        """Return the input of a scaling decision in one round trip; `after` is the last observation's cursor.

        `ahead_seconds`: report tasks that become leasable within this time, at most 30 days; 0: none.
        """
        return self._call(store_verbs.Observe(queue, tags, after, tuple(workers), ahead_seconds))

    def observe_many(self, queries: Sequence[ObservationQuery]) -> list[Observation | None]:
        """Return observations of up to 1000 queues in one round trip; None for a queue that does not exist."""
        return self._call(store_verbs.ObserveMany(queries))

    def retire_worker(self, worker: str, *, busy: Busy = "keep") -> bool:
        """Fence a worker: it gets no more leases, and its waiting calls end. False when it holds a lease.

        `busy`: `keep` does not fence it then; `finish` fences it all the same, and it keeps its leases.
        """
        return self._call(store_verbs.RetireWorker(worker, busy))

    def release_worker(self, worker: str, *, failure: Failure = WORKER_DIED) -> list[FinishedLease]:
        """Give back at once all leases that a dead worker holds; `failure`: the facts of its end."""
        return self._call(store_verbs.ReleaseWorker(worker, failure))

    def lead(self, name: str, holder: str, *, seconds: float) -> bool:
        """Take or keep the lead called `name` for `seconds`; False while another holder has it."""
        return self._call(store_verbs.Lead(name, holder, seconds))

    def keep(self, name: str, text: str) -> None:
        """Keep a text of this store's supervisors, in place of the earlier one, for good; at most 512 KiB."""
        self._call(store_verbs.Keep(name, text))

    def kept(self, name: str) -> str | None:
        """Return the text that is kept under this name; None: there is none."""
        return self._call(store_verbs.ReadKept(name))

    def register(self, kind: str, name: str, facts: Mapping[str, str], *, seconds: float) -> None:
        """Keep small facts of a program under its name for so long, in place of earlier ones; 0 seconds end it."""
        self._call(registration_verbs.Register(kind, name, facts, seconds))

    def present_workers(self) -> list[LeasingWorker]:
        """Return the workers that lease from these queues, supervised or not, by name; at most 1,000."""

    def registrations(self, kind: str) -> list["Registration"]:
        """Return the facts of that kind that are kept now, by name."""
        return self._call(registration_verbs.ListRegistrations(kind))

    @property
    def schedules(self) -> "Schedules":
        """The schedules of this store."""
        from queue_core.client.schedules import Schedules  # most programs have no schedule

        return Schedules(self._call)

    def wait_ready(self, queues: Sequence[tuple[str, TagFilter]], *, wait_seconds: float) -> str | None:
        """Wait until a task of one of these becomes leasable; return its queue's name, or None when the time is up."""

    def close(self) -> None:
        """Close the connections; nothing is lost."""

    def _call(self, verb: "Verb[T]") -> T:
        """Carry out a verb of `unit`, and return its result."""


def as_new_tasks(tasks: bytes | NewTask | Iterable[NewTask]) -> list[NewTask]:
    """Return one task or many as a list. Raises `InvalidRequestError` for anything else."""
    if isinstance(tasks, bytes | bytearray | memoryview):
        return [NewTask(bytes(tasks))]
    if isinstance(tasks, NewTask):
        return [tasks]
    given: object = tasks
    if isinstance(given, str) or not isinstance(given, Iterable):
        cure = "encode it: text.encode()" if isinstance(given, str) else "NewTask(payload) makes a task"
        raise InvalidRequestError(f"add takes bytes, a NewTask or a list of NewTasks: {_shown(given)}; {cure}")
    many = list(tasks)
    wrong = [index for index, task in enumerate(many) if not isinstance(task, NewTask)]
    if wrong:
        shown = f"item {wrong[0]} is {_shown(many[wrong[0]])}"
        raise InvalidRequestError(f"a list must be of NewTasks: {shown}; NewTask(payload) makes a task")
    return many


def _shown(value: object) -> str:
    """Describe a wrong argument without its value, which may be a payload."""
    return f"of type {type(value).__name__}"


def as_tokens(leases: Lease | str | Iterable[Lease | str]) -> list[str]:
    """Return the tokens of one lease or many. Raises `InvalidRequestError` for anything else."""
    many = [leases] if isinstance(leases, Lease | str) else _listed(leases)
    try:
        return [lease if isinstance(lease, str) else lease.token for lease in many]
    except AttributeError:
        wrong = next(lease for lease in many if not isinstance(lease, Lease | str))
        raise _no_lease(wrong) from None


def payloads_of(leases: Lease | str | Iterable[Lease | str]) -> list[bytes]:
    """Return the payloads of leases that are given whole, one or a list of them: an error may quote them."""
    many = leases if isinstance(leases, Sequence) and not isinstance(leases, str) else [leases]
    return [lease.payload for lease in many if isinstance(lease, Lease)]


def as_renewals(leases: Renewable | Iterable[Renewable], seconds: float | None) -> list[Renewal]:
    """Return one renewal or many as a list, each without a time of its own for `seconds`."""
    many = [leases] if isinstance(leases, Lease | str | Renewal) else _listed(leases)
    renewals: list[Renewal] = []
    for one in many:
        if not isinstance(one, Renewal):
            renewals.append(Renewal(as_tokens(one)[0], seconds))
        else:
            renewals.append(one if one.seconds is not None else replace(one, seconds=seconds))
    return renewals


def _listed(leases: Iterable[T]) -> list[T]:
    if isinstance(leases, bytes) or not isinstance(leases, Iterable):
        raise _no_lease(leases)
    return list(leases)


def _no_lease(value: object) -> InvalidRequestError:
    return InvalidRequestError(f"give a Lease, its token or a list of these: {_shown(value)}")


def as_names(names: str | Iterable[str]) -> list[str]:
    """Return one name or many as a list. Raises `InvalidRequestError` for anything else."""
    if isinstance(names, str):
        return [names]
    many: list[object] = [*names] if isinstance(names, Iterable) else [names]
    wrong = [name for name in many if not isinstance(name, str)]
    if wrong:
        raise InvalidRequestError(f"give a task's name or a list of names: {wrong[0]!r}")
    return cast("list[str]", many)


def as_states(states: Iterable[TaskState]) -> frozenset[TaskState]:
    """Return a set of states. Raises `InvalidRequestError` for anything else."""
    many: list[object] = [*states] if isinstance(states, Iterable) else [states]
    if not all(isinstance(state, TaskState) for state in many):
        raise InvalidRequestError(f"states must be a set of TaskState, such as {{TaskState.READY}}: {states!r}")
    return frozenset(cast("list[TaskState]", many))


def as_deletions(leases: Ended | Iterable[Ended], then: Sequence[NewTask]) -> list[Deletion]:
    """Return one deletion or many as a list; `then` needs exactly one lease."""
    many = [leases] if isinstance(leases, Lease | str | Deletion) else _listed(leases)
    if not then:
        return [item if isinstance(item, Deletion) else Deletion(as_tokens(item)[0]) for item in many]
    if len(many) != 1 or isinstance(many[0], Deletion):
        raise InvalidRequestError(
            f"then goes with one lease: {len(many)} given; give each its own Deletion(token, then)"
        )
    return [Deletion(as_tokens(many[0])[0], tuple(then))]

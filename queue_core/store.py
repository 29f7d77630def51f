"""The Store protocol: the atomic verbs, for every queue of one store.

A store opens transactions; each verb called inside one is atomic, and one transaction may carry verbs of many callers
(group commit). Callers must not publish a transaction's results before `sync` of its ticket has returned. The protocol
exposes no driver type. A verb takes `now`, read from the store's clock, and raises for bad state *before* it writes.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Literal, NewType, Protocol, TypeAlias, runtime_checkable

from queue_core.attempts.attempt import WORKER_DIED, Failure
from queue_core.clock import Clock, Instant
from queue_core.stats import (
    DELETED_BY_NAME,
    PURGED,
    FinishedLease,
    History,
    LiveLease,
    QueueStats,
    Samples,
    TagStats,
    TaskRemoval,
    WaitingTask,
)
from queue_core.task import (
    SOLO_WORKER_MARK,
    Lease,
    NewTask,
    QueueSpec,
    StoredTask,
    TagFilter,
    TaskState,
    quarantined_task_of,
)
from queue_core.verbs import (
    Added,
    Busy,
    CallVerb,
    Check,
    ClientCall,
    Deleted,
    Deletion,
    Granted,
    HeldName,
    HeldSnapshot,
    LeaseRequest,
    NameOutcome,
    Page,
    Release,
    Renewal,
    Renewed,
    Storage,
)
from queue_core.verbs.change_verbs import Changed, Selector, Transition

Unit: TypeAlias = Literal["transaction", "verb"]
"""The unit that is committed together: see `Store.begin`."""


def unit_of_lease(worker: str) -> Unit:
    """Return the unit in which to commit a worker's lease or exchange: a solo worker's takes several verbs."""
    is_solo = SOLO_WORKER_MARK in worker and quarantined_task_of(worker) is not None
    return "transaction" if is_solo else "verb"


Kept: TypeAlias = Literal["days", "always"]
"""How long a session's answer is kept: see `Transaction.keep_answer`."""

Ticket = NewType("Ticket", int)
"""The id of a committed transaction; `sync(ticket)` returns when it and all before it are durable."""


class Transaction(Protocol):
    """The verbs. A `None` in a list of outcomes: that token is not current and changed nothing."""

    def put_queue(self, spec: QueueSpec, *, now: Instant) -> bool:
        """Create the queue or replace its settings; True when it was created. Leaves it paused or running as it was.

        New limits of its tags hold back or admit tasks at once, at a cost that grows with the tags that have any.
        """

    def queue(self, name: str) -> QueueSpec:
        """Return the queue's settings and whether it is paused. Raises `UnknownQueueError`."""

    def queues(self) -> list[QueueSpec]:
        """Return all queues, ordered by name."""

    def delete_queue(self, name: str) -> int:
        """Drop a queue with its tasks and names; return the number of tasks dropped."""

    def set_storage_limit(self, limit_bytes: int | None) -> None:
        """Set the limit on the payload bytes of all tasks; None: no limit. `UnitOfWork.add` enforces it.

        Setting the first limit counts the existing payloads, so its cost grows with the tasks.
        """

    def storage(self) -> Storage:
        """Return the limit and the payload bytes in use, including dead tasks; O(1)."""

    def add(self, queue: str, tasks: Sequence[NewTask], *, now: Instant) -> list[Added]:
        """Add tasks in order. An eta, name or queue out of range fails the whole call before anything is written.

        `UnitOfWork` enforces the queue's `max_payload_bytes` and `max_eta_seconds`; a store the highest of the latter.
        """

    def lease(self, queue: str, request: LeaseRequest, *, now: Instant) -> Granted:
        """Lease leasable tasks by priority, then in eta order, ties by id. A paused queue grants none.

        Never exceeds the queue's limits nor those of a tag (`admission`); with `per_tag.fair` tags take turns.

        With an `allowance`, the first task that does not fit ends the lease; it and later tasks stay uncharged. Records
        when `request.worker` was first seen; raises `WorkerRetiredError` for a retired worker.
        """

    def renew(self, queue: str, renewals: Sequence[Renewal], *, now: Instant) -> list[Renewed | None]:
        """Move the ends of leases, and keep the progress and checkpoints that come with them.

        Raises `InvalidLeaseTimeError` when one would outgrow `max_lease_seconds`.
        """

    def release(self, queue: str, releases: Sequence[Release], *, now: Instant) -> list[FinishedLease | None]:
        """Give leases back, with back-off; a task that used up its leases becomes dead, for the reason of the last one.

        Each is kept among its task's attempts, of which the last 10 are kept; so is a lease that expires.
        """

    def delete(self, queue: str, deletions: Sequence[Deletion], *, now: Instant) -> Sequence[Deleted | None]:
        """Delete tasks whose leases are current."""

    def exchange(
        self, queue: str, deletions: Sequence[Deletion], request: LeaseRequest, *, now: Instant
    ) -> tuple[Sequence[Deleted | None], Granted]:
        """Run `delete`, then `lease`, atomically and in one round trip: a worker's steady state.

        Raises what the two raise, before anything is written. For a retired worker the deletions take effect and the
        result is `refused`.
        """

    def delete_by_name(
        self, queue: str, names: Sequence[str], *, removal: TaskRemoval = DELETED_BY_NAME, now: Instant
    ) -> list[NameOutcome]:
        """Delete tasks in any state, without checking leases (App Engine's delete).

        A lease that ends by it is recorded as `removed`, and counts as no deletion, unless its holder deletes the task.
        """

    def purge(self, queue: str, tags: TagFilter, *, limit: int, removal: TaskRemoval = PURGED, now: Instant) -> int:
        """Delete up to `limit` tasks of these tags in any state but dead; call again until it returns 0.

        Their given names stay taken for the retention time.
        """

    def purge_dead(self, queue: str, tags: TagFilter, *, limit: int, now: Instant) -> int:
        """Delete up to `limit` dead tasks of these tags; call again until it returns 0."""

    def set_paused(self, queue: str, paused: Literal["paused", "running"]) -> bool:
        """Stop or resume granting leases; True when that was a change."""

    def apply(self, queue: str, selector: Selector, transition: Transition, *, now: Instant) -> list[Changed]:
        """Change the tasks that `selector` means by a pure function, which may be called again; return those changed.

        They come in the order of the selector's names, or by their ids. Lanes, counters, names and the rotation are
        right afterwards. Raises `StoreUnavailableError` where others kept changing the same tasks: none is changed.
        """

    def postpone(self, queue: str, name: str, *, expected: Instant, eta: Instant, now: Instant) -> bool:
        """Move the eta of a delayed task (by its given or generated name) if it is `expected`; False otherwise.

        An eta not after `now` makes the task ready. Raises `InvalidEtaError` for an eta before the epoch or more than
        10 years ahead.
        """

    def lease_delayed(
        self, queue: str, task_id: int, *, expected: Instant, worker: str, seconds: float | None, now: Instant
    ) -> Lease | None:
        """Lease one delayed task before its eta if the eta is `expected`; None otherwise. For quarantined tasks.

        Records the worker, and raises for a retired worker or too long a lease, as `lease` does. Also when paused; not
        when that would exceed a limit of the queue or of the task's tag.
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
        """Return tasks with ids beyond `after`, states as of `now`, payloads cut to `payload_bytes`; leases nothing."""

    def stats(self, queue: str, tags: TagFilter, *, now: Instant) -> QueueStats:
        """Return counts and totals; O(1) in the number of tasks, O(n) in the number of tags requested."""

    def tag_stats(self, queue: str, *, after: str | None, limit: int, now: Instant) -> list[TagStats]:
        """Return counts per tag, ordered by tag; untagged tasks come first when `after` is None."""

    def waiting(self, queue: str, tags: TagFilter, *, now: Instant) -> tuple[WaitingTask, ...]:
        """Return since when the tasks at 8 positions of the ready queue wait, whichever is leased first.

        Positions are in the order of their etas; the cost is bounded (`stats.sample_waiting`).
        """

    def upcoming(self, queue: str, tags: TagFilter, *, until: Instant, limit: int, now: Instant) -> list[Instant]:
        """Return the etas, in order, of never leased delayed tasks that become leasable in (`now`, `until`].

        Examines at least `limit` delayed tasks of the queue, including those of other tags, and may leave out later
        ones; that bounds the cost.
        """

    def samples(self, queue: str, *, after: int, limit: int) -> Samples:
        """Return the finished leases recorded after the cursor `after`."""

    def history(
        self,
        queue: str,
        *,
        names: Sequence[str] | None = None,
        before: int | None = None,
        limit: int,
        now: Instant,
    ) -> History:
        """Return up to `limit` ended leases, newest first: those recorded before the cursor `before`, or the last.

        Finds the queue's last `history_keep` ended leases, as far as they ended in the last `history_seconds`; with
        `names` those of these tasks, by name or by the id that Celery gave them, at a cost that grows with
        `history_keep`. They are the finished leases of `samples`, kept for longer: history costs no write of its own.
        """

    def live_leases(self, queue: str, *, limit: int, now: Instant) -> list[LiveLease]:
        """Return the live leases, soonest to end first."""

    def next_eta(self, queue: str, *, now: Instant) -> Instant | None:
        """Return when time alone next makes a task leasable; `now` or earlier: at once; None: never.

        Includes when a limit on the rate of leases next lets one be granted that a task waits for.
        """

    def admitted(self) -> Sequence[tuple[str, str | None, int]]:
        """Return, once, how many tasks of which queues and tags this transaction's verbs let be leased by limits alone.

        They became leasable as their tag's lane admitted them, or as room returned in a queue that is limited itself.
        """

    def workers_seen(self, workers: Sequence[str]) -> dict[str, Instant]:
        """Return when each worker first called `lease`; workers never seen are left out."""

    def retire_worker(self, worker: str, *, busy: Busy = "keep", now: Instant) -> bool:
        """Fence a worker: it gets no more leases and keeps those it holds. False if it holds a live lease.

        `busy`: what to do then: `keep` does not fence it, `finish` fences it all the same.
        """

    def release_worker(self, worker: str, *, failure: Failure = WORKER_DIED, now: Instant) -> list[FinishedLease]:
        """Give back every lease that a dead worker holds (counted, tasks in their old places) and retire it.

        `failure`: what is known of its end; it is kept among the attempts of those tasks.
        """

    def lead(self, name: str, holder: str, *, seconds: float, now: Instant) -> bool:
        """Take or keep the lead called `name` for `seconds` from now; False while another holder has it."""

    def expire(self, queue: str, *, limit: int, now: Instant) -> tuple[list[FinishedLease], bool]:
        """Make up to `limit` due tasks leasable (or dead); return the expired leases and whether more are due."""

    # -- moving a queue to another store --------------------------------------------------------------------------

    def restore(self, queue: str, tasks: Sequence[StoredTask], *, now: Instant) -> list[Added]:
        """Add tasks as another store had them under new ids, with state, eta, leases, grant, reason, name and headers.

        `added_at` and `leased_at` are kept, so that no token is issued twice; a LEASED task stays leased, without a
        holder, until its eta (see `semantics.restore`). An eta may be in the past. A name that is taken here refuses
        its task, as in `add`. Totals count these tasks as added. Also works on a fenced queue.
        """

    def held_names(self, queue: str, *, after: str | None, limit: int, now: Instant) -> list[HeldName]:
        """Return names of deleted tasks that are still taken at `now`, in order; also works on a moved queue."""

    def hold_names(self, queue: str, names: Sequence[HeldName], *, now: Instant) -> None:
        """Refuse adds under these names until their `until`; a name that a task here has stays with it.

        Also works on a fenced queue.
        """

    def set_moved(self, queue: str, to: str) -> None:
        """Fence the queue: every verb that changes or leases its tasks raises `QueueMovedError` from now on.

        Reads still work; `stats` report it as paused, `next_eta` is None, and `release_worker` skips it. Changing
        settings, pausing and deleting the queue are allowed. An empty `to` lifts the fence.
        """

    # -- idempotency ----------------------------------------------------------------------------------------------

    def once_for_call(self, call: ClientCall, verb: CallVerb) -> "CallOnce | None":
        """Return a transaction that applies `verb` once for `call`; None: the store does not deduplicate it itself.

        In that case `idempotency.once` does, with the two verbs below. Either way a call that is sent again within ten
        minutes, through any server, gets its first answer, with those of its leases that are still current; a call
        that arrives after a later call of its session raises `OutcomeUnknownError`.
        """

    def answer_of(self, call: ClientCall, *, now: Instant) -> bytes | None:
        """Return the recorded answer to a call, or None. A store may skip the lookup for a call that is no repeat.

        Raises `OutcomeUnknownError` when a later call of its session was answered, as the record is gone then.
        """

    def record_answer(self, call: ClientCall, answer: bytes, *, now: Instant) -> None:
        """Record the answer (JSON) to a call in place of its session's previous one; see `keep_answer`."""

    def check_kept(self, call: ClientCall, *, now: Instant) -> None:
        """Raise `OutcomeUnknownError` where what `keep_answer` kept for a repeat's first try may be forgotten."""

    def last_answer(self, session: str) -> tuple[int, bytes] | None:
        """Return the number and the answer of a session's last call that `keep_answer` recorded."""

    def keep_answer(self, session: str, number: int, answer: bytes, *, now: Instant, kept: Kept = "days") -> None:
        """Record the answer to call `number` of a session in place of the previous one, for at least a day.

        With `kept="always"` it stays until it is replaced: that is how schedules are kept (ADR 38).
        Raises `StoreUnavailableError` and rolls back when another transaction recorded `number` or later meanwhile.
        """


class CallOnce(Transaction, Protocol):
    """The verbs of one call of a client, each of which takes effect once: see `Transaction.once_for_call`."""

    def close_call(self, queues: Sequence[str]) -> bool:
        """Have the call, whose first try may still come, change nothing in these queues; False: it took effect before.

        A queue that does not exist yet counts, too.
        """

    def keep_renewed(self, tokens: Sequence[str]) -> None:
        """Have repeats of the call find these leases of it, which were renewed in this transaction."""


@runtime_checkable
class Erasable(Protocol):
    """A store that its operator may erase while it is open; it continues as a new, empty store."""

    @property
    def url(self) -> str:
        """See `Store.url`."""

    def is_erased(self) -> bool:
        """Return whether the store is another than the one opened or last marked. Raises `StoreError`."""

    def mark(self) -> None:
        """Mark the present store as the one that was opened. Raises `StoreError`."""


class MessageBus(Protocol):
    """Passes pieces of text to the other processes that have the same store open, in the order of sending.

    Thread-safe. What is sent while a process is cut off does not reach it.
    """

    @property
    def piece_characters(self) -> int:
        """How long a piece may be."""

    def receive(
        self,
        node: str,
        *,
        on_piece: Callable[[str], None],
        on_gap: Callable[[], None],
        on_round: Callable[[], None],
    ) -> None:
        """Begin to receive what is sent to everybody or to `node`; return when that is so, at the latest in seconds.

        Args:
            node: the name of this process: eight hexadecimal digits.
            on_piece: called, in a thread of the bus, with each piece, also with this process's own.
            on_gap: called when some may have been missed, as the connection was lost; it is open again.
            on_round: called every few seconds.

        None of them may raise. Raises `StoreError` where this store can't be listened to.
        """

    def send(self, pieces: Sequence[tuple[str, str]]) -> None:
        """Send pieces, each to a process, or "" for all. Raises `StoreError`."""

    def nodes(self) -> set[str]:
        """Return the names of the processes that receive now. Raises `StoreError`."""

    def leave_to_parent(self) -> None:
        """In the child of a fork: leave connections and threads to the parent; the child uses a bus of its own."""

    def close(self) -> None:
        """End the connections and threads."""


@runtime_checkable
class Broadcaster(Protocol):
    """A store that passes texts between the processes that have it open, and keeps none of them (ADR 39)."""

    def bus(self) -> MessageBus:
        """Return a bus of this process, which its owner closes before the store."""


class Signals(Protocol):
    """Wakes waiting lease calls of other processes on the same store. Never a source of state, only a hint."""

    @property
    def trouble(self) -> str:
        """The reason why waiters of this process can't be woken, with a remedy; "" when they can, or none waited."""

    def publish(self, queue: str, tag: str | None, count: int) -> None:
        """Wake up to `count` waiters for tasks of this tag, most recently active first."""

    def subscribe(self, queue: str, tags: TagFilter) -> "Subscription":
        """Start to receive wake-ups; none that is published after this returns is missed."""


class Subscription(Protocol):
    """One waiter's subscription to wake-ups."""

    def wait(self, *, timeout_seconds: float) -> bool:
        """Sleep until woken (True) or the time is up (False)."""

    def wake(self) -> None:
        """End a `wait` in another thread."""

    def close(self) -> None:
        """End the subscription; an unused wake-up goes to the next matching waiter."""


class Store(Protocol):
    """One opened store; usable from several threads."""

    @property
    def url(self) -> str:
        """The store's URL, without secrets."""

    @property
    def durability(self) -> Literal["strict", "relaxed"]:
        """`strict`: a synced ticket survives power loss. `relaxed`: it survives a crash of the process."""

    @property
    def signals(self) -> Signals:
        """The signals that wake waiters in other processes."""

    @property
    def clock(self) -> Clock:
        """The clock that decides: for a store shared by several hosts, the store's own."""

    @property
    def is_remote(self) -> bool:
        """Return whether a call crosses a network.

        A server then never calls it in its event loop, runs several calls at a time, and retries a call that failed
        before it took effect.
        """

    @property
    def unit(self) -> Unit:
        """The unit that an exception rolls back. `verb`: each verb commits as it returns; earlier ones stand."""

    def begin(self, unit: Unit = "transaction") -> AbstractContextManager[Transaction]:
        """Open a write transaction: leaving the block commits it, an exception rolls it back (but see `unit`).

        Args:
            unit: `verb`, for a block with one verb that changes something: that verb may be committed as it returns,
                which saves a round trip to a remote store.

        Raises `StoreUnavailableError`, `StoreFullError`, `StoreReadOnlyError`, and `OutcomeUnknownError` when it
        can't be determined whether the commit took effect. One at a time per process, unless `is_remote`.
        """

    def within(self, connection: object) -> AbstractContextManager[Transaction]:
        """Run verbs inside a transaction that the caller opened on its own connection and commits.

        Waiters are woken by that commit. Raises `InvalidRequestError` where the store has no such connections.
        """

    def read(self) -> AbstractContextManager[Transaction]:
        """Open a consistent snapshot for `queue`, `queues`, `peek`, `stats`, `tag_stats`, `waiting`, `samples`, ...

        Counts are exact as of their `now`, though no task is expired. Never blocks a writer.
        """

    def ticket(self) -> Ticket:
        """Return the ticket of the last transaction that this store object committed."""

    def sync(self, ticket: Ticket) -> None:
        """Return when the transaction is durable; several callers share one sync. Raises `StoreUnavailableError`."""

    def check_room(self) -> None:
        """Raise `StoreFullError` while the store is known to be too full for adds; costs next to nothing."""

    def make_room(self) -> bool:
        """Free the disk reserve after a full disk refused a change; return whether a retry is worthwhile."""

    def held_snapshot(self, *, min_seconds: float = 0.0) -> HeldSnapshot | None:
        """Return the snapshot that keeps what was deleted from being removed, if it does and is held for so long.

        A store that knows of none, or keeps nothing for one, returns None.
        """

    def check(self) -> Check:
        """Verify the file and recount counters, indexes and names. The cost grows with the tasks."""

    def close(self) -> None:
        """Release files and connections."""

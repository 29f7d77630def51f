"""Open the store as usual after the fault, work a little, and check everything against the history."""

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from queue_core.admission import NO_TAG_LIMITS
from queue_core.attempts.attempt import MAX_ATTEMPTS
from queue_core.client.local_calls import LocalQueues
from queue_core.client.queue import Queue
from queue_core.clock import Instant
from queue_core.errors import QueueError
from queue_core.limits import LARGEST_PAYLOAD_BYTES
from queue_core.stats import History
from queue_core.store import Store, Transaction
from queue_core.stores.memory.store import MemoryStore
from queue_core.stores.sqlite import store as sqlite_store
from queue_core.stores.sqlite.store import SqliteStore
from queue_core.task import ANY, QueueSpec, StoredTask, TaskState, token_of
from queue_core.unit.service import QueueService
from queue_core.verbs import Deletion
from tests.faults.checker import Violation, check
from tests.faults.history import HistoryCall, MemoryHistory, digest_of, uid_of
from tests.faults.limited import at_their_limit
from tests.faults.lives import Contents, KeptAttempt, KeptLease, TaskInStore, lives_of
from tests.faults.moved import changed_on_the_way, move_all
from tests.faults.outcome import Deadline
from tests.faults.recorded import RecordedQueue

PAGE_TASKS = 200
PAGE_LEASES = 1000
NAMED_AT_ONCE = 50
ALL_STATES = frozenset(TaskState)


def read_contents(store: Store, *, clock_error: int = 0) -> Contents:
    """Read every task and ended lease of every queue, the statistics of that instant, and the store's complaints."""
    problems = store.check().problems
    now = store.clock.now()
    with store.read() as transaction:
        specs = transaction.queues()
        histories = {spec.name: _history(transaction, spec.name, now=now) for spec in specs}
        return Contents(
            tuple(_stored(task) for spec in specs for task in _tasks(transaction, spec.name, now=now)),
            problems,
            {spec.name: transaction.stats(spec.name, ANY, now=now) for spec in specs},
            {spec.name: spec.max_leases for spec in specs},
            clock_error,
            histories={spec.name: histories[spec.name] for spec in specs if _is_whole(histories[spec.name], spec)},
            limits={spec.name: spec for spec in specs if spec.is_limited or spec.per_tag != NO_TAG_LIMITS},
        )


def _is_whole(history: Sequence[KeptLease], spec: QueueSpec) -> bool:
    """Return whether a queue's history goes back to its begin: these tests are over before it is too old."""
    return len(history) < spec.history_keep


def _history(transaction: Transaction, queue: str, *, now: Instant) -> tuple[KeptLease, ...]:
    leases: list[KeptLease] = []
    before: int | None = None
    while True:
        page = transaction.history(queue, before=before, limit=PAGE_LEASES, now=now)
        leases += [KeptLease(one.name, one.lease_number, one.worker, one.outcome) for one in page.leases]
        before = page.next_before
        if before is None:
            return tuple(leases)


def _tasks(transaction: Transaction, queue: str, *, now: Instant) -> list[StoredTask]:
    tasks: list[StoredTask] = []
    after: int | None = 0
    while after is not None:
        page = transaction.peek(
            queue, ANY, ALL_STATES, after=after, limit=PAGE_TASKS, payload_bytes=LARGEST_PAYLOAD_BYTES, now=now
        )
        tasks.extend(page.tasks)
        after = page.next_after
    return tasks


def _stored(task: StoredTask) -> TaskInStore:
    return TaskInStore(
        uid_of(task.shown_name, task.payload),
        task.shown_name,
        task.queue,
        digest_of(task.payload, task.headers),
        task.state.name,  # type: ignore[arg-type]
        task.leases,
        task.token,
        task.leased_at,
        task.eta,
        task.tag,
        tuple(
            KeptAttempt(
                token_of(task.id, attempt.began_at),
                attempt.lease_number,
                attempt.worker,
                attempt.began_at,
                attempt.ended_at,
                attempt.outcome,
                attempt.message,
            )
            for attempt in task.attempts
        ),
    )


FILE_NAME = "queue.db"
CHECKPOINT_PAGES = 60
LEASED_AFTERWARDS = 20
DRAIN_SECONDS = 60.0
DRAIN_PAUSE_SECONDS = 0.05
DRAINED_AT_ONCE = 200


def reopen_and_check(
    path: Path, calls: Sequence[HistoryCall], *, runners: bool = False, checked: "Counter[str] | None" = None
) -> list[Violation]:
    """Do the same for a file."""
    return open_and_check(lambda: SqliteStore(path), calls, runners=runners, checked=checked)


def open_and_check(
    open_it: Callable[[], Store],
    calls: Sequence[HistoryCall],
    *,
    clock_error: int = 0,
    over_http: bool = False,
    runners: bool = False,
    checked: "Counter[str] | None" = None,
) -> list[Violation]:
    """Return every violation that the calls and the contents prove; a store that doesn't open or work is I16.

    Args:
        clock_error: see `Contents.clock_error`.
        over_http: all calls came over HTTP. Check, then lease and delete all tasks but dead ones and check again,
            instead of leasing some; and see `Contents.adds_repeat`.
        runners: see `Contents.runners`.
        checked: counts what was read.
    """
    try:
        store = open_it()
    except QueueError as error:
        return [Violation("I16", f"the store does not open: {type(error).__name__}: {error}")]
    try:
        history = MemoryHistory()
        queues = LocalQueues(QueueService(store))
        numbers = itertools.count(1)
        found: list[Violation] = []

        def check_now() -> None:
            contents = read_contents(store, clock_error=clock_error)
            if checked is not None:
                _count(contents, checked)
                checked["queues and tags at their limit"] += at_their_limit(
                    lives_of(calls, contents).values(), contents
                )
            contents = replace(contents, adds_repeat=over_http, runners=runners)
            found.extend(check([*calls, *history.calls()], contents))

        if over_http:
            check_now()  # the tasks that are about to be drained have attempts
        for spec in queues.queues():
            afterwards = RecordedQueue(queues.queue(spec.name), history, numbers)
            if over_http:
                found += _drain(afterwards, queues.queue(spec.name))
            else:
                afterwards.lease(LEASED_AFTERWARDS, seconds=60.0, worker="afterwards")
        check_now()
        found += [one for spec in queues.queues() for one in _by_name(queues.queue(spec.name))]
        found += _moved(store)
        return list(dict.fromkeys(found))
    except QueueError as error:
        return [Violation("I16", f"the store does not work: {type(error).__name__}: {error}")]
    finally:
        store.close()


def _count(contents: Contents, checked: "Counter[str]") -> None:
    attempts = [len(task.attempts or ()) for task in contents.tasks]
    checked["tasks"] += len(contents.tasks)
    checked["attempts"] += sum(attempts)
    checked["tasks with all the attempts that are kept"] += attempts.count(MAX_ATTEMPTS)
    checked["ended leases"] += sum(map(len, contents.histories.values()))


def _moved(store: Store) -> list[Violation]:
    """Move everything to another store and compare it; the queues here stay closed."""
    before = _all_tasks(store)
    with closing(MemoryStore()) as target:
        move_all(store, target)
        return [Violation(*one) for one in changed_on_the_way(before, _all_tasks(target))]


def _all_tasks(store: Store) -> list[TaskInStore]:
    now = store.clock.now()
    with store.read() as transaction:
        return [_stored(task) for spec in transaction.queues() for task in _tasks(transaction, spec.name, now=now)]


def _by_name(queue: Queue) -> Iterator[Violation]:
    """Check that the last ended leases are found by their tasks' names, too."""
    last = queue.history(limit=NAMED_AT_ONCE).leases
    names = list(dict.fromkeys(lease.name for lease in last))
    named = queue.history(names=names, limit=PAGE_LEASES) if names else History(())
    found = named.leases if named.next_before is None else ()
    if named.next_before is None and [lease for lease in found if lease in last] != list(last):
        yield Violation("I20", f"{queue.name}: of the last {len(last)} ended leases others are found by name")
    if any(lease.name not in names for lease in found):
        yield Violation("I20", f"{queue.name}: ended leases of other tasks are found by name")


def _drain(recorded: RecordedQueue, queue: Queue) -> Iterator[Violation]:
    """Lease and delete until nothing is left that becomes leasable with time."""
    until = Deadline(time.monotonic() + DRAIN_SECONDS)
    while not until.is_over:
        leases = recorded.lease(DRAINED_AT_ONCE, seconds=60.0, worker="drain")
        if leases:
            recorded.delete([Deletion(lease.token) for lease in leases])
            continue
        stats = queue.stats()
        if not stats.pending:
            return
        time.sleep(DRAIN_PAUSE_SECONDS)
    yield Violation("I7", f"{queue.name} could not be drained within {DRAIN_SECONDS} s: {queue.stats()}")


@contextmanager
def checkpoint_every(pages: int) -> Iterator[None]:
    """Checkpoint this process's stores after so few pages, so that a short run has many checkpoints."""
    usual = sqlite_store.CHECKPOINT_PAGES
    sqlite_store.CHECKPOINT_PAGES = pages
    try:
        yield
    finally:
        sqlite_store.CHECKPOINT_PAGES = usual

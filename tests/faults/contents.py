"""What a store holds after everything, read through its own verbs from one snapshot."""

from queue_core.clock import Instant
from queue_core.limits import MAX_PAYLOAD_BYTES
from queue_core.store import Store, Transaction
from queue_core.task import ANY, StoredTask, TaskState
from tests.faults.history import digest_of, uid_of
from tests.faults.lives import Contents, TaskInStore

PAGE_TASKS = 200
ALL_STATES = frozenset(TaskState)


def read_contents(store: Store, *, clock_error: int = 0) -> Contents:
    """Every task of every queue, the statistics of the same instant, and what the store's check complains of."""
    problems = store.check().problems
    now = store.clock.now()
    with store.read() as transaction:
        specs = transaction.queues()
        return Contents(
            tuple(_stored(task) for spec in specs for task in _tasks(transaction, spec.name, now=now)),
            problems,
            {spec.name: transaction.stats(spec.name, ANY, now=now) for spec in specs},
            {spec.name: spec.max_leases for spec in specs},
            clock_error,
        )


def _tasks(transaction: Transaction, queue: str, *, now: Instant) -> list[StoredTask]:
    tasks: list[StoredTask] = []
    after: int | None = 0
    while after is not None:
        page = transaction.peek(
            queue, ANY, ALL_STATES, after=after, limit=PAGE_TASKS, payload_bytes=MAX_PAYLOAD_BYTES, now=now
        )
        tasks.extend(page.tasks)
        after = page.next_after
    return tasks


def _stored(task: StoredTask) -> TaskInStore:
    return TaskInStore(
        uid_of(task.shown_name, task.payload),
        task.shown_name,
        task.queue,
        digest_of(task.payload),
        task.state.name,  # type: ignore[arg-type]
        task.leases,
        task.token,
        task.leased_at,
        task.eta,
        task.tag,
    )

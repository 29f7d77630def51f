"""Short ways to move tasks: as another store had them, restored, held, fenced, and looked at."""

from dataclasses import replace

from queue_core.clock import START, Instant
from queue_core.limits import MAX_PAYLOAD_BYTES
from queue_core.store import Added, HeldName, Store
from queue_core.stores import open_store
from queue_core.stores.sqlite.store import SqliteStore
from queue_core.task import ANY, StoredTask, TaskState
from tests.support.stores.task_builders import QUEUE, at

ELSEWHERE = "sqlite:////srv/new.db"
STATES = frozenset(TaskState)


def a_task(task_id: int = 1, **fields: object) -> StoredTask:
    """A task as another store had it."""
    task = StoredTask(task_id, QUEUE, b"x", at(0), at(-50), ready_at=at(0))
    return replace(task, **fields)  # type: ignore[arg-type]


def a_leased_task(task_id: int = 1, **fields: object) -> StoredTask:
    """A task that was under its second lease, until 10 s from now, when it was moved."""
    leased = a_task(
        task_id, state=TaskState.LEASED, leases=2, leased_at=at(-20), eta=at(10), ready_at=at(-30), worker="old-1"
    )
    return replace(leased, **fields)  # type: ignore[arg-type]


def restore(store: Store, *tasks: StoredTask, now: Instant = START, queue: str = QUEUE) -> list[Added]:
    """Restore tasks in one transaction."""
    with store.begin() as transaction:
        return transaction.restore(queue, tasks, now=now)


def hold(store: Store, *held: HeldName, now: Instant = START) -> None:
    """Hold names in one transaction."""
    with store.begin() as transaction:
        transaction.hold_names(QUEUE, held, now=now)


def held_names(store: Store, *, after: str | None = None, limit: int = 100, now: Instant = START) -> list[HeldName]:
    """Names that are held, from a snapshot."""
    with store.read() as transaction:
        return transaction.held_names(QUEUE, after=after, limit=limit, now=now)


def peek(store: Store, *, queue: str = QUEUE, now: Instant = START) -> list[StoredTask]:
    """All tasks with their payloads, in id order."""
    with store.read() as transaction:
        page = transaction.peek(queue, ANY, STATES, limit=1000, payload_bytes=MAX_PAYLOAD_BYTES, now=now)
    return list(page.tasks)


def fence(store: Store, to: str = ELSEWHERE) -> None:
    """Mark the queue as moved, or lift that."""
    with store.begin() as transaction:
        transaction.set_moved(QUEUE, to)


def opened_again(store: Store) -> Store:
    """The same store, as another process would open it."""
    if isinstance(store, SqliteStore):  # by the same library: two of them in one process undo each other's locks
        return SqliteStore(store._path, driver=store._driver)
    return open_store(store.url)

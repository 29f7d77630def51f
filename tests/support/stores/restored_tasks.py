"""Helpers for transferred tasks: restore tasks, hold names, fence a queue, and read the result."""

from dataclasses import replace

from queue_core.clock import START, Instant
from queue_core.limits import LARGEST_PAYLOAD_BYTES
from queue_core.store import Store
from queue_core.stores import open_store
from queue_core.stores.sqlite.store import SqliteStore
from queue_core.task import ANY, StoredTask, TaskState
from queue_core.verbs import Added, HeldName
from tests.support.stores.task_builders import QUEUE, at

ELSEWHERE = "sqlite:////srv/new.db"
STATES = frozenset(TaskState)


def a_task(task_id: int = 1, **fields: object) -> StoredTask:
    """Return a task as it was in another store."""
    task = StoredTask(task_id, QUEUE, b"x", at(0), at(-50), ready_at=at(0))
    return replace(task, **fields)  # type: ignore[arg-type]


def a_leased_task(task_id: int = 1, **fields: object) -> StoredTask:
    """Return a task under its second lease, until 10 s from now, at the transfer."""
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
    """Return held names from a snapshot."""
    with store.read() as transaction:
        return transaction.held_names(QUEUE, after=after, limit=limit, now=now)


def peek(store: Store, *, queue: str = QUEUE, now: Instant = START) -> list[StoredTask]:
    """Return all tasks with their payloads, in id order."""
    with store.read() as transaction:
        page = transaction.peek(queue, ANY, STATES, limit=1000, payload_bytes=LARGEST_PAYLOAD_BYTES, now=now)
    return list(page.tasks)


def fence(store: Store, to: str = ELSEWHERE) -> None:
    """Mark the queue as moved, or remove the mark."""
    with store.begin() as transaction:
        transaction.set_moved(QUEUE, to)


def opened_again(store: Store) -> Store:
    """Open the same store as another process would."""
    if isinstance(
        store, SqliteStore
    ):  # by the same library: two SQLite libraries in one process release each other's locks
        return SqliteStore(store._path, driver=store._driver)
    return open_store(store.url)

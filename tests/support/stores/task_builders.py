"""Short helpers of the store tests: an instant, a queue, a task, a lease."""

from collections.abc import Sequence
from dataclasses import replace

from queue_core.clock import START, Instant, after
from queue_core.stats import QueueStats, Samples
from queue_core.store import Store
from queue_core.task import ANY, Lease, NewTask, QueueSpec, TagFilter
from queue_core.verbs import Added, Deleted, Deletion, Granted, LeaseRequest

QUEUE = "thumbs"
SPEC = QueueSpec(QUEUE, lease_seconds=60.0, retry_min_seconds=1.0, retry_max_seconds=8.0, name_retention_seconds=100.0)
MICROSECOND = 1e-6


def at(seconds: float) -> Instant:
    """Return the instant `seconds` after the tests begin."""
    return after(START, seconds)


TEN_LATER = at(10)


def a_queue(store: Store, name: str = QUEUE, **settings: object) -> QueueSpec:
    """Create a queue, or replace its settings."""
    spec = replace(SPEC, name=name, **settings)  # type: ignore[arg-type]
    with store.begin() as transaction:
        transaction.put_queue(spec, now=START)
    return spec


def add(store: Store, *tasks: NewTask, now: Instant = START, queue: str = QUEUE) -> list[Added]:
    """Add tasks in one transaction."""
    with store.begin() as transaction:
        return transaction.add(queue, tasks, now=now)


def grant(
    store: Store,
    count: int = 1,
    *,
    seconds: float = 60.0,
    tags: TagFilter = ANY,
    worker: str = "worker-1",
    now: Instant = START,
    queue: str = QUEUE,
) -> Granted:
    """Call lease once."""
    with store.begin() as transaction:
        return transaction.lease(queue, LeaseRequest(count, seconds, tags, worker), now=now)


def lease(
    store: Store,
    count: int = 1,
    *,
    seconds: float = 60.0,
    tags: TagFilter = ANY,
    worker: str = "worker-1",
    now: Instant = START,
    queue: str = QUEUE,
) -> list[Lease]:
    """Lease as a service does: again while expired leases are left to settle."""
    while True:
        granted = grant(store, count, seconds=seconds, tags=tags, worker=worker, now=now, queue=queue)
        if granted.leases or not granted.more_due:
            return list(granted.leases)


def delete(store: Store, *leases: Lease | str, now: Instant = START, queue: str = QUEUE) -> list[Deleted | None]:
    """Delete tasks by lease or by token."""
    tokens = [held if isinstance(held, str) else held.token for held in leases]
    with store.begin() as transaction:
        return transaction.delete(queue, [Deletion(token) for token in tokens], now=now)


def exchange_one(
    store: Store,
    token: str,
    *,
    now: Instant = TEN_LATER,
    seconds: float = 60.0,
    worker: str = "worker-1",
    queue: str = QUEUE,
) -> tuple[list[Deleted | None], list[Lease]]:
    """Exchange one finished lease for one new one; return the outcome of the first, and the new lease."""
    with store.begin() as transaction:
        request = LeaseRequest(1, seconds, ANY, worker)
        outcomes, granted = transaction.exchange(queue, [Deletion(token)], request, now=now)
    return list(outcomes), list(granted.leases)


def stats(store: Store, tags: TagFilter = ANY, *, now: Instant = START, queue: str = QUEUE) -> QueueStats:
    """Return statistics from a snapshot."""
    with store.read() as transaction:
        return transaction.stats(queue, tags, now=now)


def samples(store: Store, *, after: int = 0, limit: int = 1000, queue: str = QUEUE) -> Samples:
    """Return finished leases from a snapshot."""
    with store.read() as transaction:
        return transaction.samples(queue, after=after, limit=limit)


def names(leases: Sequence[Lease]) -> list[str]:
    """Return the names of leased tasks, in order."""
    return [held.name for held in leases]

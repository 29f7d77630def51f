"""What the tests of swaps need: a queue with tasks in a file, leases exchanged one for one, what waits in the file."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import apsw

from queue_core.clock import Instant
from queue_core.store import Store
from queue_core.stores.sqlite.store import SqliteStore
from queue_core.stores.sqlite.swapping import MAX_SWAPS
from queue_core.task import Lease, NewTask, TagFilter
from tests.support.task_builders import QUEUE, a_queue, add, at, lease, samples, swapped

FILE = "queue.db"
TASKS = 3 * MAX_SWAPS


@contextmanager
def filled(folder: Path) -> Iterator[SqliteStore]:
    """A store whose queue has `TASKS` tasks."""
    with closing(SqliteStore(folder / FILE)) as store:
        a_queue(store)
        add(store, *[NewTask(b"%d" % number) for number in range(1, TASKS + 1)])
        yield store


def waiting(folder: Path) -> int:
    """How many rows wait to be sorted in, as the file has it."""
    with closing(apsw.Connection(str(folder / FILE))) as connection:
        return int(connection.execute("SELECT count(*) FROM swaps").fetchall()[0][0])


def swap(store: Store, held: Lease, *, now: Instant, seconds: float = 600.0, queue: str = QUEUE) -> Lease:
    """The next task for a finished one."""
    (outcome,), (taken,) = swapped(store, held.token, now=now, seconds=seconds, worker=held.worker, queue=queue)
    assert outcome is not None
    assert outcome.finished.name == held.name
    return taken


def swaps(store: Store, held: Lease, number: int, *, now: Instant) -> Lease:
    """So many, one after the other."""
    for _ in range(number):
        held = swap(store, held, now=now)
    return held


def first(store: Store, *, worker: str = "worker-1", now: Instant | None = None) -> Lease:
    """The first lease of a worker, from which it goes on; this process knows the worker by then."""
    (held,) = lease(store, 1, seconds=600.0, worker=worker, now=now or at(1))
    assert lease(store, 1, tags=TagFilter.of("none has this"), worker=worker, now=now or at(1)) == []
    return held


def ended(store: Store) -> list[str]:
    """The names of finished leases, in order."""
    return [finished.name for finished in samples(store).finished]

"""PostgreSQL stores whose floors are raised by hand: see `queue_core/stores/postgres/floors.py`."""

from collections.abc import Iterable
from itertools import count, cycle

from queue_core.clock import START, Instant
from queue_core.store import Unit
from queue_core.stores.postgres.floors import raise_floors
from queue_core.stores.postgres.store import PostgresStore, PostgresWrite
from tests.support.stores.task_builders import QUEUE, at

FAR = at(1_000_000)
"""A ceiling above everything: whatever is made ready, delayed or leased after it must be written down."""


def raised(
    store: PostgresStore,
    *,
    ceiling: Instant = FAR,
    tags: Iterable[str | None] = ("a", "b", "ä"),
    search_seconds: float = 1e9,
    queue: str = QUEUE,
) -> bool:
    """Raise a queue's floors to what is there, or the ceiling; return False when a transaction holds it back."""
    seconds = count()  # a second passes with each look at a clock
    with store._pool.lend() as connection:
        return raise_floors(
            connection.runner,
            queue,
            tags,
            ceiling=ceiling,
            now=START,
            pause=lambda _: None,
            monotonic=lambda: float(next(seconds)),
            search_seconds=search_seconds,
        )


def unattended(url: str) -> PostgresStore:
    """Open a store that leaves its floors as they are."""
    store = PostgresStore(url, durability="relaxed")
    store._floors.close()
    return store


class FlooredStore(PostgresStore):
    """Raises the floors of some queues before each write, with ceilings behind, at and ahead of the tests' time."""

    queues: Iterable[str] = ()

    def begin(self, unit: Unit = "transaction") -> PostgresWrite:
        self._floors.close()
        ceilings = self.__dict__.setdefault("ceilings", cycle([START, at(2), FAR, at(6), at(20), FAR, FAR]))
        for queue in self.queues:
            raised(self, ceiling=next(ceilings), queue=queue)
        return super().begin(unit)

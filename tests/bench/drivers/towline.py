"""Towline as a library: programs that open the store themselves, without a server.

A consumer's loop is one exchange: delete the held tasks and lease the next.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial

from queue_core.task import Lease, NewTask
from queue_core.verbs import Deletion
from tests.bench.driver import IN_A_TABLE, Consumer, Loads, Producer
from tests.bench.places import BenchStore, Durability, Engine, new_place, opened
from tests.bench.site import BenchSite

NAMES: Mapping[Engine, str] = {"sqlite": "SQLite", "postgresql": "PostgreSQL", "redis": "Redis"}
LOADS: Mapping[tuple[Engine, Durability], Loads] = {
    ("sqlite", "strict"): Loads(add=10_000, drain=10_000, add_batch=200_000, drain_batch=200_000),
    ("sqlite", "relaxed"): Loads(add=40_000, drain=30_000, add_batch=200_000, drain_batch=200_000),
    ("postgresql", "strict"): IN_A_TABLE,
    ("redis", "relaxed"): Loads(add=10_000, drain=12_000, add_batch=100_000, drain_batch=100_000),
}


class TowlineDriver:
    """Strict syncs every acknowledged change; relaxed leaves syncing to checkpoints, or to Redis once a second."""

    def __init__(self, *, durability: Durability, engine: Engine = "sqlite") -> None:
        self.name = f"Towline, {NAMES[engine]}" + (", relaxed" if (engine, durability) == ("sqlite", "relaxed") else "")
        self.durable = durable(engine, durability)
        self.loads = LOADS[engine, durability]
        self._engine: Engine = engine
        self._durability: Durability = durability
        self._place = BenchStore("", durability, engine)
        self._stack = ExitStack()

    def start(self, site: BenchSite) -> None:
        self._place = self._stack.enter_context(new_place(site, self._engine, durability=self._durability))
        opened(self._place).close()

    def producer(self) -> Producer:
        return TowlineClient(self._place)

    def consumer(self) -> Callable[[], Consumer]:
        return partial(TowlineClient, self._place)

    def stop(self) -> None:
        self._stack.close()


def durable(engine: Engine, durability: Durability) -> str:
    """Return what an acknowledged add survives, for the table."""
    if durability == "strict":
        return "yes"
    return "to a second" if engine == "redis" else "not across a power cut"


class TowlineClient:
    """One opened store, as producer or consumer."""

    def __init__(self, place: BenchStore) -> None:
        self._queue = opened(place)
        self._held: list[Lease] = []

    def add(self, payload: bytes) -> None:
        self._queue.add(payload)

    def add_batch(self, payloads: Sequence[bytes]) -> None:
        self._queue.add([NewTask(payload) for payload in payloads])

    def take(self, tasks: int) -> int:
        finished = [Deletion(lease.token) for lease in self._held]
        self._held, lost = self._queue.exchange(finished, count=tasks)
        assert not lost, f"leases were lost: {lost}"
        return len(self._held)

    def close(self) -> None:
        self._queue.close()

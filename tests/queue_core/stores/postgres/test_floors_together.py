"""Two servers on one PostgreSQL whose floors rise all the time, while snapshots are held: nothing is lost."""

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from threading import Event, Thread

import psycopg
import pytest
from structlog.testing import capture_logs

from queue_core.errors import StoreUnavailableError
from queue_core.stores.postgres import floors
from queue_core.stores.postgres.floors import FLOOR_MISSED
from queue_core.stores.postgres.store import PostgresStore
from queue_core.task import ANY, UNTAGGED, NewTask, TagFilter
from queue_core.verbs import Deletion, LeaseRequest, Release
from tests.support.stores.stores import new_store_url
from tests.support.stores.task_builders import QUEUE, a_queue

SERVERS = 2
CALLERS = 3  # of each server
CALLS = 250  # of each caller
FILTERS = (ANY, ANY, UNTAGGED, TagFilter.of("a"), TagFilter.of("a", "b"), TagFilter.oldest())
TAGS = (None, None, "a", "b")


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> str:
    """Of a store whose floors rise whatever is dead, as often as they can, and from the bottom now and then."""
    monkeypatch.setattr(floors, "DEAD_ROWS", 0)
    monkeypatch.setattr(floors, "FEW_DEAD_ROWS", 0)
    monkeypatch.setattr(floors, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(floors, "RAISE_SECONDS", 0.002)
    monkeypatch.setattr(floors, "MARGIN_SECONDS", 0.0)
    monkeypatch.setattr(floors, "SEARCH_SECONDS", 0.2)
    monkeypatch.setattr(floors, "EPOCH_TRANSACTIONS", 20)
    return new_store_url("postgresql")


class Caller:
    """Adds, leases, deletes, gives back and forgets, by chance; counts what it added and deleted."""

    def __init__(self, store: PostgresStore, seed: int, calls: int) -> None:
        self._store = store
        self._chance = random.Random(seed)
        self._calls = calls
        self._seed = seed
        self.added: list[bytes] = []
        self.deleted: Counter[bytes] = Counter()

    def run(self) -> None:
        for number in range(self._calls):
            try:
                self._add(number)
                self._work()
            except StoreUnavailableError:  # a deadlock over counters or names: nothing was changed
                continue

    def _add(self, number: int) -> None:
        payloads = [b"%d %d %d" % (self._seed, number, place) for place in range(self._chance.randrange(1, 4))]
        tasks = [
            NewTask(one, tag=self._chance.choice(TAGS), delay_seconds=self._chance.choice((None, None, 0.01, 0.05)))
            for one in payloads
        ]
        with self._store.begin("verb") as transaction:
            transaction.add(QUEUE, tasks, now=self._store.clock.now())
        self.added += payloads

    def _work(self) -> None:
        count = self._chance.randrange(1, 5)
        request = LeaseRequest(count, self._chance.choice((0.02, 0.3, 9.0)), self._chance.choice(FILTERS), "w")
        with self._store.begin("verb") as transaction:
            leases = transaction.lease(QUEUE, request, now=self._store.clock.now()).leases
        for held in leases:
            choice = self._chance.random()
            if choice < 0.6:
                with self._store.begin("verb") as transaction:
                    outcomes = transaction.delete(QUEUE, [Deletion(held.token)], now=self._store.clock.now())
                self.deleted.update([held.payload] if outcomes[0] is not None else [])
            elif choice < 0.9:
                how = (
                    Release(held.token, charge="uncounted") if choice < 0.8 else Release(held.token, delay_seconds=0.01)
                )
                with self._store.begin() as transaction:
                    transaction.release(QUEUE, [how], now=self._store.clock.now())


def _hold_snapshots(url: str, is_over: Event) -> None:
    while not is_over.is_set():
        with psycopg.connect(url) as holder:
            holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            holder.execute("SELECT pg_current_xact_id()")
            is_over.wait(0.5)


def _drained(store: PostgresStore, found: Counter[bytes]) -> Iterator[int]:
    """Lease and delete what is left, and yield how much is still alive."""
    while True:
        now = store.clock.now()
        with store.begin() as transaction:
            leases = transaction.lease(QUEUE, LeaseRequest(100, 60.0, ANY, "last"), now=now).leases
        with store.begin() as transaction:
            transaction.delete(QUEUE, [Deletion(held.token) for held in leases], now=now)
        found.update(held.payload for held in leases)
        with store.read() as transaction:
            counts = transaction.stats(QUEUE, ANY, now=now)
        yield counts.ready + counts.delayed + counts.in_flight


def together(url: str, *, calls: int, seed: int = 1) -> None:
    """Run servers with callers, then drain the queue: each task was deleted once, and no floor hid one."""
    is_over = Event()
    with ExitStack() as opened, capture_logs() as logs:
        stores = [opened.enter_context(closing(PostgresStore(url, durability="relaxed"))) for _ in range(SERVERS)]
        a_queue(stores[0], max_leases=None)
        callers = [
            Caller(store, seed + 100 * place + number, calls)
            for place, store in enumerate(stores)
            for number in range(CALLERS)
        ]
        threads = [Thread(target=caller.run) for caller in callers]
        holder = Thread(target=_hold_snapshots, args=(url, is_over))
        for thread in (holder, *threads):
            thread.start()
        for thread in threads:
            thread.join()
        is_over.set()
        holder.join()
        rest: Counter[bytes] = Counter()
        for alive in _drained(stores[1], rest):
            if not alive:
                break
        added = Counter(payload for caller in callers for payload in caller.added)
        deleted = sum((caller.deleted for caller in callers), rest)
        assert deleted == added
        assert stores[0].check().problems == ()
        with psycopg.connect(url) as connection:
            (generations,) = connection.execute("SELECT max(newest) FROM towline.floors").fetchone() or (0,)
    assert generations > 10
    assert [entry for entry in logs if entry["event"] in (FLOOR_MISSED, floors.FLOORS_FAILED)] == []


def test_nothing_is_lost_below_floors_that_rise_all_the_time(url: str) -> None:
    together(url, calls=CALLS)

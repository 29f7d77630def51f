"""Two servers on one PostgreSQL with limits: whoever looks at any instant never sees more than is allowed."""

import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from threading import Event, Thread

import psycopg
import pytest

from queue_core.admission import Rate, TagLimits
from queue_core.errors import StoreUnavailableError
from queue_core.stores.postgres.store import PostgresStore
from queue_core.task import ANY, Lease, NewTask, TagFilter
from queue_core.verbs import Deletion, LeaseRequest, Release
from tests.support.stores.stores import new_store_url
from tests.support.stores.task_builders import QUEUE, a_queue

SERVERS = 2
WORKERS = 4  # of each server
TAGS = tuple(f"t{number}" for number in range(20))
TASKS_OF_TAG = 15
LIMIT = 2
LIMIT_OF_QUEUE = 12

LIMITS = {
    "in flight": {"per_tag": TagLimits(LIMIT)},
    "all": {"per_tag": TagLimits(LIMIT, Rate(400.0, burst=3), fair=True), "max_in_flight": LIMIT_OF_QUEUE},
}


class LimitedWorker:
    """Leases, deletes, gives back, adds and dies by chance, until nothing is left."""

    def __init__(self, store: PostgresStore, seed: int) -> None:
        self._store = store
        self._chance = random.Random(seed)
        self.deleted = 0

    def run(self) -> None:
        while self._work():
            pass

    def _work(self) -> bool:
        try:
            leases = self._lease()
            for held in leases:
                self._end(held.token)
        except StoreUnavailableError:  # a deadlock over counters: nothing was changed
            return True
        if leases:
            return True
        with self._store.read() as transaction:
            return transaction.stats(QUEUE, ANY, now=self._store.clock.now()).pending > 0

    def _lease(self) -> list[Lease]:
        some = self._chance.sample(TAGS, 3)
        tags = self._chance.choice((ANY, ANY, TagFilter.of(*some), TagFilter.oldest()))
        request = LeaseRequest(self._chance.randrange(1, 5), self._chance.choice((0.02, 5.0)), tags, "w")
        with self._store.begin(self._chance.choice(("verb", "transaction"))) as transaction:
            return list(transaction.lease(QUEUE, request, now=self._store.clock.now()).leases)

    def _end(self, token: str) -> None:
        choice = self._chance.random()
        if choice > 0.95:
            return  # dies: the lease expires
        with self._store.begin() as transaction:
            now = self._store.clock.now()
            if choice < 0.75:
                request = LeaseRequest(0, None, ANY, "w")
                ended, _ = transaction.exchange(QUEUE, [Deletion(token)], request, now=now)
                gone = ended[0] is not None
            else:
                how = Release(token, self._chance.choice((None, 0.0, 0.01)), charge="uncounted")
                transaction.release(QUEUE, [how], now=now)
                gone = False
        self.deleted += gone


def _overfull(url: str, is_over: Event, seen: list[tuple[str, int]], looks: list[int]) -> None:
    """Look at every tag and the whole queue in one snapshot, again and again."""
    with psycopg.connect(url, autocommit=True) as connection:
        while not is_over.is_set():
            rows = connection.execute(
                "SELECT coalesce(tag, ''), count(*) FILTER (WHERE state = 2), count(*) FROM towline.tasks"
                " WHERE queue > 0 AND (state = 2 OR state > 3) GROUP BY GROUPING SETS ((tag), ())"
            ).fetchall()
            looks.append(sum(leased for tag, leased, _ in rows if tag == ""))
            seen += [(tag, taken) for tag, _, taken in rows if tag and taken > LIMIT]


@pytest.mark.parametrize("name", LIMITS)
def test_no_look_sees_more_than_the_limits_allow(name: str) -> None:
    url = new_store_url("postgresql")
    is_over, seen, looks = Event(), [], []
    with ExitStack() as opened:
        stores = [opened.enter_context(closing(PostgresStore(url, durability="relaxed"))) for _ in range(SERVERS)]
        a_queue(stores[0], max_leases=None, **LIMITS[name])
        tasks = [NewTask(tag=tag) for _ in range(TASKS_OF_TAG) for tag in TAGS]
        with stores[0].begin() as transaction:
            transaction.add(QUEUE, tasks, now=stores[0].clock.now())
        workers = [LimitedWorker(stores[number % SERVERS], number) for number in range(SERVERS * WORKERS)]
        observer = Thread(target=_overfull, args=(url, is_over, seen, looks))
        observer.start()
        try:
            with ThreadPoolExecutor(len(workers)) as pool:
                for ended in [pool.submit(worker.run) for worker in workers]:
                    ended.result()
        finally:
            is_over.set()
            observer.join()
        assert seen == []
        assert len(looks) > 20
        assert max(looks) > LIMIT, "it saw some at work"
        if "max_in_flight" in LIMITS[name]:
            assert max(looks) <= LIMIT_OF_QUEUE
        assert sum(worker.deleted for worker in workers) == len(tasks)
        assert stores[0].check().problems == ()


def test_a_queue_with_limits_that_change_while_it_is_used_keeps_them() -> None:
    url = new_store_url("postgresql")
    with ExitStack() as opened:
        one, other = (opened.enter_context(closing(PostgresStore(url, durability="relaxed"))) for _ in range(SERVERS))
        a_queue(one)
        with one.begin() as transaction:
            transaction.add(QUEUE, [NewTask(tag="a") for _ in range(10)], now=one.clock.now())
        a_queue(other, per_tag=TagLimits(LIMIT))
        with one.begin() as transaction:
            leases = transaction.lease(QUEUE, LeaseRequest(10, 9.0, ANY, "w"), now=one.clock.now()).leases
        assert len(leases) == LIMIT
        assert one.check().problems == ()


def test_a_lane_that_another_transaction_holds_is_updated_by_the_next_lease() -> None:
    url = new_store_url("postgresql")
    with ExitStack() as opened:
        one, other = (opened.enter_context(closing(PostgresStore(url, durability="relaxed"))) for _ in range(SERVERS))
        a_queue(one, per_tag=TagLimits(1))
        now = one.clock.now()
        with one.begin() as transaction:
            transaction.add(QUEUE, [NewTask(name=f"n{number}", tag="a") for number in range(3)], now=now)
            transaction.add(QUEUE, [NewTask(name="b", tag="b")], now=now)
        with one.begin() as transaction:
            (held,) = transaction.lease(QUEUE, LeaseRequest(1, 9.0, TagFilter.of("a"), "w"), now=now).leases
        with one.begin() as holder:
            holder.delete_by_name(QUEUE, ["b"], now=now)
            with other.begin() as transaction:
                transaction.delete(QUEUE, [Deletion(held.token)], now=now)
                assert list(transaction.admitted()) == []
            with other.read() as transaction:
                assert transaction.stats(QUEUE, ANY, now=now).held == 2
                assert (transaction.next_eta(QUEUE, now=now) or 0) > now
        with other.begin() as transaction:
            (again,) = transaction.lease(QUEUE, LeaseRequest(5, 9.0, ANY, "w"), now=now).leases
        assert again.name == "n1"
        assert one.check().problems == ()


def test_a_callers_own_transaction_holds_no_lane() -> None:
    url = new_store_url("postgresql")
    with closing(PostgresStore(url, durability="relaxed")) as store, psycopg.connect(url) as callers:
        a_queue(store, per_tag=TagLimits(1))
        now = store.clock.now()
        with store.begin() as transaction:  # the first tag of a queue is written down with it
            transaction.add(QUEUE, [NewTask(tag="b", delay_seconds=600.0)], now=now)
        with store.within(callers) as transaction:
            transaction.add(QUEUE, [NewTask(name="mine", tag="a")], now=now)
        with store.begin() as transaction:
            transaction.add(QUEUE, [NewTask(name="other", tag="a")], now=now)
        with store.begin() as transaction:
            (held,) = transaction.lease(QUEUE, LeaseRequest(5, 9.0, ANY, "w"), now=now).leases
        assert held.name == "other"
        callers.commit()
        with store.begin() as transaction:
            transaction.delete(QUEUE, [Deletion(held.token)], now=now)
        with store.begin() as transaction:
            (held,) = transaction.lease(QUEUE, LeaseRequest(5, 9.0, ANY, "w"), now=now).leases
        assert held.name == "mine"
        assert store.check().problems == ()

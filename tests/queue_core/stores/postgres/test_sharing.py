"""Many transactions at a time on one PostgreSQL store: what one holds, the others pass by, wait for, or are told."""

import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from threading import Thread

import psycopg
import pytest

from queue_core.client.local_calls import LocalQueue
from queue_core.errors import QueueMovedError
from queue_core.store import Store
from queue_core.stores import open_store
from queue_core.task import ANY, Lease, NewTask, TagFilter
from queue_core.unit.service import QueueService
from queue_core.verbs import LeaseRequest
from tests.support.eventually import eventually
from tests.support.stores.postgres_connections import is_lock_awaited
from tests.support.stores.stores import new_store_url
from tests.support.stores.task_builders import QUEUE, a_queue, add, at, delete, lease, stats

THREADS = 6


@pytest.fixture
def url() -> str:
    return new_store_url("postgresql")


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with closing(open_store(url)) as opened:
        a_queue(opened)
        yield opened
        assert opened.check().problems == ()


@pytest.fixture
def other(url: str, store: Store) -> Iterator[Store]:
    """The same store, as another process has it open."""
    with closing(open_store(url)) as opened:
        yield opened


def deadlocks(url: str) -> int:
    with psycopg.connect(url) as connection:
        connection.execute("SELECT pg_stat_force_next_flush()")
        row = connection.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").fetchone()
    assert row is not None
    return int(row[0])


def test_a_name_is_given_once_however_many_give_it_at_once(store: Store, other: Store, url: str) -> None:
    names = [f"name-{number}" for number in range(60)]

    def add_all(seed: int) -> list[str]:
        queue = LocalQueue(QueueService(store if seed % 2 else other), QUEUE)
        shuffled = random.Random(seed).sample(names, len(names))
        outcomes = [
            outcome
            for first in range(0, len(names), 7)
            for outcome in queue.add([NewTask(name=name) for name in shuffled[first : first + 7]])
        ]
        assert {outcome.status for outcome in outcomes} <= {"added", "exists"}
        return [outcome.name for outcome in outcomes if outcome.status == "added"]

    with ThreadPoolExecutor(THREADS) as pool:
        added = [name for each in pool.map(add_all, range(THREADS)) for name in each]
    assert sorted(added) == sorted(names)
    assert deadlocks(url) == 0


@pytest.mark.parametrize("tags", [ANY, TagFilter.of("a", "b"), TagFilter.oldest()])
def test_no_task_is_leased_twice_and_none_is_left(store: Store, other: Store, tags: TagFilter) -> None:
    add(store, *[NewTask(tag="a" if number % 3 else "b") for number in range(300)])

    def lease_all(number: int) -> list[Lease]:
        leases: list[Lease] = []
        while taken := lease(store if number % 2 else other, 7, tags=tags, worker=f"w{number}"):
            leases += taken
        return leases

    with ThreadPoolExecutor(THREADS) as pool:
        held = [each.name for leases in pool.map(lease_all, range(THREADS)) for each in leases]
    while left := lease(store, 100):  # passed by while another was at them
        held += [each.name for each in left]
    assert Counter(held) == Counter({f"_{number}": 1 for number in range(1, 301)})
    assert stats(store).in_flight == 300


def test_counters_agree_with_the_tasks_whoever_counted(store: Store, other: Store) -> None:
    def work(number: int) -> None:
        one = store if number % 2 else other
        for turn in range(15):
            add(one, *[NewTask(tag=random.Random(turn).choice("abc")) for _ in range(5)], NewTask(delay_seconds=1))
            delete(one, *lease(one, 4, worker=f"w{number}", now=at(2)), now=at(2))

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(work, range(THREADS)))
    found = stats(store, now=at(2))
    assert found.added_total == THREADS * 15 * 6
    assert found.ready + found.deleted_total == found.added_total


def test_a_queue_is_fenced_once_those_who_change_it_are_done(store: Store, other: Store, url: str) -> None:
    def move() -> None:
        with other.begin() as transaction:
            transaction.set_moved(QUEUE, "elsewhere")

    moving = Thread(target=move)
    with store.begin() as transaction:
        transaction.add(QUEUE, [NewTask()], now=at(0))
        moving.start()
        eventually(lambda: is_lock_awaited(url))
    moving.join()
    assert stats(store).ready == 1
    with pytest.raises(QueueMovedError):
        add(store, NewTask())


def test_a_worker_is_not_retired_under_a_lease_that_is_being_granted(store: Store, other: Store, url: str) -> None:
    retired = []

    def retire() -> None:
        with other.begin() as transaction:
            retired.append(transaction.retire_worker("w", now=at(1)))

    retiring = Thread(target=retire)
    add(store, NewTask())
    with store.begin() as transaction:
        assert transaction.lease(QUEUE, LeaseRequest(1, 60.0, ANY, "w"), now=at(0)).leases
        retiring.start()
        eventually(lambda: is_lock_awaited(url))
    retiring.join()
    assert retired == [False]


def test_tasks_that_another_is_leasing_are_passed_by(store: Store, other: Store) -> None:
    add(store, NewTask(name="first"), NewTask(name="second"))
    with store.begin() as transaction:
        held = transaction.lease(QUEUE, LeaseRequest(1, 60.0, ANY, ""), now=at(0)).leases
        assert [each.name for each in held] == ["first"]
        assert [each.name for each in lease(other, 5)] == ["second"]


def test_who_waits_is_woken_when_time_and_somebody_elses_lease_make_a_task_ready(store: Store, other: Store) -> None:
    add(store, NewTask(tag="mine", delay_seconds=1), NewTask(tag="theirs"))
    ear = other.signals.subscribe(QUEUE, TagFilter.of("mine"))
    try:
        assert lease(store, tags=TagFilter.of("theirs"), now=at(1))
        assert ear.wait(timeout_seconds=10)
    finally:
        ear.close()
    assert lease(other, tags=TagFilter.of("mine"), now=at(1))

"""Priorities and limits as they lie in Redis: a store of before, what the check finds, what is left behind."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from queue_core.admission import Rate, TagLimits
from queue_core.client.local_calls import LocalQueues
from queue_core.clock import START
from queue_core.store import Store
from queue_core.stores import open_store
from queue_core.stores.redis.calls import VERSION
from queue_core.stores.redis.keys import LAYOUT, key_of
from queue_core.stores.redis.store import RedisStore
from queue_core.task import ANY, NewTask, TagFilter, TaskState
from queue_core.unit.service import QueueService
from queue_core.verbs import Deletion, LeaseRequest
from tests.support.eventually import eventually
from tests.support.stores.redis_stores import a_redis_store, hash_of, operator_of
from tests.support.stores.restored_tasks import peek
from tests.support.stores.task_builders import QUEUE, a_queue, add, at, delete, grant, lease, names, stats

KEY = key_of(QUEUE)
DAY = 86_400.0
ONE_AT_A_TIME = TagLimits(max_in_flight=1)
ALL = TagLimits(2, Rate(1.0, burst=3), fair=True)


@pytest.fixture
def store() -> Iterator[RedisStore]:
    opened = a_redis_store()
    a_queue(opened)
    yield opened
    opened.close()


def tasks(number: int, tag: str | None, priority: int = 0) -> list[NewTask]:
    return [NewTask(name=f"{tag}{priority}-{index}", tag=tag, priority=priority) for index in range(1, number + 1)]


# -- a plain queue, and a store of before -----------------------------------------------------------------------------


def test_a_plain_queue_lies_in_redis_as_it_did_in_layout_4(store: RedisStore) -> None:
    add(store, *tasks(2, "a"), *tasks(2, None))
    delete(store, lease(store, 3)[0])
    fields = hash_of(store, QUEUE)
    assert {len(fields[name]) for name in (b"-", b"=", b"=a")} == {67}
    assert len(fields[b"."]) == 62
    with operator_of(store) as client:
        kept = {key.removeprefix(KEY.encode()) for key in client.scan_iter(f"{KEY}*")}
    assert not {b":H", b":h:a", b":f", b":O"} & kept


def test_a_store_of_layout_4_takes_priorities_and_limits_with_its_tasks_in_it(store: RedisStore) -> None:
    add(store, *tasks(4, "a"), *tasks(1, None), NewTask(name="later", tag="a", delay_seconds=9.0))
    (held,) = lease(store)
    with operator_of(store) as client:
        client.set(LAYOUT, 4)
    again = open_store(store.url)
    with operator_of(store) as client:
        assert client.get(LAYOUT) == b"%d" % VERSION
    a_queue(again, per_tag=TagLimits(max_in_flight=2, fair=True))
    assert (stats(again).ready, stats(again).held) == (2, 2)
    add(again, NewTask(name="urgent", tag="a", priority=9))
    assert names(lease(again, 10)) == ["urgent", "None0-1"]
    delete(again, held, now=at(1))
    assert names(lease(again, 10, now=at(2))) == ["a0-2"]
    assert again.check().problems == ()
    again.close()


@pytest.mark.parametrize("how", ["priorities first", "limits first"])
def test_pause_fence_priorities_and_limits_are_settings_that_do_not_disturb_each_other(
    store: RedisStore, how: str
) -> None:
    def prioritise() -> None:
        add(store, *tasks(1, "a", 3), *tasks(2, "a"))

    def limit() -> None:
        a_queue(store, per_tag=ONE_AT_A_TIME)

    for step in (prioritise, limit) if how == "priorities first" else (limit, prioritise):
        step()
    with store.begin() as transaction:
        transaction.set_paused(QUEUE, "paused")
        transaction.set_moved(QUEUE, "redis://elsewhere")
        known = transaction.queue(QUEUE)
        assert (known.paused, known.moved_to, known.per_tag) == (True, "redis://elsewhere", ONE_AT_A_TIME)
        transaction.set_moved(QUEUE, "")
        transaction.set_paused(QUEUE, "running")
    add(store, *tasks(1, "a", 7))
    a_queue(store, per_tag=TagLimits(max_in_flight=3))
    assert names(lease(store, 9)) == ["a7-1", "a3-1", "a0-1"]
    with store.begin() as transaction:
        transaction.set_moved(QUEUE, "redis://elsewhere")
    a_queue(store)
    with store.begin() as transaction:
        assert transaction.queue(QUEUE).moved_to == "redis://elsewhere"
        transaction.set_moved(QUEUE, "")
    assert names(lease(store, 9)) == ["a0-2"]
    assert store.check().problems == ()


# -- many -------------------------------------------------------------------------------------------------------------


def test_limits_of_many_tasks_and_tags_hold_at_once(store: RedisStore) -> None:
    for first in range(0, 6000, 1000):
        add(store, *[NewTask(tag=f"t{number % 20}") for number in range(first, first + 1000)])
    a_queue(store, per_tag=TagLimits(max_in_flight=7))
    assert (stats(store).ready, stats(store).held) == (140, 5860)
    a_queue(store)
    assert (stats(store).ready, stats(store).held) == (6000, 0)
    assert store.check().problems == ()


def test_lanes_that_open_together_are_updated_some_at_a_time(store: RedisStore) -> None:
    a_queue(store, per_tag=TagLimits(rate=Rate(1.0)))
    for _ in range(2):
        add(store, *[NewTask(tag=f"t{number}") for number in range(700)])
    assert len(lease(store, 700)) == 700
    with store.begin() as transaction:
        assert transaction.expire(QUEUE, limit=500, now=at(1)) == ([], True)
        assert transaction.expire(QUEUE, limit=500, now=at(1)) == ([], False)
    assert (stats(store, now=at(1)).ready, stats(store, now=at(1)).held) == (700, 0)


def test_a_page_has_the_tasks_that_are_held(store: RedisStore) -> None:
    a_queue(store, per_tag=ONE_AT_A_TIME)
    for _ in range(6):
        add(store, *[NewTask(tag="a", priority=number % 2) for number in range(1000)])
    with store.read() as transaction:
        page = transaction.peek(
            QUEUE, TagFilter.of("a"), frozenset({TaskState.HELD}), limit=900, payload_bytes=0, now=START
        )
    assert len(page.tasks) == 900
    assert {task.state for task in page.tasks} == {TaskState.HELD}
    with store.begin() as transaction:
        assert transaction.purge(QUEUE, ANY, limit=5000, now=START) == 5000
        assert transaction.delete_queue(QUEUE) == 1000


# -- what limits admitted ---------------------------------------------------------------------------------------------


def test_what_follows_a_task_in_another_queue_is_told_with_it(store: RedisStore) -> None:
    a_queue(store, "next", per_tag=ONE_AT_A_TIME)
    add(store, *tasks(1, None))
    (held,) = lease(store)
    with store.begin() as transaction:
        transaction.admitted()
        transaction.delete(QUEUE, [Deletion(held.token, (NewTask(tag="ü", queue="next"),))], now=START)
        assert transaction.admitted() == [("next", "ü", 1)]


def test_leases_of_a_dead_worker_let_others_be_admitted_in_every_queue(store: RedisStore) -> None:
    for queue in (QUEUE, "other"):
        a_queue(store, queue, per_tag=ONE_AT_A_TIME)
        add(store, *tasks(2, queue), queue=queue)
        lease(store, queue=queue, worker="dead")
    with store.begin() as transaction:
        transaction.admitted()
        transaction.release_worker("dead", now=at(1))
        assert sorted(transaction.admitted()) == [("other", "other", 1), (QUEUE, QUEUE, 1)]


def test_an_end_of_a_lease_wakes_who_waits_in_another_process(store: RedisStore) -> None:
    a_queue(store, per_tag=ONE_AT_A_TIME, lease_seconds=60.0)
    other = open_store(store.url)
    queues, waiting = LocalQueues(QueueService(store)), LocalQueues(QueueService(other))
    queue = queues.queue(QUEUE)
    queue.add([NewTask(tag="a", name="first"), NewTask(tag="a", name="second")])
    (first,) = queue.lease(count=2)
    with ThreadPoolExecutor(1) as threads, operator_of(store) as client:
        waiter = threads.submit(lambda: waiting.queue(QUEUE).lease(wait_seconds=30.0))
        eventually(lambda: client.zcard(f"{KEY}:e") == 1)
        queue.delete([first.token])
        assert [held.name for held in waiter.result(15)] == ["second"]
    other.close()


def test_an_exchange_leases_what_its_deletion_let_a_fair_queue_admit(store: RedisStore) -> None:
    a_queue(store, per_tag=TagLimits(max_in_flight=1, fair=True))
    add(store, *tasks(2, "a"))
    (held,) = lease(store)
    with store.begin() as transaction:
        _, granted = transaction.exchange(QUEUE, [Deletion(held.token)], LeaseRequest(1, 9.0, ANY, "w"), now=at(1))
    assert names(granted.leases) == ["a0-2"]


# -- the check --------------------------------------------------------------------------------------------------------

Damage = Callable[["redis.Redis[bytes]"], object]


def a_limited_queue(store: Store) -> None:
    """Leased, READY and held tasks of two tags and two priorities, and untagged ones; ids 1 to 9."""
    a_queue(store, per_tag=ALL)
    add(store, *tasks(4, "a"), *tasks(3, "b", 5), *tasks(2, None))
    assert names(lease(store, 2)) == ["b5-1", "b5-2"]
    assert {task.state for task in peek(store)} == {TaskState.READY, TaskState.HELD, TaskState.LEASED}


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda client: client.zrem(f"{KEY}:H", "a3"), id="a held task in no set"),
        pytest.param(lambda client: client.zrem(f"{KEY}:h:a", "a3"), id="a held task not under its tag"),
        pytest.param(lambda client: client.zadd(f"{KEY}:h:a", {"b99": 1}), id="a tag that holds a task of nobody"),
        pytest.param(lambda client: client.zrem(f"{KEY}:f", "=a"), id="a tag without a place"),
        pytest.param(lambda client: client.zadd(f"{KEY}:f", {"=a": 99}), id="a tag in another place"),
        pytest.param(lambda client: client.zadd(f"{KEY}:f", {"=b": 9}), id="a place of a tag that has nothing ready"),
        pytest.param(lambda client: client.zrem(f"{KEY}:f", "-"), id="the untagged without a place"),
        pytest.param(
            lambda client: client.hset(KEY, "=", client.hget(KEY, "=")[:67] + bytes(23)), id="no held tasks counted"
        ),
    ],
)
def test_a_broken_promise_of_limits_is_found(store: RedisStore, damage: Damage) -> None:
    a_limited_queue(store)
    found = store.check()
    assert (found.problems, found.tasks) == ((), 9)
    with operator_of(store) as client:
        damage(client)
    assert store.check().problems != ()


def test_a_lane_that_is_overfull_is_found(store: RedisStore) -> None:
    a_limited_queue(store)
    with operator_of(store) as client:
        settings = client.hget(KEY, ".")
        assert settings is not None
        client.hset(KEY, ".", settings[:62] + (1).to_bytes(4, "big") + settings[66:])
    assert "tag 'a' has more tasks that are ready than its limit allows" in store.check().problems[0]


# -- what is forgotten ------------------------------------------------------------------------------------------------


def test_nothing_is_left_of_a_dropped_queue_with_limits(store: RedisStore) -> None:
    a_limited_queue(store)
    with store.begin() as transaction:
        assert transaction.delete_queue(QUEUE) == 9
    with operator_of(store) as client:
        assert [key for key in client.scan_iter(f"{KEY}*") if not key.startswith(f"{KEY}:k:".encode())] == []


def test_an_empty_tag_is_kept_until_its_bucket_is_full(store: RedisStore) -> None:
    a_queue(store, per_tag=TagLimits(rate=Rate(1 / DAY, burst=5)))
    for _ in range(5):
        add(store, NewTask(tag="slow"))
        delete(store, *lease(store))
    for number in range(50):
        add(store, NewTask(tag=f"new-{number}"), now=at(3.5 * DAY))
    add(store, *tasks(5, "slow"), now=at(3.5 * DAY))
    assert len(lease(store, 9, tags=TagFilter.of("slow"), now=at(3.5 * DAY))) == 3
    assert store.check().problems == ()


def test_an_empty_tag_is_forgotten_with_its_lane(store: RedisStore) -> None:
    a_queue(store, per_tag=ALL)
    add(store, *[NewTask(tag=f"old-{number}") for number in range(20)])
    delete(store, *lease(store, 20))
    for number in range(100):
        add(store, NewTask(tag=f"new-{number}"), now=at(2 * DAY))
    assert len([field for field in hash_of(store, QUEUE) if field.startswith(b"=old")]) < 10
    assert store.check().problems == ()


# -- time -------------------------------------------------------------------------------------------------------------


def test_a_lease_after_many_due_tasks_still_goes_by_priority(store: RedisStore) -> None:
    add(store, *[NewTask(eta=at(1), priority=number % 2) for number in range(501)])
    add(store, NewTask(b"late", priority=1), now=at(2))
    first = grant(store, 600, now=at(3))
    assert first.more_due
    assert len(first.leases) == 500
    assert [held.payload for held in lease(store, 9, now=at(3))] == [b"late", b""]

"""What only the Redis store has inside: what its check finds, pages of sparse ids, what is forgotten, its layout."""

from collections.abc import Callable, Iterator

import pytest
import redis

from queue_core.clock import START
from queue_core.errors import StoreVersionError
from queue_core.limits import MAX_TASKS_PER_ADD
from queue_core.store import Store
from queue_core.stores import open_store
from queue_core.stores.redis.calls import VERSION, library
from queue_core.stores.redis.keys import LAYOUT, SHARDED, key_of
from queue_core.stores.redis.store import RedisStore
from queue_core.task import ANY, NewTask, TagFilter, TaskState
from tests.support.stores.redis_stores import a_redis_store, hash_of, operator_of
from tests.support.stores.task_builders import QUEUE, a_queue, add, at, delete, grant, lease, stats

KEY = key_of(QUEUE)
DAY = 86_400.0


@pytest.fixture
def store() -> Iterator[RedisStore]:
    opened = a_redis_store()
    a_queue(opened)
    yield opened
    opened.close()


# -- the check --------------------------------------------------------------------------------------------------------

Damage = Callable[["redis.Redis[bytes]"], object]


def a_full_queue(store: Store) -> None:
    """Tasks in every state, with and without tags, names and long payloads; ids 1 to 8, the first four leased."""
    a_queue(store, max_leases=1)
    add(store, NewTask(name="n1"), NewTask(tag="a"), NewTask(b"x" * 3000), NewTask(b"x" * 3000, tag="a", name="n4"))
    lease(store, 3)
    add(store, NewTask(tag="a"), NewTask(delay_seconds=50), NewTask(tag="b", delay_seconds=50), NewTask(name="n8"))


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda client: client.zrem(f"{KEY}:l", "a1"), id="a leased task in no set"),
        pytest.param(lambda client: client.zadd(f"{KEY}:r", {"a1": 5}), id="a task in two states"),
        pytest.param(lambda client: client.zrem(f"{KEY}:r:a", "a5"), id="a tagged task not under its tag"),
        pytest.param(
            lambda client: client.zadd(f"{KEY}:r:a", {"a9": 5}), id="a tag's set with a task that is not there"
        ),
        pytest.param(lambda client: client.zadd(f"{KEY}:d:b", {"a7": 5}), id="another eta under the tag"),
        pytest.param(lambda client: client.hdel(KEY, "+a2"), id="a leased task that was never granted"),
        pytest.param(lambda client: client.hdel(KEY, "a8"), id="a ready task without a body"),
        pytest.param(lambda client: client.hset(KEY, "+a9", "x"), id="a lease of no task"),
        pytest.param(lambda client: client.hdel(f"{KEY}:p", "a3"), id="a payload that is gone"),
        pytest.param(lambda client: client.hset(f"{KEY}:p", "a8", "x"), id="a payload of no long task"),
        pytest.param(lambda client: client.hset(f"{KEY}:n", "n8", "a1"), id="a name that stands for another"),
        pytest.param(lambda client: client.hset(f"{KEY}:n", "n9", "a9"), id="a name that stands for nothing"),
        pytest.param(lambda client: client.hset(KEY, "=a", client.hget(KEY, "=b")), id="counters of another tag"),
        pytest.param(lambda client: client.hdel(KEY, "-"), id="no counters of the untagged"),
        pytest.param(lambda client: client.zrem(f"{KEY}:t", "a"), id="a tag that is not listed"),
    ],
)
def test_a_broken_promise_is_found(store: RedisStore, damage: Damage) -> None:
    a_full_queue(store)
    found = store.check()
    assert (found.problems, found.tasks) == ((), 8)
    with operator_of(store) as client:
        damage(client)
    assert store.check().problems != ()


# -- pages ------------------------------------------------------------------------------------------------------------


def test_pages_are_complete_and_in_order_although_ids_are_many_and_sparse(store: RedisStore) -> None:
    a_queue(store, "other")
    ids: list[int] = []
    for _ in range(3):
        for _ in range(2):
            ids += [int(added.name[1:]) for added in add(store, *[NewTask(b"payload")] * MAX_TASKS_PER_ADD)]
        for _ in range(12):  # a gap of ids that are another queue's
            add(store, *[NewTask()] * MAX_TASKS_PER_ADD, queue="other")
    found: list[int] = []
    after: int | None = 0
    while after is not None:
        with store.read() as transaction:
            page = transaction.peek(
                QUEUE, ANY, frozenset({TaskState.READY}), after=after, limit=900, payload_bytes=3, now=START
            )
        found += [task.id for task in page.tasks]
        assert {task.payload for task in page.tasks} == {b"pay"}
        after = page.next_after
    assert found == ids


def test_waiting_times_of_several_tags_are_those_of_one_line(store: RedisStore) -> None:
    for second in range(16):
        add(store, NewTask(tag=("a", "b", None)[second % 3]), now=at(second))
    add(store, NewTask(tag="a", eta=at(20)), now=at(16))
    with store.read() as transaction:
        waiting = transaction.waiting(QUEUE, ANY, now=at(30))
        tagged = transaction.waiting(QUEUE, TagFilter.of("a", "b"), now=at(30))
    assert [(each.position, each.ready_at) for each in waiting][:2] == [(1, at(0)), (3, at(2))]
    assert waiting[-1].ready_at == at(20)
    assert [each.position for each in tagged] == [1, 2, 4, 5, 7, 8, 10, 12]
    assert tagged[-1].ready_at == at(20)


# -- what is forgotten ------------------------------------------------------------------------------------------------


def test_tags_that_stayed_empty_for_a_day_are_forgotten(store: RedisStore) -> None:
    add(store, *[NewTask(tag=f"old-{number}") for number in range(20)])
    delete(store, *lease(store, 20))
    add(store, NewTask(tag="kept"), now=at(1))
    for number in range(100):
        add(store, NewTask(tag=f"new-{number}"), now=at(2 * DAY))
    tags = {field for field in hash_of(store, QUEUE) if field.startswith(b"=old")}
    assert len(tags) < 10
    assert stats(store, TagFilter.of("kept"), now=at(2 * DAY)).ready == 1
    assert store.check().problems == ()


def test_workers_of_which_nothing_was_heard_for_a_month_are_forgotten(store: RedisStore) -> None:
    for number in range(8):
        grant(store, worker=f"old-{number}")
    with store.begin() as transaction:
        transaction.retire_worker("old-0", now=at(20 * DAY))
    for number in range(4):
        grant(store, worker=f"new-{number}", now=at(31 * DAY))
    known = {field for field in hash_of(store, QUEUE) if field.startswith(b"@")}
    assert known == {b"@old-0", *(f"@new-{number}".encode() for number in range(4))}
    assert store.check().problems == ()


def test_names_whose_time_is_over_are_forgotten(store: RedisStore) -> None:
    for number in range(100):
        add(store, NewTask(name=f"old-{number}"))
    delete(store, *lease(store, 100))
    for number in range(150):
        add(store, NewTask(name=f"new-{number}"), now=at(300))
    delete(store, *lease(store, 150, now=at(300)), now=at(301))
    with operator_of(store) as client:
        assert client.zcard(f"{KEY}:N") < 200


def test_a_retired_worker_gets_nothing_from_a_queue_that_is_made_later(store: RedisStore) -> None:
    with store.begin() as transaction:
        assert transaction.retire_worker("w1", now=START)
        transaction.release_worker("w2", now=START)
    a_queue(store, "later")
    assert {b"@w1", b"@w2"} <= set(hash_of(store, "later"))


def test_a_store_with_a_queue_in_shards_is_not_opened(store: RedisStore) -> None:
    with operator_of(store) as client:
        client.hset(SHARDED, mapping={"thumbs": 8, "mails": 4})
        with pytest.raises(StoreVersionError, match=r"mails, thumbs\. Move them .*\(towline migrate\)"):
            open_store(store.url)
        client.delete(SHARDED)
    open_store(store.url).close()


def test_nothing_is_left_of_a_dropped_queue(store: RedisStore) -> None:
    a_full_queue(store)
    with store.begin() as transaction:
        transaction.delete_by_name(QUEUE, ["n8"], now=START)
        transaction.delete_queue(QUEUE)
    with operator_of(store) as client:
        assert [key for key in client.scan_iter(f"{KEY}*") if not key.startswith(f"{KEY}:k:".encode())] == []


# -- its layout -------------------------------------------------------------------------------------------------------


def test_a_store_of_before_goes_on_and_is_closed_to_older_programs(store: RedisStore) -> None:
    add(store, NewTask(b"kept"))
    with operator_of(store) as client:
        client.set(LAYOUT, 1)
        again = open_store(store.url)
        assert client.get(LAYOUT) == b"%d" % VERSION
    assert [held.payload for held in lease(again)] == [b"kept"]
    again.close()


def test_a_store_of_a_newer_version_is_refused(store: RedisStore) -> None:
    with operator_of(store) as client:
        client.set(LAYOUT, 99)
    with pytest.raises(StoreVersionError):
        open_store(store.url)


def test_two_versions_of_the_program_share_a_server(store: RedisStore) -> None:
    with operator_of(store) as client:
        source = (
            library()
            .source.replace(library().prefix, "towline_other_")
            .replace(f"name={library().prefix[:-1]}", "name=towline_other")
        )
        client.execute_command("FUNCTION", "LOAD", "REPLACE", source)
        add(store, NewTask())
        assert client.execute_command("FCALL_RO", "towline_other_next_eta", 1, KEY) == b"o\0" + bytes(8)
        client.execute_command("FUNCTION", "DELETE", "towline_other")


# -- order ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tag", [None, "a"])
@pytest.mark.parametrize("due", ["delayed", "leased"])
def test_what_is_ready_waits_for_earlier_tasks_that_are_due_and_not_settled_yet(
    store: RedisStore, tag: str | None, due: str
) -> None:
    """One call settles five hundred: those that are ready beyond the next due one are not its to lease."""
    if due == "leased":
        add(store, *(NewTask(tag=tag) for _ in range(501)))
        lease(store, 501, seconds=1)
    else:
        add(store, *(NewTask(tag=tag, eta=at(1)) for _ in range(501)))
    (late,) = add(store, NewTask(tag=tag), now=at(2))
    first = grant(store, 600, now=at(3))
    assert [one.name for one in first.leases] == [f"_{number}" for number in range(1, 501)]
    assert first.more_due
    assert [one.name for one in grant(store, 600, now=at(3)).leases] == ["_501", late.name]

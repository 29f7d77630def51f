"""A queue that is spread over shards: one queue to whoever uses it, several to Redis."""

from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from redis.crc import key_slot

from queue_core.clock import START
from queue_core.errors import InvalidSettingError, UnknownQueueError
from queue_core.local import LocalQueues
from queue_core.service import QueueService
from queue_core.store import Store
from queue_core.stores import open_store
from queue_core.stores.redis.keys import key_of
from queue_core.task import ANY, NewTask, TagFilter, TaskState
from queue_core.verbs import ClientCall, Deletion, LeaseRequest, PayloadAllowance, Release, Renewal
from tests.support.eventually import eventually
from tests.support.stores.redis_cluster import a_cluster
from tests.support.stores.redis_stores import SHARDS, SPREAD, a_sharded_store, operator_of, take_all
from tests.support.stores.stores import new_url
from tests.support.stores.task_builders import QUEUE, a_queue, add, at, delete, lease, names, stats

LONG = 30.0


@pytest.fixture
def url() -> str:
    return new_url("redis")


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with a_sharded_store(url) as opened:
        yield opened
        assert opened.check().problems == ()


def indexes(tokens: Sequence[str]) -> set[int]:
    return {int(token.partition(".")[0]) % SHARDS for token in tokens}


# -- tasks ------------------------------------------------------------------------------------------------------------


def test_every_task_is_leased_once_wherever_it_went(store: Store) -> None:
    for number in range(30):
        add(store, NewTask(b"%d" % number))
    taken = take_all(store)
    assert Counter(held.payload for held in taken) == Counter({b"%d" % number: 1 for number in range(30)})
    assert indexes([held.token for held in taken]) == set(range(SHARDS))
    assert len({held.name for held in taken}) == 30
    assert {held.queue for held in taken} == {QUEUE}


def test_a_lease_takes_from_all_shards_what_it_asks_for(store: Store) -> None:
    for _ in range(6):
        add(store, NewTask())
    assert len(lease(store, 5)) == 5
    assert len(lease(store, 5)) == 1


def test_a_batch_without_names_stays_in_order(store: Store) -> None:
    added = add(store, *[NewTask(b"%d" % number) for number in range(5)])
    assert [each.status for each in added] == ["added"] * 5
    assert [held.payload for held in lease(store, 5)] == [b"%d" % number for number in range(5)]


def test_tokens_hold_for_every_verb_of_a_holder(store: Store) -> None:
    for _ in range(9):
        add(store, NewTask())
    taken = take_all(store)
    tokens = [held.token for held in taken]
    with store.begin() as transaction:
        renewed = transaction.renew(QUEUE, [Renewal(token, 90) for token in tokens], now=at(1))
        released = transaction.release(QUEUE, [Release(token, 0) for token in tokens[:3]], now=at(2))
        deleted = transaction.delete(QUEUE, [Deletion(token) for token in tokens], now=at(3))
    assert [(each.token, each.name) for each in renewed if each] == [(held.token, held.name) for held in taken]
    assert [each.name for each in released if each] == names(taken[:3])
    assert [each and each.finished.name for each in deleted] == [None] * 3 + names(taken[3:])
    assert {each.finished.queue for each in deleted if each} == {QUEUE}
    assert stats(store, now=at(3)).ready == 3


def test_an_exchange_deletes_on_all_shards_and_leases_the_next(store: Store) -> None:
    for _ in range(12):
        add(store, NewTask())
    held = lease(store, 6)
    with store.begin() as transaction:
        outcomes, granted = transaction.exchange(
            QUEUE, [Deletion(each.token) for each in held], LeaseRequest(6, None, ANY, "w1"), now=START
        )
    assert [outcome and outcome.finished.name for outcome in outcomes] == names(held)
    assert len(granted.leases) == 6
    assert stats(store).deleted_total == 6


@pytest.mark.parametrize("count", [8, 40])
def test_the_room_of_a_lease_is_that_of_all_shards_together(store: Store, count: int) -> None:
    for number in range(12):
        add(store, NewTask(b"x" * (3000 if number % 2 else 100)))
    with store.begin() as transaction:
        granted = transaction.lease(QUEUE, LeaseRequest(count, None, ANY, "w1", PayloadAllowance(7000)), now=START)
        first = transaction.lease(QUEUE, LeaseRequest(count, None, ANY, "w1", PayloadAllowance(1)), now=START)
    sizes = [len(held.payload) for held in granted.leases]
    assert sum(sizes) <= 7000
    assert len(sizes) > 2
    assert len(first.leases) == 1


def test_a_delayed_task_is_moved_wherever_it_is(store: Store) -> None:
    given = [NewTask(name=f"n{number}", eta=at(10), max_leases=7) for number in range(5)]
    added = add(store, *given, *[NewTask(eta=at(10)) for _ in range(4)])
    with store.begin() as transaction:
        for each in added:
            assert transaction.postpone(QUEUE, each.name, expected=at(10), eta=at(5), now=START)
            assert not transaction.postpone(QUEUE, each.name, expected=at(10), eta=at(5), now=START)
        page = transaction.peek(QUEUE, ANY, frozenset(TaskState), names=["n1"], limit=1, payload_bytes=0, now=START)
    assert [(task.eta, task.max_leases) for task in page.tasks] == [(at(5), 7)]
    assert stats(store, now=at(5)).ready == 9


def test_tags_are_changed_wherever_a_task_is(store: Store) -> None:
    added = [each.name for each in add(store, *[NewTask(name=f"n{number}", tag="a") for number in range(5)], NewTask())]
    with store.begin() as transaction:
        retagged = transaction.retag(QUEUE, [*reversed(added), "_999", added[0]], "b", now=START)
        assert [(one.name, one.ready) for one in retagged] == [(name, True) for name in reversed(added)]
        assert not transaction.retag(QUEUE, added, "b", now=START)
    assert stats(store, TagFilter.of("b")).ready == 6


def test_names_are_taken_wherever_they_are(store: Store) -> None:
    first = add(store, *[NewTask(name=f"n{number}") for number in range(8)], NewTask())
    again = add(store, *[NewTask(name=f"n{number}") for number in range(8)])
    assert [each.status for each in (*first, *again)] == ["added"] * 9 + ["exists"] * 8
    with store.begin() as transaction:
        outcomes = transaction.delete_by_name(QUEUE, ["n1", "n5", first[-1].name, "_999", "n1"], now=START)
    assert outcomes == ["deleted", "deleted", "deleted", "unknown", "tombstoned"]
    assert add(store, NewTask(name="n5"))[0].status == "tombstoned"


def test_what_follows_a_deletion_is_added_with_it(store: Store) -> None:
    a_queue(store, "plain")
    add(store, NewTask(b"raw"))
    add(store, NewTask(b"raw"), queue="plain")
    (held,), (other,) = lease(store), lease(store, queue="plain")
    then = (NewTask(b"a"), NewTask(b"b", name="named"), NewTask(b"c", queue="plain"))
    with store.begin() as transaction:
        (deleted,) = transaction.delete(QUEUE, [Deletion(held.token, then)], now=START)
        follow = Deletion(other.token, (NewTask(b"d", queue=QUEUE),))
        (handed,), _ = transaction.exchange("plain", [follow], LeaseRequest(1, None, ANY, ""), now=START)
    assert deleted is not None
    assert handed is not None
    assert [each.status for each in (*deleted.then, *handed.then)] == ["added"] * 4
    taken = take_all(store)
    assert sorted(each.payload for each in taken) == [b"a", b"b", b"d"]
    assert {each.name for each in taken} == {deleted.then[0].name, "named", handed.then[0].name}
    with store.read() as transaction:
        assert transaction.stats("plain", ANY, now=START).added_total == 2


def test_a_mixed_batch_goes_to_both_kinds_of_queue(store: Store) -> None:
    a_queue(store, "plain")
    added = add(store, NewTask(b"1", queue=QUEUE), NewTask(b"2"), NewTask(b"3", queue=QUEUE), queue="plain")
    assert [each.status for each in added] == ["added"] * 3
    assert [held.payload for held in lease(store, 5, queue="plain")] == [b"2"]
    assert sorted(held.payload for held in take_all(store)) == [b"1", b"3"]


def test_an_add_that_comes_again_takes_effect_once(store: Store) -> None:
    tasks = [NewTask(name=None), NewTask(name="n1"), NewTask(name="n2")]
    with store.begin() as transaction:
        once = transaction.once_for_call(ClientCall("session", 1), "add")
        assert once is not None
        first = once.add(QUEUE, tasks, now=START)
    assert [each.status for each in first] == ["added"] * 3
    assert stats(store).added_total == 3


# -- which queue is spread --------------------------------------------------------------------------------------------


def test_whoever_opens_the_store_finds_the_queue_spread(store: Store, url: str) -> None:
    other = open_store(url)
    add(other, NewTask())
    assert len(take_all(store)) == 1
    with store.begin() as transaction:
        assert [spec.name for spec in transaction.queues()] == [QUEUE]
        transaction.delete_queue(QUEUE)
    with pytest.raises(UnknownQueueError, match=f"no queue '{QUEUE}'"):
        add(other, NewTask())
    a_queue(other)
    add(other, NewTask())
    with operator_of(store) as client:
        assert client.exists(key_of(QUEUE))
    other.close()


@pytest.mark.parametrize("size", [2, 8])
def test_the_number_of_shards_stays_as_it_was(store: Store, url: str, size: int) -> None:
    with pytest.raises(InvalidSettingError, match=f"{SHARDS} shards"):
        open_store(f"{url}?spread={QUEUE}:{size}")


def test_a_queue_that_is_there_is_not_spread_afterwards(url: str) -> None:
    plain = open_store(url)
    a_queue(plain)
    with pytest.raises(InvalidSettingError, match="without shards"):
        open_store(url + SPREAD)
    plain.close()


def test_a_waiter_is_woken_by_a_task_on_any_shard(store: Store, url: str) -> None:
    other = open_store(url)
    queues, waiting = LocalQueues(QueueService(store)), LocalQueues(QueueService(other))
    with ThreadPoolExecutor(1) as threads, operator_of(store) as client:
        for number in range(SHARDS):
            taken = threads.submit(waiting.queue(QUEUE).lease, wait_seconds=LONG)
            eventually(lambda: client.exists(f"{key_of(QUEUE)}:e"))
            queues.queue(QUEUE).add(b"%d" % number)
            assert [held.payload for held in taken.result(LONG)] == [b"%d" % number]
    other.close()


def test_shards_are_on_several_nodes_of_a_cluster(tmp_path: Path) -> None:
    with a_cluster(tmp_path, durable=True) as cluster:
        spread = open_store(f"{cluster.url}?spread={QUEUE}:8")
        a_queue(spread)
        assert len({key_slot(key_of(f"{QUEUE}:{index}").encode()) * 3 // 16384 for index in range(8)}) == 3
        tasks = [NewTask(b"%d" % number, name=f"n{number}" if number % 2 else None) for number in range(20)]
        added = add(spread, *tasks)
        for number in range(20, 40):
            add(spread, NewTask(b"%d" % number))
        taken = take_all(spread, count=7)
        assert sorted(int(held.payload) for held in taken) == list(range(40))
        assert {each.name for each in added} <= set(names(taken))
        with spread.begin() as transaction:
            deletions = [Deletion(held.token, (NewTask(b"next"),)) for held in taken]
            outcomes, granted = transaction.exchange(QUEUE, deletions, LeaseRequest(40, None, ANY, "w1"), now=at(1))
        assert all(outcomes)
        assert [held.payload for held in granted.leases] == [b"next"] * 40
        assert delete(spread, *granted.leases, now=at(2)).count(None) == 0
        assert spread.check().problems == ()
        spread.close()

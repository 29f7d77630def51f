"""Rare parts of tasks, such as attempts, leave nothing behind in Redis; records of an older layout are read."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from struct import pack

import pytest
import redis

from queue_core.attempts.attempt import Failure
from queue_core.clock import NEVER, START, Instant
from queue_core.store import Store
from queue_core.stores import open_store
from queue_core.stores.redis.keys import key_of
from queue_core.stores.redis.store import RedisStore
from queue_core.task import ANY, Lease, NewTask, Progress, TagFilter
from queue_core.verbs import Deletion, LeaseRequest, Release, Renewal
from tests.support.stores.redis_cluster import a_cluster
from tests.support.stores.redis_stores import a_redis_store, hash_of, operator_of
from tests.support.stores.task_builders import QUEUE, a_queue, add, at, delete, lease

KEY = key_of(QUEUE)
FAILURE = Failure("raised", "ValueError", "bad width")
RARE = (b"&", b"%", b"$")
HEADERS = {"traceparent": "00-1-2-01"}


@pytest.fixture
def store() -> Iterator[RedisStore]:
    with closing(a_redis_store()) as opened:
        a_queue(opened)
        yield opened


def rare_fields(store: RedisStore) -> set[bytes]:
    return {field for field in hash_of(store, QUEUE) if field[:1] in RARE}


def fail(store: Store, held: Lease, *, now: Instant = START, **settings: object) -> None:
    """Report all that a handler can, then release the lease with an error."""
    with store.begin() as transaction:
        transaction.renew(QUEUE, [Renewal(held.token, 60, Progress(0.5, "half"), b"half")], now=now)
        released = transaction.release(QUEUE, [Release(held.token, 0, failure=FAILURE, **settings)], now=now)  # type: ignore[arg-type]
    assert released[0] is not None


def test_a_plain_task_has_no_more_than_its_body_and_its_lease_record(store: RedisStore) -> None:
    before = set(hash_of(store, QUEUE))
    add(store, NewTask(b"x"), NewTask(b"y", headers=HEADERS))
    assert {field for field in set(hash_of(store, QUEUE)) - before if field[:1] in b"abc+&%$"} == {b"a1", b"a2"}
    held = lease(store, 2)
    assert {field for field in set(hash_of(store, QUEUE)) - before if field[:1] in b"abc+&%$"} == {
        b"a1", b"a2", b"+a1", b"+a2",
    }  # fmt: skip
    delete(store, *held)
    assert [field for field in hash_of(store, QUEUE) if field[:1] in b"abc+&%$"] == []


End = Callable[[RedisStore, Lease], object]


def exchange(store: RedisStore, held: Lease) -> None:
    with store.begin() as transaction:
        transaction.exchange(QUEUE, [Deletion(held.token)], LeaseRequest(1, 60, ANY, "w"), now=START)


def hand_over(store: RedisStore, held: Lease) -> None:
    with store.begin() as transaction:
        transaction.delete(QUEUE, [Deletion(held.token, (NewTask(b"next"),))], now=START)


def delete_by_name(store: RedisStore, held: Lease) -> None:
    with store.begin() as transaction:
        assert transaction.delete_by_name(QUEUE, [held.name], now=START) == ["deleted"]


def release_then_delete_by_name(store: RedisStore, held: Lease) -> None:
    fail(store, held)
    delete_by_name(store, held)


def purge(store: RedisStore, held: Lease) -> None:
    with store.begin() as transaction:
        assert transaction.purge(QUEUE, ANY, limit=9, now=START) == 1


def die_and_be_purged(store: RedisStore, held: Lease) -> None:
    fail(store, held, dead_reason="no image")
    assert len(rare_fields(store)) == 3
    with store.begin() as transaction:
        assert transaction.purge_dead(QUEUE, ANY, limit=9, now=START) == 1


def die_where_the_dead_are_deleted(store: RedisStore, held: Lease) -> None:
    a_queue(store, on_exhausted="delete", max_leases=1)
    fail(store, held)


def expire_where_the_dead_are_deleted(store: RedisStore, held: Lease) -> None:
    a_queue(store, on_exhausted="delete", max_leases=1)
    assert held.expires_at <= at(61)
    with store.begin() as transaction:
        assert [one.died for one in transaction.expire(QUEUE, limit=9, now=at(61))[0]] == [True]


@pytest.mark.parametrize(
    "end",
    [
        delete,
        exchange,
        hand_over,
        delete_by_name,
        release_then_delete_by_name,
        purge,
        die_and_be_purged,
        die_where_the_dead_are_deleted,
        expire_where_the_dead_are_deleted,
    ],
)
def test_nothing_is_left_of_a_task_that_is_gone(store: RedisStore, end: End) -> None:
    add(store, NewTask(b"x" * 3000, headers=HEADERS))
    fail(store, lease(store)[0])
    assert rare_fields(store) == {b"&a1", b"%a1", b"$a1"}
    assert store.check().problems == ()
    (held,) = lease(store)
    assert (held.headers, held.checkpoint, held.payload) == (HEADERS, b"half", b"x" * 3000)
    end(store, held)
    assert rare_fields(store) == set()
    assert store.check().problems == ()


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda client: client.hdel(KEY, "&a1"), id="attempts that are gone"),
        pytest.param(lambda client: client.hset(KEY, "$a2", "x"), id="a checkpoint of a task that has none"),
        pytest.param(lambda client: client.hset(KEY, "&a9", "x"), id="attempts of no task"),
    ],
)
def test_parts_that_are_gone_or_of_no_task_are_found(
    store: RedisStore, damage: Callable[["redis.Redis[bytes]"], object]
) -> None:
    add(store, NewTask(b"x"), NewTask(b"y"))
    fail(store, lease(store)[0])
    assert store.check().problems == ()
    with operator_of(store) as client:
        damage(client)
    assert store.check().problems != ()


def test_the_bytes_of_payloads_are_counted_without_what_comes_with_them(store: RedisStore) -> None:
    with store.begin() as transaction:
        transaction.set_storage_limit(1_000_000)
    add(store, NewTask(b"x" * 10, name="n", tag="a", headers=HEADERS), NewTask(b"x" * 3000, headers=HEADERS))
    fail(store, lease(store)[0])
    with store.begin() as transaction:
        assert transaction.storage().used_bytes == 3010
        transaction.set_storage_limit(None)
        transaction.set_storage_limit(1_000_000)
        assert transaction.storage().used_bytes == 3010
    assert store.check().problems == ()
    delete(store, *lease(store, 2))
    with store.begin() as transaction:
        assert transaction.storage().used_bytes == 0


# -- a store of before ------------------------------------------------------------------------------------------------


def as_of_layout_3(record: bytes) -> bytes:
    """Return a lease record without the instant at which its task was added."""
    flags, spents = record[20], int.from_bytes(record[21:23], "big")
    behind = 31 + 8 * spents
    return record[:20] + bytes([flags & ~2]) + record[21:behind] + record[behind + 8 :]


def test_lease_records_and_finished_leases_of_layout_3_are_read(store: RedisStore) -> None:
    add(store, NewTask(b"x", max_leases=3), NewTask(b"y", tag="a", name="n"), NewTask(b"z"))
    lease(store, 3)
    with operator_of(store) as client:
        for number in (1, 2, 3):
            field = f"+a{number}"
            record = client.hget(KEY, field)
            assert record is not None
            client.hset(KEY, field, as_of_layout_3(record))
        client.rpush(f"{KEY}:s", pack(">BIQQQQHHHH", 1, 1, 0, 5, START, 7, 0, 0, 2, 0) + b"w1")
        counts = client.hget(KEY, "-") or b""
        client.hset(KEY, "-", counts[:-7] + (1).to_bytes(7, "big"))
    with store.begin() as transaction:
        live = transaction.live_leases(QUEUE, limit=9, now=START)
        tokens = {one.name: f"{number}.{one.leased_at}" for number, one in enumerate(live, start=1)}
        deleted, released = (
            transaction.delete(QUEUE, [Deletion(tokens["_1"])], now=START)[0],
            transaction.release(QUEUE, [Release(tokens["n"], 0, failure=FAILURE)], now=START)[0],
        )
        finished = transaction.samples(QUEUE, after=0, limit=9).finished
        assert transaction.history(QUEUE, limit=9, now=START).leases == finished[::-1]
    assert deleted is not None
    assert finished == (finished[0], deleted.finished, released)
    assert (finished[0].name, finished[0].worker, finished[0].held_seconds) == ("_7", "w1", 5e-6)
    assert [one.added_at for one in finished] == [NEVER, NEVER, NEVER]
    (held,) = lease(store, tags=TagFilter.of("a"), now=at(1))
    (done,) = delete(store, held, now=at(2))
    assert done is not None
    assert done.finished.added_at == START
    assert store.check().problems == ()


# -- history ----------------------------------------------------------------------------------------------------------


def all_pages(store: Store, *, limit: int, names: list[str] | None = None) -> list[str]:
    found: list[str] = []
    with store.read() as transaction:
        page = transaction.history(QUEUE, limit=limit, names=names, now=at(99))
        while True:
            found += [one.name for one in page.leases]
            if page.next_before is None:
                return found
            page = transaction.history(QUEUE, limit=limit, names=names, before=page.next_before, now=at(99))


def test_a_long_history_is_kept_and_searched_to_its_end(store: RedisStore) -> None:
    a_queue(store, history_keep=11_000)
    add(store, NewTask(name="first"))
    delete(store, *lease(store))
    for _ in range(12):
        add(store, *[NewTask()] * 1000)
        delete(store, *lease(store, 1000))
    with operator_of(store) as client:
        assert 11_000 <= client.llen(f"{KEY}:s") < 11_600
    assert all_pages(store, limit=3, names=["first"]) == []
    assert all_pages(store, limit=3, names=["_1001", "_1002", "_9001"]) == ["_9001", "_1002"]
    assert len(all_pages(store, limit=1000)) == 11_000


def test_a_cluster_keeps_all_of_it(tmp_path: Path) -> None:
    with a_cluster(tmp_path, durable=True) as cluster, closing(open_store(cluster.url)) as store:
        a_queue(store)
        add(store, *[NewTask(name=f"n{number}", headers=HEADERS) for number in range(4)])
        for held in lease(store, 4):
            fail(store, held)
        again = lease(store, 4)
        assert [(held.headers, held.checkpoint) for held in again] == [(HEADERS, b"half")] * 4
        with store.begin() as transaction:
            released = transaction.release_worker("worker-1", failure=FAILURE, now=at(1))
        assert [one.reason for one in released] == [FAILURE.text] * 4
        assert len(all_pages(store, limit=3)) == 8
        assert store.check().problems == ()

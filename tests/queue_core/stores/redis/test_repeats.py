"""What Redis answers to a call that comes again, because its answer was lost, and to one that comes late."""

from collections.abc import Iterator
from struct import pack

import pytest

from queue_core.clock import START, Instant
from queue_core.stores.redis.binary import pack_body, parse_leases
from queue_core.stores.redis.client.connection import Answer, Cell
from queue_core.stores.redis.keys import key_of
from queue_core.stores.redis.store import RedisStore
from queue_core.task import ANY, NewTask
from queue_core.verbs import Deletion, LeaseRequest, Release
from tests.support.stores.redis_stores import a_redis_store, hash_of
from tests.support.stores.task_builders import QUEUE, a_queue, add, at, grant, lease, stats

KEPT_SECONDS = 600


@pytest.fixture
def store() -> Iterator[RedisStore]:
    opened = a_redis_store()
    a_queue(opened)
    yield opened
    assert opened.check().problems == ()
    opened.close()


def lease_call(store: RedisStore, number: int, *, count: int = 2, now: Instant = START) -> Answer:
    """A lease as the call `number` of one session."""
    request = pack(">QqdHBIIB", now, 10_000_000, 10.0, count, 0, 0, 0, 0)
    return store._calls.client.call("lease", [key_of(QUEUE)], [request, "w1"], call_id=("session", number))


def add_call(store: RedisStore, number: int, *, now: Instant = START, session: str = "session") -> Answer:
    """An add of one task as the call `number` of a session."""
    cells: list[Cell] = [pack(">QH", now, 1), b"", b"", b"", *pack_body(now, None, None, b"x")]
    return store._calls.client.call("add", [key_of(QUEUE)], cells, call_id=(session, number))


def test_a_call_that_comes_again_is_answered_the_same_and_changes_nothing(store: RedisStore) -> None:
    first = add_call(store, 7)
    assert add_call(store, 7) == first
    assert stats(store).added_total == 1
    assert add_call(store, 8) != first


def test_a_call_that_comes_late_changes_nothing(store: RedisStore) -> None:
    add_call(store, 8)
    assert add_call(store, 7) == b"s"
    assert stats(store).added_total == 1


def test_another_session_may_use_the_same_number(store: RedisStore) -> None:
    add_call(store, 7, session="one")
    add_call(store, 7, session="two")
    assert stats(store).added_total == 2


def test_leases_whose_answer_was_lost_are_given_to_the_one_who_asks_again(store: RedisStore) -> None:
    add(store, NewTask(b"short"), NewTask(b"x" * 5000), NewTask(b"left"))
    first = lease_call(store, 1)
    assert lease_call(store, 1) == first
    assert isinstance(first, bytes)
    assert [held.payload for held in parse_leases(QUEUE, "w1", first, 6)] == [b"short", b"x" * 5000]
    assert stats(store).in_flight == 2


def test_a_lease_that_ended_before_its_answer_was_requested_for_again_is_not_in_it(store: RedisStore) -> None:
    add(store, NewTask(b"kept"), NewTask(b"given back"))
    first = lease_call(store, 1)
    assert isinstance(first, bytes)
    _, held = parse_leases(QUEUE, "w1", first, 6)
    with store.begin() as transaction:
        transaction.release(QUEUE, [Release(held.token, 0)], now=START)
    again = lease_call(store, 1)
    assert isinstance(again, bytes)
    assert [each.payload for each in parse_leases(QUEUE, "w1", again, 6)] == [b"kept"]
    (taken,) = lease(store, worker="w2")
    assert taken.payload == b"given back"
    assert lease_call(store, 1) == again


def test_a_queue_that_is_not_there_keeps_no_answers(store: RedisStore) -> None:
    with store.begin() as transaction:
        transaction.delete_queue(QUEUE)
    answer = add_call(store, 7)
    assert isinstance(answer, bytes)
    assert answer[:1] == b"u"
    assert hash_of(store, QUEUE) == {}


def test_answers_are_kept_for_ten_minutes_and_forgotten_some_time_after(store: RedisStore) -> None:
    add_call(store, 1, session="old")
    add_call(store, 1, session="new", now=at(KEPT_SECONDS))
    assert b"!old" in hash_of(store, QUEUE)
    add_call(store, 1, session="newer", now=at(KEPT_SECONDS + 61))
    assert b"!old" not in hash_of(store, QUEUE)


def test_a_session_in_use_is_not_forgotten(store: RedisStore) -> None:
    for number in range(30):
        add_call(store, number, session="busy", now=at(number * 59))
    add_call(store, 1, session="another", now=at(30 * 59))
    assert b"!busy" in hash_of(store, QUEUE)


def test_an_exchange_that_comes_again_deletes_and_leases_once(store: RedisStore) -> None:
    add(store, NewTask(b"one"), NewTask(b"two"), NewTask(b"three"))
    (held,) = lease(store)
    answers = set()
    for _ in range(2):
        token = pack(">QQ", *map(int, held.token.split(".")))
        request = pack(">QqdHBIIB", at(1), 10_000_000, 10.0, 1, 0, 0, 0, 0)
        cells: list[Cell] = [pack(">H", 1), token, request, "w1"]
        answers.add(store._calls.client.call("exchange", [key_of(QUEUE)], cells, call_id=("session", 1)))
    assert len(answers) == 1
    found = stats(store)
    assert (found.deleted_total, found.in_flight, found.ready) == (1, 1, 1)


def test_an_exchange_with_what_follows_leases_what_was_just_added(store: RedisStore) -> None:
    add(store, NewTask(b"one"))
    (held,) = lease(store)
    deletion = Deletion(held.token, (NewTask(b"two", tag="a"), NewTask(b"later", delay_seconds=5)))
    with store.begin() as transaction:
        (deleted,), granted = transaction.exchange(QUEUE, [deletion], LeaseRequest(5, None, ANY, "w1"), now=at(1))
    assert deleted is not None
    assert [each.status for each in deleted.then] == ["added", "added"]
    assert [each.payload for each in granted.leases] == [b"two"]
    assert grant(store, now=at(7)).leases[0].payload == b"later"

"""Swaps that wait to be sorted in: what comes before them, ends them, or is not to be swapped is as without them."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from queue_core.store import Deletion, LeaseRequest, Release, Renewal, Store
from queue_core.stores.sqlite.store import SqliteStore
from queue_core.task import ANY, NewTask, TagFilter
from tests.support.swaps import FILE, TASKS, ended, filled, first, swap, swaps, waiting
from tests.support.task_builders import MICROSECOND, QUEUE, a_queue, add, at, delete, lease, stats, swapped


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with filled(tmp_path) as store:
        yield store


@pytest.mark.parametrize(
    "verb",
    [
        lambda transaction, held: transaction.renew(QUEUE, [Renewal(held.token, 900.0)], now=at(3)),
        lambda transaction, held: transaction.release(QUEUE, [Release(held.token, 0.0)], now=at(3)),
        lambda transaction, held: transaction.delete(QUEUE, [Deletion(held.token)], now=at(3)),
        lambda transaction, held: transaction.delete_by_name(QUEUE, [held.name], now=at(3)),
        lambda transaction, held: transaction.exchange(
            QUEUE, [Deletion(held.token)], LeaseRequest(2, 60.0, ANY, held.worker), now=at(3)
        )[0],
        lambda transaction, held: transaction.release_worker(held.worker, now=at(3)),
    ],
    ids=["renew", "release", "delete", "delete_by_name", "exchange of several", "release_worker"],
)
def test_every_other_verb_finds_the_lease(
    store: Store, tmp_path: Path, verb: Callable[..., list[object | None]]
) -> None:
    held = swaps(store, first(store), 3, now=at(2))
    with store.begin() as transaction:
        (outcome,) = verb(transaction, held)
    assert outcome not in (None, "unknown")
    assert waiting(tmp_path) == 0
    assert store.check().problems == ()


def test_a_token_is_good_once(store: Store) -> None:
    old = swap(store, first(store), now=at(2))
    held = swap(store, old, now=at(3))
    (outcome,), (another,) = swapped(store, old.token, now=at(4))
    assert (outcome, another.name) == (None, "_4")
    (outcome,), _ = swapped(store, held.token.replace(".", ".1"), now=at(4))
    assert outcome is None
    assert delete(store, held, now=at(5)) != [None]
    assert delete(store, held, now=at(5)) == [None]


@pytest.mark.parametrize(("after", "is_over"), [(60.0 - MICROSECOND, False), (60.0, True)])
def test_a_lease_that_is_not_renewed_ends_at_its_instant(store: Store, after: float, is_over: bool) -> None:
    other, lost = first(store, worker="worker-2"), swap(store, first(store), now=at(2), seconds=60.0)
    swap(store, other, now=at(2 + after))
    assert (lost.name in ended(store)) is is_over
    assert (swapped(store, lost.token, now=at(2 + after))[0] == [None]) is is_over
    assert stats(store, now=at(2 + after)).expired_total == is_over
    assert store.check().problems == ()


def test_the_soonest_of_several_ends_counts_and_they_wait_again_after_it(store: Store, tmp_path: Path) -> None:
    held, other = first(store), first(store, worker="worker-2")
    held, lost = swap(store, held, now=at(2)), swap(store, other, now=at(2), seconds=30.0)
    swaps(store, held, 3, now=at(32))
    assert waiting(tmp_path) == 3
    assert ended(store) == ["_1", "_2", held.name, lost.name, "_5", "_6"]
    assert store.check().problems == ()


def test_a_lease_elsewhere_that_ended_and_a_task_that_is_due_come_first(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / FILE)) as store:
        a_queue(store)
        add(store, NewTask(), NewTask(b"due", delay_seconds=5.0), NewTask(b"later", delay_seconds=50.0))
        add(store, *[NewTask(b"ready")] * 3, now=at(6))
        held = first(store, now=at(0))
        held = swap(store, held, now=at(7))
        assert held.payload == b"due"
        (lost,) = lease(store, 1, seconds=1.0, worker="worker-2", now=at(8))
        held = swap(store, held, now=at(10))
        assert lost.name in ended(store)


def test_a_task_whose_lease_was_cut_short_never_ends_at_the_same_instant_again(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / FILE)) as store:
        a_queue(store)
        add(store, *[NewTask()] * 2)
        (cut,) = lease(store, 1, seconds=60.0, now=at(1))
        with store.begin() as transaction:
            transaction.renew(QUEUE, [Renewal(cut.token, 1.0)], now=at(1))
        held = first(store, now=at(1))
        assert lease(store, 1, tags=TagFilter.of("none has this"), now=at(2)) == []  # it is ready again from now on
        again = swap(store, held, now=at(4), seconds=57.0)
        assert (again.name, again.expires_at) == (cut.name, cut.expires_at + 1)


def test_a_token_of_another_queue_is_not_current(store: Store) -> None:
    a_queue(store, "other")
    add(store, *[NewTask()] * 5, queue="other")
    (of_other,) = lease(store, 1, now=at(1), queue="other")
    first(store)
    assert swapped(store, of_other.token, now=at(2))[0] == [None]
    of_other = swap(store, of_other, now=at(2), queue="other")
    of_other = swap(store, of_other, now=at(2), queue="other")
    assert swapped(store, of_other.token, now=at(2))[0] == [None]
    assert swap(store, of_other, now=at(3), queue="other").name == "_148"


def test_a_task_added_alone_is_not_overtaken(store: Store, tmp_path: Path) -> None:
    held = swap(store, first(store), now=at(20))
    add(store, NewTask(b"late"), now=at(20))
    held = swap(store, held, now=at(21))
    assert (held.name, waiting(tmp_path)) == ("_3", 3)  # those that were there come first: it goes on waiting
    add(store, NewTask(b"early"), now=at(-5))  # of a clock that is behind
    held = swap(store, held, now=at(21))
    assert held.payload == b"early"
    assert store.check().problems == ()


def test_added_and_swapped_in_one_transaction(store: Store) -> None:
    held = first(store)
    with store.begin() as transaction:
        transaction.add(QUEUE, [NewTask(b"early")], now=at(-5))
        _, granted = transaction.exchange(
            QUEUE, [Deletion(held.token)], LeaseRequest(1, 60.0, ANY, held.worker), now=at(2)
        )
    assert [each.payload for each in granted.leases] == [b"early"]
    with store.begin() as transaction:
        transaction.add(QUEUE, [NewTask(b"late")], now=at(2))
        _, granted = transaction.exchange(
            QUEUE, [Deletion(granted.leases[0].token)], LeaseRequest(1, 60.0, ANY, held.worker), now=at(2)
        )
    assert [each.payload for each in granted.leases] == [b"2"]
    counted = stats(store, now=at(3))
    assert (counted.ready, counted.in_flight) == (TASKS - 1, 1)
    assert store.check().problems == ()


def test_where_payloads_are_limited_a_deletion_makes_room_at_once(store: Store, tmp_path: Path) -> None:
    held = swap(store, first(store), now=at(2))
    with store.begin() as transaction:
        transaction.set_storage_limit(10_000)
    held = swap(store, held, now=at(3))
    with store.begin() as transaction:
        before = transaction.storage().used_bytes
    swap(store, held, now=at(3))
    with store.begin() as transaction:
        assert transaction.storage().used_bytes == before - len(held.payload)
    assert waiting(tmp_path) == 0

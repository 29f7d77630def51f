"""What every store must do for the holder of a lease: renew, release, delete, hand over; and when tasks die."""

import pytest

from queue_core.clock import START, Instant
from queue_core.errors import (
    InvalidLeaseTimeError,
    InvalidTokenError,
    UnknownQueueError,
)
from queue_core.limits import MAX_LEASE_SECONDS
from queue_core.store import Store
from queue_core.task import ANY, NewTask, TagFilter, TaskState
from queue_core.verbs import Deletion, LeaseRequest, Release, Renewal
from tests.support.stores import changes
from tests.support.stores.task_builders import (
    MICROSECOND,
    QUEUE,
    a_queue,
    add,
    at,
    delete,
    lease,
    stats,
)

# -- the holder's verbs -----------------------------------------------------------------------------------------------


def test_a_token_that_is_not_current_changes_nothing(store: Store) -> None:
    add(store, NewTask())
    (held,) = lease(store)
    stale = ["1.5", "99.5", f"2.{held.leased_at}"]
    with store.begin() as transaction:
        assert transaction.delete(QUEUE, [Deletion(token) for token in stale], now=START) == [None] * 3
        assert transaction.renew(QUEUE, [Renewal(token, 5) for token in stale], now=START) == [None] * 3
        assert transaction.release(QUEUE, [Release(token, 5) for token in stale], now=START) == [None] * 3
    assert delete(store, held, held)[1] is None
    assert delete(store, held) == [None]


def test_a_text_that_is_no_token_fails_the_whole_call(store: Store) -> None:
    add(store, NewTask())
    (held,) = lease(store)
    with pytest.raises(InvalidTokenError):
        delete(store, held, "no token")
    assert stats(store).in_flight == 1


def test_a_token_of_another_queue_is_not_current(store: Store) -> None:
    a_queue(store, "other")
    add(store, NewTask())
    (held,) = lease(store)
    assert delete(store, held, queue="other") == [None]


def test_deleting_and_adding_the_next_stage_is_one_step(store: Store) -> None:
    a_queue(store, "next")
    add(store, NewTask(b"raw", tag="parse"))
    (held,) = lease(store)
    deletion = Deletion(held.token, (NewTask(b"done", queue="next", tag="render"), NewTask(b"more", tag="parse")))
    with store.begin() as transaction:
        (deleted,) = transaction.delete(QUEUE, [deletion], now=START)
        (again,) = transaction.delete(QUEUE, [deletion], now=START)
    assert deleted is not None
    assert [each.status for each in deleted.then] == ["added", "added"]
    assert again is None
    assert [each.payload for each in lease(store, queue="next")] == [b"done"]
    assert [each.payload for each in lease(store)] == [b"more"]


def test_a_handover_to_an_unknown_queue_deletes_nothing(store: Store) -> None:
    add(store, NewTask(), NewTask())
    first, second = lease(store, 2)
    with pytest.raises(UnknownQueueError), store.begin() as transaction:
        transaction.delete(
            QUEUE, [Deletion(first.token), Deletion(second.token, (NewTask(queue="nowhere"),))], now=START
        )
    assert stats(store).in_flight == 2


def test_renewing_moves_the_end_and_keeps_the_token(store: Store) -> None:
    add(store, NewTask())
    (held,) = lease(store, seconds=10)
    with store.begin() as transaction:
        (renewed,) = transaction.renew(QUEUE, [Renewal(held.token, 30)], now=at(9))
    assert renewed is not None
    assert (renewed.token, renewed.expires_at) == (held.token, at(39))
    assert lease(store, now=at(38)) == []
    assert delete(store, held, now=at(38))[0] is not None


def test_no_lease_outgrows_the_queues_longest(store: Store) -> None:
    a_queue(store, max_lease_seconds=60.0)
    add(store, NewTask(), NewTask())
    with pytest.raises(InvalidLeaseTimeError):
        lease(store, seconds=60.000001)
    (held,) = lease(store, seconds=30)
    with pytest.raises(InvalidLeaseTimeError), store.begin() as transaction:
        transaction.renew(QUEUE, [Renewal(held.token, 60 - 20 + MICROSECOND)], now=at(20))
    with store.begin() as transaction:
        (renewed,) = transaction.renew(QUEUE, [Renewal(held.token, 40)], now=at(20))
    assert renewed is not None
    assert renewed.expires_at == at(60)


def test_a_queue_without_a_longest_lease_bounds_each_renewal_and_not_their_sum(store: Store) -> None:
    add(store, NewTask())
    (held,) = lease(store, seconds=MAX_LEASE_SECONDS)
    with store.begin() as transaction:
        (renewed,) = transaction.renew(QUEUE, [Renewal(held.token, MAX_LEASE_SECONDS)], now=at(1))
    assert renewed is not None
    assert renewed.expires_at == at(1 + MAX_LEASE_SECONDS)


def test_two_leases_of_a_task_never_end_at_the_same_microsecond(store: Store) -> None:
    add(store, NewTask())
    ends = set()
    for _ in range(3):
        (held,) = lease(store, seconds=10)
        ends.add(held.expires_at)
        with store.begin() as transaction:
            transaction.release(QUEUE, [Release(held.token, 0)], now=START)
    assert len(ends) == 3


def test_a_released_task_waits_for_its_back_off(store: Store) -> None:
    add(store, NewTask())
    waits: list[float] = []
    now = START
    for _ in range(5):
        (held,) = lease(store, now=now)
        with store.begin() as transaction:
            transaction.release(QUEUE, [Release(held.token)], now=now)
        with store.read() as transaction:
            due = transaction.next_eta(QUEUE, now=now)
        assert due is not None
        waits.append((due - now) / 1_000_000)
        now = due
    assert waits == [1, 2, 4, 8, 8]


def test_a_lease_that_was_not_counted_leaves_no_trace_in_the_count(store: Store) -> None:
    a_queue(store, max_leases=2)
    add(store, NewTask())
    for _ in range(5):
        (held,) = lease(store)
        assert held.lease_number == 1
        with store.begin() as transaction:
            transaction.release(QUEUE, [Release(held.token, charge="uncounted")], now=START)


# -- dead tasks -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["released", "expired"])
def test_a_task_without_leases_left_is_dead_and_never_backlog(store: Store, how: str) -> None:
    a_queue(store, max_leases=2)
    add(store, NewTask(b"bad", name="bad"))
    now = START
    for _ in range(2):
        (held,) = lease(store, seconds=10, now=now)
        if how == "released":
            with store.begin() as transaction:
                transaction.release(QUEUE, [Release(held.token, 0)], now=now)
        else:
            now = held.expires_at
    assert lease(store, now=now) == []
    found = stats(store, now=now)
    assert (found.ready, found.dead, found.died_total) == (0, 1, 1)
    with store.begin() as transaction:
        (redriven,) = changes.redrive(transaction, QUEUE, ["bad", "bad", "unknown"], ANY, limit=10, now=now)
    assert (redriven.payload, redriven.leases) == (b"bad", 0)
    (held,) = lease(store, now=now)
    assert held.lease_number == 1


def test_an_exhausted_task_is_deleted_where_the_queue_says_so(store: Store) -> None:
    a_queue(store, max_leases=1, on_exhausted="delete")
    add(store, NewTask(name="gone"))
    lease(store, seconds=10)
    found = stats(store, now=at(10))
    assert (found.ready, found.in_flight, found.dead, found.died_total, found.expired_total) == (0, 0, 0, 1, 1)
    assert lease(store, now=at(10)) == []
    assert add(store, NewTask(name="gone"), now=at(11))[0].status == "tombstoned"


def test_a_reason_makes_a_task_dead_at_once(store: Store) -> None:
    add(store, NewTask())
    (held,) = lease(store)
    with store.begin() as transaction:
        (finished,) = transaction.release(QUEUE, [Release(held.token, dead_reason="no such image")], now=START)
        page = transaction.peek(QUEUE, ANY, frozenset({TaskState.DEAD}), limit=5, payload_bytes=0, now=START)
    assert finished is not None
    assert finished.died
    assert [task.reason for task in page.tasks] == ["no such image"]


# -- transactions -----------------------------------------------------------------------------------------------------


def test_verbs_of_one_transaction_see_each_other(store: Store) -> None:
    with store.begin() as transaction:
        transaction.add(QUEUE, [NewTask(tag="a"), NewTask(tag="a")], now=START)
        granted = transaction.lease(QUEUE, LeaseRequest(1, 5, TagFilter.of("a"), "w"), now=START)
        transaction.delete(QUEUE, [Deletion(granted.leases[0].token)], now=at(1))
        found = transaction.stats(QUEUE, TagFilter.of("a"), now=at(1))
        assert len(transaction.samples(QUEUE, after=0, limit=5).finished) == 1
    assert (found.ready, found.in_flight, found.deleted_total) == (1, 0, 1)
    store.sync(store.ticket())


def test_a_synced_ticket_covers_all_before_it(store: Store) -> None:
    tickets = []
    for _ in range(3):
        add(store, NewTask())
        tickets.append(store.ticket())
    assert tickets == sorted(tickets)
    store.sync(tickets[-1])
    store.sync(tickets[0])


def test_an_instant_is_kept_to_the_microsecond(store: Store) -> None:
    eta = Instant(START + 1_234_567)
    add(store, NewTask(eta=eta))
    (held,) = lease(store, now=at(2))
    assert (held.ready_at, held.added_at, held.leased_at, held.expires_at) == (eta, START, at(2), at(62))


def test_all_leases_of_a_dead_worker_are_released_however_many_they_are(store: Store) -> None:
    for _ in range(2):
        add(store, *[NewTask()] * 700)
        lease(store, 700, seconds=60, worker="dead")
    with store.begin() as transaction:
        released = transaction.release_worker("dead", now=at(1))
    assert len({each.name for each in released}) == len(released) == 1400
    assert (stats(store, now=at(1)).ready, stats(store, now=at(1)).in_flight) == (1400, 0)

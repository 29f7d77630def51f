"""What every store must do to lease one delayed task before its eta: only for whoever knows that eta exactly."""

import pytest

from queue_core.clock import START, Instant
from queue_core.errors import InvalidLeaseTimeError, QueueMovedError, UnknownQueueError, WorkerRetiredError
from queue_core.store import Store
from queue_core.task import ANY, Lease, NewTask, TaskState
from queue_core.verbs import LeaseRequest, Release
from tests.support.stores.restored_tasks import fence, peek
from tests.support.stores.task_builders import (
    MICROSECOND,
    QUEUE,
    a_queue,
    add,
    at,
    delete,
    lease,
    names,
    samples,
    stats,
)

LONG = b"x" * 5000


def take(
    store: Store,
    task_id: int,
    *,
    expected: Instant,
    worker: str = "alone",
    seconds: float | None = 60.0,
    now: Instant = START,
    queue: str = QUEUE,
) -> Lease | None:
    with store.begin() as transaction:
        return transaction.lease_delayed(queue, task_id, expected=expected, worker=worker, seconds=seconds, now=now)


def an_id(store: Store) -> int:
    (task,) = peek(store)
    return task.id


@pytest.mark.parametrize("tag", [None, "a"])
@pytest.mark.parametrize("given", [None, "mine"])
@pytest.mark.parametrize("payload", [b"", b"short", LONG], ids=["empty", "short", "long"])
def test_a_delayed_task_is_leased_before_its_eta_by_whoever_knows_it(
    store: Store, payload: bytes, given: str | None, tag: str | None
) -> None:
    add(store, NewTask(payload, name=given, tag=tag, eta=at(100)))
    task_id = an_id(store)
    held = take(store, task_id, expected=at(100), now=at(10))
    assert held is not None
    assert (held.name, held.tag, held.payload) == (given or f"_{task_id}", tag, payload)
    assert (held.worker, held.lease_number, held.leased_at) == ("alone", 1, at(10))
    assert (held.expires_at, held.ready_at, held.added_at) == (at(70), at(10), START)
    counts = stats(store, now=at(10))
    assert (counts.ready, counts.delayed, counts.in_flight, counts.leased_total) == (0, 0, 1, 1)
    assert lease(store, now=at(60)) == []
    assert delete(store, held, now=at(20)) != [None]
    assert store.check().problems == ()
    (sample,) = samples(store).finished
    assert (sample.worker, sample.outcome, sample.waited_seconds, sample.held_seconds) == (
        "alone",
        "deleted",
        0.0,
        10.0,
    )


def test_the_lease_is_charged_and_its_token_is_a_new_one(store: Store) -> None:
    add(store, NewTask(b"x"))
    (first,) = lease(store)
    with store.begin() as transaction:
        transaction.release(QUEUE, [Release(first.token, delay_seconds=100)], now=at(1))
    held = take(store, an_id(store), expected=at(101), now=at(2))
    assert held is not None
    assert held.lease_number == 2
    assert held.token != first.token
    assert delete(store, first, now=at(3)) == [None]


@pytest.mark.parametrize("off", [-MICROSECOND, MICROSECOND])
def test_for_another_eta_than_the_tasks_nothing_is_leased(store: Store, off: float) -> None:
    add(store, NewTask(eta=at(100)))
    assert take(store, an_id(store), expected=at(100 + off)) is None
    assert stats(store).delayed == 1


@pytest.mark.parametrize(("off", "found"), [(-MICROSECOND, True), (0, False), (MICROSECOND, False)])
def test_a_task_whose_eta_has_come_is_anybodys(store: Store, off: float, found: bool) -> None:
    add(store, NewTask(eta=at(100)))
    assert (take(store, an_id(store), expected=at(100), now=at(100 + off)) is not None) == found


def test_it_is_leased_once(store: Store) -> None:
    add(store, NewTask(eta=at(100)))
    task_id = an_id(store)
    assert take(store, task_id, expected=at(100)) is not None
    assert take(store, task_id, expected=at(100), worker="another") is None


def test_nothing_but_a_delayed_task_is_leased(store: Store) -> None:
    add(store, NewTask(name="leased"), NewTask(name="dead"), NewTask(name="ready"))
    _, dead = lease(store, 2)
    with store.begin() as transaction:
        transaction.release(QUEUE, [Release(dead.token, dead_reason="bad")], now=START)
    before = peek(store)
    assert {task.state for task in before} == {TaskState.LEASED, TaskState.DEAD, TaskState.READY}
    for task in before:
        assert take(store, task.id, expected=task.eta) is None
    assert take(store, 999, expected=at(100)) is None
    assert peek(store) == before


def test_a_lease_never_ends_where_an_earlier_one_or_the_eta_it_was_taken_from_did(store: Store) -> None:
    add(store, NewTask(eta=at(60)))
    held = take(store, an_id(store), expected=at(60), seconds=60.0)
    assert held is not None
    assert held.expires_at == at(60) + 1


def test_without_a_length_it_is_the_queues_own(store: Store) -> None:
    add(store, NewTask(eta=at(100)))
    held = take(store, an_id(store), expected=at(100), seconds=None, now=at(1))
    assert held is not None
    assert held.expires_at == at(61)


def test_the_worker_is_remembered(store: Store) -> None:
    add(store, NewTask(eta=at(100)))
    assert take(store, an_id(store), expected=at(99)) is None
    with store.read() as transaction:
        assert transaction.workers_seen(["alone"]) == {"alone": START}


def test_a_retired_worker_gets_nothing(store: Store) -> None:
    add(store, NewTask(eta=at(100)))
    task_id = an_id(store)
    with store.begin() as transaction:
        transaction.retire_worker("alone", now=START)
    with pytest.raises(WorkerRetiredError):
        take(store, task_id, expected=at(100))
    assert stats(store).delayed == 1


def test_what_a_dead_worker_took_is_given_back(store: Store) -> None:
    add(store, NewTask(eta=at(100)))
    assert take(store, an_id(store), expected=at(100)) is not None
    with store.begin() as transaction:
        assert [each.worker for each in transaction.release_worker("alone", now=at(1))] == ["alone"]
    assert len(names(lease(store, now=at(1)))) == 1


def test_too_long_a_lease_is_refused(store: Store) -> None:
    a_queue(store, max_lease_seconds=100.0)
    add(store, NewTask(eta=at(100)))
    with pytest.raises(InvalidLeaseTimeError):
        take(store, an_id(store), expected=at(100), seconds=101.0)


def test_a_queue_that_is_not_there_or_moved_is_told(store: Store) -> None:
    add(store, NewTask(eta=at(100)))
    task_id = an_id(store)
    with pytest.raises(UnknownQueueError):
        take(store, task_id, expected=at(100), queue="nowhere")
    fence(store)
    with pytest.raises(QueueMovedError):
        take(store, task_id, expected=at(100))


def test_a_delay_ends_within_the_transaction_that_added_its_task(store: Store) -> None:
    """As when a busy server has the verbs of several callers in one transaction."""
    with store.begin() as transaction:
        transaction.add(QUEUE, [NewTask(b"x", delay_seconds=1.0)], now=at(0))
        transaction.expire(QUEUE, limit=10, now=at(1))
        granted = transaction.lease(QUEUE, LeaseRequest(1, 10.0, ANY, "w"), now=at(1))
    assert [one.payload for one in granted.leases] == [b"x"]

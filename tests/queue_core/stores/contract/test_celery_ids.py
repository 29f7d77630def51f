"""However a lease ends, its record keeps the id that Celery gave the task, and the history finds it by that id."""

from collections.abc import Callable

import pytest

from queue_core.attempts.attempt import WORKER_DIED
from queue_core.clock import Instant
from queue_core.stats import FinishedLease
from queue_core.store import Store
from queue_core.task import ANY, CELERY_ID, Lease, NewTask
from queue_core.verbs import Deletion, LeaseRequest, Release
from tests.support.stores.task_builders import QUEUE, a_queue, add, at, lease, samples

IDS = ("11111111-aaaa", "22222222-bbbb", "33333333-cccc")
LONG = b"x" * 5000


def of_celery(celery_id: str, payload: bytes = b"p") -> NewTask:
    return NewTask(payload, headers={"a": "b", CELERY_ID: celery_id})


def found(store: Store, *names: str, now: Instant) -> list[FinishedLease]:
    with store.read() as transaction:
        return list(transaction.history(QUEUE, names=names, before=None, limit=100, now=now).leases)


def _deletes_each(store: Store, leases: list[Lease]) -> None:
    for one in leases:
        with store.begin() as transaction:
            transaction.delete(QUEUE, [Deletion(one.token)], now=at(1))


def _deletes_all(store: Store, leases: list[Lease]) -> None:
    with store.begin() as transaction:
        transaction.delete(QUEUE, [Deletion(one.token) for one in leases], now=at(1))


def _deletes_out_of_order(store: Store, leases: list[Lease]) -> None:
    with store.begin() as transaction:
        transaction.delete(QUEUE, [Deletion(one.token) for one in reversed(leases)], now=at(1))


def _exchanges_each(store: Store, leases: list[Lease]) -> None:
    for one in leases:
        with store.begin() as transaction:
            transaction.exchange(QUEUE, [Deletion(one.token)], LeaseRequest(1, 10, ANY, "w"), now=at(1))


def _exchanges_all(store: Store, leases: list[Lease]) -> None:
    with store.begin() as transaction:
        deletions = [Deletion(one.token) for one in leases]
        transaction.exchange(QUEUE, deletions, LeaseRequest(5, 10, ANY, "w"), now=at(1))


def _releases(store: Store, leases: list[Lease]) -> None:
    with store.begin() as transaction:
        transaction.release(QUEUE, [Release(one.token) for one in leases], now=at(1))


def _die(store: Store, leases: list[Lease]) -> None:
    with store.begin() as transaction:
        transaction.release(QUEUE, [Release(one.token, dead_reason="no") for one in leases], now=at(1))


def _loses_the_worker(store: Store, _leases: list[Lease]) -> None:
    with store.begin() as transaction:
        transaction.release_worker("w", failure=WORKER_DIED, now=at(1))


def _expire(store: Store, _leases: list[Lease]) -> None:
    with store.begin() as transaction:
        transaction.expire(QUEUE, limit=100, now=at(1000))


def _are_purged(store: Store, _leases: list[Lease]) -> None:
    with store.begin() as transaction:
        transaction.purge(QUEUE, ANY, limit=100, now=at(1))


def _are_deleted_by_name(store: Store, leases: list[Lease]) -> None:
    with store.begin() as transaction:
        transaction.delete_by_name(QUEUE, [one.name for one in leases], now=at(1))


ENDS = [
    _deletes_each,
    _deletes_all,
    _deletes_out_of_order,
    _exchanges_each,
    _exchanges_all,
    _releases,
    _die,
    _loses_the_worker,
    _expire,
    _are_purged,
    _are_deleted_by_name,
]


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__.strip("_"))
@pytest.mark.parametrize("on_exhausted", ["dead", "delete"])
def test_an_ended_lease_is_found_by_the_id_of_celery(
    store: Store, end: Callable[[Store, list[Lease]], None], on_exhausted: str
) -> None:
    a_queue(store, on_exhausted=on_exhausted)
    add(store, of_celery(IDS[0]), NewTask(b"plain"), of_celery(IDS[1], LONG), NewTask(b"other", headers={"a": IDS[2]}))
    leases = lease(store, 4, worker="w", seconds=10)
    assert len(leases) == 4
    end(store, leases)
    names = {one.payload: one.name for one in leases}
    now = at(1000)
    (short,), (long,) = found(store, IDS[0], now=now), found(store, IDS[1], now=now)
    assert (short.name, short.celery_id) == (names[b"p"], IDS[0])
    assert (long.name, long.celery_id) == (names[LONG], IDS[1])
    assert found(store, IDS[2], now=now) == []
    assert sorted(one.celery_id for one in samples(store).finished) == ["", "", IDS[0], IDS[1]]
    assert found(store, long.name, now=now) == [long]


def test_verbs_answer_with_the_id_of_celery(store: Store) -> None:
    a_queue(store)
    add(store, *(of_celery(f"{number:08}-id") for number in range(6)))
    one, other, *rest = lease(store, 5, worker="w", seconds=10)
    with store.begin() as transaction:
        (deleted,) = transaction.delete(QUEUE, [Deletion(one.token)], now=at(1))
    with store.begin() as transaction:
        (exchanged,), _ = transaction.exchange(QUEUE, [Deletion(other.token)], LeaseRequest(1, 10, ANY, "w"), now=at(1))
    with store.begin() as transaction:
        (released,) = transaction.release(QUEUE, [Release(rest[0].token)], now=at(1))
    with store.begin() as transaction:
        several = transaction.delete(QUEUE, [Deletion(lease.token) for lease in rest[1:]], now=at(1))
    assert deleted is not None
    assert exchanged is not None
    assert released is not None
    answers = [deleted.finished, exchanged.finished, released, *(each.finished for each in several if each is not None)]
    assert [each.celery_id for each in answers] == [f"{number:08}-id" for number in range(5)]
    assert answers == list(samples(store).finished)

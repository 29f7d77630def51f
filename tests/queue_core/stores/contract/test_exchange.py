"""Every store: an exchange deletes, hands over and leases as one step."""

from typing import Literal

import pytest

from queue_core.errors import InvalidLeaseTimeError, UnknownQueueError
from queue_core.store import Store
from queue_core.task import ANY, NewTask, TagFilter
from queue_core.verbs import Deletion, LeaseRequest, Release
from tests.support.stores.task_builders import QUEUE, a_queue, add, at, exchange_one, grant, samples, stats

NEXT = "next"


def exchanged(
    store: Store, *deletions: Deletion, count: int = 5, seconds: float | None = 60.0, worker: str = "w"
) -> tuple[list, list]:
    """What became of the deletions, and the payloads that were leased; None: the worker was refused."""
    with store.begin() as transaction:
        request = LeaseRequest(count, seconds, ANY, worker)
        outcomes, granted = transaction.exchange(QUEUE, deletions, request, now=at(10))
    return outcomes, [lease.payload for lease in granted.leases] if not granted.refused else [None]


def payloads(store: Store, queue: str) -> list[bytes]:
    return [lease.payload for lease in grant(store, 10, now=at(20), queue=queue).leases]


def test_it_hands_over_to_the_same_queue_and_leases_that_too(store: Store) -> None:
    add(store, NewTask(b"first"), NewTask(b"second"))
    (lease,) = grant(store, 1, now=at(1)).leases
    outcomes, leased = exchanged(store, Deletion(lease.token, (NewTask(b"third"),)))
    assert [outcome.then[0].status for outcome in outcomes] == ["added"]
    assert outcomes[0].finished.outcome == "deleted"
    assert leased == [b"second", b"third"]


def test_it_hands_over_to_another_queue(store: Store) -> None:
    a_queue(store, NEXT)
    add(store, NewTask(b"first"), NewTask(b"second"))
    first, second = grant(store, 2, now=at(1)).leases
    outcomes, leased = exchanged(
        store, Deletion(first.token, (NewTask(b"a", queue=NEXT), NewTask(b"b", queue=NEXT))), Deletion(second.token)
    )
    assert [len(outcome.then) for outcome in outcomes] == [2, 0]
    assert leased == []
    assert payloads(store, NEXT) == [b"a", b"b"]


def test_a_token_that_is_not_current_hands_nothing_over(store: Store) -> None:
    add(store, NewTask(b"first"))
    (lease,) = grant(store, 1, now=at(1)).leases
    exchanged(store, Deletion(lease.token))
    outcomes, leased = exchanged(store, Deletion(lease.token, (NewTask(b"again"),)))
    assert (outcomes, leased) == ([None], [])


def test_a_retired_worker_is_refused_and_its_deletions_stand(store: Store) -> None:
    add(store, NewTask(b"first"))
    (lease,) = grant(store, 1, now=at(1)).leases
    with store.begin() as transaction:
        assert transaction.retire_worker("w", now=at(2))
    outcomes, leased = exchanged(store, Deletion(lease.token, (NewTask(b"second"),)))
    assert outcomes[0] is not None
    assert leased == [None]
    assert payloads(store, QUEUE) == [b"second"]


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize(
    ("then", "seconds", "error"),
    [
        ((), 7200.0, InvalidLeaseTimeError),
        ((NewTask(),), 7200.0, InvalidLeaseTimeError),
        ((NewTask(queue="nowhere"),), 60.0, UnknownQueueError),
    ],
)
def test_what_can_not_be_right_changes_nothing(
    store: Store, then: tuple[NewTask, ...], seconds: float, error: type[Exception], count: int
) -> None:
    a_queue(store, max_lease_seconds=3600.0)
    add(store, NewTask(b"first"))
    (lease,) = grant(store, 1, now=at(1)).leases
    with pytest.raises(error):
        exchanged(store, Deletion(lease.token, then), count=count, seconds=seconds, worker="worker-1")
    outcomes, _ = exchanged(store, Deletion(lease.token))
    assert outcomes[0] is not None


@pytest.mark.parametrize(
    "done", [slice(None), slice(None, None, 2), slice(None, None, -1), slice(0, None, 5), slice(2, 4)]
)
@pytest.mark.parametrize("between", [1, 6])
def test_of_tasks_leased_at_one_instant_only_those_named_are_deleted(store: Store, done: slice, between: int) -> None:
    add(store, *[NewTask(tag=tag) for _ in range(6) for tag in ["mine", *["theirs"] * between]])
    mine, theirs = [grant(store, 40, now=at(1), tags=TagFilter.of(tag)).leases for tag in ("mine", "theirs")]
    ended = mine[done]
    outcomes, _ = exchanged(store, *[Deletion(lease.token) for lease in ended])
    assert [outcome.finished.name for outcome in outcomes] == [lease.name for lease in ended]
    kept = [lease for lease in (*mine, *theirs) if lease not in ended]
    outcomes, _ = exchanged(store, *[Deletion(lease.token) for lease in kept])
    assert None not in outcomes
    assert len(outcomes) == 6 * (1 + between) - len(ended)


@pytest.mark.parametrize("payload", [b"short", b"long" * 1000])
def test_one_for_one_ends_the_old_lease_and_begins_the_new_one(store: Store, payload: bytes) -> None:
    add(store, NewTask(b"old" + payload, name="given", tag="red"), NewTask(b"new" + payload, tag="blue"))
    (old,) = grant(store, 1, now=at(1)).leases
    outcomes, (new,) = exchange_one(store, old.token)
    finished = outcomes[0].finished
    assert (finished.name, finished.tag, finished.worker, finished.outcome) == ("given", "red", "worker-1", "deleted")
    assert (finished.lease_number, finished.waited_seconds, finished.held_seconds) == (1, 1.0, 9.0)
    assert (new.payload, new.tag, new.lease_number, new.expires_at) == (b"new" + payload, "blue", 1, at(70))
    assert list(samples(store).finished) == [finished]
    counts = stats(store, now=at(10))
    assert (counts.ready, counts.in_flight, counts.deleted_total, counts.leased_total) == (0, 1, 1, 2)
    red = stats(store, TagFilter.of("red"), now=at(10))
    assert (red.in_flight, red.deleted_total, red.leased_total) == (0, 1, 1)
    assert [added.status for added in add(store, NewTask(name="given"), now=at(11))] == ["tombstoned"]
    assert store.check().problems == ()


def test_one_for_one_with_a_token_that_is_not_current_only_leases(store: Store) -> None:
    add(store, NewTask(b"first"), NewTask(b"second"))
    (first,) = grant(store, 1, now=at(1)).leases
    exchange_one(store, first.token)
    add(store, NewTask(b"third"))
    outcomes, leased = exchange_one(store, first.token)
    assert outcomes == [None]
    assert [lease.payload for lease in leased] == [b"third"]


def test_one_for_one_leases_what_is_due_and_nothing_of_a_paused_queue(store: Store) -> None:
    add(store, NewTask(b"first"), NewTask(b"second", eta=at(5)), NewTask(b"third", eta=at(6)))
    (first,) = grant(store, 1, now=at(1)).leases
    _, (second,) = exchange_one(store, first.token)
    assert second.payload == b"second"
    with store.begin() as transaction:
        transaction.set_paused(QUEUE, "paused")
    outcomes, leased = exchange_one(store, second.token)
    assert outcomes[0] is not None
    assert leased == []


def test_one_for_one_finds_a_new_worker_and_refuses_a_retired_one(store: Store) -> None:
    add(store, NewTask(b"first"), NewTask(b"second"), NewTask(b"third"))
    (first,) = grant(store, 1, now=at(1)).leases
    _, (second,) = exchange_one(store, first.token, now=at(2), worker="worker-2")
    with store.begin() as transaction:
        assert transaction.workers_seen(["worker-2"]) == {"worker-2": at(2)}
        transaction.release_worker("worker-2", now=at(3))
    outcomes, leased = exchange_one(store, second.token, now=at(4), worker="worker-2")
    assert (outcomes, leased) == ([None], [])


@pytest.mark.parametrize("charge", ["counted", "uncounted"])
def test_a_task_leased_anew_in_the_same_instant_is_ended_by_its_new_token_only(
    store: Store, charge: Literal["counted", "uncounted"]
) -> None:
    add(store, NewTask())
    (first,) = grant(store, 1, now=at(1)).leases
    with store.begin() as transaction:
        assert transaction.release(QUEUE, [Release(first.token, 0.0, charge)], now=at(1))[0] is not None
    (second,) = grant(store, 1, now=at(1)).leases
    assert second.token != first.token
    assert exchange_one(store, first.token) == ([None], [])
    outcomes, _ = exchange_one(store, second.token)
    assert outcomes[0] is not None

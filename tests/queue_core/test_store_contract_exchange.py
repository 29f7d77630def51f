"""Every store: an exchange deletes, hands over and leases as one step."""

import pytest

from queue_core.errors import InvalidLeaseTimeError, UnknownQueueError
from queue_core.store import Deletion, LeaseRequest, Store
from queue_core.task import ANY, NewTask, TagFilter
from tests.support.task_builders import QUEUE, a_queue, add, at, grant

NEXT = "next"


def exchanged(store: Store, *deletions: Deletion, seconds: float | None = 60.0, worker: str = "w") -> tuple[list, list]:
    """What became of the deletions, and the payloads that were leased; None: the worker was refused."""
    with store.begin() as transaction:
        outcomes, granted = transaction.exchange(QUEUE, deletions, LeaseRequest(5, seconds, ANY, worker), now=at(10))
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


@pytest.mark.parametrize(
    ("then", "seconds", "error"),
    [
        ((), 7200.0, InvalidLeaseTimeError),
        ((NewTask(),), 7200.0, InvalidLeaseTimeError),
        ((NewTask(queue="nowhere"),), 60.0, UnknownQueueError),
    ],
)
def test_what_can_not_be_right_changes_nothing(
    store: Store, then: tuple[NewTask, ...], seconds: float, error: type[Exception]
) -> None:
    a_queue(store, max_lease_seconds=3600.0)
    add(store, NewTask(b"first"))
    (lease,) = grant(store, 1, now=at(1)).leases
    with pytest.raises(error):
        exchanged(store, Deletion(lease.token, then), seconds=seconds)
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

"""What every store must do with the name of a task that used up its leases, when nobody has looked at it since."""

import pytest

from queue_core.store import Store
from queue_core.task import NewTask
from queue_core.verbs import Deletion
from tests.support.stores.task_builders import MICROSECOND, QUEUE, SPEC, a_queue, add, at, lease, samples, stats

BEFORE, AFTER = -MICROSECOND, MICROSECOND
RETENTION = SPEC.name_retention_seconds


def used_up(store: Store, *names: str, own: int | None = 1) -> None:
    """Named tasks of a queue that deletes what is exhausted, each under a lease until ten seconds; the last it has."""
    a_queue(store, max_leases=None if own else 1, on_exhausted="delete")
    add(store, *[NewTask(b"bad", name=name, max_leases=own) for name in names])
    lease(store, len(names), seconds=10)


@pytest.mark.parametrize("own", [pytest.param(1, id="by its own bound"), pytest.param(None, id="by the queue's")])
@pytest.mark.parametrize(
    ("seconds", "status"),
    [
        pytest.param(10 + BEFORE, "exists", id="before its lease ends"),
        pytest.param(10, "tombstoned", id="when its lease ends"),
        pytest.param(10 + RETENTION + BEFORE, "tombstoned", id="before the name is free"),
        pytest.param(10 + RETENTION, "added", id="when the name is free"),
    ],
)
def test_the_name_of_a_used_up_task_is_a_deleted_ones(
    store: Store, own: int | None, seconds: float, status: str
) -> None:
    used_up(store, "bad", own=own)
    (added,) = add(store, NewTask(name="bad"), now=at(seconds))
    assert added.status == status


def test_one_of_several_adds_finds_the_used_up_task_gone_and_its_end_is_counted_once(store: Store) -> None:
    used_up(store, "bad")
    outcomes = add(store, NewTask(name="bad", tag="t"), NewTask(name="new"), NewTask(name="bad"), now=at(11))
    assert [one.status for one in outcomes] == ["tombstoned", "added", "tombstoned"]
    found = stats(store, now=at(11))
    assert (found.ready, found.in_flight, found.dead, found.died_total, found.expired_total) == (1, 0, 0, 1, 1)
    ends = [(one.name, one.outcome, one.died, one.ended_at) for one in samples(store).finished]
    assert ends == [("bad", "expired", True, at(10))]
    assert not store.check().problems


def test_a_name_that_came_free_is_given_once_in_a_batch(store: Store) -> None:
    used_up(store, "bad", "worse")
    tasks = [NewTask(name=name) for name in ("worse", "bad", "bad", "new")]
    outcomes = add(store, *tasks, now=at(10 + RETENTION))
    assert [one.status for one in outcomes] == ["added", "added", "exists", "added"]
    assert {one.name for one in lease(store, 9, now=at(10 + RETENTION))} == {"bad", "worse", "new"}
    assert not store.check().problems


def test_a_task_handed_over_finds_the_used_up_one_gone(store: Store) -> None:
    used_up(store, "bad")
    add(store, NewTask(name="good"), now=at(1))
    (held,) = lease(store, seconds=60, now=at(1))
    with store.begin() as transaction:
        (deleted,) = transaction.delete(QUEUE, [Deletion(held.token, (NewTask(name="bad"),))], now=at(11))
    assert deleted is not None
    assert [one.status for one in deleted.then] == ["tombstoned"]
    assert not store.check().problems


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"max_leases": 1, "on_exhausted": "dead"}, id="kept as dead"),
        pytest.param({"max_leases": 2, "on_exhausted": "delete"}, id="with a lease left"),
    ],
)
def test_a_task_that_is_still_there_keeps_its_name(store: Store, settings: dict[str, object]) -> None:
    a_queue(store, **settings)
    add(store, NewTask(name="bad"))
    lease(store, seconds=10)
    assert [one.status for one in add(store, NewTask(name="bad"), now=at(11))] == ["exists"]

"""A task that somebody deletes while it is leased is recorded as removed, by whom, and never as done."""

import pytest

from queue_core.clock import START
from queue_core.stats import FinishedLease, TaskRemoval
from queue_core.store import Store
from queue_core.task import ANY, Lease, NewTask, TagFilter
from queue_core.verbs import LeaseRequest
from tests.support.stores.task_builders import QUEUE, a_queue, add, at, delete, lease, samples, stats

BY_ANN = TaskRemoval("deleted by ann@example.com")


def work(store: Store, count: int = 1, *, worker: str = "w-1") -> list[Lease]:
    with store.begin() as transaction:
        return list(transaction.lease(QUEUE, LeaseRequest(count, 10, ANY, worker), now=START).leases)


def recorded(store: Store) -> list[FinishedLease]:
    with store.read() as transaction:
        page = transaction.history(QUEUE, names=None, before=None, limit=100, now=at(2))
    assert sorted(one.name for one in samples(store).finished) == sorted(one.name for one in page.leases)
    return sorted(page.leases, key=lambda one: one.name)


def test_a_running_task_that_is_deleted_by_name_is_removed_and_not_done(store: Store) -> None:
    add(store, NewTask(name="running", tag="a"), NewTask(name="waiting"), NewTask(name="done"))
    held = {one.name: one for one in work(store, 3)}
    with store.begin() as transaction:
        transaction.delete_by_name(QUEUE, ["running"], removal=BY_ANN, now=at(1))
    delete(store, held["done"])
    done, removed = recorded(store)
    assert (done.outcome, done.reason) == ("deleted", "")
    assert (removed.name, removed.tag, removed.worker, removed.lease_number) == ("running", "a", "w-1", 1)
    assert (removed.outcome, removed.reason, removed.died) == ("removed", "deleted by ann@example.com", False)
    assert (removed.held_seconds, removed.ended_at) == (1.0, at(1))
    assert (stats(store).deleted_total, stats(store).in_flight) == (1, 1)
    assert delete(store, held["running"]) == [None]


def test_deleting_tasks_that_wait_records_no_lease_and_no_work_done(store: Store) -> None:
    add(store, NewTask(name="ready"), NewTask(name="later", delay_seconds=5))
    with store.begin() as transaction:
        assert transaction.delete_by_name(QUEUE, ["ready", "later"], now=START) == ["deleted", "deleted"]
    assert recorded(store) == []
    assert stats(store).deleted_total == 0


@pytest.mark.parametrize("tags", [ANY, TagFilter.of("a")], ids=["all", "of a tag"])
def test_a_purge_removes_what_runs(store: Store, tags: TagFilter) -> None:
    add(store, *[NewTask(name=f"t{number}", tag="a") for number in range(3)], NewTask(name="waiting", tag="a"))
    work(store, 3)
    with store.begin() as transaction:
        assert transaction.purge(QUEUE, tags, limit=10, removal=TaskRemoval("purged by ann"), now=at(1)) == 4
    assert [(one.name, one.outcome, one.reason, one.died) for one in recorded(store)] == [
        (f"t{number}", "removed", "purged by ann", False) for number in range(3)
    ]
    found = stats(store)
    assert (found.deleted_total, found.in_flight, found.ready) == (0, 0, 0)


def test_a_purge_records_leases_in_the_order_in_which_they_would_have_ended(store: Store) -> None:
    add(store, *[NewTask(name=name) for name in "abc"])
    for seconds in (9, 3, 6):
        with store.begin() as transaction:
            transaction.lease(QUEUE, LeaseRequest(1, seconds, ANY, "w-1"), now=START)
    with store.begin() as transaction:
        assert transaction.purge(QUEUE, ANY, limit=10, now=at(1)) == 3
    with store.read() as transaction:
        page = transaction.history(QUEUE, names=None, before=None, limit=100, now=at(2))
    assert [one.name for one in page.leases] == ["a", "c", "b"]  # the newest first


def test_a_worker_that_deletes_its_own_task_by_name_has_done_it(store: Store) -> None:
    add(store, NewTask(name="own"), NewTask(name="of another"))
    work(store, 1, worker="w-1")
    work(store, 1, worker="w-2")
    with store.begin() as transaction:
        transaction.delete_by_name(
            QUEUE, ["own", "of another"], removal=TaskRemoval("deleted by w-1", "w-1"), now=at(1)
        )
    assert [(one.name, one.outcome) for one in recorded(store)] == [("of another", "removed"), ("own", "deleted")]
    assert stats(store).deleted_total == 1


def test_an_unnamed_holder_is_a_holder_too(store: Store) -> None:
    add(store, NewTask(name="own"), NewTask(name="foreign"))
    work(store, 1, worker="")
    work(store, 1, worker="w-2")
    with store.begin() as transaction:
        transaction.delete_by_name(QUEUE, ["own", "foreign"], removal=TaskRemoval("deleted", ""), now=at(1))
    assert [(one.name, one.outcome) for one in recorded(store)] == [("foreign", "removed"), ("own", "deleted")]


def test_a_name_is_taken_after_a_removal_and_room_in_limits_is_free(store: Store) -> None:
    a_queue(store, max_in_flight=1)
    add(store, NewTask(name="first"), NewTask(name="second"))
    lease(store)
    with store.begin() as transaction:
        transaction.delete_by_name(QUEUE, ["first"], removal=BY_ANN, now=START)
    assert add(store, NewTask(name="first"))[0].status == "tombstoned"
    assert [one.name for one in lease(store)] == ["second"]
    with store.begin() as transaction:
        transaction.purge(QUEUE, ANY, limit=10, now=START)
    add(store, NewTask(name="third"))
    assert [one.name for one in lease(store)] == ["third"]

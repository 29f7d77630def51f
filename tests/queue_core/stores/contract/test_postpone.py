"""What every store must do to move a delayed task's eta: only from the eta that the caller knows."""

import pytest

from queue_core.clock import START, Instant
from queue_core.errors import InvalidEtaError, QueueMovedError, UnknownQueueError
from queue_core.limits import FARTHEST_ETA_SECONDS
from queue_core.store import Store
from queue_core.task import NewTask, TagFilter, TaskState
from queue_core.verbs import Release
from tests.support.stores.restored_tasks import fence, peek
from tests.support.stores.task_builders import MICROSECOND, QUEUE, add, at, lease, names, stats


def postpone(
    store: Store, name: str, *, expected: Instant, eta: Instant, now: Instant = START, queue: str = QUEUE
) -> bool:
    with store.begin() as transaction:
        return transaction.postpone(queue, name, expected=expected, eta=eta, now=now)


@pytest.mark.parametrize("tag", [None, "a"])
@pytest.mark.parametrize(("given", "name"), [("mine", "mine"), (None, "_1")], ids=["a given name", "a chosen name"])
def test_a_delayed_task_is_leasable_from_its_new_eta_on(
    store: Store, given: str | None, name: str, tag: str | None
) -> None:
    add(store, NewTask(b"x", name=given, tag=tag, eta=at(10)))
    assert postpone(store, name, expected=at(10), eta=at(20))
    with store.read() as transaction:
        assert transaction.next_eta(QUEUE, now=START) == at(20)
    assert lease(store, now=at(20 - MICROSECOND)) == []
    assert (stats(store, now=at(15)).delayed, stats(store, now=at(20)).ready) == (1, 1)
    (held,) = lease(store, tags=TagFilter.oldest(), now=at(25))
    assert (held.name, held.ready_at, held.added_at, held.payload) == (name, at(20), START, b"x")


def test_an_eta_may_be_moved_nearer_too(store: Store) -> None:
    add(store, NewTask(name="late", eta=at(10)), NewTask(name="later", eta=at(20)))
    assert postpone(store, "later", expected=at(20), eta=at(5))
    assert names(lease(store, 2, now=at(30))) == ["later", "late"]


@pytest.mark.parametrize("tag", [None, "a"])
@pytest.mark.parametrize("eta", [at(-5), START], ids=["past", "now"])
def test_an_eta_that_is_not_ahead_makes_the_task_ready_from_now_on(store: Store, eta: Instant, tag: str | None) -> None:
    add(store, NewTask(name="mine", tag=tag, eta=at(10)), NewTask(name="first", tag=tag, eta=at(-1)))
    assert postpone(store, "mine", expected=at(10), eta=eta)
    found = stats(store)
    assert (found.ready, found.delayed) == (2, 0)
    assert [(held.name, held.ready_at) for held in lease(store, 2)] == [("mine", START), ("first", START)]


@pytest.mark.parametrize("off", [-MICROSECOND, MICROSECOND])
def test_another_eta_than_the_tasks_moves_nothing(store: Store, off: float) -> None:
    add(store, NewTask(name="mine", eta=at(10)))
    assert not postpone(store, "mine", expected=at(10 + off), eta=at(20))
    assert [task.eta for task in peek(store)] == [at(10)]


def test_nothing_but_a_delayed_task_can_be_moved(store: Store) -> None:
    add(store, NewTask(name="leased"), NewTask(name="dead"), NewTask(name="gone"), NewTask(name="ready"))
    add(store, NewTask(name="mine", delay_seconds=99))  # `_5` is not what it is called
    _, dead, _ = lease(store, 3)
    with store.begin() as transaction:
        transaction.release(QUEUE, [Release(dead.token, dead_reason="bad")], now=START)
        transaction.delete_by_name(QUEUE, ["gone"], now=START)
    before = peek(store)
    assert {task.state for task in before} == set(TaskState) - {TaskState.HELD}
    for task in before:
        if task.state is not TaskState.DELAYED:
            assert not postpone(store, task.shown_name, expected=task.eta, eta=at(50))
    for name in ("gone", "_5", "_99", "unknown"):
        assert not postpone(store, name, expected=at(99), eta=at(50))
    assert peek(store) == before


@pytest.mark.parametrize(("off", "moved"), [(-MICROSECOND, True), (0, False), (MICROSECOND, False)])
def test_a_task_whose_eta_has_come_is_not_delayed_any_more(store: Store, off: float, moved: bool) -> None:
    add(store, NewTask(name="mine", eta=at(10)))
    assert postpone(store, "mine", expected=at(10), eta=at(20), now=at(10 + off)) == moved


def test_a_task_that_was_given_back_with_a_delay_keeps_its_leases_and_its_spent_ends(store: Store) -> None:
    add(store, NewTask(name="mine", tag="a"))
    (held,) = lease(store, seconds=30)
    with store.begin() as transaction:
        transaction.release(QUEUE, [Release(held.token, 10)], now=START)
    assert postpone(store, "mine", expected=at(10), eta=at(5))
    (task,) = peek(store)
    assert (task.leases, task.eta, task.ready_at, sorted(task.spent)) == (1, at(5), at(5), [at(10), at(30)])
    (again,) = lease(store, seconds=5, now=at(5))  # would end where the task was delayed until
    assert (again.lease_number, again.expires_at) == (2, at(10 + MICROSECOND))


def test_an_eta_out_of_bounds_is_refused_before_anything_is_written(store: Store) -> None:
    add(store, NewTask(name="mine", eta=at(10)))
    with pytest.raises(InvalidEtaError):
        postpone(store, "mine", expected=at(10), eta=at(FARTHEST_ETA_SECONDS + MICROSECOND))
    with pytest.raises(InvalidEtaError):
        postpone(store, "mine", expected=at(10), eta=Instant(-1))
    assert postpone(store, "mine", expected=at(10), eta=at(FARTHEST_ETA_SECONDS))
    with pytest.raises(UnknownQueueError):
        postpone(store, "mine", expected=at(10), eta=at(20), queue="nowhere")
    fence(store)
    with pytest.raises(QueueMovedError):
        postpone(store, "mine", expected=at(FARTHEST_ETA_SECONDS), eta=at(20))

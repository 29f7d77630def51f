"""What every store must do for an add that may be sent again: it takes effect once, and is answered alike."""

import pytest

from queue_core.clock import START
from queue_core.errors import OutcomeUnknownError, StoreUnavailableError, UnknownQueueError
from queue_core.store import Added, ClientCall, Store
from queue_core.task import NewTask
from tests.support.task_builders import QUEUE, a_queue, lease, stats

TASKS = [NewTask(b"a", tag="red"), NewTask(b"b", delay_seconds=60.0), NewTask(b"c", name="named")]


def add_once(store: Store, session: str, number: int, *tasks: NewTask, is_repeat: bool = False) -> list[Added]:
    """The call in a transaction of its own."""
    with store.begin() as transaction:
        return transaction.add_once(QUEUE, tasks or TASKS, ClientCall(session, number, is_repeat), now=START)


def test_a_repeat_is_answered_as_the_first_was_and_adds_nothing(store: Store) -> None:
    first = add_once(store, "s", 1)
    assert [(one.status, one.ready) for one in first] == [("added", True), ("added", False), ("added", True)]
    for _ in range(2):
        assert add_once(store, "s", 1, is_repeat=True) == first
    assert stats(store).added_total == 3


def test_the_answer_is_the_first_one_whatever_became_of_the_tasks(store: Store) -> None:
    first = add_once(store, "s", 1, NewTask(b"x", name="x"))
    (held,) = lease(store)
    with store.begin() as transaction:
        transaction.delete_by_name(QUEUE, ["x"], now=START)
    assert held.name == "x"
    assert add_once(store, "s", 1, NewTask(b"x", name="x"), is_repeat=True) == first


def test_the_next_call_of_a_session_and_other_sessions_take_effect(store: Store) -> None:
    for session, number in (("s", 1), ("s", 2), ("t", 1), ("s", 7)):
        add_once(store, session, number, NewTask(b"x"))
    assert stats(store).added_total == 4


def test_a_repeat_whose_first_did_not_arrive_takes_effect(store: Store) -> None:
    assert [one.status for one in add_once(store, "s", 1, NewTask(b"x"), is_repeat=True)] == ["added"]


def test_a_straggler_that_comes_after_its_repeat_adds_nothing(store: Store) -> None:
    (first,) = add_once(store, "s", 1, NewTask(b"x"), is_repeat=True)
    try:
        assert add_once(store, "s", 1, NewTask(b"x")) == [first]
    except StoreUnavailableError:
        assert store.unit == "transaction"  # which went with it
    assert stats(store).added_total == 1


def test_a_call_that_comes_after_a_later_one_of_its_session_is_in_doubt(store: Store) -> None:
    add_once(store, "s", 5, NewTask(b"x"))
    with pytest.raises(OutcomeUnknownError):
        add_once(store, "s", 4, NewTask(b"x"), is_repeat=True)
    assert stats(store).added_total == 1


def test_an_add_that_was_refused_is_not_remembered_as_done(store: Store) -> None:
    with store.begin() as transaction, pytest.raises(UnknownQueueError):
        transaction.add_once("nowhere", TASKS, ClientCall("s", 1), now=START)
    assert len(add_once(store, "s", 2)) == 3


def test_a_thousand_tasks_are_remembered(store: Store) -> None:
    tasks = [NewTask(b"%d" % number) for number in range(1000)]
    first = add_once(store, "s", 1, *tasks)
    assert add_once(store, "s", 1, *tasks, is_repeat=True) == first


def test_tasks_for_several_queues_are_added_once(store: Store) -> None:
    a_queue(store, "other")
    tasks = [NewTask(b"x"), NewTask(b"y", queue="other")]
    assert add_once(store, "s", 1, *tasks) == add_once(store, "s", 1, *tasks, is_repeat=True)
    assert (stats(store).added_total, stats(store, queue="other").added_total) == (1, 1)

"""Tasks by name and eta, deletes and purges, and the figures of a queue."""

import datetime as dt
from collections.abc import Callable
from typing import Any  # the SDK has no types

import pytest

from tests.support.google.appengine_kit import AVAILABLE_SECONDS, LIMITED, QUEUE, WEEK_SECONDS, Kit, Task, names
from tests.support.google.appengine_sdk import taskqueue

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:google")


@pytest.mark.parametrize("content", [{"params": {"foo": "bar"}}, {"payload": b"foobar"}], ids=["params", "payload"])
def test_a_task_whose_eta_is_seconds_after_1970_is_leased_at_once(kit: Kit, content: dict[str, Any]) -> None:
    added = kit.queue.add(Task(method="PULL", eta=dt.datetime.fromtimestamp(15, dt.UTC), **content))
    (leased,) = kit.lease(100, 30 * 60)
    assert leased.name == added.name
    assert leased.payload == (b"foobar" if "payload" in content else b"foo=bar")
    kit.queue.delete_tasks(added)
    assert kit.queue.fetch_statistics().tasks == 0


def test_a_queue_that_does_not_exist_is_told_for_every_call(kit: Kit) -> None:
    nowhere = taskqueue.Queue("nonExistQueue")
    calls: list[Callable[[], object]] = [
        lambda: nowhere.lease_tasks(0.001, 1),
        lambda: nowhere.lease_tasks_by_tag(0.001, 1, "t"),
        lambda: nowhere.add(kit.pull()),
        lambda: nowhere.delete_tasks_by_name("nonexist"),
        nowhere.purge,
    ]
    for call in calls:
        with pytest.raises(taskqueue.UnknownQueueError):
            call()
    assert nowhere.fetch_statistics().tasks == 0


def test_a_push_task_has_no_place_in_a_pull_queue(kit: Kit) -> None:
    with pytest.raises(taskqueue.InvalidQueueModeError):
        kit.queue.add(Task(url="/work"))
    assert kit.queue.fetch_statistics().tasks == 0


def test_deleting_a_task_that_never_was_is_no_error_and_deletes_nothing(kit: Kit) -> None:
    task = kit.queue.delete_tasks_by_name("nonexisttask")
    assert not task.was_deleted


@pytest.mark.parametrize("way", ["handles", "names", "one by one"])
def test_deleted_tasks_are_never_leased_again(kit: Kit, way: str) -> None:
    kit.add(*(kit.pull(name=f"task-{number}", tag="gone") for number in range(2)))
    leased = kit.by_tag("gone")
    if way == "handles":
        kit.queue.delete_tasks(leased)
    elif way == "names":
        kit.queue.delete_tasks_by_name(names(leased))
    else:
        kit.queue.delete_tasks(leased[0])
        kit.queue.delete_tasks_by_name(leased[1].name)
    kit.clock.advance(WEEK_SECONDS)
    assert kit.by_tag("gone") == []
    for name in names(leased):
        with pytest.raises(taskqueue.TombstonedTaskError):
            kit.queue.add(kit.pull(name=name))


def test_a_task_with_an_eta_is_leased_then_and_not_before(kit: Kit) -> None:
    kit.queue.add(kit.pull(tag="later", eta=kit.eta(15)))
    kit.clock.advance(14.999)
    assert kit.by_tag("later", 1, 1) == []
    kit.clock.advance(0.001_001)
    assert len(kit.by_tag("later", 1, 1)) == 1


def test_a_task_with_a_countdown_waits_for_it(kit: Kit) -> None:
    kit.queue.add(kit.pull(tag="later", countdown=600))
    kit.clock.advance(300)
    assert kit.by_tag("later", 1, 1) == []
    kit.clock.advance(600)
    assert len(kit.by_tag("later", 1, 1)) == 1


def test_a_name_is_added_once(kit: Kit) -> None:
    kit.queue.add(kit.pull(name="sameName"))
    with pytest.raises(taskqueue.TaskAlreadyExistsError):
        kit.queue.add(kit.pull(name="sameName"))
    with pytest.raises(taskqueue.DuplicateTaskNameError):
        kit.queue.add([kit.pull(name="other"), kit.pull(name="other")])
    assert kit.queue.fetch_statistics().tasks == 1


def test_asynchronous_calls_give_the_same(kit: Kit) -> None:
    tasks = [kit.pull(name=f"task-{number}", tag="async") for number in range(3)]
    kit.queue.add_async(tasks).get_result()
    kit.clock.advance(AVAILABLE_SECONDS)
    (one,) = kit.queue.lease_tasks_async(60, 1).get_result()
    rest = kit.queue.lease_tasks_by_tag_async(60, 10, "async").get_result()
    assert sorted(names([one, *rest])) == ["task-0", "task-1", "task-2"]
    kit.queue.delete_tasks_async(rest).get_result()
    kit.queue.delete_tasks_by_name_async(one.name).get_result()
    assert kit.queue.fetch_statistics_async().get_result().tasks == 0


@pytest.mark.parametrize("tasks", [0, 1, 1500])
def test_a_purge_leaves_nothing_leased_or_not(kit: Kit, tasks: int) -> None:
    for begin in range(0, tasks, 100):
        kit.queue.add([kit.pull() for _ in range(begin, min(tasks, begin + 100))])
    kit.clock.advance(AVAILABLE_SECONDS)
    kit.lease(tasks // 2 + 1)
    kit.queue.purge()
    kit.clock.advance(WEEK_SECONDS)
    assert kit.lease() == []
    assert kit.queue.fetch_statistics().tasks == 0


# -- StatsTest --------------------------------------------------------------------------------------------------------


def test_every_figure_of_an_untouched_queue_is_there_and_not_negative(kit: Kit) -> None:
    told = kit.queue.fetch_statistics()
    assert told.queue.name == QUEUE
    assert (told.tasks, told.oldest_eta_usec) == (0, None)
    assert (told.executed_last_minute, told.in_flight, told.enforced_rate) == (0, 0, 0.0)


def test_figures_follow_what_happens(kit: Kit) -> None:
    kit.add(*(kit.pull() for _ in range(3)))
    leased = kit.lease(2, 100)
    told = kit.queue.fetch_statistics()
    assert (told.tasks, told.in_flight, told.executed_last_minute) == (3, 2, 2)
    assert 0 <= told.oldest_eta_usec <= kit.clock.now()
    kit.queue.delete_tasks(leased[0])
    kit.lease(1, 50)
    told = kit.queue.fetch_statistics()
    assert (told.tasks, told.in_flight, told.executed_last_minute) == (2, 2, 3)
    assert told.oldest_eta_usec == kit.clock.now() + 50_000_000


def test_figures_of_several_queues_come_in_the_order_of_the_question(kit: Kit) -> None:
    kit.add(kit.pull())
    told = taskqueue.QueueStatistics.fetch([taskqueue.Queue(LIMITED), kit.queue, taskqueue.Queue("nonExistQueue")])
    assert [(one.queue.name, one.tasks) for one in told] == [(LIMITED, 0), (QUEUE, 1), ("nonExistQueue", 0)]

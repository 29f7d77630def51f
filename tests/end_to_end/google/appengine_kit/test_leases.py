"""Leases by count and tag, their ends moved, and tasks leased again."""

import pytest

from tests.support.google.appengine_kit import AVAILABLE_SECONDS, LIMITED, QUEUE, WEEK_SECONDS, Kit, names
from tests.support.google.appengine_sdk import apiproxy_stub_map, service_pb2, taskqueue

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:google")


@pytest.mark.parametrize(("count", "leased"), [(1, 1), (2, 2), (3, 3), (4, 3), (1000, 3)])
def test_no_more_tasks_are_leased_than_asked_for(kit: Kit, count: int, leased: int) -> None:
    kit.add(*(kit.pull() for _ in range(3)))
    assert len(kit.lease(count, 10)) == leased
    assert len(kit.lease(1000, 10)) == 3 - leased


def test_one_task_of_a_tag_is_leased_then_the_rest_and_none_twice(kit: Kit) -> None:
    kit.add(*(kit.pull(name=f"base_{number}", tag="mine") for number in range(10)))
    kit.add(kit.pull(tag="other"), kit.pull())
    (first,) = kit.by_tag("mine", 1)
    kit.queue.delete_tasks_by_name(first.name)
    rest = kit.by_tag("mine")
    assert sorted(names([first, *rest])) == [f"base_{number}" for number in range(10)]
    assert {task.queue_name for task in rest} == {QUEUE}
    assert {task.payload for task in rest} == {b"mypayload"}
    assert {task.tag for task in rest} == {"mine"}
    kit.queue.delete_tasks(rest)
    assert kit.by_tag("mine") == []
    assert kit.queue.fetch_statistics().tasks == 2


@pytest.mark.parametrize("order", ["abc", "acb", "bac", "bca", "cab", "cba"])
def test_tags_are_leased_in_any_order_each_its_own_tasks_in_the_order_of_their_etas(kit: Kit, order: str) -> None:
    etas = {name: kit.eta(seconds) for seconds, name in enumerate(["c-0", "a-0", "b-0", "a-1", "c-1", "b-1"], start=1)}
    kit.add(*(kit.pull(name=name, tag=name[0], eta=eta) for name, eta in reversed(etas.items())))
    for tag in order:
        assert names(kit.by_tag(tag)) == [f"{tag}-0", f"{tag}-1"]
        assert kit.by_tag(tag) == []


def test_without_a_tag_each_lease_takes_the_whole_group_of_the_oldest_task(kit: Kit) -> None:
    etas = {name: kit.eta(seconds) for seconds, name in enumerate(["b-0", "none-0", "a-0", "b-1", "none-1"], start=1)}
    kit.add(
        *(kit.pull(name=name, eta=eta, **({} if name[0] == "n" else {"tag": name[0]})) for name, eta in etas.items())
    )
    groups = [names(kit.by_tag(None)) for _ in range(4)]
    assert groups == [["b-0", "b-1"], ["none-0", "none-1"], ["a-0"], []]


def test_a_lease_that_was_made_longer_holds_until_its_new_end(kit: Kit) -> None:
    kit.add(kit.pull(tag="mine"))
    (task,) = kit.by_tag("mine", 1, 10)
    kit.queue.modify_task_lease(task, 30)
    kit.clock.advance(29.999_999)
    assert kit.by_tag("mine") == []
    kit.clock.advance(0.000_001)
    assert names(kit.by_tag("mine")) == [task.name]


def test_a_lease_that_was_made_shorter_ends_at_its_new_end(kit: Kit) -> None:
    kit.add(kit.pull())
    (task,) = kit.lease(1, 3600)
    kit.queue.modify_task_lease(task, 1)
    kit.clock.advance(1)
    (again,) = kit.lease()
    assert (again.name, again.retry_count) == (task.name, 2)


def test_a_task_that_nobody_leased_can_not_be_modified(kit: Kit) -> None:
    (task,) = kit.add(kit.pull())
    with pytest.raises(taskqueue.TaskLeaseExpiredError):
        kit.queue.modify_task_lease(task, 2)


def test_a_lease_that_ended_can_not_be_modified_nor_one_that_another_has_now(kit: Kit) -> None:
    kit.add(kit.pull())
    (mine,) = kit.lease(1, 10)
    kit.clock.advance(10)
    with pytest.raises(taskqueue.TaskLeaseExpiredError):
        kit.queue.modify_task_lease(mine, 60)
    (theirs,) = kit.lease(1, 10)
    with pytest.raises(taskqueue.TaskLeaseExpiredError):
        kit.queue.modify_task_lease(mine, 60)
    kit.queue.modify_task_lease(theirs, 60)


def test_a_task_that_is_gone_can_not_be_modified(kit: Kit) -> None:
    kit.add(kit.pull(name="here"))
    (task,) = kit.lease()
    kit.queue.delete_tasks_by_name("here")
    with pytest.raises(taskqueue.TombstonedTaskError):
        kit.queue.modify_task_lease(task, 60)


@pytest.mark.parametrize("seconds", [0.001, 1, 1.5, 3600, WEEK_SECONDS])
def test_a_task_can_be_leased_again_when_its_lease_has_ended_and_not_before(kit: Kit, seconds: float) -> None:
    kit.add(kit.pull())
    assert len(kit.lease(1, seconds)) == 1
    kit.clock.advance(seconds - 0.000_001)
    assert kit.lease() == []
    kit.clock.advance(0.000_001)
    assert [task.retry_count for task in kit.lease()] == [2]


def test_a_lease_of_no_seconds_is_over_at_once(kit: Kit) -> None:
    kit.add(kit.pull())
    assert [task.retry_count for _ in range(3) for task in kit.lease(1, 0)] == [1, 2, 3]


@pytest.mark.parametrize("tag", [b"bytes", "grün".encode(), b"t" * 500, b" ", b"a=b&c%00"], ids=repr)
def test_a_tag_given_as_bytes_leases_its_task_until_it_is_purged(kit: Kit, tag: bytes) -> None:
    request = service_pb2.TaskQueueBulkAddRequest()
    one = request.add_request.add(queue_name=QUEUE.encode(), task_name=b"base_0", eta_usec=0, mode=1, body=b"", tag=tag)
    assert one.HasField("body")
    response = service_pb2.TaskQueueBulkAddResponse()
    apiproxy_stub_map.apiproxy.MakeSyncCall("taskqueue", "BulkAdd", request, response)
    (task,) = kit.by_tag(tag, 10, 1)
    assert (task.tag, task.payload) == (tag.decode(), b"")
    kit.queue.purge()
    kit.clock.advance(2)
    assert kit.by_tag(tag, 10, 1) == []


@pytest.mark.parametrize("unlike", [b"Bytes", b"bytes ", b"byte", b"bytess"], ids=repr)
def test_a_tag_is_told_from_every_other_one(kit: Kit, unlike: bytes) -> None:
    kit.add(kit.pull(tag="bytes"))
    assert kit.by_tag(unlike.decode()) == []
    assert len(kit.by_tag("bytes")) == 1


def test_a_task_is_leased_as_often_as_its_queue_allows(kit: Kit) -> None:
    limited = taskqueue.Queue(LIMITED)
    limited.add(kit.pull())
    kit.clock.advance(AVAILABLE_SECONDS)
    counts = []
    for _ in range(5):
        counts += [task.retry_count for task in limited.lease_tasks(1, 10)]
        kit.clock.advance(1)
    assert counts == [1, 2, 3]
    assert limited.fetch_statistics().tasks == 0

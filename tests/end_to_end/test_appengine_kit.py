"""What Google's compatibility kit asks of a pull queue, through the client for Python, with time in the test's hand.

Each test is ours; the behaviour is the one that the kit's `PullTest`, `PullQueueTest`, `PullQueueAsyncTest`,
`PullQueueBadArgumentsTest` and `StatsTest` describe, with bounds tried on both sides. The kit sleeps; here the clock is
moved.
"""

import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any  # the SDK has no types

import pytest

from queue_core.clock import ManualClock, SystemClock, after
from tests.differential.our_server import OurServer
from tests.support.appengine_sdk import apiproxy_errors, apiproxy_stub_map, service_pb2, taskqueue
from tests.support.stores import opened

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:google")

QUEUE, LIMITED = "pull-queue", "limited"
WEEK_SECONDS = 604_800
AVAILABLE_SECONDS = 60.0
"""The kit gives tasks a while to become available; the client's clock, which sets their eta, is not the test's."""
Task = taskqueue.Task


class InProcess:
    """The SDK's way to a server in this process."""

    THREADSAFE = False

    def __init__(self, server: OurServer) -> None:
        self._server = server

    def CreateRPC(self) -> Any:  # noqa: N802 - Google's name
        from google.appengine.api import apiproxy_rpc

        return apiproxy_rpc.RPC(stub=self)

    def MakeSyncCall(self, service: str, call: str, request: Any, response: Any) -> None:  # noqa: N802 - Google's name
        answer = self._server.ask(call, request.SerializeToString())
        if answer.HasField("application_error"):
            error = answer.application_error
            raise apiproxy_errors.ApplicationError(error.code, error.detail)
        assert not answer.HasField("rpc_error"), answer
        response.ParseFromString(answer.response)


@dataclass(frozen=True, slots=True)
class Kit:
    """The client's queue, and the server's clock."""

    queue: Any
    clock: ManualClock

    def add(self, *tasks: Any) -> list[Any]:
        """Add, and wait until they are available."""
        added: list[Any] = self.queue.add(list(tasks))
        self.clock.advance(AVAILABLE_SECONDS)
        return added

    def pull(self, payload: bytes | str = b"mypayload", **more: Any) -> Any:
        """A task to add."""
        return Task(payload=payload, method="PULL", **more)

    def eta(self, seconds: float) -> dt.datetime:
        """So many seconds from the server's present."""
        return dt.datetime.fromtimestamp(after(self.clock.now(), seconds) / 1e6, dt.UTC)

    def lease(self, count: int = 1000, seconds: float = 60) -> list[Any]:
        return list(self.queue.lease_tasks(seconds, count))

    def by_tag(self, tag: str | bytes | None, count: int = 1000, seconds: float = 60) -> list[Any]:
        return list(self.queue.lease_tasks_by_tag(seconds, count, tag))


@pytest.fixture(params=["memory", "sqlite"])
def kit(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kit]:
    clock = ManualClock(SystemClock().now())
    with (
        opened(request.param, tmp_path) as store,
        OurServer(store, {QUEUE: None, LIMITED: 3}, clock) as server,
    ):
        stubs = apiproxy_stub_map.APIProxyStubMap()
        stubs.RegisterStub("taskqueue", InProcess(server))
        monkeypatch.setattr(apiproxy_stub_map, "apiproxy", stubs)
        monkeypatch.setenv("HTTP_HOST", "localhost")
        yield Kit(taskqueue.Queue(QUEUE), clock)


def names(tasks: Sequence[Any]) -> list[str]:
    return [task.name for task in tasks]


# -- PullTest ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [{"params": {"foo": "bar"}}, {"payload": b"foobar"}], ids=["params", "payload"])
def test_a_task_whose_eta_is_seconds_after_1970_is_leased_at_once(kit: Kit, content: dict[str, Any]) -> None:
    added = kit.queue.add(Task(method="PULL", eta=dt.datetime.fromtimestamp(15, dt.UTC), **content))
    (leased,) = kit.lease(100, 30 * 60)
    assert leased.name == added.name
    assert leased.payload == (b"foobar" if "payload" in content else b"foo=bar")
    kit.queue.delete_tasks(added)
    assert kit.queue.fetch_statistics().tasks == 0


@pytest.mark.parametrize(("count", "leased"), [(1, 1), (2, 2), (3, 3), (4, 3), (1000, 3)])
def test_no_more_tasks_are_leased_than_asked_for(kit: Kit, count: int, leased: int) -> None:
    kit.add(*(kit.pull() for _ in range(3)))
    assert len(kit.lease(count, 10)) == leased
    assert len(kit.lease(1000, 10)) == 3 - leased


# -- PullQueueTest and PullQueueAsyncTest ------------------------------------------------------------------------------


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


# -- PullQueueBadArgumentsTest -----------------------------------------------------------------------------------------


def lease_request(**fields: Any) -> Any:
    known = {"queue_name": QUEUE.encode(), "lease_seconds": 60.0, "max_tasks": 1}
    return service_pb2.TaskQueueQueryAndOwnTasksRequest(**(known | fields))


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"lease_seconds": -0.001}, id="a negative lease"),
        pytest.param({"lease_seconds": WEEK_SECONDS + 0.001}, id="more than a week"),
        pytest.param({"max_tasks": -1}, id="a negative count"),
        pytest.param({"max_tasks": 0}, id="a count of none"),
        pytest.param({"max_tasks": 1001}, id="more than a thousand"),
        pytest.param({"tag": b"t"}, id="a tag without its group"),
    ],
)
def test_a_lease_out_of_bounds_is_refused_by_the_server_too(kit: Kit, fields: dict[str, Any]) -> None:
    kit.add(kit.pull())
    response = service_pb2.TaskQueueQueryAndOwnTasksResponse()
    with pytest.raises(apiproxy_errors.ApplicationError) as refused:
        apiproxy_stub_map.apiproxy.MakeSyncCall("taskqueue", "QueryAndOwnTasks", lease_request(**fields), response)
    assert refused.value.application_error == service_pb2.TaskQueueServiceError.INVALID_REQUEST
    assert [task.retry_count for task in kit.lease()] == [1]


@pytest.mark.parametrize(
    ("seconds", "count"), [(0, 1), (0.001, 1), (WEEK_SECONDS, 1), (60, 1000)], ids=["none", "1 ms", "a week", "1000"]
)
def test_a_lease_within_bounds_is_granted(kit: Kit, seconds: float, count: int) -> None:
    kit.add(kit.pull())
    assert len(kit.lease(count, seconds)) == 1


@pytest.mark.parametrize("seconds", [-1.0, WEEK_SECONDS + 0.001])
def test_a_modification_out_of_bounds_is_refused_by_the_server_too(kit: Kit, seconds: float) -> None:
    kit.add(kit.pull())
    (task,) = kit.lease()
    request = service_pb2.TaskQueueModifyTaskLeaseRequest(
        queue_name=QUEUE.encode(),
        task_name=task.name.encode(),
        eta_usec=round(task.eta_posix * 1e6),
        lease_seconds=seconds,
    )
    response = service_pb2.TaskQueueModifyTaskLeaseResponse()
    with pytest.raises(apiproxy_errors.ApplicationError) as refused:
        apiproxy_stub_map.apiproxy.MakeSyncCall("taskqueue", "ModifyTaskLease", request, response)
    assert refused.value.application_error == service_pb2.TaskQueueServiceError.INVALID_REQUEST
    kit.queue.modify_task_lease(task, 60)


@pytest.mark.parametrize("microseconds", [-1, 30 * 86_400 * 1_000_000 + 1])
def test_an_eta_out_of_bounds_is_refused_and_one_at_the_bound_is_not(kit: Kit, microseconds: int) -> None:
    now = kit.clock.now()
    request = service_pb2.TaskQueueBulkAddRequest()
    for eta in (microseconds if microseconds < 0 else now + microseconds, now + 30 * 86_400 * 1_000_000, 0):
        request.add_request.add(queue_name=QUEUE.encode(), task_name=b"", eta_usec=eta, mode=1, body=b"")
    response = service_pb2.TaskQueueBulkAddResponse()
    apiproxy_stub_map.apiproxy.MakeSyncCall("taskqueue", "BulkAdd", request, response)
    codes = service_pb2.TaskQueueServiceError
    assert [one.result for one in response.taskresult] == [codes.INVALID_ETA, codes.SKIPPED, codes.SKIPPED]
    del request.add_request[0]
    apiproxy_stub_map.apiproxy.MakeSyncCall("taskqueue", "BulkAdd", request, response)
    assert [one.result for one in response.taskresult][-2:] == [codes.OK, codes.OK]


# -- StatsTest ---------------------------------------------------------------------------------------------------------


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


# -- deadlines ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deadline", [-1, 0])
def test_a_deadline_that_has_passed_is_refused(kit: Kit, deadline: float) -> None:
    with pytest.raises(taskqueue.InvalidDeadlineError):
        kit.queue.lease_tasks(60, 1, deadline=deadline)


@pytest.mark.parametrize("deadline", [0.001, 1.5, 60])
def test_a_deadline_ahead_is_kept(kit: Kit, deadline: float) -> None:
    kit.add(kit.pull())
    assert len(kit.queue.lease_tasks(60, 1, deadline=deadline)) == 1

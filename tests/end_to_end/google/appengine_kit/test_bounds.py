"""What is out of bounds, refused by the server even where the client would not ask; and deadlines of calls."""

from typing import Any  # the SDK has no types

import pytest

from tests.support.google.appengine_kit import QUEUE, WEEK_SECONDS, Kit
from tests.support.google.appengine_sdk import apiproxy_errors, apiproxy_stub_map, service_pb2, taskqueue

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:google")


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


# -- deadlines --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deadline", [-1, 0])
def test_a_deadline_that_has_passed_is_refused(kit: Kit, deadline: float) -> None:
    with pytest.raises(taskqueue.InvalidDeadlineError):
        kit.queue.lease_tasks(60, 1, deadline=deadline)


@pytest.mark.parametrize("deadline", [0.001, 1.5, 60])
def test_a_deadline_ahead_is_kept(kit: Kit, deadline: float) -> None:
    kit.add(kit.pull())
    assert len(kit.queue.lease_tasks(60, 1, deadline=deadline)) == 1

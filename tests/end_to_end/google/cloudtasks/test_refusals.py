"""Google's own Cloud Tasks clients, unchanged: what they raise for what can't be asked."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from google.api_core import exceptions
from google.cloud import tasks_v2beta2

from queue_core.task import QueueSpec
from tests.support.google.cloud_tasks import (
    FAILED_PRECONDITION,
    MINUTE,
    PARENT,
    PLACE,
    CloudTasksBench,
)
from tests.support.servers import QUEUE

Task = tasks_v2beta2.Task
WEEK = timedelta(days=7)
BAD_LEASES = [
    pytest.param({"max_tasks": 0}, id="no tasks"),
    pytest.param({"max_tasks": 1001}, id="too many tasks"),
    pytest.param({"lease_duration": None}, id="no duration"),
    pytest.param({"lease_duration": timedelta(seconds=-1)}, id="less than no time"),
    pytest.param({"lease_duration": WEEK + timedelta(seconds=1)}, id="more than a week"),
    pytest.param({"filter": "tag="}, id="no tag"),
    pytest.param({"filter": "color=red"}, id="an unknown filter"),
]


@pytest.mark.parametrize("change", BAD_LEASES)
def test_a_lease_out_of_range_is_an_invalid_argument(bench: CloudTasksBench, change: dict[str, object]) -> None:
    bench.create(b"x")
    fields = {"parent": PARENT, "max_tasks": 1, "lease_duration": MINUTE, **change}
    with pytest.raises(exceptions.InvalidArgument if bench.wire == "grpc" else exceptions.BadRequest):
        bench.client.lease_tasks(request={name: value for name, value in fields.items() if value is not None})
    assert len(bench.lease()) == 1


BAD_TASKS = [
    pytest.param({"pull_message": {"payload": bytes((1 << 20) + 1)}}, id="a payload over 1 MiB"),
    pytest.param({"pull_message": {"tag": "t" * 501}}, id="a tag over 500 bytes"),
    pytest.param({"name": f"{PARENT}-2/tasks/a"}, id="a name in another queue"),
    pytest.param({"name": f"{PARENT}/tasks/a.b"}, id="a name with a dot"),
    pytest.param({"schedule_time": datetime(2099, 1, 1, tzinfo=UTC)}, id="a time more than 30 days ahead"),
    pytest.param({"app_engine_http_request": {"relative_url": "/"}}, id="a push task"),
]


@pytest.mark.parametrize("task", BAD_TASKS)
def test_a_task_that_can_not_be_is_refused(bench: CloudTasksBench, task: dict[str, object]) -> None:
    errors = (exceptions.InvalidArgument, exceptions.FailedPrecondition) if bench.wire == "grpc" else ()
    with pytest.raises(errors or exceptions.BadRequest):
        bench.client.create_task(parent=PARENT, task=task)
    assert list(bench.client.list_tasks(parent=PARENT)) == []


def test_push_methods_say_that_this_is_a_pull_queue(bench: CloudTasksBench) -> None:
    made = bench.create(b"x")
    with pytest.raises(FAILED_PRECONDITION[bench.wire], match="pull task"):
        bench.client.run_task(name=made.name)


def test_an_unknown_queue_is_not_found(bench: CloudTasksBench) -> None:
    nowhere = f"{PLACE}/queues/nowhere"
    calls = [
        lambda: bench.client.create_task(parent=nowhere, task={"pull_message": {"payload": b"x"}}),
        lambda: bench.client.lease_tasks(request={"parent": nowhere, "max_tasks": 1, "lease_duration": MINUTE}),
        lambda: list(bench.client.list_tasks(parent=nowhere)),
        lambda: bench.client.get_task(name=f"{nowhere}/tasks/a"),
        lambda: bench.client.get_queue(name=nowhere),
        lambda: bench.client.delete_queue(name=nowhere),
        lambda: bench.client.pause_queue(name=nowhere),
        lambda: bench.client.purge_queue(name=nowhere),
        lambda: bench.client.get_iam_policy(request={"resource": nowhere}),
    ]
    for call in calls:
        with pytest.raises(exceptions.NotFound):
            call()


def test_a_call_over_the_rate_is_told_to_slow_down(bench: CloudTasksBench) -> None:
    bench.set_queue(replace(QueueSpec(QUEUE), lease_calls_per_second=2))
    bench.lease()
    bench.lease()
    with pytest.raises(exceptions.ResourceExhausted if bench.wire == "grpc" else exceptions.TooManyRequests):
        bench.lease()
    bench.clock.advance(1)
    bench.lease()

"""Google's own Cloud Tasks client, unchanged: the methods of queues, policies and places, both wires, two stores."""

from dataclasses import replace
from datetime import timedelta

import pytest
from google.api_core import exceptions
from google.cloud import tasks_v2beta2
from google.protobuf.field_mask_pb2 import FieldMask

from queue_core.task import NewTask, QueueSpec
from queue_core.unit.service import QueueService
from tests.support.google.cloud_tasks import FAILED_PRECONDITION, PARENT, PLACE, CloudTasksBench
from tests.support.servers import QUEUE


def test_a_queue_is_made_changed_and_deleted(bench: CloudTasksBench) -> None:
    name = f"{PLACE}/queues/fresh"
    made = bench.client.create_queue(
        parent=PLACE, queue={"name": name, "pull_target": {}, "retry_config": {"max_attempts": 3}}
    )
    assert (made.name, made.state, made.retry_config.max_attempts) == (name, made.State.RUNNING, 3)
    assert (made.tombstone_ttl, made.rate_limits.max_concurrent_tasks) == (timedelta(hours=1), -1)
    assert tasks_v2beta2.Queue.pb(made).WhichOneof("target_type") == "pull_target"
    with pytest.raises(exceptions.AlreadyExists if bench.wire == "grpc" else exceptions.Conflict):
        bench.client.create_queue(parent=PLACE, queue={"name": name})
    changed = bench.client.update_queue(
        queue={"name": name, "tombstone_ttl": timedelta(minutes=5)}, update_mask=FieldMask(paths=["tombstone_ttl"])
    )
    assert (changed.tombstone_ttl, changed.retry_config.max_attempts) == (timedelta(minutes=5), 3)
    reset = bench.client.update_queue(queue={"name": name, "retry_config": {"unlimited_attempts": True}})
    assert (reset.tombstone_ttl, reset.retry_config.unlimited_attempts) == (timedelta(hours=1), True)
    bench.client.delete_queue(name=name)
    with pytest.raises(exceptions.NotFound):
        bench.client.get_queue(name=name)


def test_an_update_makes_a_queue_that_is_not_there(bench: CloudTasksBench) -> None:
    made = bench.client.update_queue(
        queue={"name": f"{PLACE}/queues/fresh", "retry_config": {"max_attempts": 7}},
        update_mask=FieldMask(paths=["retry_config.max_attempts"]),
    )
    assert made.retry_config.max_attempts == 7
    assert bench.client.get_queue(name=made.name) == made


BAD_QUEUES = [
    pytest.param({"tombstone_ttl": timedelta(days=31)}, id="a name kept too long"),
    pytest.param({"task_ttl": timedelta(days=1)}, id="tasks that end by themselves"),
    pytest.param({"app_engine_http_target": {}}, id="a push queue"),
]


@pytest.mark.parametrize("change", BAD_QUEUES)
def test_a_queue_that_can_not_be_is_refused(bench: CloudTasksBench, change: dict[str, object]) -> None:
    with pytest.raises(exceptions.InvalidArgument if bench.wire == "grpc" else exceptions.BadRequest):
        bench.client.update_queue(queue={"name": PARENT, **change})


def test_a_paused_queue_takes_tasks_and_leases_none(bench: CloudTasksBench) -> None:
    paused = bench.client.pause_queue(name=PARENT)
    assert paused.state == paused.State.PAUSED
    bench.create(b"x")
    with pytest.raises(FAILED_PRECONDITION[bench.wire], match="paused"):
        bench.lease()
    resumed = bench.client.resume_queue(name=PARENT)
    assert resumed.state == resumed.State.RUNNING
    assert len(bench.lease()) == 1


def test_a_purge_deletes_all_tasks(bench: CloudTasksBench) -> None:
    service = QueueService(bench.server.store, clock=bench.clock)
    for _ in range(2):
        service.run(lambda turn: turn.add(QUEUE, [NewTask(b"x")] * 600))
    bench.lease(100)
    purged = bench.client.purge_queue(name=PARENT)
    assert int(purged.purge_time.timestamp() * 1e6) == bench.clock.now()
    assert list(bench.client.list_tasks(parent=PARENT)) == []


def test_statistics_come_only_when_they_are_asked_for(bench: CloudTasksBench) -> None:
    for _ in range(3):
        first = bench.create(b"x")
    bench.lease(2)
    assert "stats" not in bench.client.get_queue(name=PARENT)
    queue = bench.client.get_queue(request={"name": PARENT, "read_mask": FieldMask(paths=["stats"])})
    assert (queue.name, queue.stats.tasks_count, queue.stats.concurrent_dispatches_count) == ("", 3, 2)
    assert queue.stats.oldest_estimated_arrival_time == first.schedule_time
    [listed] = bench.client.list_queues(request={"parent": PLACE, "read_mask": FieldMask(paths=["name", "stats"])})
    assert (listed.name, listed.stats.tasks_count) == (PARENT, 3)


def test_queues_are_listed_by_pages_and_by_filter(bench: CloudTasksBench) -> None:
    for number in range(4):
        bench.set_queue(QueueSpec(f"extra-{number}", max_leases=number or None))
    bench.client.pause_queue(name=f"{PLACE}/queues/extra-2")
    pages = list(bench.client.list_queues(request={"parent": PLACE, "page_size": 2}).pages)
    assert [[queue.name.rpartition("/")[2] for queue in page.queues] for page in pages] == [
        ["extra-0", "extra-1"],
        ["extra-2", "extra-3"],
        [QUEUE],
    ]

    def found(text: str) -> list[str]:
        listed = bench.client.list_queues(request={"parent": PLACE, "filter": text})
        return [queue.name.rpartition("/")[2] for queue in listed]

    assert found("state: PAUSED") == ["extra-2"]
    assert found("retry_config.max_attempts >= 2 AND state=RUNNING") == ["extra-3"]
    assert found("app_engine_http_target: *") == []
    with pytest.raises(exceptions.InvalidArgument if bench.wire == "grpc" else exceptions.BadRequest):
        found("colour = red")


def test_policies_tell_what_the_caller_may_do(bench: CloudTasksBench) -> None:
    bench.set_queue(replace(QueueSpec(QUEUE), user_emails=("a@example.com",)))
    policy = bench.client.get_iam_policy(request={"resource": PARENT})
    assert [list(binding.members) for binding in policy.bindings] == [["user:a@example.com"]]
    asked = ["cloudtasks.tasks.lease", "cloudtasks.tasks.fly"]
    answer = bench.client.test_iam_permissions(request={"resource": PARENT, "permissions": asked})
    assert list(answer.permissions) == asked[:1]
    nothing = bench.client.test_iam_permissions(request={"resource": f"{PARENT}-2", "permissions": asked})
    assert list(nothing.permissions) == []
    with pytest.raises(exceptions.MethodNotImplemented):
        bench.client.set_iam_policy(request={"resource": PARENT, "policy": {"bindings": []}})


def test_every_location_is_as_good(bench: CloudTasksBench) -> None:
    assert bench.client.get_location({"name": PLACE}).location_id == "here"
    assert [place.name for place in bench.client.list_locations({"name": "projects/shop"}).locations] == [
        "projects/shop/locations/local"
    ]


def test_an_uploaded_queue_yaml_is_definitive(bench: CloudTasksBench) -> None:
    """The client has it over gRPC only; the path of REST is that of older gcloud."""

    def upload(text: bytes) -> str:
        if bench.wire == "rest":
            told = bench.server.ask("POST", "/api/queue/update?appId=shop", text).json()
            return str(told.get("error", ""))
        try:
            bench.client.upload_queue_yaml(request={"app_id": "shop", "http_body": {"data": text}})
        except exceptions.InvalidArgument as error:
            return str(error)
        return ""

    assert not upload(b"queue:\n- name: listed\n  mode: pull\n  retry_parameters:\n    task_retry_limit: 4\n")
    queues = {queue.name.rpartition("/")[2]: queue for queue in bench.client.list_queues(parent=PLACE)}
    assert queues["listed"].retry_config.max_attempts == 4
    assert queues[QUEUE].state == tasks_v2beta2.Queue.State.PAUSED
    assert "queue.yaml:1:" in upload(b"queue: 1")

"""`/rpc_http` as bytes: deletes and purges, statistics, queues set and listed, tasks looked at."""

import pytest

from queue_core.clock import MICROSECONDS
from queue_core.google.appengine import messages
from queue_core.google.appengine.codes import TaskQueueErrorCode
from queue_core.google.appengine.schema import ProtoRecord
from queue_core.task import QueueSpec
from queue_core.unit.service import QueueService
from tests.support.google.appengine_calls import (
    NAME,
    NOWHERE,
    a_lease,
    an_add,
    call,
    code_of,
    leased,
    response_to,
    results,
)
from tests.support.servers import QUEUE, RunningServer, a_timed_server

DAY = 86_400 * MICROSECONDS


# -- delete and purge -------------------------------------------------------------------------------------------------


def test_a_delete_answers_for_each_name_in_order(server: RunningServer) -> None:
    results(server, an_add(task_name=b"a"), an_add(task_name=b"b"))
    leased(server)
    names = [b"a", b"never", b"a", b"\xff", b"\x00", b"_99", b"b"]
    wanted = [
        TaskQueueErrorCode.OK,
        TaskQueueErrorCode.UNKNOWN_TASK,
        11,
        TaskQueueErrorCode.UNKNOWN_TASK,
        TaskQueueErrorCode.UNKNOWN_TASK,
        11,
        TaskQueueErrorCode.OK,
    ]
    assert response_to(server, "Delete", ProtoRecord(queue_name=NAME, task_name=names))["result"] == wanted
    for queue in (NOWHERE, b"", b"\xff"):
        answer = response_to(server, "Delete", ProtoRecord(queue_name=queue, task_name=[b"a", b"b"]))
        assert answer["result"] == [TaskQueueErrorCode.UNKNOWN_QUEUE] * 2
    assert response_to(server, "Delete", ProtoRecord(queue_name=NAME)) == {}


def test_thousands_of_names_are_deleted_in_one_call(server: RunningServer) -> None:
    names = [b"t%d" % number for number in range(2500)]
    for begin in range(0, 2500, 100):
        results(server, *(an_add(task_name=name) for name in names[begin : begin + 100]))
    assert (
        response_to(server, "Delete", ProtoRecord(queue_name=NAME, task_name=names))["result"]
        == [TaskQueueErrorCode.OK] * 2500
    )


def test_a_purge_takes_leased_and_delayed_tasks_too_and_holds_their_names() -> None:
    with a_timed_server() as (server, clock):
        later = clock.now() + DAY
        results(server, an_add(task_name=b"a"), an_add(task_name=b"b"), an_add(task_name=b"c", eta_usec=later))
        leased(server, max_tasks=1)
        response_to(server, "PurgeQueue", ProtoRecord(queue_name=NAME))
        clock.advance(2 * 86_400)
        assert leased(server) == []
        assert (
            results(server, *(an_add(task_name=name) for name in (b"a", b"b", b"c")))
            == [TaskQueueErrorCode.TOMBSTONED_TASK] * 3
        )
        assert code_of(call(server, "PurgeQueue", ProtoRecord(queue_name=NOWHERE))) == TaskQueueErrorCode.UNKNOWN_QUEUE


# -- statistics and queues --------------------------------------------------------------------------------------------


def _stats(server: RunningServer, *queues: bytes) -> list[ProtoRecord]:
    return response_to(server, "FetchQueueStats", ProtoRecord(queue_name=list(queues))).all_records("queuestats")


def test_statistics_count_every_task_and_name_the_lowest_eta() -> None:
    with a_timed_server() as (server, clock):
        results(server, an_add(), an_add(), an_add(eta_usec=clock.now() + DAY))
        added_at = clock.now()
        clock.advance(5)
        leased(server, max_tasks=1)
        (stats,) = _stats(server, NAME)
        assert (stats.integer("num_tasks"), stats.integer("oldest_eta_usec")) == (3, added_at)
        info = stats.record("scanner_info")
        assert info is not None
        assert (info.integer("requests_in_flight"), info.integer("executed_last_minute")) == (1, 1)
        leased(server, lease_seconds=10.0)
        assert _stats(server, NAME)[0].integer("oldest_eta_usec") == clock.now() + 10 * MICROSECONDS


def test_an_unknown_queue_has_the_statistics_of_an_empty_one(server: RunningServer) -> None:
    for stats in _stats(server, NOWHERE, b"", b"\xff", NAME):
        assert (stats.integer("num_tasks"), stats.integer("oldest_eta_usec")) == (0, -1)
        assert stats.record("scanner_info") is not None


def test_queues_are_listed_set_and_deleted(server: RunningServer) -> None:
    update = ProtoRecord(
        queue_name=b"made",
        bucket_refill_per_second=1.0,
        bucket_capacity=5,
        mode=messages.PULL,
        retry_parameters=ProtoRecord(retry_limit=3),
        acl=ProtoRecord(user_email=[b"u@x.org"], writer_email=[b"w@x.org"]),
    )
    response_to(server, "UpdateQueue", update)
    first, second = response_to(server, "FetchQueues", ProtoRecord(max_rows=10)).all_records("queue")
    assert (first.octets("queue_name"), second.octets("queue_name")) == (b"made", NAME)
    assert (first["retry_parameters"], first["acl"]) == ({"retry_limit": 3}, update["acl"])
    spec = QueueService(server.store).read(lambda turn: turn.transaction.queue("made"))
    assert spec == QueueSpec(
        "made", max_leases=3, on_exhausted="delete", user_emails=("u@x.org",), writer_emails=("w@x.org",)
    )
    assert len(response_to(server, "FetchQueues", ProtoRecord(max_rows=1)).all_records("queue")) == 1
    response_to(server, "DeleteQueue", ProtoRecord(app_id=b"", queue_name=b"made"))
    assert code_of(call(server, "QueryAndOwnTasks", a_lease(queue_name=b"made"))) == TaskQueueErrorCode.UNKNOWN_QUEUE
    assert code_of(call(server, "DeleteQueue", ProtoRecord(queue_name=b"made"))) == TaskQueueErrorCode.UNKNOWN_QUEUE


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        pytest.param({"mode": messages.PUSH}, TaskQueueErrorCode.INVALID_QUEUE_MODE, id="a push queue"),
        pytest.param({"queue_name": b"a b"}, TaskQueueErrorCode.INVALID_QUEUE_NAME, id="a bad name"),
        pytest.param(
            {"retry_parameters": ProtoRecord(retry_limit=0)}, TaskQueueErrorCode.INVALID_RETRY_PARAMETERS, id="no lease"
        ),
        pytest.param(
            {"acl": ProtoRecord(user_email=[b"\xff"])},
            TaskQueueErrorCode.INVALID_REQUEST,
            id="an email that is no text",
        ),
    ],
)
def test_a_queue_is_not_set_to_what_it_cannot_be(
    server: RunningServer, changed: dict[str, object], code: TaskQueueErrorCode
) -> None:
    right = ProtoRecord(queue_name=b"q", bucket_refill_per_second=0.0, bucket_capacity=0, mode=messages.PULL)
    assert code_of(call(server, "UpdateQueue", ProtoRecord(right | changed))) == code  # type: ignore[arg-type]


def test_tasks_are_listed_from_a_name_on_and_found_by_it(server: RunningServer) -> None:
    results(server, *(an_add(task_name=name, body=b"x" + name, tag=b"t") for name in (b"a", b"b", b"c")))
    found = response_to(
        server, "QueryTasks", ProtoRecord(queue_name=NAME, start_task_name=b"b", max_rows=9)
    ).all_records("task")
    assert [(one.octets("task_name"), one.octets("body")) for one in found] == [(b"b", b"xb"), (b"c", b"xc")]
    assert len(response_to(server, "QueryTasks", ProtoRecord(queue_name=NAME)).all_records("task")) == 1
    one = response_to(server, "FetchTask", ProtoRecord(queue_name=NAME, task_name=b"c")).record("task")
    assert one is not None
    assert [task.octets("body") for task in one.all_records("task")] == [b"xc"]
    assert (
        code_of(call(server, "FetchTask", ProtoRecord(queue_name=NAME, task_name=b"d")))
        == TaskQueueErrorCode.UNKNOWN_TASK
    )
    assert (
        code_of(call(server, "QueryTasks", ProtoRecord(queue_name=NAME, max_rows=0)))
        == TaskQueueErrorCode.INVALID_REQUEST
    )
    assert (
        code_of(call(server, "QueryTasks", ProtoRecord(queue_name=NAME, start_tag=b"t")))
        == TaskQueueErrorCode.INVALID_REQUEST
    )


def test_a_task_that_is_gone_is_told_from_one_that_never_was() -> None:
    with a_timed_server(QueueSpec(QUEUE, max_leases=1, on_exhausted="delete")) as (server, clock):
        results(server, an_add(task_name=b"gone"), an_add(task_name=b"used-up"))
        response_to(server, "Delete", ProtoRecord(queue_name=NAME, task_name=[b"gone"]))
        leased(server)
        clock.advance(DAY / MICROSECONDS)
        for name, code in (
            (b"gone", TaskQueueErrorCode.TOMBSTONED_TASK),
            (b"used-up", TaskQueueErrorCode.TOMBSTONED_TASK),
            (b"x", TaskQueueErrorCode.UNKNOWN_TASK),
        ):
            assert code_of(call(server, "FetchTask", ProtoRecord(queue_name=NAME, task_name=name))) == code
            assert code_of(call(server, "QueryTasks", ProtoRecord(queue_name=NAME, start_task_name=name))) == code
        assert (
            code_of(call(server, "FetchTask", ProtoRecord(queue_name=NOWHERE, task_name=b"\xff")))
            == TaskQueueErrorCode.UNKNOWN_QUEUE
        )

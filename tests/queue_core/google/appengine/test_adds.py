"""`/rpc_http` as bytes: what a task may be when it is added, and the code of each that it may not."""

import pytest

from queue_core.clock import MICROSECONDS
from queue_core.google.appengine import messages
from queue_core.google.appengine.adds import MAX_PULL_TASK_BYTES
from queue_core.google.appengine.codec import encode
from queue_core.google.appengine.codes import TaskQueueErrorCode
from queue_core.google.appengine.schema import ProtoRecord
from queue_core.task import QueueSpec
from queue_core.unit.service import QueueService
from tests.support.google.appengine_calls import (
    NAME,
    NOWHERE,
    an_add,
    bulk_add,
    call,
    code_of,
    leased,
    response_to,
    results,
)
from tests.support.servers import QUEUE, RunningServer, a_timed_server

DAY = 86_400 * MICROSECONDS
BAD_ADDS = [
    pytest.param({"eta_usec": -1}, TaskQueueErrorCode.INVALID_ETA, id="an eta before 1970"),
    pytest.param({"eta_usec": 1 << 62}, TaskQueueErrorCode.INVALID_ETA, id="an eta in a far future"),
    pytest.param({"queue_name": NOWHERE}, TaskQueueErrorCode.UNKNOWN_QUEUE, id="no such queue"),
    pytest.param(
        {"queue_name": NOWHERE, "mode": messages.PUSH},
        TaskQueueErrorCode.UNKNOWN_QUEUE,
        id="a push task to no such queue",
    ),
    pytest.param({"queue_name": b"a b"}, TaskQueueErrorCode.INVALID_QUEUE_NAME, id="a queue's name with a blank"),
    pytest.param({"queue_name": b"\xff"}, TaskQueueErrorCode.INVALID_QUEUE_NAME, id="a queue's name that is no text"),
    pytest.param(
        {"queue_name": NAME + b"\n"}, TaskQueueErrorCode.INVALID_QUEUE_NAME, id="a queue's name and a line's end"
    ),
    pytest.param({"task_name": b"a b"}, TaskQueueErrorCode.INVALID_TASK_NAME, id="a name with a blank"),
    pytest.param({"task_name": b"a\n"}, TaskQueueErrorCode.INVALID_TASK_NAME, id="a name and a line's end"),
    pytest.param({"task_name": b"n" * 501}, TaskQueueErrorCode.INVALID_TASK_NAME, id="a name of 501 characters"),
    pytest.param({"task_name": b"_42"}, TaskQueueErrorCode.INVALID_TASK_NAME, id="a name that only the queue chooses"),
    pytest.param({"tag": b"\xff"}, TaskQueueErrorCode.INVALID_TAG, id="a tag that is not UTF-8"),
    pytest.param({"tag": b"a\x00b"}, TaskQueueErrorCode.INVALID_TAG, id="a tag with NUL"),
    pytest.param(
        {"tag": "ä".encode() * 251}, TaskQueueErrorCode.INVALID_TAG, id="a tag of 502 bytes in 251 characters"
    ),
    pytest.param({"body": None}, TaskQueueErrorCode.INVALID_REQUEST, id="a pull task without body"),
    pytest.param({"body": b"x" * (1 << 20)}, TaskQueueErrorCode.TASK_TOO_LARGE, id="a request over 1 MiB"),
    pytest.param({"mode": 0, "body": b"x" * 102_401}, TaskQueueErrorCode.TASK_TOO_LARGE, id="a push task over 100 KiB"),
    pytest.param(
        {"retry_parameters": ProtoRecord(retry_limit=0)},
        TaskQueueErrorCode.INVALID_RETRY_PARAMETERS,
        id="no lease at all",
    ),
    pytest.param(
        {"crontimetable": ProtoRecord(schedule=b"", timezone=b"")},
        TaskQueueErrorCode.PERMISSION_DENIED,
        id="a cron's task",
    ),
]


@pytest.mark.parametrize(("changed", "code"), BAD_ADDS)
def test_a_bad_task_is_refused_by_its_code_and_its_siblings_are_skipped(
    server: RunningServer, changed: dict[str, object], code: TaskQueueErrorCode
) -> None:
    assert results(server, an_add(), an_add(**changed), an_add()) == [
        TaskQueueErrorCode.SKIPPED,
        code,
        TaskQueueErrorCode.SKIPPED,
    ]
    assert code_of(call(server, "Add", an_add(**changed))) == code
    assert leased(server) == []


@pytest.mark.parametrize(
    ("adds", "code"),
    [
        pytest.param([an_add(mode=messages.PUSH)], TaskQueueErrorCode.INVALID_QUEUE_MODE, id="a push task"),
        pytest.param([an_add(), an_add(mode=None)], TaskQueueErrorCode.INVALID_QUEUE_MODE, id="push is the default"),
        pytest.param(
            [an_add(datastore_transaction=b"t")], TaskQueueErrorCode.DATASTORE_BAD_REQUEST, id="a transaction's name"
        ),
        pytest.param([an_add(transaction=b"t")], TaskQueueErrorCode.DATASTORE_BAD_REQUEST, id="a transaction"),
        pytest.param([an_add(queue_name=b"")], TaskQueueErrorCode.UNKNOWN_QUEUE, id="no queue named"),
        pytest.param([an_add()] * 101, TaskQueueErrorCode.TOO_MANY_TASKS, id="101 tasks"),
    ],
)
def test_what_concerns_the_whole_call_is_its_own_error(
    server: RunningServer, adds: list[ProtoRecord], code: TaskQueueErrorCode
) -> None:
    assert code_of(bulk_add(server, adds)) == code
    assert leased(server) == []


def test_a_hundred_tasks_come_back_in_their_order_under_names_that_the_queue_chose(server: RunningServer) -> None:
    adds = [an_add(body=b"%d" % number) for number in range(100)]
    answer = bulk_add(server, adds)
    assert code_of(answer) == 0
    assert [one.octets("body") for one in leased(server)] == [b"%d" % number for number in range(100)]


def test_the_largest_task_comes_back_byte_for_byte(server: RunningServer) -> None:
    add = an_add(body=b"\xff" * (MAX_PULL_TASK_BYTES - 64))
    spare = MAX_PULL_TASK_BYTES - len(encode(messages.ADD_REQUEST, add))
    add = an_add(body=b"\xff" * (MAX_PULL_TASK_BYTES - 64 + spare))
    assert len(encode(messages.ADD_REQUEST, add)) == MAX_PULL_TASK_BYTES
    assert results(server, add) == [TaskQueueErrorCode.OK]
    assert [one.octets("body") for one in leased(server)] == [add.octets("body")]


def test_a_name_is_told_only_where_the_queue_chose_it(server: RunningServer) -> None:
    chosen = response_to(server, "Add", an_add()).octets("chosen_task_name")
    assert chosen
    assert response_to(server, "Add", an_add(task_name=b"given")) == {}
    assert [one.octets("task_name") for one in leased(server)] == [chosen, b"given"]


def test_a_taken_name_is_told_for_its_task_alone(server: RunningServer) -> None:
    assert results(server, an_add(task_name=b"a")) == [TaskQueueErrorCode.OK]
    assert results(server, an_add(task_name=b"a"), an_add(), an_add(task_name=b"b"), an_add(task_name=b"b")) == [
        TaskQueueErrorCode.TASK_ALREADY_EXISTS,
        TaskQueueErrorCode.OK,
        TaskQueueErrorCode.OK,
        TaskQueueErrorCode.TASK_ALREADY_EXISTS,
    ]
    response_to(server, "Delete", ProtoRecord(queue_name=NAME, task_name=[b"a"]))
    assert results(server, an_add(task_name=b"a"), an_add()) == [
        TaskQueueErrorCode.TOMBSTONED_TASK,
        TaskQueueErrorCode.OK,
    ]
    assert code_of(call(server, "Add", an_add(task_name=b"a"))) == TaskQueueErrorCode.TOMBSTONED_TASK


def test_tasks_of_one_call_may_go_to_several_queues(server: RunningServer) -> None:
    QueueService(server.store).run(lambda turn: turn.put_queue(QueueSpec("other")))
    assert results(server, an_add(), an_add(queue_name=b"other")) == [TaskQueueErrorCode.OK, TaskQueueErrorCode.OK]
    assert len(leased(server)) == len(leased(server, queue_name=b"other")) == 1


def test_an_eta_is_kept_to_the_microsecond_and_one_past_is_now() -> None:
    with a_timed_server() as (server, clock):
        eta = clock.now() + 10 * MICROSECONDS
        assert results(server, an_add(eta_usec=eta, body=b"later"), an_add(eta_usec=15, body=b"now")) == [0, 0]
        assert results(server, an_add(eta_usec=clock.now() + 30 * DAY)) == [TaskQueueErrorCode.OK]
        assert results(server, an_add(eta_usec=clock.now() + 30 * DAY + 1)) == [TaskQueueErrorCode.INVALID_ETA]
        assert [one.octets("body") for one in leased(server)] == [b"now"]
        clock.advance(9.999_999)
        assert leased(server) == []
        clock.advance(0.000_001)
        assert [one.octets("body") for one in leased(server)] == [b"later"]


def test_a_tasks_own_limit_of_leases_goes_over_the_queues() -> None:
    with a_timed_server(QueueSpec(QUEUE, max_leases=5, on_exhausted="delete")) as (server, clock):
        assert results(server, an_add(retry_parameters=ProtoRecord(retry_limit=2, age_limit_sec=-1))) == [
            TaskQueueErrorCode.OK
        ]
        assert results(server, an_add()) == [TaskQueueErrorCode.OK]
        counts = []
        for _ in range(7):
            counts.append([one.integer("retry_count") for one in leased(server, lease_seconds=1.0)])
            clock.advance(2)
        assert counts == [[1, 1], [2, 2], [3], [4], [5], [], []]

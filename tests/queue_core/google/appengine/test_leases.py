"""`/rpc_http` as bytes: how tasks are leased, and how a lease's end is moved."""

import pytest

from queue_core.clock import MICROSECONDS
from queue_core.google.appengine import messages
from queue_core.google.appengine.codec import encode
from queue_core.google.appengine.codes import TaskQueueErrorCode
from queue_core.google.appengine.schema import ProtoRecord
from queue_core.task import QueueSpec
from queue_core.unit.service import QueueService
from tests.support.google.appengine_calls import (
    HEADERS,
    NAME,
    NOWHERE,
    a_lease,
    a_modification,
    an_add,
    call,
    code_of,
    leased,
    post,
    response,
    response_to,
    results,
)
from tests.support.servers import QUEUE, RunningServer, a_timed_server

BAD_LEASES = [
    pytest.param({"queue_name": b""}, TaskQueueErrorCode.INVALID_QUEUE_NAME, id="no queue named"),
    pytest.param({"queue_name": NOWHERE}, TaskQueueErrorCode.UNKNOWN_QUEUE, id="no such queue"),
    pytest.param(
        {"queue_name": NOWHERE, "max_tasks": 0}, TaskQueueErrorCode.UNKNOWN_QUEUE, id="the queue is looked for first"
    ),
    pytest.param({"lease_seconds": -0.001}, TaskQueueErrorCode.INVALID_REQUEST, id="a negative lease"),
    pytest.param({"lease_seconds": 604_800.1}, TaskQueueErrorCode.INVALID_REQUEST, id="a lease over seven days"),
    pytest.param({"lease_seconds": float("nan")}, TaskQueueErrorCode.INVALID_REQUEST, id="a lease of NaN"),
    pytest.param({"lease_seconds": float("inf")}, TaskQueueErrorCode.INVALID_REQUEST, id="an endless lease"),
    pytest.param({"max_tasks": 0}, TaskQueueErrorCode.INVALID_REQUEST, id="no tasks"),
    pytest.param({"max_tasks": -(1 << 63)}, TaskQueueErrorCode.INVALID_REQUEST, id="fewer than none"),
    pytest.param({"max_tasks": 1001}, TaskQueueErrorCode.INVALID_REQUEST, id="1,001 tasks"),
    pytest.param({"tag": b"a"}, TaskQueueErrorCode.INVALID_REQUEST, id="a tag without group_by_tag"),
    pytest.param({"tag": b""}, TaskQueueErrorCode.INVALID_REQUEST, id="an empty tag without group_by_tag"),
    pytest.param({"group_by_tag": True, "tag": b"\xff"}, TaskQueueErrorCode.INVALID_TAG, id="a tag that is not UTF-8"),
]


@pytest.mark.parametrize(("changed", "code"), BAD_LEASES)
def test_a_bad_lease_is_refused_by_its_code(
    server: RunningServer, changed: dict[str, object], code: TaskQueueErrorCode
) -> None:
    results(server, an_add())
    assert code_of(call(server, "QueryAndOwnTasks", a_lease(**changed))) == code


def test_a_leased_task_tells_its_count_always_and_its_tag_only_if_it_has_one(server: RunningServer) -> None:
    results(server, an_add(body=b"a", tag=b"t"), an_add(body=b"b", tag=b""))
    first, second = leased(server)
    assert (first.octets("tag"), first.integer("retry_count")) == (b"t", 1)
    assert "tag" not in second
    assert second["retry_count"] == 1


@pytest.mark.parametrize("tag", [{}, {"tag": b""}], ids=["absent", "empty"])
def test_without_a_tag_a_group_is_that_of_the_oldest_task_the_untagged_included(
    server: RunningServer, tag: dict[str, object]
) -> None:
    for body, label in ((b"1", b""), (b"2", b"t"), (b"3", b""), (b"4", b"t")):
        results(server, an_add(body=body, tag=label))
    groups = [[one.octets("body") for one in leased(server, group_by_tag=True, **tag)] for _ in range(3)]
    assert groups == [[b"1", b"3"], [b"2", b"4"], []]


def test_a_group_is_filled_beyond_the_first_portion(server: RunningServer) -> None:
    for begin in range(0, 300, 50):
        results(server, *(an_add(body=b"%d" % (begin + at), tag=b"even" if at % 2 == 0 else b"") for at in range(50)))
    found = leased(server, group_by_tag=True, max_tasks=1000)
    assert [int(one.octets("body")) for one in found] == list(range(0, 300, 2))
    assert len(leased(server, group_by_tag=True, max_tasks=120)) == 120


def test_an_answer_has_no_more_than_32_mib_and_the_rest_is_left_as_it_was(server: RunningServer) -> None:
    body = b"x" * 1_000_000
    for number in range(40):
        assert results(server, an_add(body=body, task_name=b"t%02d" % number)) == [TaskQueueErrorCode.OK]
    first = leased(server, max_tasks=1000)
    assert [one.octets("task_name") for one in first] == [b"t%02d" % number for number in range(33)]
    second = leased(server, max_tasks=1000)
    assert [one.octets("task_name") for one in second] == [b"t%02d" % number for number in range(33, 40)]
    assert {one.integer("retry_count") for one in second} == {1}


def test_a_lease_of_no_time_shows_each_task_once_and_holds_none(server: RunningServer) -> None:
    results(server, *(an_add() for _ in range(60)))
    for count in (1, 2):
        found = leased(server, lease_seconds=0.0)
        assert len({one.octets("task_name") for one in found}) == len(found) == 60
        assert {one.integer("retry_count") for one in found} == {count}


def test_a_paused_queue_grants_nothing_and_says_nothing(server: RunningServer) -> None:
    results(server, an_add())
    response_to(server, "PauseQueue", ProtoRecord(app_id=b"", queue_name=NAME, pause=True))
    assert leased(server) == []
    assert results(server, an_add()) == [TaskQueueErrorCode.OK]
    response_to(server, "PauseQueue", ProtoRecord(app_id=b"", queue_name=NAME, pause=False))
    assert len(leased(server)) == 2


def test_a_queue_with_a_rate_answers_too_many_calls_with_no_tasks() -> None:
    with a_timed_server(QueueSpec(QUEUE, lease_calls_per_second=2)) as (server, clock):
        results(server, *(an_add() for _ in range(5)))
        assert [len(leased(server, max_tasks=1)) for _ in range(4)] == [1, 1, 0, 0]
        clock.advance(1.0)
        assert [len(leased(server, max_tasks=1)) for _ in range(4)] == [1, 1, 0, 0]


def test_a_worker_that_says_its_name_holds_its_leases_under_it(server: RunningServer) -> None:
    results(server, an_add(), an_add())
    body = encode(messages.LEASE_REQUEST, a_lease(max_tasks=1))
    named = [*HEADERS, ("x-towline-worker", "w-1")]
    assert b"_1" in post(server, "QueryAndOwnTasks", body, headers=named).body
    service = QueueService(server.store)
    assert service.read(
        lambda turn: [one.worker for one in turn.transaction.live_leases(QUEUE, limit=9, now=turn.now)]
    ) == ["w-1"]
    service.run(lambda turn: turn.release_worker("w-1"))  # it died, and was retired with it
    assert response(post(server, "QueryAndOwnTasks", body, headers=named)) == {"response": b""}
    assert len(leased(server)) == 2


# -- modify -----------------------------------------------------------------------------------------------------------


def test_a_lease_is_moved_by_whoever_knows_its_end_to_the_microsecond() -> None:
    with a_timed_server() as (server, clock):
        results(server, an_add())
        (task,) = leased(server, lease_seconds=10.0)
        assert (
            code_of(call(server, "ModifyTaskLease", a_modification(task, 5, eta_usec=task.integer("eta_usec") + 1)))
            == 25
        )
        clock.advance(9.999_999)
        moved = response_to(server, "ModifyTaskLease", a_modification(task, 20)).integer("updated_eta_usec")
        assert moved == clock.now() + 20 * MICROSECONDS
        assert (
            code_of(call(server, "ModifyTaskLease", a_modification(task, 20))) == TaskQueueErrorCode.TASK_LEASE_EXPIRED
        )
        clock.advance(20)
        assert (
            code_of(call(server, "ModifyTaskLease", a_modification(task, 20, eta_usec=moved)))
            == TaskQueueErrorCode.TASK_LEASE_EXPIRED
        )
        assert [one.integer("retry_count") for one in leased(server)] == [2]


def test_modifying_to_no_time_gives_the_task_back_at_once() -> None:
    with a_timed_server() as (server, clock):
        results(server, an_add())
        (task,) = leased(server)
        assert (
            response_to(server, "ModifyTaskLease", a_modification(task, 0)).integer("updated_eta_usec") == clock.now()
        )
        assert [one.integer("retry_count") for one in leased(server)] == [2]


def test_the_eta_of_a_task_that_was_never_leased_can_be_moved_while_it_is_ahead() -> None:
    with a_timed_server() as (server, clock):
        eta = clock.now() + 10 * MICROSECONDS
        results(server, an_add(task_name=b"t", eta_usec=eta))
        task = ProtoRecord(task_name=b"t", eta_usec=eta)
        moved = response_to(server, "ModifyTaskLease", a_modification(task, 60)).integer("updated_eta_usec")
        assert moved == clock.now() + 60 * MICROSECONDS
        clock.advance(30)
        assert leased(server) == []
        clock.advance(30)
        assert (
            code_of(call(server, "ModifyTaskLease", a_modification(task, 5, eta_usec=moved)))
            == TaskQueueErrorCode.TASK_LEASE_EXPIRED
        )
        assert [one.integer("retry_count") for one in leased(server)] == [1]


def test_the_checks_of_a_modification_come_in_googles_order(server: RunningServer) -> None:
    results(server, an_add(task_name=b"gone"), an_add(task_name=b"gone-too"))
    response_to(server, "Delete", ProtoRecord(queue_name=NAME, task_name=[b"gone", b"gone-too"]))
    gone, unknown = ProtoRecord(task_name=b"gone", eta_usec=1), ProtoRecord(task_name=b"never", eta_usec=1)
    assert (
        code_of(call(server, "ModifyTaskLease", a_modification(gone, -1, queue_name=NOWHERE)))
        == TaskQueueErrorCode.UNKNOWN_QUEUE
    )
    assert code_of(call(server, "ModifyTaskLease", a_modification(gone, -1))) == TaskQueueErrorCode.INVALID_REQUEST
    assert (
        code_of(call(server, "ModifyTaskLease", a_modification(gone, float("nan"))))
        == TaskQueueErrorCode.INVALID_REQUEST
    )
    assert code_of(call(server, "ModifyTaskLease", a_modification(gone, 1))) == TaskQueueErrorCode.TOMBSTONED_TASK
    for name in (b"never", b"gon", b"gonf", b"gone-", b"gone-toa", b"", b"\xff", b"\x00"):
        assert (
            code_of(call(server, "ModifyTaskLease", a_modification(unknown, 1, task_name=name)))
            == TaskQueueErrorCode.UNKNOWN_TASK
        )
    assert (
        code_of(call(server, "ModifyTaskLease", a_modification(unknown, 1, task_name=b"_99")))
        == TaskQueueErrorCode.TOMBSTONED_TASK
    )
    response_to(server, "PauseQueue", ProtoRecord(app_id=b"", queue_name=NAME, pause=True))
    assert code_of(call(server, "ModifyTaskLease", a_modification(gone, -1))) == TaskQueueErrorCode.QUEUE_PAUSED

"""`/rpc_http` as bytes: every code of the service and its place, tickets, shapes, and what holds over its calls."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queue_core.clock import MICROSECONDS, ManualClock
from queue_core.errors import QueueError, StoreCorruptError, StoreFullError, StoreUnavailableError
from queue_core.server.appengine import messages
from queue_core.server.appengine.adding import MAX_PULL_TASK_BYTES
from queue_core.server.appengine.codec import encode
from queue_core.server.appengine.codes import Code, RpcCode
from queue_core.server.appengine.schema import Record
from queue_core.server.options import AccessToken, Role, ServeOptions
from queue_core.server.run import ServerThread
from queue_core.service import QueueService
from queue_core.stores.memory import MemoryStore
from queue_core.task import QueueSpec
from tests.support.appengine_calls import (
    HEADERS,
    a_lease,
    an_add,
    ask,
    bulk_add,
    code_of,
    leased,
    post,
    response,
    results,
    rpc_code_of,
    told,
)
from tests.support.servers import QUEUE, RunningServer, a_server, request

NAME = QUEUE.encode()
NOWHERE = b"nowhere"
DAY = 86_400 * MICROSECONDS


@contextmanager
def timed_server(spec: QueueSpec | None = None) -> Iterator[tuple[RunningServer, ManualClock]]:
    """A server whose time stands still until it is told to go on."""
    clock, store = ManualClock(), MemoryStore()
    QueueService(store, clock=clock).run(lambda turn: turn.put_queue(spec or QueueSpec(QUEUE)))
    thread = ServerThread(store, ServeOptions(port=0), clock=clock)
    url = thread.start()
    try:
        yield RunningServer(thread, store, url), clock
    finally:
        thread.stop()


@pytest.fixture
def server() -> Iterator[RunningServer]:
    with a_server() as running:
        yield running


def _modify(task: Record, seconds: float, **changed: object) -> Record:
    fields: dict[str, object] = {
        "queue_name": NAME,
        "task_name": task.octets("task_name"),
        "eta_usec": task.integer("eta_usec"),
        "lease_seconds": seconds,
    }
    return Record(fields | changed)  # type: ignore[arg-type]


# -- add --------------------------------------------------------------------------------------------------------------

BAD_ADDS = [
    pytest.param({"eta_usec": -1}, Code.INVALID_ETA, id="an eta before 1970"),
    pytest.param({"eta_usec": 1 << 62}, Code.INVALID_ETA, id="an eta in a far future"),
    pytest.param({"queue_name": NOWHERE}, Code.UNKNOWN_QUEUE, id="no such queue"),
    pytest.param({"queue_name": NOWHERE, "mode": messages.PUSH}, Code.UNKNOWN_QUEUE, id="a push task to no such queue"),
    pytest.param({"queue_name": b"a b"}, Code.INVALID_QUEUE_NAME, id="a queue's name with a blank"),
    pytest.param({"queue_name": b"\xff"}, Code.INVALID_QUEUE_NAME, id="a queue's name that is no text"),
    pytest.param({"queue_name": NAME + b"\n"}, Code.INVALID_QUEUE_NAME, id="a queue's name and a line's end"),
    pytest.param({"task_name": b"a b"}, Code.INVALID_TASK_NAME, id="a name with a blank"),
    pytest.param({"task_name": b"a\n"}, Code.INVALID_TASK_NAME, id="a name and a line's end"),
    pytest.param({"task_name": b"n" * 501}, Code.INVALID_TASK_NAME, id="a name of 501 characters"),
    pytest.param({"task_name": b"_42"}, Code.INVALID_TASK_NAME, id="a name that only the queue chooses"),
    pytest.param({"tag": b"\xff"}, Code.INVALID_TAG, id="a tag that is not UTF-8"),
    pytest.param({"tag": b"a\x00b"}, Code.INVALID_TAG, id="a tag with NUL"),
    pytest.param({"tag": "ä".encode() * 251}, Code.INVALID_TAG, id="a tag of 502 bytes in 251 characters"),
    pytest.param({"body": None}, Code.INVALID_REQUEST, id="a pull task without body"),
    pytest.param({"body": b"x" * (1 << 20)}, Code.TASK_TOO_LARGE, id="a request over 1 MiB"),
    pytest.param({"mode": 0, "body": b"x" * 102_401}, Code.TASK_TOO_LARGE, id="a push task over 100 KiB"),
    pytest.param({"retry_parameters": Record(retry_limit=0)}, Code.INVALID_RETRY_PARAMETERS, id="no lease at all"),
    pytest.param({"crontimetable": Record(schedule=b"", timezone=b"")}, Code.PERMISSION_DENIED, id="a cron's task"),
]


@pytest.mark.parametrize(("changed", "code"), BAD_ADDS)
def test_a_bad_task_is_refused_by_its_code_and_its_siblings_are_skipped(
    server: RunningServer, changed: dict[str, object], code: Code
) -> None:
    assert results(server, an_add(), an_add(**changed), an_add()) == [Code.SKIPPED, code, Code.SKIPPED]
    assert code_of(ask(server, "Add", an_add(**changed))) == code
    assert leased(server) == []


@pytest.mark.parametrize(
    ("adds", "code"),
    [
        pytest.param([an_add(mode=messages.PUSH)], Code.INVALID_QUEUE_MODE, id="a push task"),
        pytest.param([an_add(), an_add(mode=None)], Code.INVALID_QUEUE_MODE, id="push is the default"),
        pytest.param([an_add(datastore_transaction=b"t")], Code.DATASTORE_BAD_REQUEST, id="a transaction's name"),
        pytest.param([an_add(transaction=b"t")], Code.DATASTORE_BAD_REQUEST, id="a transaction"),
        pytest.param([an_add(queue_name=b"")], Code.UNKNOWN_QUEUE, id="no queue named"),
        pytest.param([an_add()] * 101, Code.TOO_MANY_TASKS, id="101 tasks"),
    ],
)
def test_what_concerns_the_whole_call_is_its_own_error(server: RunningServer, adds: list[Record], code: Code) -> None:
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
    assert results(server, add) == [Code.OK]
    assert [one.octets("body") for one in leased(server)] == [add.octets("body")]


def test_a_name_is_told_only_where_the_queue_chose_it(server: RunningServer) -> None:
    chosen = told(server, "Add", an_add()).octets("chosen_task_name")
    assert chosen
    assert told(server, "Add", an_add(task_name=b"given")) == {}
    assert [one.octets("task_name") for one in leased(server)] == [chosen, b"given"]


def test_a_taken_name_is_told_for_its_task_alone(server: RunningServer) -> None:
    assert results(server, an_add(task_name=b"a")) == [Code.OK]
    assert results(server, an_add(task_name=b"a"), an_add(), an_add(task_name=b"b"), an_add(task_name=b"b")) == [
        Code.TASK_ALREADY_EXISTS,
        Code.OK,
        Code.OK,
        Code.TASK_ALREADY_EXISTS,
    ]
    told(server, "Delete", Record(queue_name=NAME, task_name=[b"a"]))
    assert results(server, an_add(task_name=b"a"), an_add()) == [Code.TOMBSTONED_TASK, Code.OK]
    assert code_of(ask(server, "Add", an_add(task_name=b"a"))) == Code.TOMBSTONED_TASK


def test_tasks_of_one_call_may_go_to_several_queues(server: RunningServer) -> None:
    QueueService(server.store).run(lambda turn: turn.put_queue(QueueSpec("other")))
    assert results(server, an_add(), an_add(queue_name=b"other")) == [Code.OK, Code.OK]
    assert len(leased(server)) == len(leased(server, queue_name=b"other")) == 1


def test_an_eta_is_kept_to_the_microsecond_and_one_past_is_now() -> None:
    with timed_server() as (server, clock):
        eta = clock.now() + 10 * MICROSECONDS
        assert results(server, an_add(eta_usec=eta, body=b"later"), an_add(eta_usec=15, body=b"now")) == [0, 0]
        assert results(server, an_add(eta_usec=clock.now() + 30 * DAY)) == [Code.OK]
        assert results(server, an_add(eta_usec=clock.now() + 30 * DAY + 1)) == [Code.INVALID_ETA]
        assert [one.octets("body") for one in leased(server)] == [b"now"]
        clock.advance(9.999_999)
        assert leased(server) == []
        clock.advance(0.000_001)
        assert [one.octets("body") for one in leased(server)] == [b"later"]


def test_a_tasks_own_limit_of_leases_goes_over_the_queues() -> None:
    with timed_server(QueueSpec(QUEUE, max_leases=5, on_exhausted="delete")) as (server, clock):
        assert results(server, an_add(retry_parameters=Record(retry_limit=2, age_limit_sec=-1))) == [Code.OK]
        assert results(server, an_add()) == [Code.OK]
        counts = []
        for _ in range(7):
            counts.append([one.integer("retry_count") for one in leased(server, lease_seconds=1.0)])
            clock.advance(2)
        assert counts == [[1, 1], [2, 2], [3], [4], [5], [], []]


# -- lease ------------------------------------------------------------------------------------------------------------

BAD_LEASES = [
    pytest.param({"queue_name": b""}, Code.INVALID_QUEUE_NAME, id="no queue named"),
    pytest.param({"queue_name": NOWHERE}, Code.UNKNOWN_QUEUE, id="no such queue"),
    pytest.param({"queue_name": NOWHERE, "max_tasks": 0}, Code.UNKNOWN_QUEUE, id="the queue is looked for first"),
    pytest.param({"lease_seconds": -0.001}, Code.INVALID_REQUEST, id="a negative lease"),
    pytest.param({"lease_seconds": 604_800.1}, Code.INVALID_REQUEST, id="a lease over seven days"),
    pytest.param({"lease_seconds": float("nan")}, Code.INVALID_REQUEST, id="a lease of NaN"),
    pytest.param({"lease_seconds": float("inf")}, Code.INVALID_REQUEST, id="an endless lease"),
    pytest.param({"max_tasks": 0}, Code.INVALID_REQUEST, id="no tasks"),
    pytest.param({"max_tasks": -(1 << 63)}, Code.INVALID_REQUEST, id="fewer than none"),
    pytest.param({"max_tasks": 1001}, Code.INVALID_REQUEST, id="1,001 tasks"),
    pytest.param({"tag": b"a"}, Code.INVALID_REQUEST, id="a tag without group_by_tag"),
    pytest.param({"tag": b""}, Code.INVALID_REQUEST, id="an empty tag without group_by_tag"),
    pytest.param({"group_by_tag": True, "tag": b"\xff"}, Code.INVALID_TAG, id="a tag that is not UTF-8"),
]


@pytest.mark.parametrize(("changed", "code"), BAD_LEASES)
def test_a_bad_lease_is_refused_by_its_code(server: RunningServer, changed: dict[str, object], code: Code) -> None:
    results(server, an_add())
    assert code_of(ask(server, "QueryAndOwnTasks", a_lease(**changed))) == code


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
        assert results(server, an_add(body=body, task_name=b"t%02d" % number)) == [Code.OK]
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
    told(server, "PauseQueue", Record(app_id=b"", queue_name=NAME, pause=True))
    assert leased(server) == []
    assert results(server, an_add()) == [Code.OK]
    told(server, "PauseQueue", Record(app_id=b"", queue_name=NAME, pause=False))
    assert len(leased(server)) == 2


def test_a_queue_with_a_rate_answers_too_many_calls_with_no_tasks() -> None:
    with timed_server(QueueSpec(QUEUE, lease_calls_per_second=2)) as (server, clock):
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
    assert service.look(
        lambda turn: [one.worker for one in turn.transaction.live_leases(QUEUE, limit=9, now=turn.now)]
    ) == ["w-1"]
    service.run(lambda turn: turn.release_worker("w-1"))  # it died, and was retired with it
    assert response(post(server, "QueryAndOwnTasks", body, headers=named)) == {"response": b""}
    assert len(leased(server)) == 2


# -- modify -----------------------------------------------------------------------------------------------------------


def test_a_lease_is_moved_by_whoever_knows_its_end_to_the_microsecond() -> None:
    with timed_server() as (server, clock):
        results(server, an_add())
        (task,) = leased(server, lease_seconds=10.0)
        assert code_of(ask(server, "ModifyTaskLease", _modify(task, 5, eta_usec=task.integer("eta_usec") + 1))) == 25
        clock.advance(9.999_999)
        moved = told(server, "ModifyTaskLease", _modify(task, 20)).integer("updated_eta_usec")
        assert moved == clock.now() + 20 * MICROSECONDS
        assert code_of(ask(server, "ModifyTaskLease", _modify(task, 20))) == Code.TASK_LEASE_EXPIRED
        clock.advance(20)
        assert code_of(ask(server, "ModifyTaskLease", _modify(task, 20, eta_usec=moved))) == Code.TASK_LEASE_EXPIRED
        assert [one.integer("retry_count") for one in leased(server)] == [2]


def test_modifying_to_no_time_gives_the_task_back_at_once() -> None:
    with timed_server() as (server, clock):
        results(server, an_add())
        (task,) = leased(server)
        assert told(server, "ModifyTaskLease", _modify(task, 0)).integer("updated_eta_usec") == clock.now()
        assert [one.integer("retry_count") for one in leased(server)] == [2]


def test_the_eta_of_a_task_that_was_never_leased_can_be_moved_while_it_is_ahead() -> None:
    with timed_server() as (server, clock):
        eta = clock.now() + 10 * MICROSECONDS
        results(server, an_add(task_name=b"t", eta_usec=eta))
        task = Record(task_name=b"t", eta_usec=eta)
        moved = told(server, "ModifyTaskLease", _modify(task, 60)).integer("updated_eta_usec")
        assert moved == clock.now() + 60 * MICROSECONDS
        clock.advance(30)
        assert leased(server) == []
        clock.advance(30)
        assert code_of(ask(server, "ModifyTaskLease", _modify(task, 5, eta_usec=moved))) == Code.TASK_LEASE_EXPIRED
        assert [one.integer("retry_count") for one in leased(server)] == [1]


def test_the_checks_of_a_modification_come_in_googles_order(server: RunningServer) -> None:
    results(server, an_add(task_name=b"gone"), an_add(task_name=b"gone-too"))
    told(server, "Delete", Record(queue_name=NAME, task_name=[b"gone", b"gone-too"]))
    gone, unknown = Record(task_name=b"gone", eta_usec=1), Record(task_name=b"never", eta_usec=1)
    assert code_of(ask(server, "ModifyTaskLease", _modify(gone, -1, queue_name=NOWHERE))) == Code.UNKNOWN_QUEUE
    assert code_of(ask(server, "ModifyTaskLease", _modify(gone, -1))) == Code.INVALID_REQUEST
    assert code_of(ask(server, "ModifyTaskLease", _modify(gone, float("nan")))) == Code.INVALID_REQUEST
    assert code_of(ask(server, "ModifyTaskLease", _modify(gone, 1))) == Code.TOMBSTONED_TASK
    for name in (b"never", b"gon", b"gonf", b"gone-", b"gone-toa", b"", b"\xff", b"\x00"):
        assert code_of(ask(server, "ModifyTaskLease", _modify(unknown, 1, task_name=name))) == Code.UNKNOWN_TASK
    assert code_of(ask(server, "ModifyTaskLease", _modify(unknown, 1, task_name=b"_99"))) == Code.TOMBSTONED_TASK
    told(server, "PauseQueue", Record(app_id=b"", queue_name=NAME, pause=True))
    assert code_of(ask(server, "ModifyTaskLease", _modify(gone, -1))) == Code.QUEUE_PAUSED


# -- delete and purge -------------------------------------------------------------------------------------------------


def test_a_delete_answers_for_each_name_in_order(server: RunningServer) -> None:
    results(server, an_add(task_name=b"a"), an_add(task_name=b"b"))
    leased(server)
    names = [b"a", b"never", b"a", b"\xff", b"\x00", b"_99", b"b"]
    wanted = [Code.OK, Code.UNKNOWN_TASK, 11, Code.UNKNOWN_TASK, Code.UNKNOWN_TASK, 11, Code.OK]
    assert told(server, "Delete", Record(queue_name=NAME, task_name=names))["result"] == wanted
    for queue in (NOWHERE, b"", b"\xff"):
        answer = told(server, "Delete", Record(queue_name=queue, task_name=[b"a", b"b"]))
        assert answer["result"] == [Code.UNKNOWN_QUEUE] * 2
    assert told(server, "Delete", Record(queue_name=NAME)) == {}


def test_thousands_of_names_are_deleted_in_one_call(server: RunningServer) -> None:
    names = [b"t%d" % number for number in range(2500)]
    for begin in range(0, 2500, 100):
        results(server, *(an_add(task_name=name) for name in names[begin : begin + 100]))
    assert told(server, "Delete", Record(queue_name=NAME, task_name=names))["result"] == [Code.OK] * 2500


def test_a_purge_takes_leased_and_delayed_tasks_too_and_holds_their_names() -> None:
    with timed_server() as (server, clock):
        later = clock.now() + DAY
        results(server, an_add(task_name=b"a"), an_add(task_name=b"b"), an_add(task_name=b"c", eta_usec=later))
        leased(server, max_tasks=1)
        told(server, "PurgeQueue", Record(queue_name=NAME))
        clock.advance(2 * 86_400)
        assert leased(server) == []
        assert results(server, *(an_add(task_name=name) for name in (b"a", b"b", b"c"))) == [Code.TOMBSTONED_TASK] * 3
        assert code_of(ask(server, "PurgeQueue", Record(queue_name=NOWHERE))) == Code.UNKNOWN_QUEUE


# -- statistics and queues --------------------------------------------------------------------------------------------


def _stats(server: RunningServer, *queues: bytes) -> list[Record]:
    return told(server, "FetchQueueStats", Record(queue_name=list(queues))).all_records("queuestats")


def test_statistics_count_every_task_and_name_the_lowest_eta() -> None:
    with timed_server() as (server, clock):
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
    update = Record(
        queue_name=b"made",
        bucket_refill_per_second=1.0,
        bucket_capacity=5,
        mode=messages.PULL,
        retry_parameters=Record(retry_limit=3),
        acl=Record(user_email=[b"u@x.org"], writer_email=[b"w@x.org"]),
    )
    told(server, "UpdateQueue", update)
    first, second = told(server, "FetchQueues", Record(max_rows=10)).all_records("queue")
    assert (first.octets("queue_name"), second.octets("queue_name")) == (b"made", NAME)
    assert (first["retry_parameters"], first["acl"]) == ({"retry_limit": 3}, update["acl"])
    spec = QueueService(server.store).look(lambda turn: turn.transaction.queue("made"))
    assert spec == QueueSpec(
        "made", max_leases=3, on_exhausted="delete", user_emails=("u@x.org",), writer_emails=("w@x.org",)
    )
    assert len(told(server, "FetchQueues", Record(max_rows=1)).all_records("queue")) == 1
    told(server, "DeleteQueue", Record(app_id=b"", queue_name=b"made"))
    assert code_of(ask(server, "QueryAndOwnTasks", a_lease(queue_name=b"made"))) == Code.UNKNOWN_QUEUE
    assert code_of(ask(server, "DeleteQueue", Record(queue_name=b"made"))) == Code.UNKNOWN_QUEUE


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        pytest.param({"mode": messages.PUSH}, Code.INVALID_QUEUE_MODE, id="a push queue"),
        pytest.param({"queue_name": b"a b"}, Code.INVALID_QUEUE_NAME, id="a bad name"),
        pytest.param({"retry_parameters": Record(retry_limit=0)}, Code.INVALID_RETRY_PARAMETERS, id="no lease"),
        pytest.param({"acl": Record(user_email=[b"\xff"])}, Code.INVALID_REQUEST, id="an email that is no text"),
    ],
)
def test_a_queue_is_not_set_to_what_it_cannot_be(server: RunningServer, changed: dict[str, object], code: Code) -> None:
    right = Record(queue_name=b"q", bucket_refill_per_second=0.0, bucket_capacity=0, mode=messages.PULL)
    assert code_of(ask(server, "UpdateQueue", Record(right | changed))) == code  # type: ignore[arg-type]


def test_tasks_are_listed_from_a_name_on_and_found_by_it(server: RunningServer) -> None:
    results(server, *(an_add(task_name=name, body=b"x" + name, tag=b"t") for name in (b"a", b"b", b"c")))
    found = told(server, "QueryTasks", Record(queue_name=NAME, start_task_name=b"b", max_rows=9)).all_records("task")
    assert [(one.octets("task_name"), one.octets("body")) for one in found] == [(b"b", b"xb"), (b"c", b"xc")]
    assert len(told(server, "QueryTasks", Record(queue_name=NAME)).all_records("task")) == 1
    one = told(server, "FetchTask", Record(queue_name=NAME, task_name=b"c")).record("task")
    assert one is not None
    assert [task.octets("body") for task in one.all_records("task")] == [b"xc"]
    assert code_of(ask(server, "FetchTask", Record(queue_name=NAME, task_name=b"d"))) == Code.UNKNOWN_TASK
    assert code_of(ask(server, "QueryTasks", Record(queue_name=NAME, max_rows=0))) == Code.INVALID_REQUEST
    assert code_of(ask(server, "QueryTasks", Record(queue_name=NAME, start_tag=b"t"))) == Code.INVALID_REQUEST


def test_a_task_that_is_gone_is_told_from_one_that_never_was() -> None:
    with timed_server(QueueSpec(QUEUE, max_leases=1, on_exhausted="delete")) as (server, clock):
        results(server, an_add(task_name=b"gone"), an_add(task_name=b"used-up"))
        told(server, "Delete", Record(queue_name=NAME, task_name=[b"gone"]))
        leased(server)
        clock.advance(DAY / MICROSECONDS)
        for name, code in (
            (b"gone", Code.TOMBSTONED_TASK),
            (b"used-up", Code.TOMBSTONED_TASK),
            (b"x", Code.UNKNOWN_TASK),
        ):
            assert code_of(ask(server, "FetchTask", Record(queue_name=NAME, task_name=name))) == code
            assert code_of(ask(server, "QueryTasks", Record(queue_name=NAME, start_task_name=name))) == code
        assert code_of(ask(server, "FetchTask", Record(queue_name=NOWHERE, task_name=b"\xff"))) == Code.UNKNOWN_QUEUE


# -- the host ---------------------------------------------------------------------------------------------------------


def test_other_services_and_calls_are_not_found(server: RunningServer) -> None:
    for service, method in (("memcache", "Get"), ("logservice", "Flush"), ("taskqueue", "ForceRun"), ("", "")):
        assert rpc_code_of(response(post(server, method, b"", service=service))) == RpcCode.CALL_NOT_FOUND


def test_what_can_not_be_parsed_is_told_so(server: RunningServer) -> None:
    assert rpc_code_of(response(post(server, "Add", b"\xff"))) == RpcCode.PARSE_ERROR
    assert rpc_code_of(response(server.ask("POST", "/rpc_http", b"\xff\xff", headers=HEADERS))) == RpcCode.PARSE_ERROR
    assert rpc_code_of(response(server.ask("POST", "/rpc_http", b"", headers=HEADERS))) == RpcCode.PARSE_ERROR


@pytest.mark.parametrize("name", ["host", "origin"])
def test_a_page_from_elsewhere_is_refused_in_the_hosts_own_shape(server: RunningServer, name: str) -> None:
    headers = [*HEADERS, (name, "http://evil.example" if name == "origin" else "evil.example")]
    reply = post(server, "QueryAndOwnTasks", encode(messages.LEASE_REQUEST, a_lease()), headers=headers)
    assert rpc_code_of(response(reply)) == RpcCode.SECURITY_VIOLATION


def test_the_same_holds_on_the_long_way_round(server: RunningServer) -> None:
    """An `Expect` header takes a request to the ASGI application."""
    results(server, an_add(body=b"x"))
    slow = [*HEADERS, ("expect", "100-continue")]
    call = Record(
        service_name="taskqueue", method="QueryAndOwnTasks", request=encode(messages.LEASE_REQUEST, a_lease())
    )
    with server.connect() as connection:
        connection.sendall(request("POST", "/rpc_http", encode(messages.REMOTE_REQUEST, call), headers=slow))
        data = b""
        while b"\x01x" not in data:
            data += connection.recv(65536) or pytest.fail("no answer")
    assert b"HTTP/1.1 200" in data


def test_a_request_over_the_limit_is_read_to_its_end_and_refused() -> None:
    with a_server(options=ServeOptions(max_body_bytes=1 << 20)) as server:
        assert rpc_code_of(response(post(server, "BulkAdd", b"\x00" * (3 << 20)))) == RpcCode.REQUEST_TOO_LARGE
        slow = [*HEADERS, ("upgrade", "other")]
        assert rpc_code_of(response(post(server, "BulkAdd", b"\x00" * (3 << 20), headers=slow))) == 5


@settings(max_examples=200, deadline=None)
@given(
    body=st.binary(max_size=200),
    method=st.sampled_from(["BulkAdd", "Add", "QueryAndOwnTasks", "Delete", "UpdateQueue"]),
)
def test_whatever_is_sent_the_answer_is_the_hosts_with_200(
    fuzzed_server: RunningServer, body: bytes, method: str
) -> None:
    response(post(fuzzed_server, method, body))
    response(fuzzed_server.ask("POST", "/rpc_http", body, headers=HEADERS))


@pytest.fixture(scope="module")
def fuzzed_server() -> Iterator[RunningServer]:
    with a_server() as running:
        yield running


# -- tickets ----------------------------------------------------------------------------------------------------------

SECRETS = {role: f"{role.name}-{'s' * 20}" for role in (Role.VIEWER, Role.PRODUCER, Role.WORKER, Role.ADMIN)}
CALLS = {
    "Add": (an_add(), {Role.PRODUCER, Role.WORKER, Role.ADMIN}),
    "QueryAndOwnTasks": (a_lease(), {Role.WORKER, Role.ADMIN}),
    "ModifyTaskLease": (_modify(Record(task_name=b"t"), 1), {Role.WORKER, Role.ADMIN}),
    "Delete": (Record(queue_name=NAME), {Role.WORKER, Role.ADMIN}),
    "PurgeQueue": (Record(queue_name=NAME), {Role.ADMIN}),
    "FetchQueueStats": (Record(queue_name=[NAME]), set(SECRETS)),
    "FetchQueues": (Record(max_rows=1), set(SECRETS)),
    "QueryTasks": (Record(queue_name=NAME), {Role.VIEWER, Role.WORKER, Role.ADMIN}),
    "PauseQueue": (Record(queue_name=NAME, pause=False), {Role.ADMIN}),
    "DeleteQueue": (Record(queue_name=NOWHERE), {Role.ADMIN}),
}


@pytest.fixture(scope="module")
def guarded() -> Iterator[RunningServer]:
    tokens = tuple(AccessToken(role, secret) for role, secret in SECRETS.items())
    with a_server(options=ServeOptions(tokens=tokens)) as running:
        yield running


@pytest.mark.parametrize("method", CALLS)
def test_the_ticket_is_the_secret_and_its_role_decides(guarded: RunningServer, method: str) -> None:
    record, allowed = CALLS[method]
    for role, secret in SECRETS.items():
        denied = code_of(ask(guarded, method, record, ticket=secret)) == Code.PERMISSION_DENIED
        assert denied == (role not in allowed), role
    for ticket in ("", "app/service.version.instance", SECRETS[Role.ADMIN][:-1], "ä"):
        assert code_of(ask(guarded, method, record, ticket=ticket)) == Code.PERMISSION_DENIED


def test_a_bearer_header_is_no_ticket(guarded: RunningServer) -> None:
    headers = [*HEADERS, ("authorization", f"Bearer {SECRETS[Role.ADMIN]}")]
    assert code_of(response(post(guarded, "Add", encode(messages.ADD_REQUEST, an_add()), headers=headers))) == 9


# -- a store that fails -----------------------------------------------------------------------------------------------


class FailingStore(MemoryStore):
    """A memory store that can be told to fail."""

    failure: QueueError | None = None

    def begin(self):  # type: ignore[no-untyped-def]
        if self.failure is not None:
            raise self.failure
        return super().begin()

    def read(self):  # type: ignore[no-untyped-def]
        if self.failure is not None:
            raise self.failure
        return super().read()


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        pytest.param(StoreUnavailableError("away"), Code.TRANSIENT_ERROR, id="away"),
        pytest.param(StoreFullError("full"), Code.TRANSIENT_ERROR, id="full"),
        pytest.param(StoreCorruptError("damaged"), Code.INTERNAL_ERROR, id="damaged"),
    ],
)
def test_a_store_that_fails_is_an_error_of_the_service_with_200(failure: QueueError, code: Code) -> None:
    store = FailingStore()
    with a_server(store) as server:
        store.failure = failure
        for method, (record, _) in CALLS.items():
            assert code_of(ask(server, method, record)) == code, method
        store.failure = None
        assert results(server, an_add()) == [Code.OK]


def test_a_queue_that_lives_elsewhere_is_unknown_here(server: RunningServer) -> None:
    QueueService(server.store).run(lambda turn: turn.transaction.set_moved(QUEUE, "postgresql://there/"))
    assert results(server, an_add(), an_add(eta_usec=-1)) == [Code.UNKNOWN_QUEUE, Code.INVALID_ETA]
    assert code_of(ask(server, "QueryAndOwnTasks", a_lease())) == Code.UNKNOWN_QUEUE
    assert replace(QueueSpec(QUEUE), moved_to="x").is_closed


def test_a_refusal_does_not_disturb_the_calls_that_share_its_turn(
    server: RunningServer, capsys: pytest.CaptureFixture[str]
) -> None:
    task = Record(task_name=b"never", eta_usec=1)
    for method, record in (
        ("ModifyTaskLease", _modify(task, 1)),
        ("QueryAndOwnTasks", a_lease(max_tasks=0)),
        ("Add", an_add(task_name=b"a b")),
        ("QueryTasks", Record(queue_name=NAME, start_task_name=b"never")),
    ):
        assert code_of(ask(server, method, record)) != 0
    assert "error" not in capsys.readouterr().out

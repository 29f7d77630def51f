"""Google's own Cloud Tasks clients, unchanged: every method and documented error, both wires, two stores."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from google.api_core import exceptions
from google.api_core.datetime_helpers import DatetimeWithNanoseconds
from google.cloud import tasks_v2beta2

from queue_core.clock import Instant, ManualClock
from queue_core.service import QueueService
from queue_core.task import NewTask, QueueSpec
from tests.support.cloud_tasks import (
    BASIC,
    FAILED_PRECONDITION,
    FULL,
    MINUTE,
    PARENT,
    PLACE,
    Bench,
    Wire,
    a_client,
    a_cloud_tasks_server,
    a_discovered_client,
    empty,
)
from tests.support.servers import QUEUE, RunningServer
from tests.support.stores import opened

Task = tasks_v2beta2.Task
WEEK = timedelta(days=7)


@pytest.fixture(scope="module", params=["memory", "sqlite"])
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RunningServer, ManualClock]]:
    clock = ManualClock()
    with opened(request.param, tmp_path_factory.mktemp("store")) as store:
        with a_cloud_tasks_server(store, clock=clock) as server:
            yield server, clock
        assert store.check().problems == ()


@pytest.fixture
def server(running: tuple[RunningServer, ManualClock]) -> tuple[RunningServer, ManualClock]:
    empty(*running)
    return running


@pytest.fixture(params=["rest", "grpc"])
def bench(request: pytest.FixtureRequest, server: tuple[RunningServer, ManualClock]) -> Iterator[Bench]:
    running, clock = server
    with a_client(running, request.param) as client:
        yield Bench(client, running, clock, request.param)


def _second(moment: DatetimeWithNanoseconds) -> datetime:
    return datetime.fromtimestamp(int(moment.timestamp()), UTC)


def _shown(instant: Instant, seconds: float) -> str:
    moment = datetime.fromtimestamp(instant / 1e6 + seconds, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


# -- tasks ------------------------------------------------------------------------------------------------------------


def test_a_task_goes_from_create_by_lease_and_renewal_to_acknowledgement(bench: Bench) -> None:
    payload = bytes(range(256))
    made = bench.create(payload, "blue", name=f"{PARENT}/tasks/first")
    assert (made.name, made.view, made.pull_message.payload) == (f"{PARENT}/tasks/first", BASIC, b"")
    assert made.create_time == _second(made.schedule_time)
    [leased] = bench.lease(view=FULL)
    assert (leased.pull_message.payload, leased.pull_message.tag) == (payload, "blue")
    assert (leased.status.attempt_dispatch_count, leased.view) == (1, FULL)
    assert leased.schedule_time - made.schedule_time == MINUTE
    bench.clock.advance(30)
    renewed = bench.client.renew_lease(
        name=leased.name, schedule_time=leased.schedule_time, lease_duration=timedelta(seconds=90)
    )
    assert renewed.schedule_time - leased.schedule_time == timedelta(seconds=60)
    assert renewed.pull_message.payload == b""
    bench.client.acknowledge_task(name=leased.name, schedule_time=renewed.schedule_time)
    assert list(bench.client.list_tasks(parent=PARENT)) == []


def test_the_end_of_a_lease_is_its_token_to_the_microsecond(bench: Bench) -> None:
    bench.create(b"x")
    bench.clock.advance(0.123456)
    [leased] = bench.lease()
    token = leased.schedule_time
    assert token.nanosecond % 1000 == 0
    for wrong in (timedelta(microseconds=1), timedelta(microseconds=-1)):
        with pytest.raises(FAILED_PRECONDITION[bench.wire]):
            bench.client.acknowledge_task(name=leased.name, schedule_time=token + wrong)
    bench.client.acknowledge_task(name=leased.name, schedule_time=token)


def test_an_expired_lease_can_be_neither_renewed_nor_cancelled_nor_acknowledged(bench: Bench) -> None:
    bench.create(b"x")
    [leased] = bench.lease(seconds=10)
    bench.clock.advance(10)
    held = {"name": leased.name, "schedule_time": leased.schedule_time}
    with pytest.raises(FAILED_PRECONDITION[bench.wire]):
        bench.client.renew_lease(**held, lease_duration=MINUTE)
    with pytest.raises(FAILED_PRECONDITION[bench.wire]):
        bench.client.cancel_lease(**held)
    with pytest.raises(FAILED_PRECONDITION[bench.wire]):
        bench.client.acknowledge_task(**held)
    assert [task.status.attempt_dispatch_count for task in bench.lease()] == [2]


def test_a_cancelled_lease_gives_the_task_to_the_next_caller_at_once(bench: Bench) -> None:
    bench.create(b"x")
    [leased] = bench.lease()
    bench.clock.advance(1)
    free = bench.client.cancel_lease(
        request={"name": leased.name, "schedule_time": leased.schedule_time, "response_view": FULL}
    )
    assert (free.schedule_time - leased.schedule_time, free.pull_message.payload) == (timedelta(seconds=-59), b"x")
    [again] = bench.lease()
    assert (again.name, again.status.attempt_dispatch_count) == (leased.name, 2)
    with pytest.raises(FAILED_PRECONDITION[bench.wire]):
        bench.client.acknowledge_task(name=leased.name, schedule_time=leased.schedule_time)


def test_a_lease_is_cut_to_whole_seconds(bench: Bench) -> None:
    made = bench.create(b"x")
    [leased] = bench.lease(seconds=1.9)
    assert leased.schedule_time - made.schedule_time == timedelta(seconds=1)


def test_a_lease_of_no_seconds_shows_each_task_once_and_leaves_it_free(bench: Bench) -> None:
    names = {bench.create(b"x").name for _ in range(3)}
    assert {task.name for task in bench.lease(1000, seconds=0)} == names
    assert {task.name for task in bench.lease(1000)} == names


def test_a_task_waits_for_its_schedule_time(bench: Bench) -> None:
    later = datetime.fromtimestamp(bench.clock.now() / 1e6, UTC) + MINUTE
    made = bench.create(b"x", schedule_time=later)
    assert made.schedule_time == later
    bench.clock.advance(59.999999)
    assert bench.lease() == []
    bench.clock.advance(0.000001)
    assert len(bench.lease()) == 1


def test_a_schedule_time_in_the_past_is_now(bench: Bench) -> None:
    made = bench.create(b"x", schedule_time=datetime(1960, 1, 1, tzinfo=UTC))
    assert int(made.schedule_time.timestamp() * 1e6) == bench.clock.now()


@pytest.mark.parametrize("tags", ["tag=a b", 'tag="a b"', ' tag = "a b" '])
def test_tasks_are_leased_by_tag_as_each_client_spells_it(bench: Bench, tags: str) -> None:
    bench.create(b"1", "other")
    bench.create(b"2", "a b")
    bench.create(b"3")
    assert [task.pull_message.payload for task in bench.lease(view=FULL, tags=tags)] == [b"2"]


def test_the_oldest_tag_makes_a_batch_of_its_own(bench: Bench) -> None:
    for tag in ("", "a", "", "b", "a"):
        bench.create(b"x", tag)
        bench.clock.advance(1)
    seen = [[task.pull_message.tag for task in bench.lease(tags="tag_function=oldest_tag()")] for _ in range(4)]
    assert seen == [["", ""], ["a", "a"], ["b"], []]


def test_a_name_is_taken_while_its_task_lives_and_for_a_while_after(bench: Bench) -> None:
    name = f"{PARENT}/tasks/once"
    bench.create(b"x", name=name)
    with pytest.raises(exceptions.AlreadyExists if bench.wire == "grpc" else exceptions.Conflict):
        bench.create(b"x", name=name)
    bench.client.delete_task(name=name)
    with pytest.raises(exceptions.AlreadyExists if bench.wire == "grpc" else exceptions.Conflict):
        bench.create(b"x", name=name)
    with pytest.raises(exceptions.NotFound):
        bench.client.delete_task(name=name)


def test_a_task_is_looked_at_without_being_leased(bench: Bench) -> None:
    made = bench.create(b"secret", "a")
    basic = bench.client.get_task(name=made.name)
    assert (basic, basic.pull_message.tag) == (made, "a")
    full = bench.client.get_task(request={"name": made.name, "response_view": FULL})
    assert full.pull_message.payload == b"secret"
    with pytest.raises(exceptions.NotFound):
        bench.client.get_task(name=f"{PARENT}/tasks/nothing")


def test_tasks_are_listed_by_pages(bench: Bench) -> None:
    names = [bench.create(b"x", name=f"{PARENT}/tasks/t-{number}").name for number in range(7)]
    bench.lease(2)
    request = tasks_v2beta2.ListTasksRequest(parent=PARENT, page_size=3, response_view=FULL)
    pages = list(bench.client.list_tasks(request=request).pages)
    assert [len(page.tasks) for page in pages] == [3, 3, 1]
    listed = [task for page in pages for task in page.tasks]
    assert ([task.name for task in listed], listed[0].pull_message.payload) == (names, b"x")


def test_a_task_that_used_up_its_leases_is_gone(bench: Bench) -> None:
    bench.client.update_queue(queue={"name": PARENT, "pull_target": {}, "retry_config": {"max_attempts": 2}})
    bench.set_queue(replace(QueueSpec(QUEUE), max_leases=2, on_exhausted="dead"))
    made = bench.create(b"x")
    for number in (1, 2):
        [leased] = bench.lease(seconds=1)
        assert leased.status.attempt_dispatch_count == number
        bench.clock.advance(1)
    assert bench.lease() == []
    assert list(bench.client.list_tasks(parent=PARENT)) == []
    with pytest.raises(exceptions.NotFound):
        bench.client.get_task(name=made.name)


def test_an_answer_has_at_most_32_mib_of_tasks(server: tuple[RunningServer, ManualClock]) -> None:
    service = QueueService(server[0].store, clock=server[1])
    service.run(lambda turn: turn.add(QUEUE, [NewTask(bytes(1 << 20))] * 40))
    with a_client(server[0], "grpc") as client:
        bench = Bench(client, *server, "grpc")
        leased = bench.lease(1000, view=FULL)
        assert 30 <= len(leased) <= 32
        assert len(bench.lease(1000)) == 40 - len(leased)
        listing = client.list_tasks(request={"parent": PARENT, "response_view": FULL})
        assert sum(len(task.pull_message.payload) for task in listing) == 40 << 20


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
def test_a_lease_out_of_range_is_an_invalid_argument(bench: Bench, change: dict[str, object]) -> None:
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
def test_a_task_that_can_not_be_is_refused(bench: Bench, task: dict[str, object]) -> None:
    errors = (exceptions.InvalidArgument, exceptions.FailedPrecondition) if bench.wire == "grpc" else ()
    with pytest.raises(errors or exceptions.BadRequest):
        bench.client.create_task(parent=PARENT, task=task)
    assert list(bench.client.list_tasks(parent=PARENT)) == []


def test_push_methods_say_that_this_is_a_pull_queue(bench: Bench) -> None:
    made = bench.create(b"x")
    with pytest.raises(FAILED_PRECONDITION[bench.wire], match="pull task"):
        bench.client.run_task(name=made.name)


def test_an_unknown_queue_is_not_found(bench: Bench) -> None:
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


def test_a_call_over_the_rate_is_told_to_slow_down(bench: Bench) -> None:
    bench.set_queue(replace(QueueSpec(QUEUE), lease_calls_per_second=2))
    bench.lease()
    bench.lease()
    with pytest.raises(exceptions.ResourceExhausted if bench.wire == "grpc" else exceptions.TooManyRequests):
        bench.lease()
    bench.clock.advance(1)
    bench.lease()


# -- several clients --------------------------------------------------------------------------------------------------


def test_two_clients_lease_nothing_twice(server: tuple[RunningServer, ManualClock]) -> None:
    running, clock = server
    service = QueueService(running.store, clock=clock)
    service.run(lambda turn: turn.add(QUEUE, [NewTask(b"x", f"t-{number}") for number in range(500)]))

    lease = {"parent": PARENT, "max_tasks": 7, "lease_duration": MINUTE}

    def drain(wire: Wire) -> list[str]:
        names = []
        with a_client(running, wire) as client:
            while tasks := client.lease_tasks(request=lease).tasks:
                names += [task.name for task in tasks]
                for task in tasks:
                    client.acknowledge_task(name=task.name, schedule_time=task.schedule_time)
        return names

    with ThreadPoolExecutor(2) as threads:
        found = [name for names in threads.map(drain, ("rest", "grpc")) for name in names]
    assert (len(found), len(set(found))) == (500, 500)
    assert service.look(lambda turn: turn.transaction.queue(QUEUE)).name == QUEUE


def test_the_client_made_of_the_discovery_document_does_the_same(server: tuple[RunningServer, ManualClock]) -> None:
    running, clock = server
    began_at = clock.now()
    with a_discovered_client(running) as queues:
        task = {"name": f"{PARENT}/tasks/a", "pullMessage": {"payload": "AP8_", "tag": "t"}}
        made = queues.tasks().create(parent=PARENT, body={"task": task, "responseView": "FULL"}).execute()
        assert made["pullMessage"] == {"payload": "AP8/", "tag": "t"}
        body = {"maxTasks": 5, "leaseDuration": "30s", "filter": 'tag="t"', "responseView": "FULL"}
        clock.advance(0.25)
        [leased] = queues.tasks().lease(parent=PARENT, body=body, fields="tasks(name,scheduleTime)").execute()["tasks"]
        assert leased == {"name": task["name"], "scheduleTime": _shown(began_at, 30.25)}
        held = {"scheduleTime": leased["scheduleTime"]}
        renewed = queues.tasks().renewLease(name=leased["name"], body={**held, "leaseDuration": "60s"}).execute()
        assert renewed["status"] == {"attemptDispatchCount": 1}
        held = {"scheduleTime": renewed["scheduleTime"]}
        free = queues.tasks().cancelLease(name=leased["name"], body=held).execute()
        assert free["scheduleTime"] == _shown(began_at, 0.25)
        [again] = queues.tasks().lease(parent=PARENT, body={"maxTasks": 1, "leaseDuration": "30s"}).execute()["tasks"]
        held = {"scheduleTime": again["scheduleTime"]}
        assert queues.tasks().acknowledge(name=again["name"], body=held).execute() == {}
        assert queues.tasks().list(parent=PARENT).execute() == {}
        shown = queues.get(name=PARENT, readMask="stats").execute()
        assert shown["stats"]["tasksCount"] == "0"
        assert queues.pause(name=PARENT, body={}).execute()["state"] == "PAUSED"
        assert queues.resume(name=PARENT).execute()["state"] == "RUNNING"
        patched = queues.patch(
            name=PARENT, updateMask="retryConfig.maxAttempts", body={"retryConfig": {"maxAttempts": 9}}
        ).execute()
        assert patched["retryConfig"] == {"maxAttempts": 9}
        assert queues.getIamPolicy(resource=PARENT, body={}).execute()["version"] == 1
        assert queues.purge(name=PARENT, body={}).execute()["name"] == PARENT
        assert queues.delete(name=PARENT).execute() == {}
        assert queues.list(parent=PLACE).execute() == {}

"""Google's own Cloud Tasks clients, unchanged: what they do with tasks, by leases, tags, names and times."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from google.api_core import exceptions
from google.api_core.datetime_helpers import DatetimeWithNanoseconds
from google.cloud import tasks_v2beta2

from queue_core.clock import Instant, ManualClock
from queue_core.task import NewTask, QueueSpec
from queue_core.unit.service import QueueService
from tests.support.google.cloud_tasks import (
    BASIC,
    FAILED_PRECONDITION,
    FULL,
    MINUTE,
    PARENT,
    PLACE,
    CloudTasksBench,
    Wire,
    a_client,
    a_discovered_client,
)
from tests.support.servers import QUEUE, RunningServer

Task = tasks_v2beta2.Task
WEEK = timedelta(days=7)


def _second(moment: DatetimeWithNanoseconds) -> datetime:
    return datetime.fromtimestamp(int(moment.timestamp()), UTC)


def _shown(instant: Instant, seconds: float) -> str:
    moment = datetime.fromtimestamp(instant / 1e6 + seconds, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def test_a_task_goes_from_create_by_lease_and_renewal_to_acknowledgement(bench: CloudTasksBench) -> None:
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


def test_the_end_of_a_lease_is_its_token_to_the_microsecond(bench: CloudTasksBench) -> None:
    bench.create(b"x")
    bench.clock.advance(0.123456)
    [leased] = bench.lease()
    token = leased.schedule_time
    assert token.nanosecond % 1000 == 0
    for wrong in (timedelta(microseconds=1), timedelta(microseconds=-1)):
        with pytest.raises(FAILED_PRECONDITION[bench.wire]):
            bench.client.acknowledge_task(name=leased.name, schedule_time=token + wrong)
    bench.client.acknowledge_task(name=leased.name, schedule_time=token)


def test_an_expired_lease_can_be_neither_renewed_nor_cancelled_nor_acknowledged(bench: CloudTasksBench) -> None:
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


def test_a_cancelled_lease_gives_the_task_to_the_next_caller_at_once(bench: CloudTasksBench) -> None:
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


def test_a_lease_is_cut_to_whole_seconds(bench: CloudTasksBench) -> None:
    made = bench.create(b"x")
    [leased] = bench.lease(seconds=1.9)
    assert leased.schedule_time - made.schedule_time == timedelta(seconds=1)


def test_a_lease_of_no_seconds_shows_each_task_once_and_leaves_it_free(bench: CloudTasksBench) -> None:
    names = {bench.create(b"x").name for _ in range(3)}
    assert {task.name for task in bench.lease(1000, seconds=0)} == names
    assert {task.name for task in bench.lease(1000)} == names


def test_a_task_waits_for_its_schedule_time(bench: CloudTasksBench) -> None:
    later = datetime.fromtimestamp(bench.clock.now() / 1e6, UTC) + MINUTE
    made = bench.create(b"x", schedule_time=later)
    assert made.schedule_time == later
    bench.clock.advance(59.999999)
    assert bench.lease() == []
    bench.clock.advance(0.000001)
    assert len(bench.lease()) == 1


def test_a_schedule_time_in_the_past_is_now(bench: CloudTasksBench) -> None:
    made = bench.create(b"x", schedule_time=datetime(1960, 1, 1, tzinfo=UTC))
    assert int(made.schedule_time.timestamp() * 1e6) == bench.clock.now()


@pytest.mark.parametrize("tags", ["tag=a b", 'tag="a b"', ' tag = "a b" '])
def test_tasks_are_leased_by_tag_as_each_client_spells_it(bench: CloudTasksBench, tags: str) -> None:
    bench.create(b"1", "other")
    bench.create(b"2", "a b")
    bench.create(b"3")
    assert [task.pull_message.payload for task in bench.lease(view=FULL, tags=tags)] == [b"2"]


def test_the_oldest_tag_makes_a_batch_of_its_own(bench: CloudTasksBench) -> None:
    for tag in ("", "a", "", "b", "a"):
        bench.create(b"x", tag)
        bench.clock.advance(1)
    seen = [[task.pull_message.tag for task in bench.lease(tags="tag_function=oldest_tag()")] for _ in range(4)]
    assert seen == [["", ""], ["a", "a"], ["b"], []]


def test_a_name_is_taken_while_its_task_lives_and_for_a_while_after(bench: CloudTasksBench) -> None:
    name = f"{PARENT}/tasks/once"
    bench.create(b"x", name=name)
    with pytest.raises(exceptions.AlreadyExists if bench.wire == "grpc" else exceptions.Conflict):
        bench.create(b"x", name=name)
    bench.client.delete_task(name=name)
    with pytest.raises(exceptions.AlreadyExists if bench.wire == "grpc" else exceptions.Conflict):
        bench.create(b"x", name=name)
    with pytest.raises(exceptions.NotFound):
        bench.client.delete_task(name=name)


def test_a_task_is_looked_at_without_being_leased(bench: CloudTasksBench) -> None:
    made = bench.create(b"secret", "a")
    basic = bench.client.get_task(name=made.name)
    assert (basic, basic.pull_message.tag) == (made, "a")
    full = bench.client.get_task(request={"name": made.name, "response_view": FULL})
    assert full.pull_message.payload == b"secret"
    with pytest.raises(exceptions.NotFound):
        bench.client.get_task(name=f"{PARENT}/tasks/nothing")


def test_tasks_are_listed_by_pages(bench: CloudTasksBench) -> None:
    names = [bench.create(b"x", name=f"{PARENT}/tasks/t-{number}").name for number in range(7)]
    bench.lease(2)
    request = tasks_v2beta2.ListTasksRequest(parent=PARENT, page_size=3, response_view=FULL)
    pages = list(bench.client.list_tasks(request=request).pages)
    assert [len(page.tasks) for page in pages] == [3, 3, 1]
    listed = [task for page in pages for task in page.tasks]
    assert ([task.name for task in listed], listed[0].pull_message.payload) == (names, b"x")


def test_a_task_that_used_up_its_leases_is_gone(bench: CloudTasksBench) -> None:
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
        bench = CloudTasksBench(client, *server, "grpc")
        leased = bench.lease(1000, view=FULL)
        assert 30 <= len(leased) <= 32
        assert len(bench.lease(1000)) == 40 - len(leased)
        listing = client.list_tasks(request={"parent": PARENT, "response_view": FULL})
        assert sum(len(task.pull_message.payload) for task in listing) == 40 << 20


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
    assert service.read(lambda turn: turn.transaction.queue(QUEUE)).name == QUEUE


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

"""Answers to leases have a bound in bytes at every door; what does not fit into one is neither leased nor charged."""

import asyncio
import base64
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial

import pytest

from queue_core.client.local_calls import LocalQueues
from queue_core.clock import ManualClock
from queue_core.server.base.options import ServeOptions
from queue_core.server.leases.call import LeaseCall
from queue_core.server.state import ServerState
from queue_core.stores.memory.store import MemoryStore
from queue_core.task import ALL_STATES, ANY, NewTask, QueueSpec
from queue_core.unit import service as service_module
from queue_core.unit.service import QueueService
from tests.support.google.appengine_calls import leased
from tests.support.servers import QUEUE, RunningServer, a_server
from tests.support.stores.remote_memory import RemoteMemory

MIB = 1 << 20
LIMITED = QueueSpec(QUEUE, max_leases=3, on_exhausted="delete")
TASKQUEUE = f"/taskqueue/v1beta2/projects/app/taskqueues/{QUEUE}/tasks/lease"
CLOUDTASKS = f"/v2beta2/projects/app/locations/here/queues/{QUEUE}/tasks:lease"

Lease = Callable[[RunningServer, float], list[str]]
"""The names of the tasks that one call leases, of up to 1,000."""


def of_appengine(server: RunningServer, seconds: float) -> list[str]:
    return [one.octets("task_name").decode() for one in leased(server, lease_seconds=seconds, max_tasks=1000)]


def of_taskqueue(server: RunningServer, seconds: float) -> list[str]:
    reply = server.ask("POST", f"{TASKQUEUE}?leaseSecs={seconds:.0f}&numTasks=1000", b"")
    assert reply.status == 200
    items = reply.json().get("items", [])
    assert isinstance(items, list)
    assert len(reply.body) <= MIB + 100 or len(items) == 1
    return [item["id"] for item in items]


def of_cloudtasks(server: RunningServer, seconds: float) -> list[str]:
    body = b'{"maxTasks": 1000, "responseView": "FULL", "leaseDuration": "%.0fs"}' % seconds
    reply = server.ask("POST", CLOUDTASKS, body)
    assert reply.status == 200
    tasks = reply.json().get("tasks", [])
    assert isinstance(tasks, list)
    return [task["name"].rpartition("/")[2] for task in tasks]


def of_ours(verb: str, server: RunningServer, seconds: float) -> list[str]:
    body = b'{"count": 1000, "seconds": %f}' % seconds
    reply = server.ask("POST", f"/v1/queues/{QUEUE}/{verb}", body)
    assert reply.status == 200, reply.body
    leases = reply.json()["leases"]
    assert isinstance(leases, list)
    return [lease["name"] for lease in leases]


@dataclass(frozen=True)
class Door:
    """A way to lease, the payload of some tasks, and how many of those fit into its answer, at least and at most."""

    lease: Lease
    payload_bytes: int
    tasks: int
    least: int
    most: int


DOORS = [
    pytest.param(Door(of_appengine, 1_000_000, 40, 33, 33), id="App Engine"),
    pytest.param(Door(of_taskqueue, 100_000, 30, 7, 7), id="v1beta2"),
    pytest.param(Door(of_taskqueue, 0, 1000, 1000, 1000), id="v1beta2, empty tasks"),
    pytest.param(Door(of_taskqueue, MIB, 3, 1, 1), id="v1beta2, a task larger than its answers"),
    pytest.param(Door(of_cloudtasks, MIB, 40, 31, 32), id="v2beta2"),
    pytest.param(Door(partial(of_ours, "lease"), MIB, 40, 7, 8), id="ours, lease"),
    pytest.param(Door(partial(of_ours, "exchange"), MIB, 40, 7, 8), id="ours, exchange"),
]


def fill(server: RunningServer, number: int, payload_bytes: int) -> None:
    """Add tasks without the detour over HTTP."""
    tasks = [NewTask(b"x" * payload_bytes, name=f"t{at:03}") for at in range(number)]
    for begin in range(0, number, 20):
        QueueService(server.store).run(lambda turn, begin=begin: turn.add(QUEUE, tasks[begin : begin + 20]))  # type: ignore[misc]


def charged(server: RunningServer) -> dict[str, int]:
    """How often each task that is there was leased."""
    with server.store.read() as transaction:
        page = transaction.peek(
            QUEUE,
            ANY,
            ALL_STATES,
            limit=1000,
            payload_bytes=0,
            now=server.store.clock.now(),
        )
    return {task.shown_name: task.leases for task in page.tasks}


@pytest.mark.parametrize("door", DOORS)
def test_an_answer_is_bounded_and_what_does_not_fit_is_left_as_it_was(door: Door) -> None:
    with a_server() as server:
        fill(server, door.tasks, door.payload_bytes)
        names = door.lease(server, 60.0)
        assert door.least <= len(names) <= door.most
        assert names == [f"t{at:03}" for at in range(len(names))]
        assert sum(charged(server).values()) == len(names)
        assert not set(names) & set(door.lease(server, 60.0))


@pytest.mark.parametrize("door", [one for one in DOORS if one.id != "ours, exchange"])
def test_a_lease_of_no_time_charges_what_it_delivers_and_loses_nothing_else(door: Door) -> None:
    with a_server(spec=LIMITED) as server:
        fill(server, door.tasks, door.payload_bytes)
        delivered: dict[str, int] = {}
        for _ in range(3):
            names = door.lease(server, 0.0)
            assert len(names) == len(set(names)) >= door.least
            for name in names:
                delivered[name] = delivered.get(name, 0) + 1
        for name, leases in charged(server).items():
            assert leases == delivered.get(name, 0)
        gone = {f"t{at:03}" for at in range(door.tasks)} - set(charged(server))
        assert {delivered[name] for name in gone} <= {3}


@pytest.mark.parametrize("seconds", [1e-7, 4.9e-7, 5.1e-7, 1e-6])
def test_a_lease_of_less_than_a_microsecond_gives_each_task_once(seconds: float) -> None:
    with a_server() as server:
        fill(server, 60, 10)
        names = of_appengine(server, seconds)
        assert len(names) == len(set(names)) == 60
        assert set(charged(server).values()) == {1}


def test_a_task_as_large_as_can_be_comes_back_byte_for_byte() -> None:
    payload = bytes(range(256)) * 4096
    with a_server() as server:
        QueueService(server.store).run(lambda turn: turn.add(QUEUE, [NewTask(payload)] * 20))
        with closing(server.queue()) as queue:
            leases = queue.lease(20)
        assert len(leases) * len(payload) <= 8 * MIB
        assert {lease.payload for lease in leases} == {payload}
        assert len(base64.b64encode(payload)) * len(leases) < 12 * MIB


def test_a_caller_that_hung_up_before_its_turn_is_charged_nothing() -> None:
    """A lease of no time could not be given back."""

    async def story() -> int:
        core = ServerState(MemoryStore(), ServeOptions())
        try:
            await core.committer.run(lambda turn: turn.put_queue(LIMITED))
            await core.committer.run(lambda turn: turn.add(QUEUE, [NewTask()]))
            call = LeaseCall(QUEUE, 1, 0.0, ANY, "", 0.0, "caller", (), lambda _answer: None, lambda: False)
            call.start(core.waiting.context)
            call.cancel()
            return (await core.committer.run(lambda turn: turn.stats(QUEUE, ANY))).leased_total
        finally:
            core.close()

    assert asyncio.run(story()) == 0


def test_a_lease_of_no_time_from_a_store_that_was_slow_is_delivered_as_it_is() -> None:
    """Nobody trusts it for any time: leasing again would charge it twice."""
    store = RemoteMemory()
    clock = ManualClock()
    service = QueueService(store, clock=clock)
    service.run(lambda turn: turn.put_queue(LIMITED))
    service.run(lambda turn: turn.add(QUEUE, [NewTask()] * 2))
    none, some = [
        service.run(lambda turn, seconds=seconds: turn.lease(QUEUE, count=1, seconds=seconds)).leases  # type: ignore[misc]
        for seconds in (0.0, 60.0)
    ]
    clock.advance(5.0)
    assert (service.is_late(none), service.is_late(some)) == (False, True)


def test_a_lease_of_milliseconds_is_delivered_though_it_is_over() -> None:
    clock = ManualClock()
    service = QueueService(MemoryStore(), clock=clock)
    service.run(lambda turn: turn.put_queue(LIMITED))
    service.run(lambda turn: turn.add(QUEUE, [NewTask()]))
    leases = service.run(lambda turn: turn.lease(QUEUE, count=1, seconds=0.001)).leases
    clock.advance(0.1)
    assert not service.is_late(leases)


def test_leases_that_come_late_time_and_again_are_given_back_and_left_to_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(service_module, "STALL_SECONDS", 0.0)
    monkeypatch.setattr(service_module, "LATE_SECONDS", -1.0)
    queues = LocalQueues(QueueService(RemoteMemory()))
    queues.put_queue(LIMITED)
    queue = queues.queue(LIMITED.name)
    queue.add(b"x")
    assert queue.lease(worker="w") == []
    assert (queue.stats().in_flight, queue.stats().ready, queue.peek().tasks[0].leases) == (0, 1, 0)


@pytest.mark.parametrize("is_remote", [True, False], ids=["a remote store", "a store in this process"])
def test_a_lease_that_is_over_when_it_is_answered_is_late(*, is_remote: bool) -> None:
    """Another worker may hold its task by then."""
    store = RemoteMemory() if is_remote else MemoryStore()
    clock = ManualClock()
    service = QueueService(store, clock=clock)
    service.run(lambda turn: turn.put_queue(LIMITED))
    service.run(lambda turn: turn.add(QUEUE, [NewTask()]))
    leases = service.run(lambda turn: turn.lease(QUEUE, count=1, seconds=0.5)).leases
    clock.advance(0.499_999)
    assert not service.is_late(leases)
    clock.advance(0.000_001)
    assert service.is_late(leases)

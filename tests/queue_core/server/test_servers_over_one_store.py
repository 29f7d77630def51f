"""Several servers over one store: who waits at one hears of the other, and a store that fails holds nobody up."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from threading import Event

import pytest

from queue_core.client.local_calls import LocalQueues
from queue_core.client.queue import Queue
from queue_core.clock import SystemClock, seconds_between
from queue_core.errors import OutcomeUnknownError, StoreUnavailableError
from queue_core.server.base.options import ServeOptions
from queue_core.server.commit import threaded
from queue_core.server.leases import call as lease_call
from queue_core.server.leases import notifications, timers
from queue_core.store import Transaction, Unit
from queue_core.stores.memory.store import MemoryStore
from queue_core.task import NewTask, QueueSpec
from queue_core.unit import service as service_module
from queue_core.unit.service import QueueService
from tests.support.eventually import eventually
from tests.support.servers import QUEUE, RunningServer, a_server, request
from tests.support.stores.remote_memory import RemoteMemory

LONG_SECONDS = 30.0


class Servers:
    """Two servers, each with its own way to the memory that they share."""

    def __init__(self, stack: ExitStack) -> None:
        memory = MemoryStore()
        self.stores = (RemoteMemory(memory), RemoteMemory(memory))
        self.a, self.b = (stack.enter_context(a_server(store)) for store in self.stores)
        self.at_a, self.at_b = self.a.queue(), self.b.queue()
        stack.callback(self.at_a.close)
        stack.callback(self.at_b.close)
        for store in self.stores:
            stack.callback(store.flow)


@pytest.fixture
def servers() -> Iterator[Servers]:
    with ExitStack() as stack:
        yield Servers(stack)


@pytest.fixture
def callers() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(32) as pool:
        yield pool


def _waits(server: RunningServer, count: int = 1) -> None:
    eventually(lambda: server.waiting() == count)


def test_a_task_added_at_one_ends_the_waiting_at_the_other(servers: Servers, callers: ThreadPoolExecutor) -> None:
    call = callers.submit(servers.at_b.lease, wait_seconds=LONG_SECONDS)
    _waits(servers.b)
    servers.at_a.add(b"work")
    assert [lease.payload for lease in call.result(LONG_SECONDS)] == [b"work"]


def test_an_eta_made_at_one_ends_the_waiting_at_the_other(servers: Servers, callers: ThreadPoolExecutor) -> None:
    call = callers.submit(servers.at_b.lease, wait_seconds=LONG_SECONDS)
    _waits(servers.b)
    servers.at_a.add(NewTask(b"later", delay_seconds=0.05))
    (lease,) = call.result(LONG_SECONDS)
    assert lease.leased_at >= lease.ready_at


def test_no_wake_up_slips_through_between_a_look_and_the_waiting(
    servers: Servers, callers: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timers, "RECHECK_SECONDS", 2 * LONG_SECONDS)
    monkeypatch.setattr(timers, "READY_SECONDS", 2 * LONG_SECONDS)

    def work(number: int) -> list[float]:
        queue, waited = (servers.at_a, servers.at_b)[number % 2], []
        while True:
            for lease in queue.lease(wait_seconds=LONG_SECONDS):
                queue.delete(lease)
                waited.append(lease.waited_seconds)
                if lease.payload == b"stop":
                    return waited

    workers = [callers.submit(work, number) for number in range(8)]
    for number in range(200):
        (servers.at_a if number % 3 else servers.at_b).add(b"%d" % number)
    for _ in workers:
        servers.at_a.add(b"stop")
    waited = [seconds for worker in workers for seconds in worker.result(LONG_SECONDS)]
    assert len(waited) == 208
    assert max(waited) < LONG_SECONDS / 6


def test_a_lost_signal_costs_no_more_than_the_next_look(
    servers: Servers, callers: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timers, "RECHECK_SECONDS", 0.05)
    monkeypatch.setattr(timers, "READY_SECONDS", 0.1)
    call = callers.submit(servers.at_b.lease, wait_seconds=LONG_SECONDS)
    _waits(servers.b)
    with servers.stores[0].memory.begin() as transaction:  # told to nobody
        transaction.add(QUEUE, [NewTask(b"quiet")], now=servers.stores[0].clock.now())
    assert [lease.payload for lease in call.result(LONG_SECONDS)] == [b"quiet"]


def test_more_queues_than_ears_are_served_all_the_same(
    servers: Servers, callers: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timers, "RECHECK_SECONDS", 0.05)
    monkeypatch.setattr(timers, "READY_SECONDS", 0.1)
    monkeypatch.setattr(notifications, "MAX_REMOTE_QUEUES", 2)
    queues, others = servers.b.queues(), servers.a.queues()
    with ExitStack() as stack:
        stack.callback(queues.close)
        stack.callback(others.close)
        names = [f"many-{number}" for number in range(6)]
        for name in names:
            queues.put_queue(QueueSpec(name))
        calls = [callers.submit(queues.queue(name).lease, wait_seconds=LONG_SECONDS) for name in names]
        _waits(servers.b, len(names))
        for name in names:
            others.queue(name).add(name.encode())
        assert [call.result(LONG_SECONDS)[0].payload for call in calls] == [name.encode() for name in names]


def test_who_waits_in_vain_is_answered_in_time_though_the_store_has_stalled(
    servers: Servers, callers: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_call, "OVERTIME_SECONDS", 0.05)
    call = callers.submit(servers.at_b.lease, wait_seconds=0.5)
    _waits(servers.b)
    servers.stores[1].stall()
    servers.at_a.add(b"work")  # the waiting call tries, and gets no answer
    assert call.result(LONG_SECONDS) == []
    servers.stores[1].flow()
    (lease,) = servers.at_a.lease(wait_seconds=LONG_SECONDS)
    assert (lease.payload, lease.lease_number) == (b"work", 1)


def test_a_lease_granted_by_a_store_that_then_stalled_reaches_the_client_and_is_left_to_nobody(
    servers: Servers, callers: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_call, "OVERTIME_SECONDS", 0.05)
    call = callers.submit(servers.at_b.lease, wait_seconds=0.5)
    _waits(servers.b)
    servers.stores[1].stall_answers()
    servers.at_a.add(b"work")  # the waiting call is granted the task, and its server does not hear of it
    eventually(lambda: servers.at_a.stats().in_flight == 1)
    granted = servers.stores[1].transactions
    eventually(lambda: call.done() or servers.stores[1].transactions > granted)  # the client has sent it again
    servers.stores[1].flow()
    (lease,) = call.result(LONG_SECONDS)
    assert (lease.payload, lease.lease_number) == (b"work", 1)
    servers.at_a.delete([lease.token])
    assert servers.at_a.stats().in_flight == 0


def test_a_lease_that_is_renewed_as_it_came_late_is_left_to_nobody_when_its_calls_time_is_up(
    callers: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_call, "OVERTIME_SECONDS", 0.05)
    monkeypatch.setattr(service_module, "STALL_SECONDS", 0.0)
    monkeypatch.setattr(service_module, "LATE_SECONDS", 0.2)
    store = HeldAnswers()
    with a_server(store) as server, closing(server.queue()) as queue:
        call = callers.submit(queue.lease, wait_seconds=0.5)
        _waits(server)
        granted, renewed = Event(), Event()
        store.held = [granted, renewed]
        beside = LocalQueues(QueueService(store.memory)).queue(QUEUE)
        beside.add(b"work")
        eventually(lambda: _leased_for_seconds(beside) > 0.3)
        granted.set()  # too late: the server renews the lease, and does not hear of that either
        eventually(lambda: not store.held)
        before = store.transactions
        eventually(lambda: call.done() or store.transactions > before)  # the client has sent the call again
        renewed.set()
        (lease,) = call.result(LONG_SECONDS)
        assert lease.payload == b"work"
        queue.delete([lease.token])
        assert queue.stats().in_flight == 0


def _leased_for_seconds(queue: Queue) -> float:
    (task,) = queue.peek().tasks
    return seconds_between(task.leased_at, SystemClock().now()) if task.leased_at else 0.0


class HeldAnswers(RemoteMemory):
    """A store whose next answers to changes are held until somebody lets each go."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[Event] = []

    @contextmanager
    def begin(self, unit: Unit = "transaction") -> Iterator[Transaction]:
        with super().begin(unit) as transaction:
            yield transaction
        if self.held:
            self.held.pop(0).wait(LONG_SECONDS)


def test_a_caller_that_hangs_up_while_the_store_has_stalled_is_forgotten(servers: Servers) -> None:
    body = json.dumps({"worker": "gone", "wait_seconds": LONG_SECONDS}).encode()
    with servers.b.connect() as connection:
        connection.sendall(request("POST", f"/v1/queues/{QUEUE}/lease", body))
        _waits(servers.b)
        servers.stores[1].stall()
    _waits(servers.b, 0)


def test_a_server_lives_but_is_not_ready_while_its_store_has_stalled(servers: Servers) -> None:
    assert servers.b.ask("GET", "/readyz").status == 200
    servers.stores[1].stall()
    assert servers.b.ask("GET", "/livez").status == 200
    eventually(lambda: servers.b.ask("GET", "/readyz").status == 503)
    servers.stores[1].flow()
    eventually(lambda: servers.b.ask("GET", "/readyz").status == 200)


def test_a_call_that_the_store_does_not_answer_is_told_so(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threaded, "MAX_COMMIT_SECONDS", 0.1)
    monkeypatch.setattr(threaded, "CHECK_SECONDS", 0.01)
    servers.at_a.add(b"work")
    servers.stores[1].stall()
    with pytest.raises(OutcomeUnknownError):
        servers.at_b.lease()
    servers.stores[1].flow()
    (lease,) = servers.at_a.lease(wait_seconds=LONG_SECONDS)  # nothing was granted to a caller that was told so
    assert lease.lease_number == 1


def test_who_waits_is_told_when_the_store_stays_away(servers: Servers, callers: ThreadPoolExecutor) -> None:
    call = callers.submit(servers.at_b.lease, wait_seconds=LONG_SECONDS)
    _waits(servers.b)
    servers.stores[1].is_down = True
    with pytest.raises(StoreUnavailableError):
        call.result(LONG_SECONDS)


def test_a_store_that_is_away_for_a_moment_is_not_noticed(servers: Servers) -> None:
    store = servers.stores[1]
    store.is_down = True
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(servers.at_b.add, b"work")
        eventually(lambda: store.refusals)
        store.is_down = False
        assert call.result(LONG_SECONDS)[0].status == "added"


def test_a_store_that_is_away_is_told_as_503_with_a_time_to_come_back() -> None:
    store = RemoteMemory()
    with a_server(store, ServeOptions()) as server:
        store.is_down = True
        reply = server.ask("POST", f"/v1/queues/{QUEUE}/lease", b"{}")
        assert (reply.status, reply.headers["retry-after"]) == (503, "1")
        assert reply.json()["type"] == "urn:towline:problem:store-unavailable"
        store.is_down = False

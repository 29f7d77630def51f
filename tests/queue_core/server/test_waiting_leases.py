"""Leases that wait, over real sockets: who is served, when, and what is left when a caller goes away."""

import json
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from queue_core.client.http_calls import HttpQueue
from queue_core.client.local_calls import LocalQueues
from queue_core.client.queue import Queue
from queue_core.errors import StoreUnavailableError, UnknownQueueError, WorkerRetiredError
from queue_core.server.base.options import ServeOptions
from queue_core.server.server import ServerThread
from queue_core.stores import open_store
from queue_core.stores.memory.store import MemoryStore
from queue_core.task import ANY, UNTAGGED, Lease, NewTask, QueueSpec, TagFilter
from queue_core.unit.service import QueueService
from queue_core.verbs import Deletion
from tests.support.eventually import eventually
from tests.support.servers import QUEUE, RunningServer, a_server, read_reply, request
from tests.support.stores.remote_memory import RemoteMemory

LONG_SECONDS = 30.0


@pytest.fixture(params=["in the loop", "beside the loop"])
def server(request: pytest.FixtureRequest) -> Iterator[RunningServer]:
    with a_server(MemoryStore() if request.param == "in the loop" else RemoteMemory()) as running:
        yield running


@pytest.fixture
def queue(server: RunningServer) -> Iterator[HttpQueue]:
    queue = server.queue()
    yield queue
    queue.close()


@pytest.fixture
def callers() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(32) as pool:
        yield pool


class Crowd:
    """Workers that wait one after the other, so that it is known who began first."""

    def __init__(self, server: RunningServer, queue: Queue, callers: ThreadPoolExecutor) -> None:
        self._server = server
        self._queue = queue
        self._callers = callers

    def wait(self, worker: str, tags: TagFilter = ANY, *, count: int = 1) -> "Future[list[Lease]]":
        """Begin to wait, and return once the server has it among the waiting."""
        then_waiting = self._server.waiting() + 1
        call = self._callers.submit(
            self._queue.lease, count, tags=tags, worker=worker, seconds=60.0, wait_seconds=LONG_SECONDS
        )
        eventually(lambda: self._server.waiting() == then_waiting)
        return call


@pytest.fixture
def crowd(server: RunningServer, queue: HttpQueue, callers: ThreadPoolExecutor) -> Crowd:
    return Crowd(server, queue, callers)


def test_a_waiting_call_gets_the_task_that_is_added(crowd: Crowd, queue: HttpQueue) -> None:
    call = crowd.wait("w")
    queue.add(b"work")
    assert [lease.payload for lease in call.result(LONG_SECONDS)] == [b"work"]


def test_a_call_that_waits_in_vain_is_answered_empty(queue: HttpQueue) -> None:
    assert queue.lease(wait_seconds=0.05) == []


def test_only_a_task_that_fits_ends_the_waiting(crowd: Crowd, queue: HttpQueue, server: RunningServer) -> None:
    red = crowd.wait("red", TagFilter.of("red"))
    plain = crowd.wait("plain", UNTAGGED)
    queue.add(NewTask(b"b", tag="blue"))
    eventually(lambda: server.waiting() == 2)  # one that is being looked for does not wait meanwhile
    queue.add([NewTask(b"r", tag="red"), NewTask(b"p")])
    assert [red.result(LONG_SECONDS)[0].payload, plain.result(LONG_SECONDS)[0].payload] == [b"r", b"p"]


def test_an_eta_that_is_reached_ends_the_waiting(crowd: Crowd, queue: HttpQueue) -> None:
    call = crowd.wait("w")
    queue.add(NewTask(b"later", delay_seconds=0.05))
    (lease,) = call.result(LONG_SECONDS)
    assert lease.leased_at >= lease.ready_at
    assert lease.waited_seconds < 5


def test_an_expired_lease_ends_the_waiting(queue: HttpQueue) -> None:
    queue.add(b"slow")
    queue.lease(seconds=0.05, worker="sleeper")
    (lease,) = queue.lease(worker="w", wait_seconds=LONG_SECONDS)
    assert (lease.payload, lease.lease_number) == (b"slow", 2)


def test_a_released_task_ends_the_waiting(crowd: Crowd, queue: HttpQueue) -> None:
    queue.add(b"given back")
    (held,) = queue.lease(worker="first")
    call = crowd.wait("second")
    queue.release(held, delay_seconds=0.0)
    assert call.result(LONG_SECONDS)[0].name == held.name


def test_a_task_of_a_dead_worker_ends_the_waiting_of_another(
    crowd: Crowd, queue: HttpQueue, server: RunningServer
) -> None:
    queue.add(b"orphan")
    queue.lease(worker="dead", seconds=600.0)
    call = crowd.wait("heir")
    queues = server.queues()
    assert [finished.worker for finished in queues.release_worker("dead")] == ["dead"]
    queues.close()
    assert call.result(LONG_SECONDS)[0].payload == b"orphan"


def test_a_paused_queue_grants_when_it_is_resumed(crowd: Crowd, queue: HttpQueue) -> None:
    queue.pause()
    queue.add(b"held")
    call = crowd.wait("w")
    queue.resume()
    assert call.result(LONG_SECONDS)[0].payload == b"held"


def test_the_most_recently_active_worker_is_served_first(crowd: Crowd, queue: HttpQueue) -> None:
    for worker in ("ann", "bob", "cid"):
        queue.add(b"warm-up")
        (lease,) = queue.lease(worker=worker)
        queue.delete(lease)
    calls = {worker: crowd.wait(worker) for worker in ("bob", "cid", "ann")}
    for worker in ("cid", "bob", "ann"):
        queue.add(worker.encode())
        assert calls[worker].result(LONG_SECONDS)[0].payload == worker.encode()


def test_waiting_again_does_not_make_a_worker_active(crowd: Crowd, queue: HttpQueue) -> None:
    for worker in ("busy", "surplus"):
        queue.lease(worker=worker, wait_seconds=0.01)
    queue.add(b"x")
    (lease,) = queue.lease(worker="busy")
    surplus = crowd.wait("surplus")
    assert queue.exchange([Deletion(lease.token)], worker="busy")[0] == []
    busy = crowd.wait("busy")
    queue.add(b"y")
    assert busy.result(LONG_SECONDS)[0].payload == b"y"
    queue.add(b"z")
    assert surplus.result(LONG_SECONDS)[0].payload == b"z"


def test_a_retired_worker_is_told_while_it_waits(crowd: Crowd, queue: HttpQueue, server: RunningServer) -> None:
    call = crowd.wait("surplus")
    queues = server.queues()
    assert queues.retire_worker("surplus")
    queues.close()
    with pytest.raises(WorkerRetiredError):
        call.result(LONG_SECONDS)


def test_a_retired_worker_may_still_delete_what_it_finished(queue: HttpQueue, server: RunningServer) -> None:
    queue.add(b"last")
    (lease,) = queue.lease(worker="w")
    queues = server.queues()
    assert not queues.retire_worker("w")
    queues.release_worker("somebody-else")
    queues.close()
    assert queue.exchange([Deletion(lease.token)], worker="w") == ([], ())


def test_callers_of_a_queue_that_is_deleted_are_told(crowd: Crowd, server: RunningServer) -> None:
    call = crowd.wait("w")
    queues = server.queues()
    queues.delete_queue(QUEUE)
    queues.close()
    with pytest.raises(UnknownQueueError):
        call.result(LONG_SECONDS)


def test_a_caller_that_hangs_up_is_granted_nothing(server: RunningServer, queue: HttpQueue) -> None:
    body = json.dumps({"worker": "gone", "wait_seconds": LONG_SECONDS}).encode()
    with server.connect() as connection:
        connection.sendall(request("POST", f"/v1/queues/{QUEUE}/lease", body))
        eventually(lambda: server.waiting() == 1)
    eventually(lambda: server.waiting() == 0)
    queue.add(b"x")
    assert queue.stats().leased_total == 0
    (lease,) = queue.lease()
    assert lease.lease_number == 1


def test_hanging_up_and_adding_at_the_same_time_loses_nothing(server: RunningServer, queue: HttpQueue) -> None:
    body = json.dumps({"worker": "gone", "wait_seconds": LONG_SECONDS}).encode()
    for number in range(30):
        with server.connect() as connection:
            connection.sendall(request("POST", f"/v1/queues/{QUEUE}/lease", body))
            eventually(lambda: server.waiting() == 1)
            connection.shutdown(socket.SHUT_RDWR)
        queue.add(b"%d" % number)
        (lease,) = queue.lease(wait_seconds=LONG_SECONDS)
        assert (lease.payload, lease.lease_number) == (b"%d" % number, 1)
        queue.delete(lease)
    assert server.waiting() == 0


def test_a_thousand_wait_and_a_stop_answers_them_all(server: RunningServer) -> None:
    body = json.dumps({"wait_seconds": LONG_SECONDS, "worker": "idle"}).encode()
    connections = [server.connect() for _ in range(1000)]
    try:
        for connection in connections:
            connection.sendall(request("POST", f"/v1/queues/{QUEUE}/lease", body))
        eventually(lambda: server.waiting() == 1000)
        server.thread.stop()
        replies = [read_reply(connection) for connection in connections]
    finally:
        for connection in connections:
            connection.close()
    assert {(reply.status, reply.body) for reply in replies} == {(200, b'{"leases":[]}')}


def test_more_than_the_limit_may_not_wait() -> None:
    with a_server(options=ServeOptions(max_waiting=1)) as server, ThreadPoolExecutor(1) as pool:
        queue = server.queue()
        waiting = pool.submit(queue.lease, wait_seconds=LONG_SECONDS)
        eventually(lambda: server.waiting() == 1)
        with pytest.raises(StoreUnavailableError, match="wait already"):
            queue.lease(wait_seconds=LONG_SECONDS)
        assert queue.lease() == []
        queue.add(b"x")
        assert len(waiting.result(LONG_SECONDS)) == 1
        queue.close()


def test_a_supervisor_hears_of_work_without_taking_it(server: RunningServer, callers: ThreadPoolExecutor) -> None:
    queues = server.queues()
    wanted = [(QUEUE, TagFilter.of("red"))]
    call = callers.submit(queues.wait_ready, wanted, wait_seconds=LONG_SECONDS)
    eventually(lambda: len(server.thread.core.waiting.watchers.watching) == 1)
    queues.queue(QUEUE).add([NewTask(b"b", tag="blue"), NewTask(b"r", tag="red")])
    assert call.result(LONG_SECONDS) == QUEUE
    assert queues.queue(QUEUE).stats().ready == 2
    assert queues.wait_ready([(QUEUE, UNTAGGED)], wait_seconds=0.01) is None
    queues.close()


def test_work_added_by_another_opener_of_the_file_ends_the_waiting(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'queue.db'}"
    with a_server(open_store(url)) as server, ThreadPoolExecutor(1) as pool:
        beside = LocalQueues(QueueService(open_store(url)))
        queue = server.queue()
        call = pool.submit(queue.lease, wait_seconds=LONG_SECONDS)
        eventually(lambda: server.waiting() == 1)
        beside.queue(QUEUE).add(b"from beside")
        assert call.result(LONG_SECONDS)[0].payload == b"from beside"
        queue.close()
        beside.close()


def test_workers_behind_a_server_leave_the_rest_to_other_openers(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'queue.db'}"
    with a_server(open_store(url)) as server, ThreadPoolExecutor(2) as pool:
        beside = LocalQueues(QueueService(open_store(url)))
        queue = server.queue()
        red = pool.submit(queue.lease, tags=TagFilter.of("red"), wait_seconds=LONG_SECONDS)
        eventually(lambda: server.waiting() == 1)
        blue = pool.submit(beside.queue(QUEUE).lease, tags=TagFilter.of("blue"), wait_seconds=4.0)
        queue.add(NewTask(b"b", tag="blue"))
        assert blue.result(LONG_SECONDS)[0].payload == b"b"
        queue.add(NewTask(b"r", tag="red"))
        assert red.result(LONG_SECONDS)[0].payload == b"r"
        queue.close()
        beside.close()


def test_a_server_stops_while_a_client_waits(tmp_path: Path) -> None:
    options = replace(ServeOptions(), socket_path=tmp_path / "towline.sock")
    store = open_store("memory:")
    QueueService(store).run(lambda turn: turn.put_queue(QueueSpec(QUEUE)))
    thread = ServerThread(store, options)
    queue = HttpQueue(thread.start(), QUEUE)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(queue.lease, wait_seconds=LONG_SECONDS)
        eventually(lambda: len(thread.core.waiting) == 1)
        thread.stop()
        assert call.result(LONG_SECONDS) == []
    queue.close()
    store.close()

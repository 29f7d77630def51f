"""What a connection reads without the loop is answered as if the loop had read it, whatever it turns out to be."""

import json
import os
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager

import pytest

from queue_core.clock import Instant
from queue_core.server.protocol import MAX_HEARD_BYTES, HotProtocol
from queue_core.store import Granted, LeaseRequest, Transaction, Unit
from queue_core.stores.memory import MemoryStore
from queue_core.task import NewTask
from tests.support.eventually import eventually
from tests.support.servers import QUEUE, RunningServer, a_server, read_reply, request

LEASE = f"/v1/queues/{QUEUE}/lease"
READ = os.read
ONE = request("POST", LEASE, b'{"count":1}')


class Counted(MemoryStore):
    """Counts the transactions that lease: others are begun for callers who then do not come back so soon."""

    transactions = 0
    has_leased = True

    def begin(self, unit: Unit = "transaction") -> AbstractContextManager[Transaction]:
        self.has_leased = False
        return super().begin(unit)

    def lease(self, queue: str, request: LeaseRequest, *, now: Instant) -> Granted:
        self.transactions += not self.has_leased
        self.has_leased = True
        return super().lease(queue, request, now=now)


class Heard:
    """What was read without the loop: `data` of each try, empty where nothing was there."""

    def __init__(self) -> None:
        self.data: list[bytes] = []

    def read(self, descriptor: int, count: int) -> bytes:
        self.data.append(b"")
        self.data[-1] = READ(descriptor, count)
        return self.data[-1]


@pytest.fixture(params=[2])
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningServer]:
    """A server that takes its host for one with so many processors."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _process: set(range(request.param)))
    with a_server(Counted()) as running:
        yield running


@pytest.fixture
def pair(server: RunningServer) -> Iterator[list[socket.socket]]:
    """Two connections that were answered together a few times, so that the server expects both."""
    with closing(server.queue()) as queue:
        queue.add([NewTask(name=f"t{number:02}") for number in range(40)])
    with ExitStack() as stack:
        connections = [stack.enter_context(server.connect()) for _ in range(2)]
        for _ in range(4):
            _send(server, connections, [ONE, ONE])
            assert {_names(connection)[0][:1] for connection in connections} == {"t"}
        yield connections


@pytest.fixture
def heard(pair: list[socket.socket], monkeypatch: pytest.MonkeyPatch) -> Heard:
    """What is heard of the pair from now on."""
    found = Heard()
    monkeypatch.setattr("queue_core.server.protocol.os.read", found.read)
    return found


@contextmanager
def _held(server: RunningServer) -> Iterator[None]:
    """The server's loop stands still: what is sent meanwhile is all there when it goes on."""
    http = server.thread._server._http
    assert http is not None
    holds, goes_on = threading.Event(), threading.Event()

    def hold() -> None:
        holds.set()
        goes_on.wait(10)

    http._loop.call_soon_threadsafe(hold)
    assert holds.wait(10)
    try:
        yield
    finally:
        goes_on.set()


def _send(server: RunningServer, connections: list[socket.socket], requests: list[bytes]) -> None:
    with _held(server):
        for connection, whole in zip(connections, requests, strict=True):
            connection.sendall(whole)


def _leases(connection: socket.socket) -> list[dict[str, object]]:
    reply = read_reply(connection)
    assert reply.status == 200
    found: list[dict[str, object]] = json.loads(reply.body)["leases"]
    return found


def _names(connection: socket.socket) -> list[str]:
    return [str(lease["name"]) for lease in _leases(connection)]


def _transactions(server: RunningServer) -> int:
    assert isinstance(server.store, Counted)
    return server.store.transactions


def _connections(server: RunningServer) -> list[HotProtocol]:
    http = server.thread._server._http
    assert http is not None
    return [one for one in http.server_state.connections if isinstance(one, HotProtocol)]


def test_the_second_is_heard_and_both_share_a_transaction(
    server: RunningServer, pair: list[socket.socket], heard: Heard
) -> None:
    for _ in range(3):
        with _held(server):
            heard.data.clear()
            before = _transactions(server)
            for connection in pair:
                connection.sendall(ONE)
        leases = [lease for connection in pair for lease in _leases(connection)]
        assert len({str(lease["name"]) for lease in leases}) == 2
        assert _transactions(server) == before + 1
        assert heard.data[0] == ONE, "of two who are there, one is read, and who came first is not looked for"


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(request("POST", LEASE, b'{"count":2}'), id="another body"),
        pytest.param(request("POST", LEASE, b'{"count": 2}'), id="another size"),
        pytest.param(request("POST", LEASE, b'{"count":2}' + b" " * 2 * MAX_HEARD_BYTES), id="a long one"),
    ],
)
def test_another_request_is_answered_for_itself(
    server: RunningServer, pair: list[socket.socket], heard: Heard, other: bytes
) -> None:
    for _ in range(3):
        _send(server, pair, [other, other])
        assert [len(_names(connection)) for connection in pair] == [2, 2]
    _send(server, pair, [ONE, ONE])
    assert [len(_names(connection)) for connection in pair] == [1, 1]
    assert any(heard.data), "one of them was read without the loop"


def test_a_request_of_another_size_is_known_the_next_time(
    server: RunningServer, pair: list[socket.socket], heard: Heard
) -> None:
    other = request("POST", LEASE, b'{"count": 2}')
    for _ in range(4):
        heard.data.clear()
        before = _transactions(server)
        _send(server, pair, [other, other])
        assert [len(_names(connection)) for connection in pair] == [2, 2]
    assert other in heard.data
    assert _transactions(server) == before + 1


@pytest.mark.parametrize("server", [1], indirect=True)
def test_with_one_processor_nobody_is_looked_for(
    server: RunningServer, pair: list[socket.socket], heard: Heard
) -> None:
    for _ in range(3):
        _send(server, pair, [ONE, ONE])
        assert [len(_names(connection)) for connection in pair] == [1, 1]
    assert heard.data == []


def test_a_verb_that_looks_is_left_to_the_loop(server: RunningServer, pair: list[socket.socket], heard: Heard) -> None:
    stats = request("GET", f"/v1/queues/{QUEUE}/stats")
    _send(server, pair, [stats, stats])
    replies = [read_reply(connection).json() for connection in pair]
    _send(server, pair, [ONE, stats])
    assert len(_names(pair[0])) == 1
    assert read_reply(pair[1]).status == 200
    assert [reply["ready"] for reply in replies] == [32, 32]
    assert set(heard.data) <= {ONE, stats, b""}


def test_two_requests_at_once_are_answered_in_order(
    server: RunningServer, pair: list[socket.socket], heard: Heard
) -> None:
    _send(server, pair, [ONE + ONE, ONE + ONE])
    for connection in pair:
        data = b""
        while data.count(b'"name":"t') < 2:
            data += connection.recv(65536)
        first, second = (data.index(b'"name":"t', at) for at in (0, data.index(b'"name":"t') + 1))
        assert data[first : first + 12] < data[second : second + 12]
    _send(server, pair, [ONE, ONE])
    assert [len(_names(connection)) for connection in pair] == [1, 1]


def test_half_a_request_waits_for_its_other_half(
    server: RunningServer, pair: list[socket.socket], heard: Heard
) -> None:
    _send(server, pair, [ONE[:-5], ONE[:-5]])
    _send(server, pair, [ONE[-5:], ONE[-5:]])
    assert [len(_names(connection)) for connection in pair] == [1, 1]
    _send(server, pair, [ONE, ONE[:-5]])
    assert len(_names(pair[0])) == 1
    pair[1].sendall(ONE[-5:])
    assert len(_names(pair[1])) == 1


def test_a_bad_request_is_refused_beside_a_good_one(
    server: RunningServer, pair: list[socket.socket], heard: Heard
) -> None:
    bad = ONE[: -len(b'{"count":1}')] + b'{"count":x}'
    for requests in ([ONE, bad], [bad, ONE]):
        _send(server, pair, requests)
        replies = [read_reply(connection).status for connection in pair]
        assert sorted(replies) == [200, 400]
        assert replies[requests.index(bad)] == 400


@pytest.mark.parametrize("how", ["closed", "reset"])
def test_a_caller_that_hangs_up_takes_nobody_with_it(
    server: RunningServer, pair: list[socket.socket], how: str
) -> None:
    kept, gone = pair
    with _held(server):
        kept.sendall(ONE)
        if how == "reset":
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        gone.close()
    assert len(_names(kept)) == 1
    eventually(lambda: len(_connections(server)) == 1)
    kept.sendall(ONE)
    assert len(_names(kept)) == 1


def test_who_is_gone_is_not_looked_for(server: RunningServer, pair: list[socket.socket]) -> None:
    eventually(lambda: len(server.thread.core.returning) == 2)
    pair[1].close()
    eventually(lambda: len(server.thread.core.returning) == 1)


def test_what_a_caller_says_before_it_hangs_up_counts(server: RunningServer, pair: list[socket.socket]) -> None:
    kept, gone = pair
    with _held(server):
        kept.sendall(ONE)
        gone.sendall(request("POST", f"/v1/queues/{QUEUE}/add", b'{"tasks":[{"name":"last"}]}'))
        gone.close()
    assert len(_names(kept)) == 1
    with closing(server.queue()) as queue:
        eventually(lambda: queue.peek(names=["last"]).tasks)


def test_a_connection_that_is_being_closed_is_not_heard(server: RunningServer, pair: list[socket.socket]) -> None:
    http = server.thread._server._http
    assert http is not None
    closed = threading.Event()
    with closing(server.queue()) as queue:
        before = queue.stats().leased_total
        with _held(server):
            for connection in pair:
                connection.sendall(ONE)

            def close() -> None:
                for protocol in _connections(server):
                    protocol.transport.close()
                    protocol.hear()
                closed.set()

            http._loop.call_soon_threadsafe(close)
        assert closed.wait(10)
        assert queue.stats().leased_total == before

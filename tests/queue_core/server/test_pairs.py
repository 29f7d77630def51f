"""Two connections whose requests are there at the same time are each answered as if they were alone."""

import json
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager

import pytest

from queue_core.clock import Instant
from queue_core.server.http.fast_protocol import FastProtocol
from queue_core.store import Transaction, Unit
from queue_core.stores.memory.store import MemoryStore
from queue_core.task import NewTask
from queue_core.verbs import Granted, LeaseRequest
from tests.support.eventually import eventually
from tests.support.servers import QUEUE, RunningServer, a_server, read_reply, request

LEASE = f"/v1/queues/{QUEUE}/lease"
ONE = request("POST", LEASE, b'{"count":1}')
LONG = 128 << 10


class Counted(MemoryStore):
    """Counts the transactions that lease."""

    transactions = 0
    has_leased = True

    def begin(self, unit: Unit = "transaction") -> AbstractContextManager[Transaction]:
        self.has_leased = False
        return super().begin(unit)

    def lease(self, queue: str, request: LeaseRequest, *, now: Instant) -> Granted:
        self.transactions += not self.has_leased
        self.has_leased = True
        return super().lease(queue, request, now=now)


@pytest.fixture
def server() -> Iterator[RunningServer]:
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


def _connections(server: RunningServer) -> list[FastProtocol]:
    http = server.thread._server._http
    assert http is not None
    return [one for one in http.server_state.connections if isinstance(one, FastProtocol)]


def test_callers_who_come_back_together_share_a_transaction(server: RunningServer, pair: list[socket.socket]) -> None:
    for _ in range(3):
        before = _transactions(server)
        _send(server, pair, [ONE, ONE])
        assert len({_names(connection)[0] for connection in pair}) == 2
        assert _transactions(server) == before + 1


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(request("POST", LEASE, b'{"count":2}'), id="another body"),
        pytest.param(request("POST", LEASE, b'{"count": 2}'), id="another size"),
        pytest.param(request("POST", LEASE, b'{"count":2}' + b" " * LONG), id="a long one"),
    ],
)
def test_another_request_is_answered_for_itself(server: RunningServer, pair: list[socket.socket], other: bytes) -> None:
    for _ in range(3):
        _send(server, pair, [other, other])
        assert [len(_names(connection)) for connection in pair] == [2, 2]
    _send(server, pair, [ONE, ONE])
    assert [len(_names(connection)) for connection in pair] == [1, 1]


def test_a_verb_that_looks_is_answered_beside_one_that_changes(
    server: RunningServer, pair: list[socket.socket]
) -> None:
    stats = request("GET", f"/v1/queues/{QUEUE}/stats")
    _send(server, pair, [stats, stats])
    replies = [read_reply(connection).json() for connection in pair]
    _send(server, pair, [ONE, stats])
    assert len(_names(pair[0])) == 1
    assert read_reply(pair[1]).status == 200
    assert [reply["ready"] for reply in replies] == [32, 32]


def test_two_requests_at_once_are_answered_in_order(server: RunningServer, pair: list[socket.socket]) -> None:
    _send(server, pair, [ONE + ONE, ONE + ONE])
    for connection in pair:
        data = b""
        while data.count(b'"name":"t') < 2:
            data += connection.recv(65536)
        first, second = (data.index(b'"name":"t', at) for at in (0, data.index(b'"name":"t') + 1))
        assert data[first : first + 12] < data[second : second + 12]
    _send(server, pair, [ONE, ONE])
    assert [len(_names(connection)) for connection in pair] == [1, 1]


def test_half_a_request_waits_for_its_other_half(server: RunningServer, pair: list[socket.socket]) -> None:
    _send(server, pair, [ONE[:-5], ONE[:-5]])
    _send(server, pair, [ONE[-5:], ONE[-5:]])
    assert [len(_names(connection)) for connection in pair] == [1, 1]
    _send(server, pair, [ONE, ONE[:-5]])
    assert len(_names(pair[0])) == 1
    pair[1].sendall(ONE[-5:])
    assert len(_names(pair[1])) == 1


def test_a_bad_request_is_refused_beside_a_good_one(server: RunningServer, pair: list[socket.socket]) -> None:
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


def test_what_a_caller_says_before_it_hangs_up_counts(server: RunningServer, pair: list[socket.socket]) -> None:
    kept, gone = pair
    with _held(server):
        kept.sendall(ONE)
        gone.sendall(request("POST", f"/v1/queues/{QUEUE}/add", b'{"tasks":[{"name":"last"}]}'))
        gone.close()
    assert len(_names(kept)) == 1
    with closing(server.queue()) as queue:
        eventually(lambda: queue.peek(names=["last"]).tasks)

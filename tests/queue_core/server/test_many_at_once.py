"""Thousands of requests or chunks in one segment are parsed a few a turn of the loop, and all are answered in order."""

import asyncio
import socket
import threading
from collections.abc import Iterator

import pytest

from queue_core.server.base.options import AccessToken, ServeOptions
from queue_core.server.http.http_connection import HttpConnection
from queue_core.server.http.reading import PIECE_BYTES, READ_BYTES, TURN_REQUESTS, WAITING_REQUESTS
from queue_core.verbs.roles import Role
from tests.support.eventually import eventually
from tests.support.servers import QUEUE, Reply, RunningServer, a_server, read_reply, request

SMALLEST = b"GET / HTTP/1.1\r\nhost:localhost\r\n\r\n"
SMALLEST_ADD = f"POST /v1/queues/{QUEUE}/add HTTP/1.1\r\nhost:localhost\r\ncontent-length:0\r\n\r\n".encode()
SMALLEST_UPGRADE = b"GET / HTTP/1.1\r\nhost:localhost\r\nconnection:upgrade\r\nupgrade:h2c\r\n\r\n"
IN_A_PIECE = PIECE_BYTES // 16
SHORT = pytest.mark.parametrize(
    "short", [SMALLEST, SMALLEST_ADD, SMALLEST_UPGRADE], ids=["a page", "the fast path", "an upgrade"]
)
WAITING_LEASE = request("POST", f"/v1/queues/{QUEUE}/lease", b'{"wait_seconds":30}')
TASK = b'{"tasks":[{"text":"x"}]}'


@pytest.fixture
def guarded() -> Iterator[RunningServer]:
    """A server at which all these requests are a stranger's."""
    with a_server(options=ServeOptions(tokens=(AccessToken(Role.ADMIN, "secret-of-an-admin"),))) as running:
        yield running


def one_turn(connection: HttpConnection, data: bytes) -> tuple[int, int]:
    """Let all of `data` arrive at once; returns how many requests and bytes of a body one turn took of it."""
    found: list[tuple[int, int]] = []
    done = threading.Event()

    def arrive() -> None:
        connection.data_received(data)
        answered = connection.server_state.total_requests
        under_way = 0 if connection.cycle is None or connection.cycle.response_complete else 1
        found.append((answered + under_way + len(connection.pipeline), connection.body_bytes))
        done.set()

    connection.loop.call_soon_threadsafe(arrive)
    assert done.wait(10)
    return found[0]


def opened(server: RunningServer) -> tuple[socket.socket, HttpConnection]:
    client = server.connect()
    (connection,) = eventually(server.connections)
    return client, connection


@SHORT
def test_one_turn_begins_few_requests_of_a_segment(guarded: RunningServer, short: bytes) -> None:
    client, connection = opened(guarded)
    with client:
        begun, _ = one_turn(connection, short * 20_000)
        assert TURN_REQUESTS // 2 <= begun <= TURN_REQUESTS + IN_A_PIECE


@pytest.mark.parametrize("number", [1, 5_000])
@SHORT
def test_few_requests_wait_for_the_answer_to_an_earlier_one(server: RunningServer, short: bytes, number: int) -> None:
    client, connection = opened(server)
    with client:
        client.sendall(WAITING_LEASE)
        eventually(lambda: server.waiting() == 1)
        writer = threading.Thread(target=client.sendall, args=(short * number,))
        writer.start()
        eventually(lambda: len(connection.pipeline) >= min(number, WAITING_REQUESTS))
        settled = asyncio.run_coroutine_threadsafe(asyncio.sleep(0), connection.loop)
        settled.result(10)
        assert len(connection.pipeline) <= WAITING_REQUESTS + IN_A_PIECE
        assert len(connection.rest) <= READ_BYTES
        server.ask("POST", f"/v1/queues/{QUEUE}/add", TASK)
        answers = Answers(client)
        assert len(answers.next().json()["leases"]) == 1  # type: ignore[arg-type]
        first = answers.next().status
        assert all(answers.next().status == first for _ in range(number - 1))
        writer.join(10)
        assert not connection.pipeline


def test_a_segment_of_thousands_of_chunks_is_parsed_in_parts(server: RunningServer) -> None:
    kinds = [("content-type", "application/json"), ("transfer-encoding", "chunked")]
    head = request("POST", f"/v1/queues/{QUEUE}/add", headers=kinds)
    client, connection = opened(server)
    with client:
        body = b'{"tasks":[{"text":"' + b"x" * 100_000 + b'"}]}'
        chunks = b"".join(b"1\r\n%c\r\n" % one for one in body)
        _, parsed = one_turn(connection, head + chunks + b"0\r\n\r\n")
        assert 0 < parsed <= READ_BYTES
        assert read_reply(client).status == 200
    assert server.ask("POST", f"/v1/queues/{QUEUE}/lease", b"{}").json()["leases"]


def test_a_large_body_and_what_follows_it_are_read_whole(server: RunningServer) -> None:
    client, connection = opened(server)
    with client:
        body = b'{"tasks":[{"text":"' + b"x" * 300_000 + b'"}]}'
        add = request("POST", f"/v1/queues/{QUEUE}/add", body)
        one_turn(connection, add + SMALLEST + add)
        answers = Answers(client)
        assert [answers.next().status for _ in range(3)] == [200, 404, 200]


def test_what_is_kept_is_dropped_when_a_request_ends_the_connection(server: RunningServer) -> None:
    client, connection = opened(server)
    with client:
        one_turn(connection, SMALLEST * 3 + b"nonsense\r\n\r\n" + SMALLEST * 20_000)
        eventually(lambda: connection.is_ending or connection.transport.is_closing())
        assert not connection.rest


class Answers:
    """The answers on a connection, one after the other."""

    def __init__(self, client: socket.socket) -> None:
        self._client = client
        self._data = b""

    def next(self) -> Reply:
        """Read the next one."""
        while b"\r\n\r\n" not in self._data:
            self._read()
        head, _, self._data = self._data.partition(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        while len(self._data) < size:
            self._read()
        body, self._data = self._data[:size], self._data[size:]
        return Reply(int(head.split(b" ")[1]), {}, body)

    def _read(self) -> None:
        data = self._client.recv(65_536)
        assert data, "closed before its answer was complete"
        self._data += data

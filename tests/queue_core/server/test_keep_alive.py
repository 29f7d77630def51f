"""A connection is closed when its time is up; one that is at work, or waits for work, never is."""

import socket

import pytest

from queue_core.client.http.transport import MAX_IDLE_SECONDS
from queue_core.process.descriptors import max_connections_for
from queue_core.server.http import connections as bounds
from tests.support.eventually import eventually
from tests.support.servers import QUEUE, RunningServer, read_reply, request

ADD = f"/v1/queues/{QUEUE}/add"
LEASE = f"/v1/queues/{QUEUE}/lease"
RELEASE = f"/v1/queues/{QUEUE}/release"
TASK = b'{"tasks":[{"text":"x"}]}'


def _answered(connection: socket.socket, body: bytes = b"{}") -> int:
    connection.sendall(request("POST", LEASE, body))
    return read_reply(connection).status


def test_an_idle_connection_is_closed(server: RunningServer) -> None:
    with server.connect() as connection:
        assert _answered(connection) == 200
        server.let_pass(bounds.IDLE_SECONDS - 10)
        assert _answered(connection) == 200
        server.let_pass(bounds.IDLE_SECONDS + 1)
        assert connection.recv(1) == b""


def test_clients_let_go_of_a_connection_before_the_server_does() -> None:
    assert MAX_IDLE_SECONDS < bounds.IDLE_SECONDS - bounds.BODY_WINDOW_SECONDS


def test_a_connection_that_says_nothing_is_closed(server: RunningServer) -> None:
    with server.connect() as connection:
        eventually(server.connections)
        server.let_pass(bounds.HEAD_SECONDS + 1)
        assert connection.recv(1) == b""


def test_a_connection_that_waits_for_work_is_not_idle(server: RunningServer) -> None:
    with server.connect() as connection:
        assert _answered(connection) == 200
        connection.sendall(request("POST", LEASE, b'{"wait_seconds":30}'))
        eventually(lambda: server.waiting() == 1)
        server.let_pass(1000)
        assert server.waiting() == 1
        server.ask("POST", ADD, TASK)
        assert len(read_reply(connection).json()["leases"]) == 1  # type: ignore[arg-type]


def test_a_stream_of_events_is_not_idle(server: RunningServer) -> None:
    with server.connect() as connection:
        connection.sendall(request("GET", "/v1/events?follow=true"))
        assert b": towline" in _until(connection, b": towline")
        server.let_pass(1000)
        server.ask("POST", ADD, TASK)
        assert b"task.added" in _until(connection, b"task.added")


@pytest.mark.parametrize("before", [0, 1], ids=["a new connection", "a kept one"])
def test_half_a_head_is_not_waited_for_long(server: RunningServer, before: int) -> None:
    with server.connect() as connection:
        for _ in range(before):
            assert _answered(connection) == 200
        connection.sendall(request("POST", LEASE, headers=[("host", "localhost"), ("x", "y")])[: -len("\r\n\r\n")])
        eventually(lambda: any(one.is_in_head for one in server.connections()))
        server.let_pass(bounds.HEAD_SECONDS - 3)
        connection.sendall(b"x")  # a byte now and then is no excuse
        server.let_pass(4)
        assert read_reply(connection).status == 408
        assert connection.recv(1) == b""


@pytest.mark.parametrize("path", [LEASE, RELEASE], ids=["short way", "application"])
def test_half_a_body_is_not_waited_for_long(server: RunningServer, path: str) -> None:
    whole = request("POST", path, b'{"tokens":[]}')
    with server.connect() as connection:
        connection.sendall(whole[:-1])
        eventually(lambda: any(one.is_begun for one in server.connections()))
        server.let_pass(bounds.BODY_WINDOW_SECONDS)
        assert read_reply(connection).status == 408
        assert connection.recv(1) == b""


@pytest.mark.parametrize("path", [ADD, RELEASE], ids=["short way", "application"])
def test_a_body_that_comes_slowly_but_steadily_is_waited_for(server: RunningServer, path: str) -> None:
    window_bytes = bounds.BODY_WINDOW_SECONDS * bounds.MIN_BODY_RATE
    body = b'{"tokens":[],"tasks":[]' + b" " * 5 * window_bytes + b"}"
    whole = request("POST", path, body)
    head_bytes = len(whole) - len(body)
    with server.connect() as connection:
        connection.sendall(whole[:head_bytes])
        eventually(lambda: any(one.is_begun for one in server.connections()))
        for at in range(head_bytes, len(whole) - window_bytes, window_bytes):
            connection.sendall(whole[at : at + window_bytes])
            eventually(lambda: any(one.window_bytes >= window_bytes for one in server.connections()))
            server.let_pass(bounds.BODY_WINDOW_SECONDS)
        connection.sendall(whole[at + window_bytes :])
        assert read_reply(connection).status == 422  # it was read whole: each verb lacks the other's member


def test_an_answer_that_nobody_reads_is_not_kept_for_ever(server: RunningServer) -> None:
    with server.connect() as connection:
        connection.sendall(request("GET", "/v1/events?follow=true"))
        _until(connection, b": towline")
        (one,) = server.connections()
        one.loop.call_soon_threadsafe(one.transport.write, b":" * (32 << 20))
        one.loop.call_soon_threadsafe(one.transport.close)
        eventually(one.transport.is_closing)
        eventually(lambda: server.let_pass(bounds.LINGER_SECONDS + 2) is None)
        eventually(lambda: not server.connections())


def test_a_connection_over_the_limit_is_told_so(server: RunningServer) -> None:
    with server.connect() as first, server.connect() as second:
        for caller in (first, second):  # they are at work: one that is idle would make room
            caller.sendall(request("POST", LEASE, b'{"wait_seconds":30}'))
        eventually(lambda: server.waiting() == 2)
        shared = server.connections()[0].shared
        shared.most = 2
        with server.connect() as third:
            third.sendall(request("GET", "/livez"))
            reply = read_reply(third)
            assert (reply.status, reply.headers["retry-after"]) == (503, "1")
            assert third.recv(1) == b""
        second.close()
        eventually(lambda: len(server.connections()) == 1)
        assert server.ask("GET", "/livez").status == 200


@pytest.mark.parametrize(
    ("files", "most"), [(20, 16), (256, 192), (1024, 768), (1 << 20, 50_000)], ids=["few", "macOS", "Linux", "systemd"]
)
def test_there_is_room_left_for_files(files: int, most: int) -> None:
    assert max_connections_for(files) == most


def _until(connection: socket.socket, text: bytes) -> bytes:
    data = b""
    while text not in data:
        data += connection.recv(65536)
    return data

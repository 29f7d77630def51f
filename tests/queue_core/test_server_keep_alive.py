"""An idle connection is closed when its time is up; one that is at work, or waits for work, never is."""

import socket

from queue_core.server.protocol import HotProtocol
from tests.support.eventually import eventually
from tests.support.servers import QUEUE, RunningServer, read_reply, request

LEASE = f"/v1/queues/{QUEUE}/lease"
SHORT_SECONDS, LONG_SECONDS = 0, 600


def _protocol(server: RunningServer) -> HotProtocol:
    """The server's end of its only connection."""
    running = server.thread._server._http
    assert running is not None
    (protocol,) = running.server_state.connections
    assert isinstance(protocol, HotProtocol)
    return protocol


def _time_is_up(protocol: HotProtocol, *, keep_alive_seconds: int) -> None:
    """Have the server look at the connection, as its timer would."""

    def look() -> None:
        protocol.timeout_keep_alive = keep_alive_seconds
        protocol.timeout_keep_alive_handler()
        protocol.timeout_keep_alive = LONG_SECONDS

    protocol.loop.call_soon_threadsafe(look)


def _answered(connection: socket.socket, body: bytes = b"{}") -> int:
    connection.sendall(request("POST", LEASE, body))
    return read_reply(connection).status


def test_an_idle_connection_is_closed(server: RunningServer) -> None:
    with server.connect() as connection:
        assert _answered(connection) == 200
        _time_is_up(_protocol(server), keep_alive_seconds=SHORT_SECONDS)
        assert connection.recv(1) == b""


def test_a_connection_that_was_used_since_is_looked_at_again_later(server: RunningServer) -> None:
    with server.connect() as connection:
        assert _answered(connection) == 200
        protocol = _protocol(server)
        first = eventually(lambda: protocol.timeout_keep_alive_task)
        assert _answered(connection) == 200
        assert protocol.timeout_keep_alive_task is first
        _time_is_up(protocol, keep_alive_seconds=LONG_SECONDS)
        eventually(lambda: protocol.timeout_keep_alive_task is not first)
        assert _answered(connection) == 200


def test_a_connection_that_waits_for_work_is_not_idle(server: RunningServer) -> None:
    with server.connect() as connection:
        assert _answered(connection) == 200
        protocol = _protocol(server)
        connection.sendall(request("POST", LEASE, b'{"wait_seconds":30}'))
        eventually(lambda: server.waiting() == 1)
        first = eventually(lambda: protocol.timeout_keep_alive_task)
        _time_is_up(protocol, keep_alive_seconds=SHORT_SECONDS)
        eventually(lambda: protocol.timeout_keep_alive_task is not first)
        assert server.waiting() == 1


def test_a_connection_that_has_sent_half_a_request_is_not_idle(server: RunningServer) -> None:
    whole = request("POST", LEASE, b"{}")
    with server.connect() as connection:
        assert _answered(connection) == 200
        protocol = _protocol(server)
        connection.sendall(whole[:30])
        eventually(lambda: not protocol.is_between)
        first = eventually(lambda: protocol.timeout_keep_alive_task)
        _time_is_up(protocol, keep_alive_seconds=SHORT_SECONDS)
        eventually(lambda: protocol.timeout_keep_alive_task is not first)
        connection.sendall(whole[30:])
        assert read_reply(connection).status == 200

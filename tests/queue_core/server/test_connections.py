"""The server's connections and addresses: requests in pieces and ahead of time, ports and sockets in use."""

import gc
import json
import socket
import threading
from contextlib import closing
from pathlib import Path

import pytest

from queue_core.errors import (
    ListenError,
)
from queue_core.server import server
from queue_core.server.base.options import ServeOptions, options_of
from queue_core.server.server import QueueServer, ServerThread
from queue_core.stores.memory.store import MemoryStore
from tests.support.servers import QUEUE, RunningServer, read_reply, request

ADD = f"/v1/queues/{QUEUE}/add"
TASK = b'{"tasks":[{"text":"x"}]}'


def test_requests_sent_ahead_are_answered_in_their_order(server: RunningServer) -> None:
    names = [f"ahead-{number}" for number in range(5)]
    with server.connect() as connection:
        bodies = [json.dumps({"tasks": [{"name": name}]}).encode() for name in names]
        connection.sendall(b"".join(request("POST", ADD, body) for body in bodies) + request("GET", "/livez"))
        data = b""
        while b'"status":"ok"' not in data:
            data += connection.recv(65536)
    assert [data.index(name.encode()) for name in names] == sorted(data.index(name.encode()) for name in names)


def test_a_body_in_pieces_is_put_together(server: RunningServer) -> None:
    whole = request("POST", ADD, TASK)
    with server.connect() as connection:
        for at in range(0, len(whole), 40):
            connection.sendall(whole[at : at + 40])
        assert read_reply(connection).status == 200


def test_a_client_may_ask_whether_to_go_on(server: RunningServer) -> None:
    headers = [("content-type", "application/json"), ("expect", "100-continue")]
    whole = request("POST", ADD, TASK, headers=headers)
    with server.connect() as connection:
        connection.sendall(whole[: -len(TASK)])
        assert connection.recv(1000).startswith(b"HTTP/1.1 100")
        connection.sendall(TASK)
        assert read_reply(connection).status == 200


def test_a_connection_that_is_to_close_is_closed(server: RunningServer) -> None:
    headers = [("content-type", "application/json"), ("connection", "close")]
    with server.connect() as connection:
        connection.sendall(request("POST", ADD, TASK, headers=headers))
        assert read_reply(connection).headers["connection"] == "close"
        assert connection.recv(1) == b""


@pytest.mark.parametrize(
    ("line", "repeat"),
    [
        pytest.param(b"x: " + b"y" * 4096 + b"\r\n", b"", id="many headers"),
        pytest.param(b"x: y", b"y" * 4096, id="one header"),
        pytest.param(b"", b"x" * 4096, id="the name of one"),
    ],
)
def test_a_head_without_end_is_refused(server: RunningServer, line: bytes, repeat: bytes) -> None:
    with server.connect() as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n" + line)
        for _ in range(100):
            connection.sendall(repeat or line)
        assert read_reply(connection).status == 431
        assert connection.recv(1) == b""


def test_a_path_without_end_is_refused(server: RunningServer) -> None:
    with server.connect() as connection:
        connection.sendall(b"GET /" + b"x" * (300 << 10))
        assert read_reply(connection).status == 431


def test_a_long_head_that_comes_at_once_is_refused(server: RunningServer) -> None:
    headers = [("x", "y" * 30_000), ("z", "y" * 40_000)]
    assert server.ask("GET", "/livez", headers=headers).status == 431


def test_trailers_without_end_are_refused(server: RunningServer) -> None:
    head = request("POST", ADD, headers=[("content-type", "application/json"), ("transfer-encoding", "chunked")])
    with server.connect() as connection:
        connection.sendall(head + b"1\r\n{\r\n0\r\nx: " + b"y" * (300 << 10))
        assert read_reply(connection).status == 431


@pytest.mark.parametrize(
    ("version", "hosts", "status"),
    [("1.1", 0, 400), ("1.1", 1, 200), ("1.1", 2, 400), ("1.0", 1, 200), ("1.0", 2, 400)],
)
@pytest.mark.parametrize("path", ["/livez", f"/v1/queues/{QUEUE}/lease"])
def test_a_request_has_one_host(server: RunningServer, version: str, hosts: int, status: int, path: str) -> None:
    lines = [f"{'GET' if path == '/livez' else 'POST'} {path} HTTP/{version}"]
    lines += ["host: localhost"] * hosts + ["content-type: application/json", "content-length: 2"]
    with server.connect() as connection:
        connection.sendall("\r\n".join([*lines, "", "{}"]).encode())
        assert read_reply(connection).status == status


def test_what_is_not_http_is_refused(server: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
    with server.connect() as connection:
        connection.sendall(b"what is this\r\n\r\n")
        assert read_reply(connection).status == 400


def test_an_answer_in_two_segments_is_not_held_back(server: RunningServer) -> None:
    with server.connect() as connection:
        connection.sendall(request("GET", "/livez"))
        read_reply(connection)
        running = server.thread._server._http
        assert running is not None
        sockets = [one.transport.get_extra_info("socket") for one in running.server_state.connections]
        assert sockets
        assert all(one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for one in sockets)


# -- listening --------------------------------------------------------------------------------------------------------


def test_a_port_in_use_is_an_error_that_says_so(server: RunningServer) -> None:
    with pytest.raises(ListenError, match="already in use"):
        QueueServer(MemoryStore(), ServeOptions(port=server.port))


def test_a_unix_socket_is_the_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "towline.sock"
    thread = ServerThread(MemoryStore(), options_of(f"unix:{path}"))
    assert thread.start() == f"unix://{path}"
    try:
        assert path.stat().st_mode & 0o777 == 0o600
        with pytest.raises(ListenError):
            QueueServer(MemoryStore(), options_of(f"unix:{path}"))
    finally:
        thread.stop()
    assert not path.exists()


def test_a_socket_left_by_a_killed_server_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "towline.sock"
    abandoned = QueueServer(MemoryStore(), options_of(f"unix:{path}"))
    abandoned._listening.close()
    thread = ServerThread(MemoryStore(), options_of(f"unix:{path}"))
    thread.start()
    thread.stop()


def test_a_stop_does_not_wait_for_the_next_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "TICK_SECONDS", 3_600.0)
    thread = ServerThread(MemoryStore(), ServeOptions(port=0))
    thread.start()
    stopping = threading.Thread(target=thread.stop, daemon=True)
    stopping.start()
    stopping.join(timeout=60.0)
    assert not stopping.is_alive()


def test_who_connects_as_the_server_stops_is_not_left_with_an_open_socket(tmp_path: Path) -> None:
    for _ in range(20):
        path = tmp_path / "towline.sock"
        thread = ServerThread(MemoryStore(), options_of(f"unix:{path}"))
        thread.start()
        with closing(socket.socket(socket.AF_UNIX)) as caller:
            caller.connect(str(path))
            thread.stop()
            caller.settimeout(60.0)
            assert caller.recv(1) == b""
    gc.collect()  # a socket that was dropped, not closed, warns, and a warning fails a test

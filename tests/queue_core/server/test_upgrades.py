"""A request that asks for another protocol is served as HTTP/1.1, with its body, and nothing in it is a request."""

import json
import socket

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.servers import QUEUE, Reply, RunningServer, read_reply, request

ADD = f"/v1/queues/{QUEUE}/add"
PEEK = f"/v1/queues/{QUEUE}/peek"
TASK = b'{"tasks":[{"text":"x"}]}'
JSON = ("content-type", "application/json")
H2C = (("connection", "Upgrade, HTTP2-Settings"), ("upgrade", "h2c"), ("http2-settings", "AAMAAABkAARAAAAAAAIAAAAA"))
WEBSOCKET = (("connection", "keep-alive, Upgrade"), ("upgrade", "websocket"), ("sec-websocket-version", "13"))
UPGRADES = [pytest.param(H2C, id="h2c"), pytest.param(WEBSOCKET, id="websocket")]
Headers = tuple[tuple[str, str], ...]


def _ready(server: RunningServer) -> int:
    return int(str(server.ask("GET", f"/v1/queues/{QUEUE}/stats").json()["ready"]))


@pytest.mark.parametrize("upgrade", UPGRADES)
@pytest.mark.parametrize("pieces", [1, 2, 1000], ids=["at once", "head and body", "byte by byte"])
@pytest.mark.parametrize("path", [ADD, PEEK], ids=["short way", "application"])
def test_a_request_is_served_with_its_body(server: RunningServer, upgrade: Headers, pieces: int, path: str) -> None:
    body = TASK if path == ADD else b'{"limit":1}'
    whole = request("POST", path, body, headers=(JSON, *upgrade))
    with server.connect() as connection:
        if pieces == 1:
            connection.sendall(whole)
        elif pieces == 2:
            connection.sendall(whole[: -len(body)])
            connection.sendall(body)
        else:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for at in range(len(whole)):
                connection.sendall(whole[at : at + 1])
        reply = read_reply(connection)
        assert reply.status == 200
        assert "upgrade" not in reply.headers
        connection.sendall(request("GET", "/livez"))  # the connection goes on
        assert read_reply(connection).json()["status"] == "ok"
    assert _ready(server) == (1 if path == ADD else 0)


@pytest.mark.parametrize("upgrade", UPGRADES)
def test_a_body_is_never_a_request_of_its_own(server: RunningServer, upgrade: Headers) -> None:
    inner = request("DELETE", f"/v1/queues/{QUEUE}")
    with server.connect() as connection:
        connection.sendall(request("POST", ADD, inner, headers=(JSON, *upgrade)) + request("GET", "/livez"))
        replies = _replies(connection, 2)
    assert [reply.status for reply in replies] == [400, 200]
    assert replies[1].json()["status"] == "ok"
    assert _ready(server) == 0  # the queue is still there


@pytest.mark.parametrize("upgrade", UPGRADES)
def test_a_body_in_chunks_is_read(server: RunningServer, upgrade: Headers) -> None:
    head = request("POST", ADD, headers=(JSON, ("transfer-encoding", "chunked"), *upgrade))
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in TASK) + b"0\r\n\r\n"
    with server.connect() as connection:
        connection.sendall(head + chunks + request("GET", "/livez"))
        assert [reply.status for reply in _replies(connection, 2)] == [200, 200]
    assert _ready(server) == 1


def test_requests_behind_it_are_served_in_their_order(server: RunningServer) -> None:
    whole = b"".join(
        request("POST", ADD, json.dumps({"tasks": [{"name": f"n{number}"}]}).encode(), headers=(JSON, *H2C))
        for number in range(5)
    )
    with server.connect() as connection:
        connection.sendall(whole)
        added = [reply.json()["added"] for reply in _replies(connection, 5)]
    assert [one[0]["name"] for one in added] == [f"n{number}" for number in range(5)]  # type: ignore[index]


def test_a_request_without_a_body_is_served(server: RunningServer) -> None:
    assert server.ask("GET", "/livez", headers=WEBSOCKET).status == 200


def test_a_wish_to_close_is_kept(server: RunningServer) -> None:
    headers = (JSON, ("connection", "close, upgrade"), ("upgrade", "h2c"))
    with server.connect() as connection:
        connection.sendall(request("POST", ADD, TASK, headers=headers))
        assert read_reply(connection).headers["connection"] == "close"
        assert connection.recv(1) == b""


def test_a_tunnel_is_refused(server: RunningServer) -> None:
    with server.connect() as connection:
        connection.sendall(b"CONNECT localhost:1 HTTP/1.1\r\nhost: localhost\r\n\r\n" + request("GET", "/livez"))
        assert read_reply(connection).status == 501
        assert connection.recv(1) == b""


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kinds=st.lists(st.sampled_from(["plain", "h2c", "websocket", "chunked"]), min_size=1, max_size=6),
    cuts=st.lists(st.integers(0, 3000), max_size=4),
)
def test_however_it_is_cut_each_request_is_answered_once(
    server: RunningServer, kinds: list[str], cuts: list[int]
) -> None:
    parts: list[bytes] = []
    for number, kind in enumerate(kinds):
        inner = request("GET", f"/inner-{number}")
        upgrade = {"h2c": H2C, "websocket": WEBSOCKET, "chunked": H2C}.get(kind, ())
        if kind == "chunked":
            head = request("POST", f"/outer-{number}", headers=(JSON, ("transfer-encoding", "chunked"), *upgrade))
            parts.append(head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(inner), inner))
        else:
            parts.append(request("POST", f"/outer-{number}", inner, headers=(JSON, *upgrade)))
    whole = b"".join(parts)
    ends = sorted({min(cut, len(whole)) for cut in cuts} | {len(whole)})
    with server.connect() as connection:
        begin = 0
        for end in ends:
            connection.sendall(whole[begin:end])
            begin = end
        told = [str(reply.json()["detail"]) for reply in _replies(connection, len(kinds))]
    assert [f"/outer-{number}:" in text for number, text in enumerate(told)] == [True] * len(kinds)


def _replies(connection: socket.socket, count: int) -> list[Reply]:
    """So many answers, of which several may come at once."""
    replies: list[Reply] = []
    data = b""
    while len(replies) < count:
        head, end, rest = data.partition(b"\r\n\r\n")
        status, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", "0"))
        if end and len(rest) >= length:
            replies.append(Reply(int(status.split(" ")[1]), headers, rest[:length]))
            data = rest[length:]
            continue
        some = connection.recv(65536)
        assert some, "the server closed the connection"
        data += some
    assert data == b""
    return replies

"""A request whose head is byte for byte the one before goes past the parser, and only where that comes to the same."""

import json
import socket
from contextlib import closing

import pytest

from queue_core.server.base.options import AccessToken, ServeOptions
from queue_core.server.http.fast_protocol import MAX_KNOWN_BYTES, FastProtocol
from queue_core.task import NewTask
from queue_core.verbs.roles import Role
from tests.support.servers import QUEUE, RunningServer, a_server, read_reply, request

LEASE = f"/v1/queues/{QUEUE}/lease"
HEADERS = (("content-type", "application/json"),)
ONE, TWO = b'{"count":1}', b'{"count":2}'


def _known(server: RunningServer) -> list[bytes]:
    """The heads that a server's connections know."""
    running = server.thread._server._http
    assert running is not None
    known = [one.known for one in running.server_state.connections if isinstance(one, FastProtocol)]
    return [one[0].head for one in known if one is not None]


def _add(server: RunningServer, *names: str) -> None:
    with closing(server.queue()) as queue:
        queue.add([NewTask(name=name) for name in names])


def _leased(connection: socket.socket, whole: bytes) -> list[str]:
    connection.sendall(whole)
    reply = read_reply(connection)
    assert reply.status == 200
    return [lease["name"] for lease in json.loads(reply.body)["leases"]]


def test_requests_with_one_head_and_other_bodies_are_told_apart(server: RunningServer) -> None:
    _add(server, *(f"t{number}" for number in range(6)))
    with server.connect() as connection:
        counts = [len(_leased(connection, request("POST", LEASE, body))) for body in (ONE, TWO, ONE, TWO)]
        assert _known(server) == [request("POST", LEASE, ONE)[: -len(b"\r\n\r\n" + ONE)]]
    assert counts == [1, 2, 1, 2]


def test_requests_that_differ_in_their_keys_are_told_apart(server: RunningServer) -> None:
    _add(server, *(f"t{number}" for number in range(6)))
    with server.connect() as connection:
        names = []
        for key in ("s/9/0", "s/9/1", "s/10/0", "s/10/1", "t/1/0"):
            head, _, body = request("POST", LEASE, ONE).partition(b"\r\n\r\n")
            names += _leased(connection, head + b"\r\nidempotency-key: %b\r\n\r\n" % key.encode() + body)
        assert len(_known(server)) == 1
        assert _known(server)[0].endswith(b"idempotency-key: ")
    assert names == ["t0", "t0", "t1", "t1", "t2"]


def test_a_request_of_another_size_or_of_another_path_is_parsed(server: RunningServer) -> None:
    _add(server, *(f"t{number}" for number in range(14)))
    with server.connect() as connection:
        assert len(_leased(connection, request("POST", LEASE, ONE))) == 1
        assert len(_leased(connection, request("POST", LEASE, b'{"count":12}'))) == 12
        connection.sendall(request("GET", "/livez"))
        assert read_reply(connection).status == 200
        assert len(_leased(connection, request("POST", LEASE, ONE))) == 1


def test_a_known_head_in_two_pieces_or_with_more_behind_it_is_parsed(server: RunningServer) -> None:
    _add(server, *(f"t{number}" for number in range(6)))
    whole = request("POST", LEASE, ONE)
    with server.connect() as connection:
        assert _leased(connection, whole) == ["t0"]
        connection.sendall(whole[:50])
        connection.sendall(whole[50:])
        assert json.loads(read_reply(connection).body)["leases"][0]["name"] == "t1"
        connection.sendall(whole + whole)
        data = b""
        while data.count(b'"leases":[{') < 2:
            data += connection.recv(65536)
        assert data.index(b'"t2"') < data.index(b'"t3"')


def test_a_body_that_looks_like_a_known_request_stays_a_body(server: RunningServer) -> None:
    """What a client put into a task must never be taken for a request of its own."""
    _add(server, "held")
    whole = request("POST", LEASE, ONE)
    with server.connect() as connection:
        assert _leased(connection, whole) == ["held"]
        _add(server, "safe")
        outer = request("POST", LEASE, whole)
        connection.sendall(outer[: -len(whole)])  # a head that says that so many bytes follow
        connection.sendall(whole)
        assert read_reply(connection).status == 400
    with closing(server.queue()) as queue:
        assert queue.stats().ready == 1


def test_a_body_in_chunks_makes_no_head_known(server: RunningServer) -> None:
    _add(server, "t0")
    head = request("POST", LEASE, headers=[*HEADERS, ("transfer-encoding", "chunked")])
    with server.connect() as connection:
        assert _leased(connection, head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(ONE), ONE)) == ["t0"]
        assert _known(server) == []


@pytest.mark.parametrize(
    ("verb", "headers"),
    [
        pytest.param("add", (("idempotency-key", "s/1/0"), *HEADERS), id="a key before other headers"),
        pytest.param("lease", (*HEADERS, ("x", "y" * MAX_KNOWN_BYTES)), id="a long head is not kept"),
        pytest.param("lease", (*HEADERS, ("connection", "close")), id="nothing follows on a connection that closes"),
    ],
)
def test_a_head_that_is_not_worth_it_is_not_kept(
    server: RunningServer, verb: str, headers: tuple[tuple[str, str], ...]
) -> None:
    body = b'{"tasks":[]}' if verb == "add" else ONE
    with server.connect() as connection:
        connection.sendall(request("POST", f"/v1/queues/{QUEUE}/{verb}", body, headers=headers))
        read_reply(connection)
        assert _known(server) == []


def test_a_head_that_was_refused_is_refused_again() -> None:
    options = ServeOptions(tokens=(AccessToken(Role.PRODUCER, "producer-secret-of-the-test"),))
    headers = (*HEADERS, ("authorization", "Bearer producer-secret-of-the-test"))
    with a_server(options=options) as server, server.connect() as connection:
        for _ in range(3):
            connection.sendall(request("POST", LEASE, ONE, headers=headers))
            assert read_reply(connection).status == 403

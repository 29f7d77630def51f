"""What has arrived of requests that are not answered yet is bounded over all callers, and admins keep room."""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from queue_core.server.base.options import AccessToken, ServeOptions
from queue_core.server.http.in_flight import FREE_BYTES, MIN_BUDGET_BYTES, BytesInFlight, budget_bytes
from queue_core.verbs.roles import Role
from tests.support.eventually import eventually
from tests.support.servers import QUEUE, RunningServer, a_server, read_reply, request

PRODUCERS = [AccessToken(Role.PRODUCER, f"producer-{number}-0123456789") for number in range(2)]
ADMIN = AccessToken(Role.ADMIN, "admin-secret-0123456789")
OPTIONS = ServeOptions(tokens=(*PRODUCERS, ADMIN))
KIB = 1 << 10
BUDGET = 1024 * KIB
ADD = f"/v1/queues/{QUEUE}/add"
FAST, REGULAR = ADD, f"/v1/queues/{QUEUE}/release"
TASK = b'{"tasks":[{"text":"x"}]}'


def with_token(token: AccessToken | None) -> list[tuple[str, str]]:
    named = [] if token is None else [("authorization", f"Bearer {token.secret}")]
    return [("content-type", "application/json"), *named]


@pytest.fixture
def server() -> Iterator[RunningServer]:
    with a_server(options=OPTIONS) as server:
        with server.connect():
            eventually(server.connections)
            in_flight(server).most = BUDGET
        yield server


def in_flight(server: RunningServer) -> BytesInFlight:
    with server.connect():
        return eventually(server.connections)[0].shared.in_flight


def begun(server: RunningServer, path: str, token: AccessToken | None, count: int) -> socket.socket:
    """Begin a request, and send so many bytes of its body; a small part is left out."""
    head = request("POST", path, headers=[*with_token(token), ("content-length", str(count + 10))])
    connection = server.connect()
    connection.sendall(head)
    connection.sendall(b" " * count)
    return connection


def test_a_token_has_half_of_the_budget_and_the_next_one_what_is_left_for_all_but_admins(
    server: RunningServer,
) -> None:
    budget = in_flight(server)
    with ExitStack() as stack:
        stack.enter_context(begun(server, FAST, PRODUCERS[0], 400 * KIB))
        eventually(lambda: budget.taken >= 390 * KIB)
        with begun(server, FAST, PRODUCERS[0], 200 * KIB) as over:
            reply = read_reply(over)
            assert (reply.status, reply.headers["retry-after"]) == (503, "1")
            assert "with this token" in str(reply.json()["detail"])
            assert str(reply.json()["type"]).endswith("too-many-bytes")
        stack.enter_context(begun(server, FAST, PRODUCERS[1], 300 * KIB))
        eventually(lambda: budget.taken >= 690 * KIB)
        with begun(server, FAST, PRODUCERS[1], 150 * KIB) as over:
            assert read_reply(over).status == 503
        body = b'{"tasks":[{"text":"%b"}]}' % (b"x" * 200 * KIB)
        assert server.ask("POST", ADD, body, headers=with_token(ADMIN)).status == 200, "admins keep room"
        assert server.ask("POST", ADD, TASK, headers=with_token(PRODUCERS[0])).status == 200, "a small one has room"
    eventually(lambda: budget.taken == 0)


@pytest.mark.parametrize("path", [FAST, "/rpc_http"])
def test_what_was_counted_is_given_back_once_the_request_is_answered(server: RunningServer, path: str) -> None:
    budget = in_flight(server)
    body = b'{"tasks":[{"text":"%b"}]}' % (b"x" * 100 * KIB)
    with server.connect() as connection:
        for _ in range(12):
            connection.sendall(request("POST", path, body, headers=with_token(PRODUCERS[0])))
            assert read_reply(connection).status == 200
            eventually(lambda: budget.taken == 0)


def long_head(server: RunningServer) -> socket.socket:
    connection = server.connect()
    connection.sendall(b"GET /livez HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * 60 * KIB)
    return connection


def stranger(server: RunningServer) -> socket.socket:
    return begun(server, "/rpc_http", None, 15 * KIB)


@pytest.mark.parametrize("send", [long_head, stranger])
def test_strangers_have_a_quarter_together(
    server: RunningServer, send: Callable[[RunningServer], socket.socket]
) -> None:
    budget = in_flight(server)
    with ExitStack() as stack:
        for _ in range(30):
            stack.enter_context(send(server))
        eventually(lambda: budget.taken > BUDGET // 4 - 64 * KIB)
        for _ in range(30):
            stack.enter_context(send(server))
        eventually(lambda: len(server.connections()) >= 60)
        assert budget.taken <= BUDGET // 4
        assert server.ask("GET", "/livez").status == 200
        assert server.ask("POST", ADD, TASK, headers=with_token(PRODUCERS[0])).status == 200
    eventually(lambda: budget.taken == 0)


def test_a_server_without_tokens_has_one_caller_who_may_take_it_all() -> None:
    with a_server() as server:
        budget = in_flight(server)
        budget.most = BUDGET
        with begun(server, FAST, None, 900 * KIB):
            eventually(lambda: budget.taken >= 890 * KIB)
            with begun(server, FAST, None, 200 * KIB) as over:
                assert read_reply(over).status == 503
        eventually(lambda: budget.taken == 0)


def test_an_app_engine_client_is_told_in_its_own_format(server: RunningServer) -> None:
    budget = in_flight(server)
    with begun(server, "/rpc_http", ADMIN, 400 * KIB):
        eventually(lambda: budget.taken >= 390 * KIB)
        with begun(server, "/rpc_http", ADMIN, 200 * KIB) as over:
            reply = read_reply(over)
            assert (reply.status, reply.headers["content-type"]) == (200, "application/octet-stream")


def test_a_small_request_is_not_counted() -> None:
    assert FREE_BYTES == 4096


@pytest.mark.parametrize(("body", "budget"), [(1 << 20, MIN_BUDGET_BYTES), (64 << 20, 256 << 20), (1 << 30, 4 << 30)])
def test_the_budget_has_room_for_four_of_the_largest_bodies(body: int, budget: int) -> None:
    assert budget_bytes(body) == budget

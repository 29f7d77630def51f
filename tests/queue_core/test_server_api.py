"""The HTTP API as a stranger meets it: every verb's path, bad input, roles, foreign pages."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from queue_core.errors import (
    InvalidSettingError,
    ListenError,
    PermissionDeniedError,
    QueueError,
    StoreFullError,
    StoreReadOnlyError,
    StoreUnavailableError,
    UnauthenticatedError,
)
from queue_core.server.auth import NEEDED
from queue_core.server.options import AccessToken, Role, ServeOptions, check_options, options_of, parse_tokens
from queue_core.server.run import Server, ServerThread
from queue_core.stores.memory import MemoryStore
from tests.support.eventually import eventually
from tests.support.servers import QUEUE, RunningServer, a_server, read_reply, request

ADD = f"/v1/queues/{QUEUE}/add"
TASK = b'{"tasks":[{"text":"x"}]}'


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with a_server(options=ServeOptions(max_body_bytes=4 << 20)) as running:
        yield running


def _added(count: int) -> bytes:
    return json.dumps({"tasks": [{"text": "x"}] * count}).encode()


def _payload(size: int) -> bytes:
    return json.dumps({"tasks": [{"text": "x" * size}]}).encode()


BAD = [
    pytest.param("POST", "add", b"", 400, "malformed-json", id="no body"),
    pytest.param("POST", "add", b'{"tasks": [}', 400, "malformed-json", id="broken JSON"),
    pytest.param("POST", "add", b"[]", 422, "invalid-request", id="not an object"),
    pytest.param("POST", "add", b'{"tasks":[{"text":"\\ud800"}]}', 400, "malformed-json", id="half a character"),
    pytest.param("POST", "add", b'{"task":[]}', 422, "invalid-request", id="unknown member"),
    pytest.param("POST", "add", b'{"tasks":[{"payload":"%%%"}]}', 422, "invalid-request", id="not base64"),
    pytest.param("POST", "add", b'{"tasks":[{"payload":"","text":""}]}', 422, "invalid-request", id="two payloads"),
    pytest.param("POST", "add", _payload((1 << 20) + 1), 413, "task-too-large", id="1 MiB and a byte"),
    pytest.param("POST", "add", _payload(5 << 20), 413, "body-too-large", id="a body over the limit"),
    pytest.param("POST", "add", _added(1001), 422, "too-many-tasks", id="1,001 tasks"),
    pytest.param("POST", "add", b'{"tasks":[{"name":"a b"}]}', 422, "invalid-task-name", id="a name with a blank"),
    pytest.param("POST", "add", b'{"tasks":[{"tag":""}]}', 422, "invalid-tag", id="an empty tag"),
    pytest.param("POST", "add", b'{"tasks":[{"delay_seconds":-1}]}', 422, "invalid-eta", id="a negative delay"),
    pytest.param("POST", "add", b'{"tasks":[{"max_leases":0}]}', 422, "invalid-setting", id="never to be leased"),
    pytest.param("POST", "add", b'{"tasks":[{"max_leases":2147483648}]}', 422, "invalid-setting", id="leased for ever"),
    pytest.param("POST", "add", b'{"tasks":[{"eta":1e400}]}', 422, "invalid-request", id="an endless eta"),
    pytest.param("POST", "add", b'{"tasks":[{"queue":"other"}]}', 422, "invalid-request", id="for another queue"),
    pytest.param("POST", "lease", b'{"seconds":-1}', 422, "invalid-lease-time", id="a negative lease"),
    pytest.param("POST", "lease", b'{"seconds":691200}', 422, "invalid-lease-time", id="an eight-day lease"),
    pytest.param("POST", "lease", b'{"seconds":NaN}', 422, "invalid-request", id="a lease of NaN"),
    pytest.param("POST", "lease", b'{"count":0}', 422, "invalid-count", id="no tasks"),
    pytest.param("POST", "lease", b'{"count":true}', 422, "invalid-request", id="true tasks"),
    pytest.param("POST", "lease", b'{"count":"1"}', 422, "invalid-request", id="a number as text"),
    pytest.param("POST", "lease", b'{"wait_seconds":301}', 422, "invalid-lease-time", id="waiting too long"),
    pytest.param("POST", "lease", b'{"kind":"untagged","tags":["a"]}', 422, "invalid-request", id="a contradiction"),
    pytest.param("POST", "renew", b'{"tokens":["x"]}', 422, "invalid-token", id="no token at all"),
    pytest.param("POST", "renew", b'{"tokens":["1.1"]}', 409, "lease-lost", id="renew with a stale token"),
    pytest.param("POST", "delete", b'{"tokens":["1.1"]}', 409, "lease-lost", id="delete with a stale token"),
    pytest.param("POST", "release", b'{"tokens":["1.1"]}', 409, "lease-lost", id="release with a stale token"),
    pytest.param("POST", "peek", b'{"after":10000000000000000000000}', 422, "invalid-request", id="beyond an integer"),
    pytest.param("POST", "peek", b'{"limit":1001}', 422, "invalid-count", id="a page too long"),
    pytest.param("POST", "nothing", b"{}", 404, "unknown-path", id="no such verb"),
    pytest.param("GET", "purge", None, 405, "wrong-method", id="GET for a change"),
    pytest.param("GET", "stats?kind=none", None, 422, "invalid-request", id="no such kind of tags"),
    pytest.param("GET", "tags?limit=many", None, 422, "invalid-count", id="a limit that is no number"),
]


@pytest.mark.parametrize(("method", "verb", "body", "status", "kind"), BAD)
def test_bad_input_is_a_problem_and_changes_nothing(
    server: RunningServer, method: str, verb: str, body: bytes | None, status: int, kind: str
) -> None:
    before = _counts(server)
    reply = server.ask(method, f"/v1/queues/{QUEUE}/{verb}", body)
    assert (reply.status, reply.json()["type"]) == (status, f"urn:towline:problem:{kind}")
    assert reply.headers["content-type"] == "application/problem+json"
    assert reply.json()["detail"]
    assert _counts(server) == before


def _counts(server: RunningServer) -> dict[str, object]:
    counts = server.ask("GET", f"/v1/queues/{QUEUE}/stats").json()
    assert counts.pop("as_of")
    return counts


@pytest.mark.parametrize(
    "verb", ["add", "lease", "exchange", "renew", "release", "delete", "purge", "pause", "observe"]
)
def test_an_unknown_queue_is_named(server: RunningServer, verb: str) -> None:
    bodies = {"add": TASK, "renew": b'{"tokens":["1.1"]}', "release": b'{"tokens":["1.1"]}'}
    bodies["delete"] = b'{"tokens":["1.1"]}'
    reply = server.ask("POST", f"/v1/queues/nowhere/{verb}", bodies.get(verb, b"{}"))
    assert (reply.status, reply.json()["type"]) == (404, "urn:towline:problem:unknown-queue")
    assert "nowhere" in str(reply.json()["detail"])


def test_every_mistake_in_a_body_is_told_with_its_place(server: RunningServer) -> None:
    told = server.ask("POST", ADD, b'{"tasks":[{"text":1},{"colour":"red"}]}').json()
    assert [one["pointer"] for one in told["errors"]] == ["/tasks/0/text", "/tasks/1/colour"]  # type: ignore[index]


def test_broken_json_is_told_with_its_position(server: RunningServer) -> None:
    assert "line 1 column 12" in str(server.ask("POST", ADD, b'{"tasks": [}').json()["detail"])


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", None])
@pytest.mark.parametrize("verb", ["add", "purge"])
def test_a_body_that_is_not_json_is_refused(server: RunningServer, verb: str, kind: str | None) -> None:
    headers = [] if kind is None else [("content-type", kind)]
    assert server.ask("POST", f"/v1/queues/{QUEUE}/{verb}", TASK, headers=headers).status == 415


def test_a_content_type_may_name_its_charset(server: RunningServer) -> None:
    headers = [("content-type", "application/json; charset=utf-8")]
    assert server.ask("POST", ADD, TASK, headers=headers).status == 200


def test_a_wrong_method_is_told_the_right_ones(server: RunningServer) -> None:
    reply = server.ask("PATCH", f"/v1/queues/{QUEUE}", b"{}")
    assert reply.status == 405
    assert {"GET", "PUT", "DELETE"} <= set(reply.headers["allow"].split(", "))


def test_text_and_base64_are_the_same_payload(server: RunningServer) -> None:
    assert server.ask("PUT", "/v1/queues/pair", b"{}").json() == {"created": True}
    server.ask("POST", "/v1/queues/pair/add", b'{"tasks":[{"text":"h\\u00e9"},{"payload":"aMOp"}]}')
    leases = server.ask("POST", "/v1/queues/pair/lease", b'{"count":2}').json()["leases"]
    assert [lease["payload"] for lease in leases] == ["aMOp", "aMOp"]  # type: ignore[attr-defined,index]


# -- one connection ---------------------------------------------------------------------------------------------------


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


def test_a_head_without_end_is_hung_up_on(server: RunningServer) -> None:
    with server.connect() as connection, pytest.raises(ConnectionError):
        connection.sendall(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n")
        for number in range(100):
            connection.sendall(b"x-%d: " % number + b"y" * 4096 + b"\r\n")
        read_reply(connection)


def test_what_is_not_http_is_refused(server: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
    with server.connect() as connection:
        connection.sendall(b"what is this\r\n\r\n")
        assert read_reply(connection).status == 400


def test_an_answer_in_two_segments_is_not_held_back(server: RunningServer) -> None:
    with server.connect() as connection:
        connection.sendall(request("GET", "/livez"))
        read_reply(connection)
        running = server.thread._server._uvicorn
        assert running is not None
        sockets = [one.transport.get_extra_info("socket") for one in running.server_state.connections]
        assert sockets
        assert all(one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for one in sockets)


# -- who may ----------------------------------------------------------------------------------------------------------

SECRETS = {role: f"{str(role.name).lower()}-0123456789abcdef" for role in Role}
TOKENS = tuple(AccessToken(role, secret) for role, secret in SECRETS.items())
CALLS = [
    ("POST", "/v1/queues/work/add", b'{"tasks":[]}', {Role.PRODUCER, Role.WORKER}),
    ("POST", "/v1/queues/work/lease", b"{}", {Role.WORKER}),
    ("POST", "/v1/queues/work/exchange", b"{}", {Role.WORKER}),
    ("POST", "/v1/queues/work/renew", b'{"tokens":[]}', {Role.WORKER}),
    ("POST", "/v1/queues/work/release", b'{"tokens":[]}', {Role.WORKER}),
    ("POST", "/v1/queues/work/delete", b"{}", {Role.WORKER}),
    ("POST", "/v1/queues/work/delete-by-name", b'{"names":[]}', set()),
    ("POST", "/v1/queues/work/purge", b"{}", set()),
    ("POST", "/v1/queues/work/pause", b"{}", set()),
    ("POST", "/v1/queues/work/resume", b"{}", set()),
    ("POST", "/v1/queues/work/redrive", b"{}", set()),
    ("POST", "/v1/queues/work/peek", b"{}", {Role.VIEWER, Role.WORKER}),
    ("POST", "/v1/queues/work/observe", b"{}", {Role.VIEWER, Role.WORKER}),
    ("GET", "/v1/queues/work/stats", None, {Role.VIEWER, Role.PRODUCER, Role.WORKER}),
    ("GET", "/v1/queues/work/tags", None, {Role.VIEWER, Role.PRODUCER, Role.WORKER}),
    ("GET", "/v1/queues", None, {Role.VIEWER, Role.PRODUCER, Role.WORKER}),
    ("GET", "/v1/queues/work", None, {Role.VIEWER, Role.PRODUCER, Role.WORKER}),
    ("PUT", "/v1/queues/work", b"{}", set()),
    ("POST", "/v1/workers/w/retire", b"{}", set()),
    ("POST", "/v1/workers/w/release", b"{}", set()),
    ("POST", "/v1/lead", b'{"name":"l","holder":"me","seconds":1}', set()),
    ("POST", "/v1/wait", b'{"queues":[{"queue":"work"}]}', {Role.VIEWER, Role.PRODUCER, Role.WORKER}),
    ("GET", "/v1/events", None, {Role.VIEWER, Role.WORKER}),
    ("GET", "/metrics", None, {Role.VIEWER, Role.PRODUCER, Role.WORKER}),
]


@pytest.fixture(scope="module")
def guarded() -> Iterator[RunningServer]:
    with a_server(options=ServeOptions(tokens=TOKENS)) as running:
        yield running


@pytest.mark.parametrize(("method", "path", "body", "roles"), CALLS, ids=[f"{call[0]} {call[1]}" for call in CALLS])
def test_a_role_may_do_its_own_and_no_more(
    guarded: RunningServer, method: str, path: str, body: bytes | None, roles: set[Role]
) -> None:
    json_body = ("content-type", "application/json")
    assert guarded.ask(method, path, body, headers=[json_body]).status == 401
    assert guarded.ask(method, path, body, headers=[json_body, ("authorization", "Bearer wrong")]).status == 401
    for role in Role:
        told = guarded.ask(method, path, body, headers=[json_body, ("authorization", f"Bearer {SECRETS[role]}")])
        assert told.status == (200 if role in roles | {Role.ADMIN} else 403), role


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/healthz", "/openapi.json"])
def test_health_needs_no_token(guarded: RunningServer, path: str) -> None:
    assert guarded.ask("GET", path).status == 200


def test_every_permission_is_one_that_a_role_has() -> None:
    assert all(NEEDED.values())


def test_the_client_tells_no_token_from_the_wrong_one(guarded: RunningServer) -> None:
    for token, kind in ((None, UnauthenticatedError), (SECRETS[Role.VIEWER], PermissionDeniedError)):
        queue = guarded.queue(token=token)
        with pytest.raises(PermissionDeniedError) as raised:
            queue.add(b"x")
        assert type(raised.value) is kind
        queue.close()


@pytest.mark.parametrize(
    ("header", "value", "status"),
    [
        pytest.param("host", "127.0.0.1:7878", 200, id="the address"),
        pytest.param("host", "LOCALHOST", 200, id="the name"),
        pytest.param("host", "[::1]:80", 200, id="the other loopback"),
        pytest.param("host", "evil.example", 421, id="a name that was made to point here"),
        pytest.param("host", "127.0.0.1.evil.example", 421, id="a name that looks like it"),
        pytest.param("host", "", 421, id="no name"),
        pytest.param("origin", "http://evil.example", 403, id="a foreign page"),
        pytest.param("origin", "null", 403, id="a page from nowhere"),
        pytest.param("origin", "http://localhost", 200, id="our own page"),
    ],
)
@pytest.mark.parametrize("verb", ["add", "purge"])
def test_foreign_pages_can_not_reach_the_loopback(
    server: RunningServer, verb: str, header: str, value: str, status: int
) -> None:
    headers = [("content-type", "application/json"), (header, value)]
    body = TASK if verb == "add" else b"{}"
    assert server.ask("POST", f"/v1/queues/{QUEUE}/{verb}", body, headers=headers).status == status


def test_the_network_needs_tokens() -> None:
    with pytest.raises(InvalidSettingError):
        check_options(ServeOptions(host="0.0.0.0"))
    check_options(ServeOptions(host="0.0.0.0", tokens=TOKENS))
    check_options(ServeOptions(socket_path=Path("/tmp/towline.sock")))


def test_tokens_are_read_from_lines() -> None:
    text = "# who\n\nadmin 0123456789abcdef\nworker fedcba9876543210\n"
    tokens = parse_tokens(text, source="tokens")
    assert [token.role for token in tokens] == [Role.ADMIN, Role.WORKER]
    assert "0123456789abcdef" not in repr(tokens)


@pytest.mark.parametrize("line", ["admin", "king 0123456789abcdef", "admin short", "admin a b"])
def test_a_bad_token_line_is_named_without_its_secret(line: str) -> None:
    with pytest.raises(InvalidSettingError, match=r"^tokens:2: ") as raised:
        parse_tokens(f"\n{line}\n", source="tokens")
    assert "0123456789abcdef" not in str(raised.value)


# -- listening --------------------------------------------------------------------------------------------------------


def test_a_port_in_use_is_an_error_that_says_so(server: RunningServer) -> None:
    with pytest.raises(ListenError, match="already in use"):
        Server(MemoryStore(), ServeOptions(port=server.port))


def test_a_unix_socket_is_the_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "towline.sock"
    thread = ServerThread(MemoryStore(), options_of(f"unix:{path}"))
    assert thread.start() == f"unix://{path}"
    try:
        assert path.stat().st_mode & 0o777 == 0o600
        with pytest.raises(ListenError):
            Server(MemoryStore(), options_of(f"unix:{path}"))
    finally:
        thread.stop()
    assert not path.exists()


def test_a_socket_left_by_a_killed_server_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "towline.sock"
    abandoned = Server(MemoryStore(), options_of(f"unix:{path}"))
    abandoned._listening.close()
    thread = ServerThread(MemoryStore(), options_of(f"unix:{path}"))
    thread.start()
    thread.stop()


class BrokenStore(MemoryStore):
    """A store that takes changes until it is told to fail."""

    failure: QueueError | None = None

    @contextmanager
    def begin(self) -> Iterator[MemoryStore]:
        if self.failure is not None:
            raise self.failure
        yield self


@pytest.mark.parametrize(
    ("failure", "status"),
    [(StoreUnavailableError("away"), 503), (StoreFullError("no room"), 507), (StoreReadOnlyError("read-only"), 500)],
    ids=["away", "full", "read-only"],
)
def test_a_store_that_fails_makes_the_server_unready_until_it_recovers(failure: QueueError, status: int) -> None:
    store = BrokenStore()
    with a_server(store) as server:
        assert server.ask("GET", "/readyz").status == 200
        store.failure = failure
        assert server.ask("POST", ADD, TASK).status == status
        assert server.ask("GET", "/readyz").status == 503
        assert server.ask("GET", "/livez").status == 200
        store.failure = None
        assert server.ask("GET", "/readyz").status == 200
        assert server.ask("POST", ADD, TASK).status == 200


# -- looking ----------------------------------------------------------------------------------------------------------


def test_metrics_count_per_queue_and_never_per_tag() -> None:
    with a_server() as server:
        server.ask("POST", ADD, b'{"tasks":[{"tag":"secret-tag"},{"delay_seconds":60}]}')
        text = server.ask("GET", "/metrics").body.decode()
    assert 'towline_queue_ready{queue="work"} 1.0' in text
    assert 'towline_queue_delayed{queue="work"} 1.0' in text
    assert 'towline_queue_added_total{queue="work"} 2.0' in text
    assert "secret-tag" not in text


def test_recent_events_are_paged_by_cursor() -> None:
    with a_server() as server:
        server.ask("POST", ADD, b'{"tasks":[{"name":"a"},{"name":"b"},{"name":"c"}]}')
        first = server.ask("GET", "/v1/events?after=0&limit=2").json()
        rest = server.ask("GET", f"/v1/events?after={first['cursor']}").json()
    names = [event["task"] for event in [*first["events"], *rest["events"]]]  # type: ignore[misc]
    assert names == ["a", "b", "c"]
    assert (first["cursor"], rest["cursor"], rest["missed"]) == (2, 3, False)


def test_followers_see_events_as_they_come_and_end_with_the_server() -> None:
    with a_server() as server:
        with server.connect() as connection:
            connection.sendall(request("GET", "/v1/events?follow=true"))
            seen = b""
            while b": towline" not in seen:
                seen += connection.recv(65536)
            server.ask("POST", ADD, b'{"tasks":[{"name":"followed"}]}')
            while b"followed" not in seen:
                seen += connection.recv(65536)
            server.thread.stop()
            while data := connection.recv(65536):
                seen += data
        assert b"event: task.added" in seen


def test_a_follower_that_leaves_is_forgotten() -> None:
    with a_server() as server:
        with server.connect() as connection:
            connection.sendall(request("GET", "/v1/events?follow=true"))
            connection.recv(1000)
            eventually(lambda: len(server.thread.core.ring._followers) == 1)
        eventually(lambda: not server.thread.core.ring._followers)

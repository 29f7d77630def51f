"""The HTTP API as a stranger meets it: what is wrong with a call is told by kind and place, and changes nothing."""

import json
import select
from collections.abc import Iterator
from contextlib import suppress

import pytest

from queue_core.server.base.options import ServeOptions
from queue_core.server.http import connections
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
    pytest.param("POST", "add", b'{"tasks":[{"queue":"other"}]}', 404, "unknown-queue", id="for an unknown queue"),
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


def test_who_sends_on_after_a_refusal_reads_it_afterwards(server: RunningServer) -> None:
    whole = request("POST", ADD, _payload(16 << 20))
    with server.connect() as connection:
        connection.sendall(whole[: 5 << 20])
        assert select.select([connection], [], [], 10)[0]  # the answer is there, and all is not sent yet
        connection.sendall(whole[5 << 20 :])
        reply = read_reply(connection)
        assert (reply.status, reply.headers["connection"]) == (413, "close")
        assert connection.recv(1) == b""


def test_of_a_refused_body_only_so_much_is_read(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_DROPPED_BYTES", 6 << 20)
    whole = request("POST", ADD, _payload(16 << 20))
    with server.connect() as connection:
        connection.sendall(whole[: 5 << 20])
        assert read_reply(connection).status == 413
        with suppress(ConnectionError):
            connection.sendall(whole[5 << 20 :])
        eventually(lambda: not server.connections())


def test_a_client_that_leaves_off_in_a_refused_body_is_not_waited_for_long(server: RunningServer) -> None:
    with server.connect() as connection:
        connection.sendall(request("POST", ADD, _payload(16 << 20))[: 5 << 20])
        assert read_reply(connection).status == 413
        server.let_pass(connections.LINGER_SECONDS + 2)
        eventually(lambda: not server.connections())


def test_nothing_is_begun_behind_a_refused_body(server: RunningServer) -> None:
    before = _counts(server)
    with server.connect() as connection:
        connection.sendall(request("POST", ADD, _payload(5 << 20)) + request("POST", ADD, TASK))
        assert read_reply(connection).status == 413
        with suppress(ConnectionResetError):  # when it was not even read
            assert connection.recv(1) == b""
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
    told = server.ask("POST", ADD, b'{"tasks":[{"text":1,"colour":"red"},{"text":2}],"task":[]}').json()
    places = ["/tasks/0/text", "/tasks/0/colour", "/task"]  # of a list, those of its first wrong member
    assert [one["pointer"] for one in told["errors"]] == places  # type: ignore[index]


@pytest.mark.parametrize(
    ("verb", "body", "told"),
    [
        ("lease", b'{"count":"1"}', '/count: Input should be a valid integer: "1"'),
        ("lease", b'{"count":true}', "/count: Input should be a valid integer: true"),
        ("lease", b'{"seconds":"5 s"}', '/seconds: Input should be a valid number: "5 s"'),
        ("purge", b'{"dead":"all"}', "/dead: Input should be 'keep' or 'only': \"all\""),
        ("peek", b'{"limit":"' + b"9" * 61 + b'"}', "/limit: Input should be a valid integer"),
    ],
)
def test_a_value_that_does_not_fit_is_told(server: RunningServer, verb: str, body: bytes, told: str) -> None:
    assert server.ask("POST", f"/v1/queues/{QUEUE}/{verb}", body).json()["detail"] == told


@pytest.mark.parametrize(
    "body",
    [
        b'{"tasks":[{"payload":4711}]}',
        b'{"tasks":[{"text":4711}]}',
        b'{"tasks":["4711"]}',
        b'{"tasks":[{"test":"4711"}]}',
        b'{"tasks":[{"test":4711}]}',
        b'{"tasks":"4711"}',
        b'"4711"',
    ],
)
def test_what_may_be_a_payload_is_not_told(server: RunningServer, body: bytes) -> None:
    reply = server.ask("POST", ADD, body)
    assert reply.status == 422
    assert "4711" not in reply.body.decode()


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

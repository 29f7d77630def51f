"""Callers are let in by the head of a request: without a token nobody makes the server hold or parse a body."""

import re
import socket
from collections.abc import Iterator

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queue_core.google import appengine
from queue_core.google.appengine import endpoint
from queue_core.google.appengine.codec import MAX_FIELDS, CodecError, decode
from queue_core.google.appengine.messages import REMOTE_REQUEST
from queue_core.google.taskqueue.multipart import MAX_LOOKALIKES, MultipartError, parts_of
from queue_core.server.base.options import AccessToken, ServeOptions
from queue_core.verbs.roles import Role
from tests.support.eventually import eventually
from tests.support.servers import QUEUE, RunningServer, a_server, read_reply, request

SECRET = "secret-of-an-admin"
JSON = ("content-type", "application/json")
BEARER = ("authorization", f"Bearer {SECRET}")
TASKQUEUE = f"/taskqueue/v1beta2/projects/app/taskqueues/{QUEUE}/tasks"
CLOUDTASKS = f"/v2beta2/projects/p/locations/l/queues/{QUEUE}/tasks"
BATCH = "/batch/taskqueue/v1beta2"
MIXED = ("content-type", "multipart/mixed; boundary=cut")
MIB = 1 << 20
PATHS = [
    *(f"/v1/queues/{QUEUE}/{verb}" for verb in ("add", "lease", "exchange", "renew", "delete", "release", "peek")),
    TASKQUEUE,
    BATCH,
    CLOUDTASKS,
    "/api/queue/update",
]


@pytest.fixture(scope="module")
def guarded() -> Iterator[RunningServer]:
    with a_server(options=ServeOptions(tokens=(AccessToken(Role.ADMIN, SECRET),))) as running:
        yield running


def _head(path: str, *, size: int, headers: tuple[tuple[str, str], ...] = (JSON,)) -> bytes:
    return request("POST", path, headers=[*headers, ("content-length", str(size))])


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("size", [2, 63 * MIB])
def test_a_stranger_is_refused_by_the_head_alone(guarded: RunningServer, path: str, size: int) -> None:
    with guarded.connect() as connection:
        connection.sendall(_head(path, size=size))
        assert read_reply(connection).status == 401


@pytest.mark.parametrize("path", PATHS)
def test_a_stranger_is_not_asked_to_go_on(guarded: RunningServer, path: str) -> None:
    with guarded.connect() as connection:
        connection.sendall(_head(path, size=63 * MIB, headers=(JSON, ("expect", "100-continue"))))
        assert read_reply(connection).status == 401


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("expect", [(), (("expect", "100-continue"),)], ids=["at once", "asks first"])
def test_a_body_over_the_limit_is_refused_by_the_head_alone(
    guarded: RunningServer, path: str, expect: tuple[tuple[str, str], ...]
) -> None:
    with guarded.connect() as connection:
        connection.sendall(_head(path, size=65 * MIB, headers=(JSON, BEARER, *expect)))
        assert read_reply(connection).status == (400 if path in (CLOUDTASKS, "/api/queue/update") else 413)


@pytest.mark.parametrize("path", [PATHS[0], PATHS[5]], ids=["short way", "application"])
def test_a_connection_goes_on_behind_a_small_body_that_was_refused(guarded: RunningServer, path: str) -> None:
    with guarded.connect() as connection:
        connection.sendall(_head(path, size=2))
        assert read_reply(connection).status == 401
        connection.sendall(b"{}" + request("GET", "/livez"))
        assert read_reply(connection).status == 200


@pytest.mark.parametrize("path", [PATHS[0], BATCH, TASKQUEUE, CLOUDTASKS, "/rpc_http"])
def test_strangers_make_the_server_hold_nothing(guarded: RunningServer, path: str) -> None:
    process = psutil.Process()
    chunk = b"x" * MIB
    before = process.memory_info().rss
    most = 0
    connections: list[socket.socket] = []
    try:
        for _ in range(12):
            connection = guarded.connect()
            connections.append(connection)
            size = 63 if path != "/rpc_http" else 31
            try:
                connection.sendall(_head(path, size=size * MIB))
                for _ in range(size - 1):
                    connection.sendall(chunk)
            except ConnectionError:
                pass  # the server has read enough
            most = max(most, process.memory_info().rss - before)
    finally:
        for connection in connections:
            connection.close()
    assert most < (16 * MIB if path != "/rpc_http" else 3 * endpoint.MAX_UNKNOWN_BYTES)
    eventually(lambda: not guarded.connections())
    assert guarded.thread.core.fast_endpoints[appengine.PATH]._unauthenticated_bytes == 0


def test_a_known_caller_of_app_engines_api_is_not_held_to_the_share_of_strangers(guarded: RunningServer) -> None:
    with guarded.connect() as first, guarded.connect() as second, guarded.connect() as third:
        for stranger in (first, second):
            stranger.sendall(_head("/rpc_http", size=31 * MIB))
        eventually(lambda: guarded.thread.core.fast_endpoints[appengine.PATH]._unauthenticated_bytes == 62 * MIB)
        third.sendall(_head("/rpc_http", size=31 * MIB))
        assert b"exceed the limit" in read_reply(third).body
        with guarded.connect() as known:
            known.sendall(_head("/rpc_http", size=31 * MIB, headers=(BEARER,)))
            known.sendall(b"\0" * (31 * MIB))
            assert b"exceed the limit" not in read_reply(known).body
    eventually(lambda: guarded.thread.core.fast_endpoints[appengine.PATH]._unauthenticated_bytes == 0)


@pytest.mark.parametrize(
    "field", [b"\x30\x00", b"\x12\x00", b"\x33\x34"], ids=["an unknown one", "a known one", "a group"]
)
def test_a_message_of_very_many_fields_is_given_up(field: bytes) -> None:
    with pytest.raises(CodecError, match="too many fields"):
        decode(REMOTE_REQUEST, field * (MAX_FIELDS + 1))
    with pytest.raises(CodecError, match="too many fields"):
        decode(REMOTE_REQUEST, field * (endpoint.MAX_CALL_FIELDS + 1), max_fields=endpoint.MAX_CALL_FIELDS)


# -- batches ----------------------------------------------------------------------------------------------------------


def test_a_batch_of_very_many_lines_is_taken_apart_at_once() -> None:
    body = b"--cut\r\nContent-Type: application/http\r\n\r\n" + b"\n" * (12 * MIB) + b"--cut--\r\n"
    before = psutil.Process().cpu_times().user
    (part,) = parts_of(MIXED[1], body, most=10)
    assert psutil.Process().cpu_times().user - before < 1.0  # it was 12 s
    assert len(part.content) == 12 * MIB - 1


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"x--cut\r\n" * (MAX_LOOKALIKES + 20), id="a boundary within every line"),
        pytest.param(b"--cut\r\n" + b"a: b\r\n" * 200 + b"\r\n", id="many lines in a head"),
        pytest.param(b"--cut\r\na: " + b"b" * 20_000, id="a long head"),
        pytest.param(b"--cut\r\n\r\n" * 11, id="many parts"),
        pytest.param(b"--cut\r\nContent-Transfer-Encoding: base64\r\n\r\nA", id="not base64"),
    ],
)
def test_parts_out_of_bounds_are_refused(body: bytes) -> None:
    with pytest.raises(MultipartError):
        parts_of(MIXED[1], body, most=10)


def _is_plain(content: bytes) -> bool:
    """A content that ends with a CR would make a line end of CR LF of one that is LF: nobody could tell them apart."""
    return b"--cut" not in content and not content.endswith(b"\r")


@given(
    contents=st.lists(st.binary(max_size=60).filter(_is_plain), max_size=6),
    end=st.sampled_from([b"\r\n", b"\n"]),
    padding=st.sampled_from([b"", b"  ", b"\t"]),
    is_closed=st.booleans(),
)
def test_parts_come_back_as_they_were_put_in(
    contents: list[bytes], end: bytes, padding: bytes, is_closed: bool
) -> None:
    parts = [b"--cut" + padding + end + b"X-Number: %d" % at + end + end + one for at, one in enumerate(contents)]
    body = end.join([b"before", *parts, *([b"--cut--" + padding, b"after"] if is_closed else [])])
    found = parts_of("multipart/mixed; boundary=cut", body, most=10)
    assert [(part.head["X-Number"], part.content) for part in found] == [
        (str(at), one) for at, one in enumerate(contents)
    ]


def test_a_part_may_be_encoded() -> None:
    body = b""
    for encoding, content in ((b"base64", b"aGk9\r\naGk="), (b"Quoted-Printable", b"hi=3Dhi"), (b"binary", b"hi=hi")):
        body += b"--cut\r\nContent-Transfer-Encoding: " + encoding + b"\r\n\r\n" + content + b"\r\n"
    assert [part.content for part in parts_of(MIXED[1], body + b"--cut--", most=3)] == [b"hi=hi"] * 3


def test_a_long_batch_of_a_known_caller_is_answered(guarded: RunningServer) -> None:
    call = b"--cut\r\nContent-Type: application/http\r\n\r\nGET /nowhere HTTP/1.1\r\nX: %s\r\n\r\n\r\n" % (b"y" * 200)
    told = guarded.ask("POST", BATCH, call * 900 + b"--cut--", headers=[MIXED, BEARER])
    assert told.status == 200
    assert len(re.findall(rb"HTTP/1\.1 404", told.body)) == 900

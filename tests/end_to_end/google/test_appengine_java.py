"""Google's SDK for Java against `towline serve`, twice.

The stock SDK itself: a web application of ours in Google's own production runtime, told where the API is by its
environment alone, where the machine has them (see `tests/support/sdks/java_runtime.py`). And everywhere: what that
SDK sent in such a run, byte for byte, over a bare socket as the runtime's client uses it, one connection and exactly as
many bytes of an answer as were announced. A run of the same release of the SDK must send what is in the file.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from queue_core.clock import SystemClock
from queue_core.task import QueueSpec
from tests.support.sdks import java_runtime, recorded
from tests.support.sdks.java_runtime import TICKET, Client
from tests.support.sdks.recorded import RecordedCall
from tests.support.sdks.relay import Exchange, read_message, relaying
from tests.support.sdks.serving import SdkServer, serving, serving_here
from tests.support.stores.stores import opened

RECORDED_VERSION = "2.0.36"
TITLE = f"What Story.java sent to /rpc_http (>) through Google's SDK for Java {RECORDED_VERSION}, and its answers (<)."
STORY = QueueSpec("story", on_exhausted="delete")
QUEUE = "queue:\n- {name: story, mode: pull}\n"
HEAD = (
    "POST /rpc_http HTTP/1.1\r\nX-Google-RPC-Service-Endpoint: app-engine-apis\r\n"
    "X-Google-RPC-Service-Method: /VMRemoteAPI.CallRemoteAPI\r\nContent-Type: application/octet-stream\r\n"
    "X-Google-RPC-Service-Deadline: 10.0\r\nUser-Agent: Java/17.0.15\r\nHost: {host}:{port}\r\n"
    "Accept: text/html, image/gif, image/jpeg, */*; q=0.2\r\nConnection: keep-alive\r\nContent-Length: {length}\r\n\r\n"
)
"""Of the runtime's client that is in the JDK."""
ANSWER_BYTES = 65536


@pytest.fixture(scope="module")
def application(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return java_runtime.application(tmp_path_factory.mktemp("java"))


@contextmanager
def served_here(store: str, folder: Path, *, ticket: str | None) -> Iterator[SdkServer]:
    """A server of the queue in this process."""
    with opened(store, folder) as made, serving_here(made, [STORY], ticket=ticket) as served:
        yield served


def test_a_java_application_finds_what_app_engine_would_tell_it(application: Path, tmp_path: Path) -> None:
    with serving(tmp_path, queue_yaml=QUEUE, ticket=TICKET) as served:
        exchanges = run(application, served, client="jdk", folder=tmp_path)
    if java_runtime.version(tmp_path) != RECORDED_VERSION:
        return  # what another release sends has been answered rightly, which is all that it must be
    (tmp_path / "recorded.txt").write_text(recorded.written(exchanges, title=TITLE))  # should it have to be new
    sent = [
        recorded.fields_of(RecordedCall(exchange.request, exchange.answer).service_request) for exchange in exchanges
    ]
    assert sent == [recorded.fields_of(call.service_request) for call in recorded.read(recorded.JAVA)]


def test_the_other_client_of_the_java_runtime_finds_the_same(application: Path, tmp_path: Path) -> None:
    with served_here("memory", tmp_path, ticket=None) as served:
        run(application, served, client="jetty", folder=tmp_path)


def test_a_ticket_that_is_no_token_is_a_security_exception(application: Path, tmp_path: Path) -> None:
    with (
        served_here("memory", tmp_path, ticket=TICKET) as served,
        java_runtime.running(application, api=f"{served.host}:{served.port}", folder=tmp_path, client="jdk") as url,
    ):
        assert java_runtime.call(f"{url}/stranger", ticket="somebody-elses-ticket") == "ok"


def run(application: Path, served: SdkServer, *, client: Client, folder: Path) -> list[Exchange]:
    """Run the story, and return what went over the wire."""
    with (
        relaying(served) as relay,
        java_runtime.running(application, api=f"{relay.host}:{relay.port}", folder=folder, client=client) as url,
    ):
        assert java_runtime.call(f"{url}/story") == "ok"
    if client == "jdk":
        first = relay.exchanges[0]
        assert head_lines(first.request_head) == head_lines(head(relay.host, relay.port, first.request))
    return relay.exchanges


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_what_a_java_application_sent_is_answered_as_it_was(store: str, tmp_path: Path) -> None:
    with served_here(store, tmp_path, ticket=TICKET) as served:
        replay(served, ticket=TICKET.encode())


def test_a_ticket_may_be_empty_where_no_token_is_asked_for(tmp_path: Path) -> None:
    with served_here("memory", tmp_path, ticket=None) as served:
        replay(served, ticket=b"")


def replay(served: SdkServer, *, ticket: bytes) -> None:
    """Send what is recorded, with the leases' etas of now, and compare the answers field by field."""
    now = SystemClock().now() // 1000 * 1000  # Java counts milliseconds
    current: dict[int, int] = {}
    start: int | None = None
    with socket.create_connection((served.host, served.port), timeout=10) as connection:
        for call in recorded.read(recorded.JAVA):
            for eta in recorded.etas(call.service_request):
                start = eta if start is None else start
                current.setdefault(eta, now + eta - start)  # an eta that no answer told was made from the time of day
            body = recorded.with_etas(call.request, current)
            body = body.replace(_field(TICKET.encode()), _field(ticket))
            connection.sendall(head(served.host, served.port, body) + body)
            in_one_piece = connection.recv(ANSWER_BYTES, socket.MSG_PEEK)
            answer_head, answer = read_message(connection)
            assert answer_head + answer == in_one_piece
            assert answer_head.startswith(b"HTTP/1.1 200 ")
            found = RecordedCall(body, answer)
            assert recorded.fields_of(found.service_response) == recorded.fields_of(call.service_response), call.method
            current |= zip(recorded.etas(call.service_response), recorded.etas(found.service_response), strict=True)


def head_lines(told: bytes) -> set[bytes]:
    """Its lines, but for the version of Java in one of them."""
    return {line for line in told.split(b"\r\n") if not line.startswith(b"User-Agent: Java/")}


def head(host: str, port: int, body: bytes) -> bytes:
    return HEAD.format(host=host, port=port, length=len(body)).encode()


def _field(ticket: bytes) -> bytes:
    return bytes((5 << 3 | 2, len(ticket))) + ticket

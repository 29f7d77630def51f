"""A server that is stopped while its store does not answer tells its callers by the error's class what was done."""

import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from pydantic_core import from_json

from queue_core.client.http.problem_types import error_of
from queue_core.errors import OutcomeUnknownError, StoreUnavailableError
from tests.support.eventually import eventually
from tests.support.servers import QUEUE, RunningServer, a_server, read_reply, request
from tests.support.stores.remote_memory import RemoteMemory


@pytest.fixture
def store() -> Iterator[RemoteMemory]:
    store = RemoteMemory()
    yield store
    store.flow()


@pytest.fixture
def server(store: RemoteMemory) -> Iterator[RunningServer]:
    with a_server(store) as running:
        yield running


@pytest.mark.parametrize(
    ("method", "path", "body", "kind"),
    [
        ("POST", f"/v1/queues/{QUEUE}/purge", b"{}", OutcomeUnknownError),
        ("POST", f"/v1/queues/{QUEUE}/release", b'{"tokens": ["1.1"]}', OutcomeUnknownError),
        ("PUT", "/v1/queues/new", b"{}", OutcomeUnknownError),
        ("DELETE", f"/v1/queues/{QUEUE}", None, OutcomeUnknownError),
        ("GET", f"/v1/queues/{QUEUE}/stats", None, StoreUnavailableError),
    ],
)
def test_a_call_that_the_stop_cut_off_has_an_error_that_says_what_is_known(
    store: RemoteMemory, server: RunningServer, method: str, path: str, body: bytes | None, kind: type[Exception]
) -> None:
    parts = urlsplit(server.url)
    with socket.create_connection((parts.hostname or "", parts.port or 0)) as connection:
        store.stall()
        store.threads.clear()
        connection.sendall(request(method, path, body))
        eventually(lambda: store.threads)
        server.thread.stop()
        reply = read_reply(connection)
    error = error_of(from_json(reply.body), status=reply.status)
    assert (reply.status, type(error)) == (503, kind)

"""A client waits for a silent server, or one that does not read, for exactly its timeout."""

import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from threading import Event, Thread

import pytest

from queue_core.client.http.transport import HttpClientConnection, HttpResponse, ResponseLostError, ServerAddress
from queue_core.clock import SystemClock
from tests.support.fleet.certificates import a_certificate

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
SHORT, LONG = 0.15, 20.0
MORE_THAN_FITS = 64 << 20
"""Bytes of a request that no socket's buffers hold."""


class Peer:
    """A server of one connection, which says nothing by itself."""

    def __init__(
        self, listener: socket.socket, address: ServerAddress, wrap: Callable[[socket.socket], socket.socket]
    ) -> None:
        self.address = address
        self._taken: socket.socket | None = None
        self._is_taken = Event()
        self._thread = Thread(target=self._take, args=(listener, wrap), daemon=True)
        self._thread.start()

    def _take(self, listener: socket.socket, wrap: Callable[[socket.socket], socket.socket]) -> None:
        self._taken = wrap(listener.accept()[0])
        self._is_taken.set()

    @property
    def end(self) -> socket.socket:
        """Its end of the connection."""
        assert self._is_taken.wait(LONG)
        assert self._taken is not None
        return self._taken

    def close(self) -> None:
        """Hang up."""
        self.end.close()


def _plain(taken: socket.socket) -> socket.socket:
    return taken


@pytest.fixture(params=["unix", "http", "https"])
def peer(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Peer]:
    wrap = _plain
    if request.param == "unix":
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(tmp_path / "socket"))
        listener.listen()
        address = ServerAddress("unix", "", 0, str(tmp_path / "socket"))
    else:
        listener = socket.create_server(("127.0.0.1", 0))
        address = ServerAddress(request.param, "localhost", listener.getsockname()[1])
    if request.param == "https":
        made = a_certificate(tmp_path)
        monkeypatch.setenv("SSL_CERT_FILE", str(made.certificate))
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(made.certificate, made.key)

        def wrap(taken: socket.socket) -> socket.socket:
            return context.wrap_socket(taken, server_side=True)

    with closing(listener), closing(Peer(listener, address, wrap)) as peer:
        yield peer


def test_a_server_that_says_nothing_is_given_up_when_the_time_is_up(peer: Peer) -> None:
    with closing(HttpClientConnection(peer.address)) as connection:
        began_at = SystemClock().monotonic()
        with pytest.raises(ResponseLostError, match=r"no response within 0\.1 s"):
            connection.request(b"ask", timeout_seconds=SHORT)
        assert SHORT <= SystemClock().monotonic() - began_at < LONG


def test_no_time_at_all_is_not_for_ever(peer: Peer) -> None:
    with closing(HttpClientConnection(peer.address)) as connection, pytest.raises(ResponseLostError):
        connection.request(b"ask", timeout_seconds=0.0)


def test_a_server_that_takes_nothing_in_is_given_up(peer: Peer) -> None:
    with (
        closing(HttpClientConnection(peer.address)) as connection,
        pytest.raises(ResponseLostError, match="no response within"),
    ):
        connection.request(bytes(MORE_THAN_FITS), timeout_seconds=SHORT)


def test_an_answer_in_pieces_is_read_while_they_come_in_time(peer: Peer) -> None:
    def answer() -> None:
        assert peer.end.recv(1000) == b"ask"
        for begin in range(0, len(ANSWER), 7):
            peer.end.sendall(ANSWER[begin : begin + 7])

    with closing(HttpClientConnection(peer.address)) as connection:
        thread = Thread(target=answer, daemon=True)
        thread.start()
        assert connection.request(b"ask", timeout_seconds=LONG) == (HttpResponse(200, b"{}"), True)
        thread.join(LONG)


def test_each_call_waits_as_long_as_it_was_told(peer: Peer) -> None:
    with closing(HttpClientConnection(peer.address)) as connection:
        peer.end.sendall(ANSWER)
        assert connection.request(b"ask", timeout_seconds=LONG)[0].body == b"{}"
        with pytest.raises(ResponseLostError, match=r"no response within 0\.1 s"):
            connection.request(b"ask", timeout_seconds=SHORT)


def test_a_wait_is_cut_short_from_another_thread(peer: Peer) -> None:
    with closing(HttpClientConnection(peer.address)) as connection:
        failures: list[ResponseLostError] = []

        def ask() -> None:
            with pytest.raises(ResponseLostError) as caught:
                connection.request(b"ask", timeout_seconds=10 * LONG)
            failures.append(caught.value)

        thread = Thread(target=ask, daemon=True)
        thread.start()
        assert peer.end.recv(1000) == b"ask"  # it waits by now, or is about to
        connection.abort()
        thread.join(LONG)
        assert len(failures) == 1

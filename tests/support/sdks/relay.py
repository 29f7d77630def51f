"""A relay between a client and the server that records every exchange."""

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from tests.support.sdks.serving import SdkServer

SECONDS = 30.0
CHUNK_BYTES = 65536


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and its reply, each with head and body."""

    request_head: bytes
    request: bytes
    answer_head: bytes
    answer: bytes


@dataclass(slots=True)
class RecordingRelay:
    """The relay's address and the recorded exchanges."""

    host: str
    port: int
    exchanges: list[Exchange] = field(default_factory=list)


@contextmanager
def relaying(served: SdkServer) -> Iterator[RecordingRelay]:
    """Run a relay on a free port, with a thread per connection."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        relay = RecordingRelay("127.0.0.1", listener.getsockname()[1])
        open_sockets: list[socket.socket] = []
        stack.callback(lambda: [_shut(one) for one in [listener, *open_sockets]])

        def accept() -> None:
            while True:
                try:
                    near, _ = listener.accept()
                except OSError:
                    return
                far = socket.create_connection((served.host, served.port), timeout=SECONDS)
                far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                open_sockets.extend((near, far))
                threading.Thread(target=_pass_on, args=(near, far, relay), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield relay


def _pass_on(near: socket.socket, far: socket.socket, relay: RecordingRelay) -> None:
    with near, far:
        try:
            while True:
                head, body = read_message(near)
                far.sendall(head + body)
                answer_head, answer = read_message(far)
                relay.exchanges.append(Exchange(head, body, answer_head, answer))
                near.sendall(answer_head + answer)
        except OSError:
            return


def _shut(one: socket.socket) -> None:
    try:
        one.shutdown(socket.SHUT_RDWR)
    except OSError:
        return


def read_message(connection: socket.socket) -> tuple[bytes, bytes]:
    """Return the head of the next message, with its empty line, and the body it announces.

    Raises `ConnectionError` at the end of the connection.
    """
    data = b""
    while b"\r\n\r\n" not in data:
        data += _some(connection)
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(
        (
            int(line.partition(b":")[2])
            for line in head.lower().split(b"\r\n")[1:]
            if line.startswith(b"content-length:")
        ),
        0,
    )
    while len(body) < length:
        body += _some(connection)
    return head + b"\r\n\r\n", body


def _some(connection: socket.socket) -> bytes:
    data = connection.recv(CHUNK_BYTES)
    if not data:
        raise ConnectionError("the other side closed the connection")
    return data

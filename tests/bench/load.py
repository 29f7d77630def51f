"""A fast load generator in its own process: prepared requests over kept-alive connections.

It uses one epoll loop, with one request per connection in flight. Responses are framed by their Content-Length only.
"""

import json
import multiprocessing
import re
import select
import socket
import time
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection

from tests.bench.measure import MeasurementFailedError

CONTENT_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *([0-9]+)")
RECEIVE_BYTES = 65_536
CONNECT_SECONDS = 10.0
SILENCE_SECONDS = 10.0

Address = tuple[str, int] | str
"""A host and port, or the path of a Unix socket."""


@dataclass(frozen=True, slots=True)
class LoadResult:
    """The number of 2xx and of other responses, and the time taken."""

    answered: int
    refused: int
    seconds: float
    first_refusal: bytes = b""

    @property
    def per_second(self) -> float:
        """The rate of 2xx responses."""
        return self.answered / self.seconds


def run_load(address: Address, request: bytes, *, connections: int, seconds: float) -> LoadResult:
    """Repeat `request` over `connections` for `seconds`. Raises `MeasurementFailedError` unless all is 2xx."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_generate, args=(address, request, connections, seconds, theirs), daemon=True)
    child.start()
    theirs.close()
    try:
        if not ours.poll(seconds + CONNECT_SECONDS + SILENCE_SECONDS):
            raise MeasurementFailedError("the load generator did not end in time")
        result = ours.recv()
    except EOFError:
        raise MeasurementFailedError("the load generator ended early; its traceback is above") from None
    finally:
        child.kill()
        child.join()
        ours.close()
    if not isinstance(result, LoadResult) or result.refused or not result.answered:
        raise MeasurementFailedError(f"load was not answered well: {result}")
    return result


@contextmanager
def held_open(address: Address, requests: Sequence[bytes]) -> Iterator[Sequence[socket.socket]]:
    """Send each request on its own connection and leave it waiting."""
    sockets: list[socket.socket] = []
    try:
        for request in requests:
            sockets.append(_connect(address))
            sockets[-1].sendall(request)
        yield sockets
    finally:
        for connection in sockets:
            connection.close()


def _generate(address: Address, request: bytes, connections: int, seconds: float, pipe: Connection) -> None:
    sockets = {connection.fileno(): connection for connection in (_connect(address) for _ in range(connections))}
    try:
        pipe.send(_exchange(sockets, request, seconds))
    finally:
        for connection in sockets.values():
            connection.close()


def _exchange(sockets: dict[int, socket.socket], request: bytes, seconds: float) -> LoadResult:
    answered = refused = 0
    first_refusal = b""
    partial: dict[int, bytes] = {}
    poll = select.epoll()
    for descriptor in sockets:
        poll.register(descriptor, select.EPOLLIN)
    began = now = time.perf_counter()
    for connection in sockets.values():
        connection.sendall(request)
    while now - began < seconds:
        ready = poll.poll(SILENCE_SECONDS)
        if not ready:
            raise MeasurementFailedError(f"no response for {SILENCE_SECONDS:.0f} s after {answered} answers")
        for descriptor, _ in ready:
            connection = sockets[descriptor]
            data = connection.recv(RECEIVE_BYTES)
            if not data:
                raise MeasurementFailedError(f"the server closed a connection after {answered} answers")
            response = partial.pop(descriptor, b"") + data
            if not _complete(response):
                partial[descriptor] = response
                continue
            if response.startswith(b"HTTP/1.1 2"):
                answered += 1
            else:
                refused += 1
                first_refusal = first_refusal or response[:500]
            connection.sendall(request)
        now = time.perf_counter()
    poll.close()
    return LoadResult(answered, refused, now - began, first_refusal)


def _complete(response: bytes) -> bool:
    end = response.find(b"\r\n\r\n")
    if end < 0:
        return False
    length = CONTENT_LENGTH.search(response, 0, end + 2)
    if length is None:
        raise MeasurementFailedError(f"a response without Content-Length: {response[:200]!r}")
    return len(response) >= end + 4 + int(length[1])


def _connect(address: Address) -> socket.socket:
    if isinstance(address, str):
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(CONNECT_SECONDS)
        connection.connect(address)
    else:
        connection = socket.create_connection(address, timeout=CONNECT_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def add_request(address: tuple[str, int], queue: str, payload: bytes) -> bytes:
    """Return the HTTP bytes of an add of one unnamed task."""
    return _post(address, f"/v1/queues/{queue}/add", {"tasks": [{"payload": b64encode(payload).decode()}]})


def lease_request(address: tuple[str, int], queue: str, *, worker: str, wait_seconds: float) -> bytes:
    """Return the HTTP bytes of a waiting lease of one task."""
    return _post(address, f"/v1/queues/{queue}/lease", {"worker": worker, "wait_seconds": wait_seconds})


def _post(address: tuple[str, int], path: str, body: object) -> bytes:
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {address[0]}:{address[1]}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content

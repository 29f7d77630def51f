"""A real server on a free port in a thread, and helpers to talk to it byte by byte."""

import itertools
import json
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from queue_core.client.http.caller import Retries
from queue_core.client.http_calls import HttpQueue, HttpQueues
from queue_core.clock import Clock, ManualClock
from queue_core.server.base.options import ServeOptions
from queue_core.server.http.http_connection import HttpConnection
from queue_core.server.server import ServerThread
from queue_core.store import Store
from queue_core.stores.memory.store import MemoryStore
from queue_core.task import QueueSpec
from queue_core.unit.service import QueueService

QUEUE = "work"
WORK = QueueSpec(QUEUE)
IMPATIENT = Retries(tries=3, first_pause_seconds=0.0, longest_pause_seconds=0.0)
_CALLERS = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply read from a bare socket."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> dict[str, object]:
        """Return the body as an object."""
        value = json.loads(self.body)
        assert isinstance(value, dict)
        return value


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A running server with one queue."""

    thread: ServerThread
    store: Store
    url: str

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def queue(self, *, token: str | None = None) -> HttpQueue:
        return HttpQueue(self.url, QUEUE, token=token, retries=IMPATIENT)

    def queues(self, *, token: str | None = None) -> HttpQueues:
        return HttpQueues(self.url, token=token, retries=IMPATIENT)

    def waiting(self) -> int:
        """The number of lease calls that wait now."""
        return len(self.thread.core.waiting)

    def connections(self) -> list[HttpConnection]:
        """Return the server's ends of open connections."""
        running = self.thread._server._http
        assert running is not None
        return [one for one in running.server_state.connections if isinstance(one, HttpConnection)]

    def let_pass(self, seconds: int) -> None:
        """Let `seconds` pass at once for the server's connection timeouts."""
        done = threading.Event()

        def count() -> None:
            for _ in range(seconds):
                for connection in self.connections():
                    connection.tick()
            done.set()

        loop = self.connections()[0].loop
        loop.call_soon_threadsafe(count)
        assert done.wait(10)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=10)

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        headers: Sequence[tuple[str, str]] = (("content-type", "application/json"),),
    ) -> Reply:
        """Send one request on a new connection and return the reply."""
        with self.connect() as connection:
            connection.sendall(request(method, path, body, headers=headers))
            return read_reply(connection)


@contextmanager
def a_server(
    store: Store | None = None,
    options: ServeOptions | None = None,
    *,
    spec: QueueSpec = WORK,
    clock: Clock | None = None,
) -> Iterator[RunningServer]:
    """Run a server over a memory store (or the given one) with the queue `work`."""
    opened = store or MemoryStore()
    QueueService(opened, clock=clock).run(lambda turn: turn.put_queue(spec))
    thread = ServerThread(opened, replace(options or ServeOptions(), port=0), clock=clock)
    url = thread.start()
    try:
        yield RunningServer(thread, opened, url)
    finally:
        thread.stop()
        opened.close()


@contextmanager
def a_timed_server(spec: QueueSpec = WORK) -> Iterator[tuple[RunningServer, ManualClock]]:
    """Run a server with a manual clock."""
    clock = ManualClock()
    with a_server(spec=spec, clock=clock) as running:
        yield running, clock


def new_caller() -> tuple[str, int]:
    """Return an unused loopback address to call from: answers to one that goes on guessing are delayed."""
    number = next(_CALLERS)
    return f"127.1.{number >> 8 & 255}.{number & 255}", 0


def request(
    method: str,
    path: str,
    body: bytes | None = None,
    *,
    headers: Sequence[tuple[str, str]] = (("content-type", "application/json"),),
) -> bytes:
    """Return a request's bytes; `headers` may replace `host`."""
    lines = [f"{method} {path} HTTP/1.1"]
    if not any(name == "host" for name, _ in headers):
        lines.append("host: localhost")
    lines += [f"{name}: {value}" for name, value in headers]
    if body is not None:
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")


def read_reply(connection: socket.socket) -> Reply:
    """Read one reply that has a content length."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += _some(connection)
    head, _, body = data.partition(b"\r\n\r\n")
    status, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    whole = bytearray(body)
    while len(whole) < int(headers.get("content-length", "0")):
        whole += _some(connection)
    return Reply(int(status.split(" ")[1]), headers, bytes(whole))


def _some(connection: socket.socket) -> bytes:
    data = connection.recv(65536)
    if not data:
        raise ConnectionError("the server closed the connection before its answer was complete")
    return data

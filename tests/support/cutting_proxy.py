"""A proxy that breaks connections on purpose: what a client sees when a server or a network dies under it."""

import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Literal

from tests.support.servers import RunningServer

Fate = Literal["pass", "lose answer", "drop", "restart"]
"""`lose answer`: the server gets the request, the client no answer. `drop`: nobody gets anything.
`restart`: as `lose answer`, and from then on requests go to the other server."""


class CuttingProxy:
    """Forwards a request at a time; each takes the next fate, and passes when none is left."""

    def __init__(self, server: RunningServer, *, other: RunningServer | None = None) -> None:
        self._target = server.port
        self._other = other.port if other else server.port
        self.fates: deque[Fate] = deque()
        self.seen: list[str] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._connections: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        self._spawn(self._accept)

    def stop(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for connection in list(self._connections):
            with suppress(OSError):  # its thread has just closed it
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def _spawn(self, work: Callable[..., None], *args: socket.socket) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            self._connections.add(connection)
            self._spawn(self._serve, connection)

    def _serve(self, client: socket.socket) -> None:
        with client:
            while data := _read_message(client):
                line = data.partition(b" HTTP/1.1")[0].decode()
                is_change = not line.startswith("GET /livez")
                fate: Fate = self.fates.popleft() if self.fates and is_change else "pass"
                if is_change:
                    self.seen.append(fate)
                if fate == "drop":
                    break
                with socket.create_connection(("127.0.0.1", self._target)) as server:
                    server.sendall(data)
                    answer = _read_message(server)
                if fate == "restart":
                    self._target = self._other
                if fate != "pass":
                    break
                client.sendall(answer)
            self._connections.discard(client)


@contextmanager
def a_proxy(server: RunningServer, *, other: RunningServer | None = None) -> Iterator[CuttingProxy]:
    """A proxy in front of a server; `other` takes over at a `restart`."""
    proxy = CuttingProxy(server, other=other)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()


def _read_message(connection: socket.socket) -> bytes:
    data = b""
    try:
        while b"\r\n\r\n" not in data:
            part = connection.recv(65536)
            if not part:
                return b""
            data += part
        head, _, body = data.partition(b"\r\n\r\n")
        length = next(
            (int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0
        )
        while len(body) < length:
            part = connection.recv(65536)
            data, body = data + part, body + part
    except OSError:
        return b""
    return data

"""A relay that counts HTTP requests, for workers of any implementation."""

import selectors
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

CHUNK_BYTES = 65_536
LOOK_UP_SECONDS = 0.1
METHODS = (b"GET ", b"POST ", b"PUT ", b"DELETE ")


class CountingRelay:
    """Forwards connections to a server. `requests` counts the clients' requests, one at a time each."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._selector = selectors.DefaultSelector()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._client_ends: set[socket.socket] = set()
        self.requests = 0

    @property
    def url(self) -> str:
        """The URL for clients."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def run(self, stop: Event) -> None:
        """Forward until `stop`, then close every connection."""
        while not stop.is_set():
            for key, _ in self._selector.select(LOOK_UP_SECONDS):
                if key.data is None:
                    self._accept()
                elif key.fileobj.fileno() >= 0:  # type: ignore[union-attr]
                    self._forward(key.fileobj, key.data)  # type: ignore[arg-type]
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        server = socket.create_connection(self._target)
        for end, other in ((client, server), (server, client)):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(end, selectors.EVENT_READ, other)
        self._client_ends.add(client)

    def _forward(self, source: socket.socket, other: socket.socket) -> None:
        try:
            data = source.recv(CHUNK_BYTES)
            if data:
                self.requests += source in self._client_ends and data.startswith(METHODS)
                other.sendall(data)
                return
        except OSError:
            pass
        for end in (source, other):
            self._selector.unregister(end)
            self._client_ends.discard(end)
            end.close()


@contextmanager
def relaying(target: tuple[str, int]) -> Iterator[CountingRelay]:
    """Run a relay in its own thread."""
    relay = CountingRelay(target)
    stop = Event()
    thread = Thread(target=relay.run, args=(stop,), name="relay")
    thread.start()
    try:
        yield relay
    finally:
        stop.set()
        thread.join()

"""People at the console, without a browser: pages are loaded once, and streams are followed."""

import http.client
import selectors
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

LOOKS: Final = 5
READ_BYTES: Final = 1 << 18


@dataclass(frozen=True, slots=True)
class PageLook:
    """How long a page took: the first time, and the median of later ones; and its size."""

    page: str
    first_seconds: float
    median_seconds: float
    size: int


def look(port: int, page: str) -> PageLook:
    """Load a page some times, each on a new connection."""
    taken, size = [], 0
    for _ in range(1 + LOOKS):
        began = time.monotonic()
        size = len(load(port, f"/console/{page}"))
        taken.append(time.monotonic() - began)
    return PageLook(page, taken[0], sorted(taken[1:])[LOOKS // 2], size)


def load(port: int, path: str) -> bytes:
    """Load a page. Raises `RuntimeError` when it is not served."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path, headers={"accept": "text/html"})
    reply = connection.getresponse()
    body = reply.read()
    connection.close()
    if reply.status != 200:
        raise RuntimeError(f"{path}: status {reply.status}")
    return body


class FollowingViewers:
    """Followers of pages; all they get is counted and thrown away."""

    def __init__(self, port: int, pages: Sequence[str]) -> None:
        self.events = 0
        self.sizes = 0
        self._is_stopped = False
        self._sockets = [_following(port, page) for page in pages]
        self._selector = selectors.DefaultSelector()
        for one in self._sockets:
            self._selector.register(one, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Close all connections."""
        self._is_stopped = True
        self._thread.join()
        for one in self._sockets:
            one.close()
        self._selector.close()

    def _work(self) -> None:
        while not self._is_stopped:
            for key, _ in self._selector.select(timeout=0.2):
                data = b""
                with suppress(BlockingIOError):
                    data = key.fileobj.recv(READ_BYTES)  # type: ignore[union-attr]
                self.sizes += len(data)
                self.events += data.count(b"event: page")
            time.sleep(0.05)  # the followers must not take the core that is measured


def _following(port: int, page: str) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=10)
    connection.sendall(f"GET /console/live/{page} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
    connection.setblocking(False)
    return connection


@contextmanager
def following(port: int, pages: Sequence[str]) -> Iterator[FollowingViewers]:
    """Follow pages, one viewer each."""
    viewers = FollowingViewers(port, pages)
    try:
        yield viewers
    finally:
        viewers.stop()

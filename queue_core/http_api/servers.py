"""The servers a client knows: one is used, and kept while it answers; another takes over when it does not."""

from dataclasses import dataclass
from threading import Lock

from queue_core.errors import InvalidSettingError
from queue_core.http_api.transport import Transport, parse_address
from queue_core.stores.urls import masked


@dataclass(slots=True, eq=False)
class Server:
    """One of them.

    Args:
        head: what follows a request's path.
    """

    url: str
    transport: Transport
    head: str


class Servers:
    """The servers of one URL, or of several joined by commas; used from any number of threads."""

    def __init__(self, url: str, *, token: str | None) -> None:
        """Raises `InvalidSettingError`."""
        authorization = f"authorization: Bearer {token}\r\n" if token else ""
        self._all: list[Server] = []
        for one in urls_of(url):
            transport = Transport(parse_address(one))
            head = f" HTTP/1.1\r\nhost: {transport.address.host_header}\r\n{authorization}"
            self._all.append(Server(one, transport, head))
        self._current = 0
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._all)

    @property
    def current(self) -> Server:
        """The one to ask."""
        return self._all[self._current]

    def leave(self, server: Server) -> None:
        """It was no help: ask the next one from now on, unless somebody else has moved on already."""
        with self._lock:
            if self._all[self._current] is server:
                self._current = (self._current + 1) % len(self._all)

    def renew_after_fork(self) -> None:
        """In the child of a fork: ask each server anew over a connection of its own."""
        self._lock = Lock()
        for server in self._all:
            server.transport.renew_after_fork()

    def close(self) -> None:
        """Close the connections; calls in other threads end."""
        for server in self._all:
            server.transport.close()


def urls_of(url: str) -> list[str]:
    """The URLs in a comma-separated list, in order and each once. Raises `InvalidSettingError` for an empty one."""
    urls = [one.strip() for one in url.split(",")]
    if not all(urls):
        raise InvalidSettingError(f"not a list of servers: {masked(url)!r}; write http://a:7878,http://b:7878")
    return list(dict.fromkeys(urls))

"""Proxies that break connections on purpose: one for HTTP servers, one for any TCP protocol."""

import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Literal

from tests.support.servers import RunningServer

Fate = Literal["pass", "lose answer", "drop", "restart"]
"""`lose answer`: the server gets the request, but the client no answer. `drop`: the request is not forwarded.
`restart`: as `lose answer`, and all later requests go to the other server.
"""


class CuttingProxy:
    """Forwards one HTTP request at a time; each takes the next fate, or passes when none is left."""

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
            with suppress(OSError):  # already closed by its thread
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
    """Run a proxy in front of a server; `other` takes over at a `restart`."""
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


TcpFate = Literal["pass", "drop", "lose answer", "stall"]
"""`drop`: the message is not forwarded, and both ends are closed. `lose answer`: it is forwarded, and the
connection is closed when its answer comes. `stall`: it is forwarded, but no answer, and the connection stays open.
"""

PIECE_BYTES = 256 << 10
CONNECT_SECONDS = 5.0


class CuttingTcpProxy:
    """Forwards TCP from loopback to `host:port`, of any protocol; `choose` draws each message's fate.

    What a client sends in one piece counts as a message, and what comes back next as its answer.

    Attributes:
        cuts: messages that were not forwarded or not answered, so far.
        messages: what clients sent since the last `cut_next`, or ever.
    """

    def __init__(self, host: str, port: int, *, choose: Callable[[], TcpFate] = lambda: "pass") -> None:
        self._target = (host, port)
        self._choose = choose
        self._lock = threading.Lock()
        self._planned: tuple[int, TcpFate] | None = None
        self.messages = 0
        self.cuts = 0
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port: int = self._listening.getsockname()[1]
        self._pairs: set[_Pair] = set()
        self._is_over = False
        threading.Thread(target=self._accept, name="tcp-proxy", daemon=True).start()

    def cut_next(self, fate: TcpFate, *, after: int = 0) -> None:
        """Apply this fate to the message that follows `after` others, counted from now over all connections."""
        with self._lock:
            self._planned = (after, fate)
            self.messages = 0

    @property
    def is_armed(self) -> bool:
        """Return whether a planned fate has not been applied yet."""
        return self._planned is not None

    def disarm(self) -> None:
        """Drop the planned fate."""
        with self._lock:
            self._planned = None

    def sever(self) -> None:
        """Close every open connection; new ones are accepted."""
        with self._lock:
            pairs = list(self._pairs)
        for pair in pairs:
            pair.cut()

    def close(self) -> None:
        """Close every connection and stop listening."""
        self._is_over = True
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.sever()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._target, timeout=CONNECT_SECONDS)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pair = _Pair(client, server)
            with self._lock:
                self._pairs.add(pair)
            if self._is_over:
                pair.cut()
            threading.Thread(target=self._carry_messages, args=(pair,), name="tcp-proxy out", daemon=True).start()
            threading.Thread(target=self._carry_answers, args=(pair,), name="tcp-proxy back", daemon=True).start()

    def _carry_messages(self, pair: "_Pair") -> None:
        while piece := _read(pair.client):
            fate = self._fate()
            if fate == "drop":
                break
            if fate != "pass":
                pair.doom = fate  # before sending: the answer may come at once
            if not _write(pair.server, piece):
                break
        pair.cut()

    def _carry_answers(self, pair: "_Pair") -> None:
        while piece := _read(pair.server):
            if pair.doom == "lose answer":
                break
            if pair.doom != "stall" and not _write(pair.client, piece):
                break
        pair.cut()
        with self._lock:
            self._pairs.discard(pair)
        pair.close()

    def _fate(self) -> TcpFate:
        with self._lock:
            self.messages += 1
            fate = self._choose()
            if self._planned is not None and self.messages > self._planned[0]:
                fate = self._planned[1]
                self._planned = None
            self.cuts += fate != "pass"
            return fate


class _Pair:
    """A client's connection and the one opened to the server for it."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        self.doom: TcpFate = "pass"

    def cut(self) -> None:
        """Shut down both connections, which wakes their readers."""
        for end in (self.client, self.server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close both sockets."""
        self.client.close()
        self.server.close()


def _read(end: socket.socket) -> bytes:
    try:
        return end.recv(PIECE_BYTES)
    except OSError:
        return b""


def _write(end: socket.socket, piece: bytes) -> bool:
    try:
        end.sendall(piece)
    except OSError:
        return False
    return True


@contextmanager
def a_tcp_proxy(host: str, port: int, *, choose: Callable[[], TcpFate] = lambda: "pass") -> Iterator[CuttingTcpProxy]:
    """Run a proxy to `host:port`, closed at the end."""
    proxy = CuttingTcpProxy(host, port, choose=choose)
    try:
        yield proxy
    finally:
        proxy.close()

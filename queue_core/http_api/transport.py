"""Bytes to and from a server: keep-alive connections, one write per request, and whether a failed one had been sent.

Knows HTTP, nothing of queues; retries nothing.
"""

import select
import socket
import ssl
from collections import deque
from dataclasses import dataclass
from threading import Lock
from urllib.parse import unquote, urlsplit

import httptools

from queue_core.clock import Clock, SystemClock
from queue_core.config.store_urls import masked
from queue_core.errors import InvalidSettingError
from queue_core.fast_values import fast_constructor

CONNECT_SECONDS = 2.0
SILENCE_SECONDS = 4
"""A peer whose machine has not said a word for so long, not even that it got ours, is given up: the link is cut."""
PROBE_AFTER_SECONDS = 2
"""When nothing is to be said, its machine is asked whether it is there after so long, and every second from then."""
MAX_IDLE_CONNECTIONS = 128
MAX_IDLE_SECONDS = 50.0
"""A connection that was idle for longer is not used again: our servers close one after 75 s, and a request that meets
the end of its connection may have to be told as of unknown outcome. Proxies that close after 60 s are common too."""
READ_BYTES = 64 << 10
"""For twice as much the C library asks the kernel for memory of its own, and gives it back: three calls an answer."""
END_OF_HEAD = b"\r\n\r\n"
LENGTH = b"\r\ncontent-length: "
MAX_LENGTH_DIGITS = 10
MAX_KNOWN_BYTES = 2 << 10
CLOSED = select.POLLIN | select.POLLRDHUP | select.POLLHUP | select.POLLERR


_CLOCK = SystemClock()


class NotSentError(Exception):
    """The server was not reached: nothing of the request left this process."""

    is_silence = False


class ResponseLostError(Exception):
    """The request was sent, and no whole answer came back: the server may have acted on it.

    `is_silence`: because the time for it was over, and not because the connection ended.
    """

    def __init__(self, detail: str, *, is_silence: bool = False) -> None:
        super().__init__(detail)
        self.is_silence = is_silence


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where a server is."""

    scheme: str
    host: str
    port: int
    path: str = ""

    @property
    def host_header(self) -> str:
        """As the `Host` header has it."""
        if self.scheme == "unix":
            return "localhost"
        name = f"[{self.host}]" if ":" in self.host else self.host
        return f"{name}:{self.port}"


def parse_address(url: str) -> ServerAddress:
    """The address in `http://host:port`, `https://host:port` or `unix:///path`. Raises `InvalidSettingError`."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InvalidSettingError(f"not a server's URL: {masked(url)}: {error}") from None
    if parts.scheme == "unix" and parts.path and not parts.netloc:
        return ServerAddress("unix", "", 0, unquote(parts.path))
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.query:
        raise InvalidSettingError(
            f"not a server's URL: {masked(url)}; write http://host:port, https://host or unix:///path"
        )
    return ServerAddress(parts.scheme, parts.hostname, port or (443 if parts.scheme == "https" else 80))


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """Status and body."""

    status: int
    body: bytes


new_answer = fast_constructor(HttpResponse)


class HttpClientConnection:
    """One connection, for one request at a time."""

    def __init__(self, address: ServerAddress) -> None:
        """Raises `NotSentError`."""
        try:
            self._socket = _connect(address)
        except OSError as error:
            raise NotSentError(str(error)) from error
        self._poller = select.poll()
        self._poller.register(self._socket.fileno(), CLOSED)
        self._timeout_seconds = -1.0
        self.idle_since = 0.0
        """When its last answer was here, in monotonic seconds."""
        self._known_head = b""
        """The head of the last answer as far as the size of its body: a server that answers alike says the same, byte
        for byte, until its date changes, and what comes of it need not be found out again."""
        self._parts: list[bytes] = []
        self._parser: httptools.HttpResponseParser | None = None
        self._is_complete = False
        self._is_reusable = False

    def ask(self, request: bytes, *, timeout_seconds: float) -> tuple[HttpResponse, bool]:
        """Send, and read the answer; the second value tells whether the connection can be used again.

        Raises `ResponseLostError`; the connection is of no use then.
        """
        if timeout_seconds != self._timeout_seconds:
            self._socket.settimeout(timeout_seconds)
            self._timeout_seconds = timeout_seconds
        try:
            self._socket.sendall(request)
            data = self._socket.recv(READ_BYTES)
            body = body_after(self._known_head, data)
            if body is not None:
                return new_answer(200, body), True
            return self._parse(data, timeout_seconds=timeout_seconds), self._is_reusable
        except OSError as error:
            if isinstance(error, TimeoutError) and error.errno is None:  # ours; the kernel's says that the link is cut
                raise ResponseLostError(f"no answer within {timeout_seconds:.1f} s", is_silence=True) from error
            raise ResponseLostError(str(error)) from error
        except httptools.HttpParserError as error:
            raise ResponseLostError(f"not an HTTP answer: {error}") from error

    def _parse(self, first: bytes, *, timeout_seconds: float) -> HttpResponse:
        """The answer that begins so; the rest is read, all of it within the time there is for an answer."""
        until: float | None = None
        self._parts.clear()
        self._is_complete = False
        parser = self._parser = httptools.HttpResponseParser(self)
        data = first
        while True:
            if not data:
                raise ResponseLostError("the server closed the connection")
            parser.feed_data(data)
            if self._is_complete:
                break
            now = _CLOCK.monotonic()
            until = now + timeout_seconds if until is None else until
            self._timeout_seconds = max(0.001, until - now)
            self._socket.settimeout(self._timeout_seconds)
            data = self._socket.recv(READ_BYTES)
        body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        answer = HttpResponse(parser.get_status_code(), body)
        self._known_head = known_head(answer, data) if data is first and self._is_reusable else b""
        return answer

    def on_body(self, body: bytes) -> None:
        """Of the parser."""
        self._parts.append(body)

    def on_message_complete(self) -> None:
        """Of the parser, which tells only here whether the connection stays."""
        self._is_complete = True
        self._is_reusable = self._parser is not None and self._parser.should_keep_alive()

    def is_stale(self) -> bool:
        """Whether the server has closed it: nothing else is to be read from an idle connection."""
        return bool(self._poller.poll(0))

    def abort(self) -> None:
        """End what goes on in another thread."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # it has ended by itself

    def close(self) -> None:
        """Let go of the socket."""
        self._socket.close()


def known_head(answer: HttpResponse, data: bytes) -> bytes:
    """What another answer begins with that is read as this one was; empty where that can't be told.

    Args:
        data: the answer as it came, head and body.
    """
    head_bytes = data.find(END_OF_HEAD, 0, MAX_KNOWN_BYTES) + len(END_OF_HEAD)
    known = data[: data.rfind(LENGTH, 0, head_bytes) + len(LENGTH)]
    return known if answer.status == 200 and body_after(known, data) == answer.body else b""


def body_after(known: bytes, data: bytes) -> bytes | None:
    """The body of an answer that begins as known, all of which is here; None for any other."""
    if not known or not data.startswith(known):
        return None
    begin = data.find(END_OF_HEAD, len(known), len(known) + MAX_LENGTH_DIGITS + len(END_OF_HEAD))
    length = data[len(known) : begin]
    if begin < 0 or not length.isdigit() or int(length) != len(data) - begin - len(END_OF_HEAD):
        return None
    return data[begin + len(END_OF_HEAD) :]


class Transport:
    """Connections to one server, kept for the next call; used from any number of threads."""

    def __init__(self, address: ServerAddress, *, clock: Clock | None = None) -> None:
        self.address = address
        self._clock = clock or SystemClock()
        self._idle: deque[HttpClientConnection] = deque()
        self._lock = Lock()
        self._all: set[HttpClientConnection] = set()
        self._is_closed = False

    def ask(self, request: bytes, *, timeout_seconds: float) -> HttpResponse:
        """Send a request over an idle or a new connection. Raises `NotSentError`, `ResponseLostError`."""
        connection = self._take()
        try:
            answer, is_reusable = connection.ask(request, timeout_seconds=timeout_seconds)
        except BaseException as error:
            self._drop(connection)
            if isinstance(error, ResponseLostError):
                self._drop_idle()  # what ended this one has most likely ended them
            raise
        if is_reusable and len(self._idle) < MAX_IDLE_CONNECTIONS and not self._is_closed:
            connection.idle_since = self._clock.monotonic()
            self._idle.append(connection)
        else:
            self._drop(connection)
        return answer

    def close(self) -> None:
        """Close all connections; calls under way in other threads end with `ResponseLostError`."""
        with self._lock:
            self._is_closed = True
            for connection in self._all:
                connection.abort()
        self._drop_idle()

    def renew_after_fork(self) -> None:
        """In the child of a fork: close the copies of the parent's connections, of which nobody is told."""
        self._lock = Lock()
        self._idle = deque()
        connections, self._all = self._all, set()
        for connection in connections:
            connection.close()

    def _drop_idle(self) -> None:
        while self._idle:
            try:
                self._drop(self._idle.pop())
            except IndexError:
                return  # another thread took the last one

    def _take(self) -> HttpClientConnection:
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                break
            is_fresh = self._clock.monotonic() - connection.idle_since < MAX_IDLE_SECONDS
            if is_fresh and not connection.is_stale():
                return connection
            self._drop(connection)
        if self._is_closed:
            raise NotSentError("this client was closed")
        connection = HttpClientConnection(self.address)
        with self._lock:
            self._all.add(connection)
        return connection

    def _drop(self, connection: HttpClientConnection) -> None:
        with self._lock:
            self._all.discard(connection)
        connection.close()


def _connect(address: ServerAddress) -> socket.socket:
    if address.scheme == "unix":
        local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            local.settimeout(CONNECT_SECONDS)
            local.connect(address.path)
        except OSError:
            local.close()
            raise
        return local
    plain = socket.create_connection((address.host, address.port), timeout=CONNECT_SECONDS)
    try:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        enable_keepalive(plain)
        if address.scheme == "http":
            return plain
        return ssl.create_default_context().wrap_socket(plain, server_hostname=address.host)
    except OSError:
        plain.close()
        raise


def enable_keepalive(connection: socket.socket) -> None:
    """Have the kernel end a TCP connection whose link was cut, within `SILENCE_SECONDS`: nobody would tell us.

    A listening socket hands this on to the connections it accepts.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_AFTER_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, SILENCE_SECONDS - PROBE_AFTER_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_SECONDS * 1000)

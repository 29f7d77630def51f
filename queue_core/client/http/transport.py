"""HTTP connections to a server: keep-alive, one write per request, and whether a failed request had been sent.

Knows nothing of queues and never retries.
"""

import math
import select
import socket
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from urllib.parse import unquote, urlsplit

import httptools

from queue_core.clock import Clock, SystemClock
from queue_core.config.store_urls import masked
from queue_core.errors import InvalidSettingError
from queue_core.fast_values import value

CONNECT_SECONDS = 2.0
"""How long a connect may take."""
DEAD_PEER_SECONDS = 4
"""The kernel ends a connection whose peer's host has acknowledged nothing for so long."""
SILENT_SECONDS = 2.0
"""A server that says nothing for so long while a call is under way is asked whether it is there, where it has a
substitute; it has as long again to answer."""
LONG_REQUEST_BYTES = 64 << 10
"""A request up to this size fits into the kernel's buffers, whether its server reads it or not."""
PROBE_AFTER_SECONDS = 2
"""Idle time before the first keep-alive probe; then one follows every second."""
MAX_IDLE_CONNECTIONS = 128
MAX_IDLE_SECONDS = 50.0
"""A connection that was idle for longer is not reused: our servers close it after 75 s, many proxies after 60 s, and a
request on a closing connection may end with an unknown outcome."""
READ_BYTES = 64 << 10
"""At twice this size the C library maps and unmaps memory for each read: three system calls per response."""
END_OF_HEAD = b"\r\n\r\n"
LENGTH = b"\r\ncontent-length: "
MAX_LENGTH_DIGITS = 10
MAX_KNOWN_BYTES = 2 << 10
CLOSED = select.POLLIN | select.POLLRDHUP | select.POLLHUP | select.POLLERR


_CLOCK = SystemClock()


class NotSentError(Exception):
    """The server was not reached; nothing of the request was sent."""

    is_timeout = False


class ResponseLostError(Exception):
    """The request was sent, but no complete response arrived: the server may have acted on it.

    `is_timeout`: the response timed out; else the connection ended.
    """

    def __init__(self, detail: str, *, is_timeout: bool = False) -> None:
        super().__init__(detail)
        self.is_timeout = is_timeout


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """The address of a server."""

    scheme: str
    host: str
    port: int
    path: str = ""

    @property
    def host_header(self) -> str:
        """The value of the `Host` header."""
        if self.scheme == "unix":
            return "localhost"
        name = f"[{self.host}]" if ":" in self.host else self.host
        return f"{name}:{self.port}"


def parse_address(url: str) -> ServerAddress:
    """Parse `http://host:port`, `https://host:port` or `unix:///path`. Raises `InvalidSettingError`."""
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


@value
class HttpResponse:
    """The status and body of a response."""

    status: int
    body: bytes


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
        """The arrival of its last response, in monotonic seconds."""
        self._known_head = b""
        """The head of the last response up to its content length. Later responses begin with the same bytes until the
        server's date changes, and then need no parsing."""
        self._parts: list[bytes] = []
        self._parser: httptools.HttpResponseParser | None = None
        self._is_complete = False
        self._is_reusable = False

    def request(
        self, request: bytes, *, timeout_seconds: float, is_there: Callable[[], bool] | None = None
    ) -> tuple[HttpResponse, bool]:
        """Send a request; return the response and whether the connection can be reused.

        Args:
            is_there: asks the server whether it is there, whenever it is silent for `SILENT_SECONDS`; False ends the
                call. None: it has the whole timeout.

        Raises `ResponseLostError`; the connection is unusable then.
        """
        step_seconds = timeout_seconds if is_there is None else min(timeout_seconds, SILENT_SECONDS)
        if step_seconds != self._timeout_seconds:
            self._socket.settimeout(step_seconds)
            self._timeout_seconds = step_seconds
        wait = None if is_there is None else _Wait(is_there, timeout_seconds, waited_seconds=0.0)
        try:
            if wait is None or len(request) <= LONG_REQUEST_BYTES:
                self._socket.sendall(request)
            else:
                self._send_parts(request, wait)
            data = self._receive(wait)
            body = body_after(self._known_head, data)
            if body is not None:
                return HttpResponse(200, body), True
            return self._parse(data, wait, timeout_seconds=timeout_seconds), self._is_reusable
        except OSError as error:
            if isinstance(error, TimeoutError) and error.errno is None:  # ours; the kernel's has an errno
                waited = timeout_seconds if wait is None else wait.waited_seconds
                raise ResponseLostError(f"no response within {waited:.1f} s", is_timeout=True) from error
            raise ResponseLostError(str(error)) from error
        except httptools.HttpParserError as error:
            raise ResponseLostError(f"not an HTTP response: {error}") from error

    def _send_parts(self, request: bytes, wait: "_Wait") -> None:
        """Send a long request, which a server that does not read it keeps from being sent."""
        left = memoryview(request)
        while left:
            try:
                left = left[self._socket.send(left) :]
            except TimeoutError as error:
                wait.go_on(error)

    def _receive(self, wait: "_Wait | None") -> bytes:
        """Receive the next bytes."""
        if wait is None:
            return self._socket.recv(READ_BYTES)
        while True:
            try:
                return self._socket.recv(READ_BYTES)
            except TimeoutError as error:
                wait.go_on(error)

    def _parse(self, first: bytes, wait: "_Wait | None", *, timeout_seconds: float) -> HttpResponse:
        """Parse a response that begins with `first`, and read the rest of it before the timeout."""
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
            if wait is None or until - now < SILENT_SECONDS:
                self._timeout_seconds = max(0.001, until - now)
                self._socket.settimeout(self._timeout_seconds)
            data = self._receive(wait)
        body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        response = HttpResponse(parser.get_status_code(), body)
        self._known_head = known_head(response, data) if data is first and self._is_reusable else b""
        return response

    def on_body(self, body: bytes) -> None:
        """Receive a part of the body from the parser."""
        self._parts.append(body)

    def on_message_complete(self) -> None:
        """Receive the end of a response from the parser, which knows only now whether the connection stays open."""
        self._is_complete = True
        self._is_reusable = self._parser is not None and self._parser.should_keep_alive()

    def is_stale(self) -> bool:
        """Return whether the server has closed the idle connection: there is nothing else to read from one."""
        return bool(self._poller.poll(0))

    def abort(self) -> None:
        """Make a call in another thread fail."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # already closed

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


@dataclass(slots=True, eq=False)
class _Wait:
    """The wait of a call whose server is asked now and then whether it is there."""

    is_there: Callable[[], bool]
    timeout_seconds: float
    waited_seconds: float

    def go_on(self, error: TimeoutError) -> None:
        """Go on after a silence; raise its error when the time is up, or the server is not there."""
        self.waited_seconds += SILENT_SECONDS
        if error.errno is not None or self.waited_seconds >= self.timeout_seconds:
            raise error
        began_at = _CLOCK.monotonic()
        if not self.is_there():
            self.waited_seconds += _CLOCK.monotonic() - began_at
            raise error


def known_head(response: HttpResponse, data: bytes) -> bytes:
    """Return the bytes that mark a later response as similar to this one; empty if it is unsuitable.

    Args:
        data: the raw response, head and body.
    """
    head_bytes = data.find(END_OF_HEAD, 0, MAX_KNOWN_BYTES) + len(END_OF_HEAD)
    known = data[: data.rfind(LENGTH, 0, head_bytes) + len(LENGTH)]
    return known if response.status == 200 and body_after(known, data) == response.body else b""


def body_after(known: bytes, data: bytes) -> bytes | None:
    """Return the body of a complete response that begins with `known`; None for any other."""
    if not known or not data.startswith(known):
        return None
    begin = data.find(END_OF_HEAD, len(known), len(known) + MAX_LENGTH_DIGITS + len(END_OF_HEAD))
    length = data[len(known) : begin]
    if begin < 0 or not length.isdigit() or int(length) != len(data) - begin - len(END_OF_HEAD):
        return None
    return data[begin + len(END_OF_HEAD) :]


class Transport:
    """A pool of connections to one server. Thread-safe."""

    def __init__(self, address: ServerAddress, *, clock: Clock | None = None) -> None:
        self.address = address
        self._clock = clock or SystemClock()
        self._idle: deque[HttpClientConnection] = deque()
        self._lock = Lock()
        self._all: set[HttpClientConnection] = set()
        self._is_closed = False
        self._probe_lock = Lock()
        self._probed_at = -math.inf
        self._was_there = False

    def request(self, request: bytes, *, timeout_seconds: float, watches: bool = False) -> HttpResponse:
        """Send a request over an idle or a new connection. Raises `NotSentError`, `ResponseLostError`.

        Args:
            watches: lose the response after twice `SILENT_SECONDS` if the server answers nothing else either, as one
                that was stopped; a server that is busy with the call has the whole timeout.
        """
        connection = self._take()
        try:
            response, is_reusable = connection.request(
                request, timeout_seconds=timeout_seconds, is_there=self.is_there if watches else None
            )
        except BaseException as error:
            self._drop(connection)
            if isinstance(error, ResponseLostError):
                self._drop_idle()  # the same failure has most likely ended them
            raise
        if is_reusable and len(self._idle) < MAX_IDLE_CONNECTIONS and not self._is_closed:
            connection.idle_since = self._clock.monotonic()
            self._idle.append(connection)
        else:
            self._drop(connection)
        return response

    def is_there(self) -> bool:
        """Ask the server whether it answers; threads that do so at the same time share the answer."""
        asked_at = self._clock.monotonic()
        with self._probe_lock:
            if self._probed_at < asked_at:
                head = f"GET /livez HTTP/1.1\r\nhost: {self.address.host_header}\r\n\r\n"
                try:
                    self.request(head.encode("ascii"), timeout_seconds=SILENT_SECONDS)
                    self._was_there = True
                except (NotSentError, ResponseLostError):
                    self._was_there = False
                self._probed_at = self._clock.monotonic()
            return self._was_there

    def close(self) -> None:
        """Close all connections; calls in other threads fail with `ResponseLostError`."""
        with self._lock:
            self._is_closed = True
        self.interrupt()
        self._drop_idle()

    def interrupt(self) -> None:
        """Make calls in other threads fail with `ResponseLostError`; later ones open connections of their own."""
        with self._lock:
            for connection in self._all:
                connection.abort()

    def renew_after_fork(self) -> None:
        """Close the copies of the parent's connections in the child of a fork, without a word to the server."""
        self._lock, self._probe_lock = Lock(), Lock()
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
    """Have the kernel end a TCP connection within `DEAD_PEER_SECONDS` after its peer's host became unreachable.

    A listening socket passes this on to the connections it accepts.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_AFTER_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, DEAD_PEER_SECONDS - PROBE_AFTER_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_PEER_SECONDS * 1000)

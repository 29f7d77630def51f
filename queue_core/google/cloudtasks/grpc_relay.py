"""GrpcRelay: the address at which gRPC is served. It hands each connection on to gRPC's own server, once it may begin.

gRPC listens on a Unix socket in a folder that is this user's alone. What a connection sends first goes through
`Opening`; TLS ends here, as what is encrypted can't be looked at (ADR 134).
"""

import asyncio
import shutil
import socket
import ssl
import tempfile
import weakref
from asyncio.sslproto import SSLProtocol
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final, cast

from queue_core.google.cloudtasks.grpc_opening import Opening, OpeningError
from queue_core.server.base.options import GrpcOptions, GrpcTls

HANDSHAKE_SECONDS: Final = 10
"""Seconds for the handshake of TLS."""
GOODBYE_SECONDS: Final = 5
"""Seconds that a client has to take the last answers, and to answer the end of its connection."""
BACKLOG: Final = 512
"""Connections that wait to be accepted."""


class GrpcRelay:
    """A socket that is bound, and the connections through it. All but `renew` and `peer_of` is the loop's."""

    def __init__(self, options: GrpcOptions, *, most: int) -> None:
        """Bind. Raises `OSError` (`ssl.SSLError` is one).

        Args:
            most: connections at a time; a further one is closed.
        """
        self._context = None if options.tls is None else tls_context(options.tls)
        self._most = most
        self._listening = _bound(options)
        self._folder = Path(tempfile.mkdtemp(prefix="towline-grpc-"))
        self._remove = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self.inner = self._folder / "s"
        self.port: int = self._listening.getsockname()[1]
        self._numbers = count(1)
        self._peers: dict[str, str] = {}
        self._open: set[_Caller] = set()
        self._server: asyncio.Future[asyncio.Server] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def renew(self, tls: GrpcTls) -> None:
        """Serve another certificate to connections that come from now on. Raises `OSError`: then the old one stays."""
        self._context = tls_context(tls)

    def peer_of(self, inner: str) -> str:
        """Return who is behind a peer of gRPC's own server, in gRPC's words; any thread may ask."""
        return self._peers.get(inner.rpartition("/")[2], inner)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Accept connections."""
        self._listening.listen(BACKLOG)
        self._server = asyncio.ensure_future(
            loop.create_server(lambda: self._protocol(loop), sock=self._listening, backlog=BACKLOG)
        )

    def _protocol(self, loop: asyncio.AbstractEventLoop) -> asyncio.BaseProtocol:
        caller = _Caller(self, loop)
        return caller if self._context is None else _TlsCaller(caller, self._context, loop)

    async def stop(self) -> None:
        """Accept no more."""
        if self._server is not None:
            (await self._server).close()
        self._listening.close()

    def close(self) -> None:
        """Cut what is left."""
        self._listening.close()
        for caller in list(self._open):
            caller.cut()
        self._remove()

    # -- for the connections ------------------------------------------------------------------------------------------

    def enter(self, caller: "_Caller") -> bool:
        """Count a connection; returns whether there is room for it."""
        self._open.add(caller)
        return len(self._open) <= self._most

    def leave(self, caller: "_Caller") -> None:
        """Count it no more."""
        self._open.discard(caller)
        self._peers.pop(caller.number, None)

    def lead_in(self, caller: "_Caller", peer: str) -> None:
        """Connect a caller with gRPC's own server."""
        caller.number = str(next(self._numbers))
        self._peers[caller.number] = peer
        task = asyncio.ensure_future(self._connect(caller))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, caller: "_Caller") -> None:
        own = self._folder / caller.number  # what gRPC knows the connection by
        loop = asyncio.get_running_loop()
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(0)
                connection.bind(str(own))
                await loop.sock_connect(connection, str(self.inner))
                await loop.create_unix_connection(lambda: _Inner(caller), sock=connection.dup())
        except OSError:
            caller.cut()
        finally:
            own.unlink(missing_ok=True)


class _Side(asyncio.Protocol):
    """One of the two sides of a connection. What it can't send yet, the other one does not read."""

    transport: asyncio.Transport | None = None
    other: "_Side | None" = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = cast("asyncio.Transport", transport)

    def pause_writing(self) -> None:
        """Read no more at the other side."""
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        """Read again at the other side."""
        if self.other is not None and self.other.transport is not None:
            self.other.transport.resume_reading()


class _Caller(_Side):
    """The side of a client."""

    def __init__(self, relay: GrpcRelay, loop: asyncio.AbstractEventLoop) -> None:
        self._relay = relay
        self._loop = loop
        self._opening = Opening()
        self.number = ""
        self.is_counted = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not self.is_counted and not self._relay.enter(self):
            self.cut()
            return
        assert self.transport is not None
        self.transport.pause_reading()
        self._relay.lead_in(self, _peer(transport.get_extra_info("peername")))

    def data_received(self, data: bytes) -> None:
        try:
            ready = self._opening.take(data)
        except OpeningError:
            self.cut()
            return
        if ready and self.other is not None and self.other.transport is not None:
            self.other.transport.write(ready)

    def connection_lost(self, _exc: Exception | None) -> None:
        """End gRPC's side at once: nobody is there for its answers."""
        self.transport = None
        if self.other is not None and self.other.transport is not None:
            self.other.transport.abort()
        self._relay.leave(self)

    def end(self) -> None:
        """End the connection after what is left to send."""
        if self.transport is not None:
            self.transport.close()
            self._loop.call_later(GOODBYE_SECONDS, self.transport.abort)

    def led_in(self, inner: "_Inner") -> None:
        """Begin to read: gRPC's own server is there."""
        self.other = inner
        if self.transport is None:
            assert inner.transport is not None
            inner.transport.abort()
        else:
            self.transport.resume_reading()

    def cut(self) -> None:
        """End the connection now."""
        if self.transport is not None:
            self.transport.abort()
        if self.other is not None and self.other.transport is not None:
            self.other.transport.abort()


class _TlsCaller(SSLProtocol):
    """TLS between a socket and a client's side. The connection counts from the moment at which it is accepted."""

    max_size = 16 << 10
    """Bytes of the buffer that every connection has, also a silent one: a record of TLS."""

    def __init__(self, above: _Caller, context: ssl.SSLContext, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(
            loop,
            above,
            context,
            None,  # type: ignore[arg-type]  # nothing waits for the handshake
            server_side=True,
            ssl_handshake_timeout=HANDSHAKE_SECONDS,
            ssl_shutdown_timeout=GOODBYE_SECONDS,
        )
        self._above, self._counted_at = above, above._relay  # noqa: SLF001 - one module

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # of a socket
        self._above.is_counted = True
        if not self._counted_at.enter(self._above):
            self._transport = transport
            transport.abort()
            return
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._counted_at.leave(self._above)
        super().connection_lost(exc)


class _Inner(_Side):
    """The side of gRPC's own server."""

    def __init__(self, caller: _Caller) -> None:
        self.other = self._caller = caller

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._caller.led_in(self)

    def data_received(self, data: bytes) -> None:
        if self._caller.transport is not None:
            self._caller.transport.write(data)

    def connection_lost(self, _exc: Exception | None) -> None:
        """End the client's side."""
        self.transport = None
        self._caller.end()


def tls_context(tls: GrpcTls) -> ssl.SSLContext:
    """Return the context of a server that speaks HTTP/2 with this certificate. Raises `OSError`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.NamedTemporaryFile(prefix="towline-") as kept:  # Python's ssl reads files alone; 0600
        kept.write(tls.certificates + b"\n" + tls.key)
        kept.flush()
        context.load_cert_chain(kept.name, password=lambda: "")
    context.set_alpn_protocols(["h2"])
    return context


def _bound(options: GrpcOptions) -> socket.socket:
    found = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = found[0]
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(options.host not in ("::", "")))
        bound.bind(address)
        bound.listen(1)  # only now it is known whether another server listens there
    except OSError:
        bound.close()
        raise
    return bound


def _peer(name: object) -> str:
    """Return the address of a socket as gRPC writes it."""
    with suppress(TypeError, ValueError, IndexError):
        host, port = cast("tuple[str, int]", name)[:2]
        return f"ipv6:%5B{host}%5D:{port}" if ":" in host else f"ipv4:{host}:{port}"
    return ""

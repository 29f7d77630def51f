"""TLS at a listener: a connection counts from the moment it is accepted, and a renewed certificate is served at once.

uvicorn is given no certificate: asyncio would keep it for as long as it listens, and count nothing until the handshake
is over (ADR 93).
"""

import asyncio
import ssl
from asyncio.sslproto import SSLProtocol
from typing import Final

from queue_core.server.base.options import HttpTls
from queue_core.server.http.connections import MAX_REFUSED
from queue_core.server.http.http_connection import HttpConnection

HANDSHAKE_SECONDS: Final = 10
"""Seconds for the handshake of a connection."""
GOODBYE_SECONDS: Final = 5
"""Seconds that a client has to answer the end of its connection."""


class ServedCertificate:
    """The certificate of one listener. `replace` may be called in any thread."""

    def __init__(self, files: HttpTls) -> None:
        """Read the files. Raises `OSError` (`ssl.SSLError` is one)."""
        self.context = tls_context(files)

    def replace(self, files: HttpTls) -> None:
        """Serve another certificate to connections that come from now on. Raises `OSError`: then the old one stays."""
        self.context = tls_context(files)


def tls_context(files: HttpTls) -> ssl.SSLContext:
    """Return the context of a server with this certificate. Raises `OSError`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.cert, files.key, password=_no_password)
    return context


def _no_password() -> str:
    """Answer what OpenSSL would ask a terminal: a daemon has none."""
    return ""


class TlsConnection(SSLProtocol):
    """asyncio's TLS, between a socket and the protocol of a connection."""

    max_size = 16 << 10
    """Bytes of the buffer that every connection has, also a silent one: a record of TLS. asyncio's are 256 KiB."""

    def __init__(self, above: HttpConnection, certificate: ServedCertificate, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(
            loop,
            above,
            certificate.context,
            None,  # type: ignore[arg-type]  # nothing waits for the handshake
            server_side=True,
            ssl_handshake_timeout=HANDSHAKE_SECONDS,
            ssl_shutdown_timeout=GOODBYE_SECONDS,
        )
        self._connections = above.shared
        above.over_limit = 0  # until this has counted it
        self._above = above

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # of a socket
        """Count the connection, then begin the handshake, unless there are far too many."""
        over = self._above.over_limit = self._connections.enter()
        if over > MAX_REFUSED:
            self._transport = transport
            transport.abort()
            return
        self._connections.handshake_begins(self, transport.abort)
        super().connection_made(transport)

    def _on_handshake_complete(self, handshake_exc: BaseException | None) -> None:
        self._connections.handshake_ends(self)
        super()._on_handshake_complete(handshake_exc)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Count the connection no more."""
        self._connections.handshake_ends(self)
        self._connections.leave()
        super().connection_lost(exc)

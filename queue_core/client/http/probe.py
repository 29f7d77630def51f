"""Find out whether a server is there, and whether it is the one that is meant, before a call is made to it."""

import json
import socket
from contextlib import closing
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from queue_core.errors import InvalidSettingError

PROBE_SECONDS: Final = 0.5
"""Timeout of a connection that only finds out whether a server is there."""
SERVED_SECONDS: Final = 2.0
"""How long a server may take to say which store it serves; the call that follows is made when it does not say."""


def is_listening(url: str) -> bool:
    """Return whether a program listens at a server's URL, or at one of several joined by commas."""
    return any(_is_listening(one.strip()) for one in url.split(","))


def _is_listening(url: str) -> bool:
    parts = urlsplit(url)
    try:
        if parts.scheme == "unix":
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                probe.settimeout(PROBE_SECONDS)
                probe.connect(parts.path)
        else:
            address = (parts.hostname or "127.0.0.1", parts.port or (443 if parts.scheme == "https" else 80))
            socket.create_connection(address, timeout=PROBE_SECONDS).close()
    except (OSError, ValueError):
        return False
    return True


def is_of_another_store(url: str, *, store: str, folder: Path) -> bool:
    """Return whether the server at `url` surely serves another store than the one of a settings file.

    Args:
        url: where the file says that its server listens; another project may have kept the same address.
        store: the URL of the file's store, whose path is absolute.
        folder: the file's folder.
    """
    from queue_core.config.served_store import here, served_store

    return served_store(store, folder, host=here()).is_surely_another(_served_by(url))


def _served_by(url: str) -> str:
    """Return what a server says of its store; "" for one that says nothing, or nothing that can be read."""
    from queue_core.client.http.transport import NotSentError, ResponseLostError, Transport, parse_address

    try:
        address = parse_address(url)
        request = f"GET /livez HTTP/1.1\r\nhost: {address.host_header}\r\n\r\n".encode()
        with closing(Transport(address)) as transport:
            answer = json.loads(transport.request(request, timeout_seconds=SERVED_SECONDS).body)
    except (InvalidSettingError, NotSentError, ResponseLostError, ValueError):
        return ""
    served = answer.get("serves") if isinstance(answer, dict) else None
    return served if isinstance(served, str) else ""

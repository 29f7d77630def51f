"""Find out whether a server is there, before a call is made to it."""

import socket
from typing import Final
from urllib.parse import urlsplit

PROBE_SECONDS: Final = 0.5
"""Timeout of a connection that only finds out whether a server is there."""


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

"""Where something listens, as a settings file writes it: host:port, or unix:/path (as a client's URL: unix:///path)."""

import re
from typing import Annotated, Final

from pydantic import BeforeValidator

DEFAULT_LISTEN: Final = "127.0.0.1:7878"
MAX_SOCKET_PATH_BYTES: Final = 100
_HOST: Final = re.compile(r"[^\s/@\[\]]+|\[[0-9a-fA-F:.]+\]")
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})


def _listen(value: object) -> object:
    if not isinstance(value, str):
        raise ValueError(f"{value!r}: write host:port, such as {DEFAULT_LISTEN}, or unix:/path")  # noqa: TRY004
    if value.startswith("unix:"):
        path = value.removeprefix("unix:").removeprefix("//")
        if not path:
            raise ValueError(f"{value}: write the path of the socket, such as unix:/run/towline.sock")
        if len(path.encode()) > MAX_SOCKET_PATH_BYTES:
            told = f"a socket's path must be at most {MAX_SOCKET_PATH_BYTES} bytes: choose a shorter folder"
            raise ValueError(f"{value}: {told}")
        return f"unix:{path}"
    scheme, has_scheme, rest = value.partition("://")
    if has_scheme:
        host, has_port, port = rest.rstrip("/").rpartition(":")
        fix = f"{host or port}:{port if has_port and host else 7878}"
        raise ValueError(f"{value}: an address to listen on has no {scheme}:// before it: write {fix}")
    host, _, port = value.rpartition(":")
    if not _HOST.fullmatch(host) or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65_535:
        raise ValueError(f"{value}: write host:port with a port in [0, 65535], such as {DEFAULT_LISTEN}, or unix:/path")
    return value


Listen = Annotated[str, BeforeValidator(_listen)]
"""host:port or unix:/path."""


def is_private(listen: str) -> bool:
    """True when only this machine can reach such a listener."""
    return listen.startswith("unix:") or listen.rpartition(":")[0].strip("[]") in _LOOPBACK

"""Where something listens, as a settings file writes it: host:port, or unix:/path."""

import re
from typing import Annotated, Final

from pydantic import BeforeValidator

DEFAULT_LISTEN: Final = "127.0.0.1:7878"
MAX_SOCKET_PATH_BYTES: Final = 100
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})


def _listen(value: object) -> object:
    if not isinstance(value, str):
        raise ValueError(f"{value!r}: write host:port, such as {DEFAULT_LISTEN}, or unix:/path")  # noqa: TRY004
    if value.startswith("unix:"):
        if len(value.encode()) - len("unix:") > MAX_SOCKET_PATH_BYTES:
            told = f"a socket's path must be at most {MAX_SOCKET_PATH_BYTES} bytes: choose a shorter folder"
            raise ValueError(f"{value}: {told}")
        return value
    host, _, port = value.rpartition(":")
    if not host or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65_535:
        raise ValueError(f"{value}: write host:port with a port in [0, 65535], such as {DEFAULT_LISTEN}, or unix:/path")
    return value


Listen = Annotated[str, BeforeValidator(_listen)]
"""host:port or unix:/path."""


def is_private(listen: str) -> bool:
    """True when only this machine can reach such a listener."""
    return listen.startswith("unix:") or listen.rpartition(":")[0].strip("[]") in _LOOPBACK

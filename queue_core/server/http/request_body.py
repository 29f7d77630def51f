"""Read the body of an ASGI request, within a limit that is checked against its head before any of it is read."""

from collections.abc import Callable

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from queue_core.server.base.problems import body_too_large
from queue_core.server.callers.auth import Headers


def body_length(headers: Headers) -> int | None:
    """Return the length of a body as its head declares it; None in chunks."""
    found: int | None = 0
    for name, value in headers:
        if name == b"content-length" and value.isdigit():
            found = int(value)
        elif name == b"transfer-encoding":
            return None
    return found


async def read_body(
    headers: Headers, receive: Receive, *, limit: int, too_large: Callable[[int], Exception] = body_too_large
) -> bytes:
    """Return the whole body. Raises `too_large(limit)`, at once where the head declares it, and `ClientDisconnect`."""
    if (body_length(headers) or 0) > limit:
        raise too_large(limit)  # before `receive`, which answers `Expect: 100-continue`
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise too_large(limit)
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)

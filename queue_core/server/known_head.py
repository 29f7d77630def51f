"""What the parser found out about a request, kept for the next one that begins the same."""

from dataclasses import dataclass

from queue_core.server.hot import Door


@dataclass(frozen=True, slots=True)
class KnownHead:
    """The head of a request on the short way, and what was read from it: one that is the same byte for byte, with a
    body of the same size, need not be read again. A worker that goes from task to task sends it for hours."""

    head: bytes
    request_bytes: int
    door: Door
    verb: str
    queue: str
    headers: list[tuple[bytes, bytes]]
    is_admitted: bool

"""Know the head of a request by its being the same as the one before on its connection (ADR 6).

A worker that goes from task to task sends one head for hours; only the `Idempotency-Key` at its end changes.
"""

from dataclasses import dataclass

from queue_core.server.auth import Headers
from queue_core.server.idempotency import HEADER

MAX_KNOWN_BYTES = 2 << 10
"""A head that is longer is read anew each time: a thousand connections are not to keep theirs."""
MAX_KEY_BYTES = 128
END_OF_HEAD = b"\r\n\r\n"
KEY_LINE = b"\r\nidempotency-key: "


@dataclass(frozen=True, slots=True)
class KnownHead:
    """A head, and what was read from it.

    Args:
        head: as far as the key, or to its end where there is none.
        tail_bytes: what comes after the key: the end of the head and the body.
        headers: without the key.
    """

    head: bytes
    tail_bytes: int
    headers: Headers
    is_keyed: bool

    def read(self, data: bytes) -> tuple[bytes | None, bytes] | None:
        """Return the key and the body of a request that has this head; None where `data` is anything else."""
        if not data.startswith(self.head):
            return None
        begin, end = len(self.head), len(data) - self.tail_bytes
        if not begin <= end <= begin + MAX_KEY_BYTES:
            return None
        if data.find(b"\r", begin) != end or not data.startswith(END_OF_HEAD, end):
            return None
        return data[begin:end] if self.is_keyed else None, data[end + len(END_OF_HEAD) :]


def known_head(data: bytes, headers: Headers, *, body_bytes: int) -> KnownHead | None:
    """Return the head of a request that has just been parsed; None where it is not worth it.

    Args:
        data: what has arrived.
        headers: of the request.
        body_bytes: how long its body was; where more than that follows its head it came in chunks, or others follow.
    """
    end = data.find(END_OF_HEAD, 0, MAX_KNOWN_BYTES)
    if end < 0 or end + len(END_OF_HEAD) + body_bytes != len(data):
        return None
    key_at = data.rfind(KEY_LINE, 0, end)
    is_keyed = key_at >= 0 and b"\r" not in data[key_at + len(KEY_LINE) : end]
    if not is_keyed and any(name == HEADER for name, _ in headers):
        return None
    head = data[: key_at + len(KEY_LINE) if is_keyed else end]
    return KnownHead(head, len(data) - end, [header for header in headers if header[0] != HEADER], is_keyed=is_keyed)

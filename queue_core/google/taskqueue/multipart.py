"""Split a multipart body in time proportional to its size, whatever its content. Pure.

The standard library's parser works line by line, a microsecond or two for each: 12 MiB of short lines take it 12 s.
"""

import re
from base64 import b64decode
from dataclasses import dataclass
from email.message import Message
from email.parser import BytesHeaderParser
from quopri import decodestring

MAX_HEAD_BYTES = 16 << 10
"""Bytes of one part's head."""
MAX_HEAD_LINES = 100
"""Lines of one part's head."""
MAX_BOUNDARY_BYTES = 256
"""Bytes of a boundary line; the standard allows 70 for the boundary."""
MAX_LOOKALIKES = 10_000
"""Times that the boundary may occur inside a line of the content."""
NEW_LINE = ord("\n")
_BLANK_LINE = re.compile(rb"\r?\n\r?\n")


class MultipartError(Exception):
    """The body is not valid multipart; the message says why."""


@dataclass(frozen=True, slots=True)
class MimePart:
    """One part: its headers, and its content without transfer encoding."""

    head: Message
    content: bytes


def parts_of(content_type: str, body: bytes, *, most: int) -> list[MimePart]:
    """Return the parts of a `multipart/mixed` body, at most `most`. Raises `MultipartError`."""
    kind = BytesHeaderParser().parsebytes(b"Content-Type: " + content_type.encode("latin-1") + b"\r\n\r\n")
    boundary = kind.get_boundary()
    if kind.get_content_type() != "multipart/mixed" or not boundary or len(boundary) > MAX_BOUNDARY_BYTES // 2:
        raise MultipartError("a batch must be multipart/mixed, with a boundary in its Content-Type")
    delimiter = b"--" + boundary.encode("latin-1", "replace")
    found = _split(body, delimiter, most=most)
    return [_part(one, number) for number, one in enumerate(found, start=1)]


def _split(body: bytes, delimiter: bytes, *, most: int) -> list[bytes]:
    """Return the content between boundary lines; the last such line ends in two hyphens, or is missing."""
    found: list[bytes] = []
    begin: int | None = None
    at = -1
    for _ in range(MAX_LOOKALIKES + most):
        at = body.find(delimiter, at + 1)
        if at < 0:
            break
        if at > 0 and body[at - 1] != NEW_LINE:
            continue
        end = body.find(b"\n", at, at + MAX_BOUNDARY_BYTES)
        behind = body[at + len(delimiter) : len(body) if end < 0 else end].strip(b" \t\r")
        if behind not in (b"", b"--"):
            continue
        if begin is not None:
            found.append(body[begin:at].removesuffix(b"\n").removesuffix(b"\r"))
            begin = None
        if behind:
            return found
        if len(found) >= most:
            raise MultipartError(f"at most {most} calls in one batch; split it")
        begin = len(body) if end < 0 else end + 1
    else:
        raise MultipartError("the boundary occurs inside the calls too often: choose another")
    if begin is not None:
        found.append(body[begin:])
    return found


def _part(raw: bytes, number: int) -> MimePart:
    cut = split_head(raw)
    if cut is None:
        raise MultipartError(
            f"the head of part {number} must be at most {MAX_HEAD_BYTES} bytes in {MAX_HEAD_LINES} lines"
        )
    head = BytesHeaderParser().parsebytes(cut[0])
    return MimePart(head, _decoded(cut[1], str(head.get("Content-Transfer-Encoding", "")).strip().lower(), number))


def split_head(raw: bytes) -> tuple[bytes, bytes] | None:
    """Split at the first blank line into head and body; None when the head is too long."""
    if raw[:1] == b"\n" or raw[:2] == b"\r\n":
        return b"", raw.removeprefix(b"\r").removeprefix(b"\n")
    found = _BLANK_LINE.search(raw, 0, MAX_HEAD_BYTES)
    if found is None and len(raw) > MAX_HEAD_BYTES:
        return None
    head, rest = (raw, b"") if found is None else (raw[: found.start()], raw[found.end() :])
    return None if head.count(b"\n") >= MAX_HEAD_LINES else (head, rest)


def _decoded(content: bytes, encoding: str, number: int) -> bytes:
    if encoding == "base64":
        try:
            return b64decode(content)
        except ValueError as error:
            raise MultipartError(f"part {number} is not base64: {error}") from None
    return decodestring(content) if encoding == "quoted-printable" else content

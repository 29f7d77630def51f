"""The parts of a multipart body, found in time that is in proportion to its size whatever it holds. Pure.

The standard library's parser goes line by line, a microsecond or two for each: 12 MiB of short lines take it 12 s.
"""

import re
from base64 import b64decode
from dataclasses import dataclass
from email.message import Message
from email.parser import BytesHeaderParser
from quopri import decodestring

MAX_HEAD_BYTES = 16 << 10
MAX_HEAD_LINES = 100
"""Of one part."""
MAX_BOUNDARY_BYTES = 256
"""Of its line; the standard allows 70 for the boundary."""
MAX_LOOKALIKES = 10_000
"""Times that the boundary may stand within a line."""
NEW_LINE = ord("\n")
_BLANK_LINE = re.compile(rb"\r?\n\r?\n")


class PartsError(Exception):
    """A body that is not made of parts; the text says why."""


@dataclass(frozen=True, slots=True)
class MimePart:
    """One part: its own head, and its content without a transfer encoding."""

    head: Message
    content: bytes


def parts_of(content_type: str, body: bytes, *, most: int) -> list[MimePart]:
    """The parts of a `multipart/mixed` body. Raises `PartsError`, of more than `most` too."""
    kind = BytesHeaderParser().parsebytes(b"Content-Type: " + content_type.encode("latin-1") + b"\r\n\r\n")
    boundary = kind.get_boundary()
    if kind.get_content_type() != "multipart/mixed" or not boundary or len(boundary) > MAX_BOUNDARY_BYTES // 2:
        raise PartsError("a batch must be multipart/mixed, with a boundary in its Content-Type")
    line = b"--" + boundary.encode("latin-1", "replace")
    found = _split(body, line, most=most)
    return [_part(one, number) for number, one in enumerate(found, start=1)]


def _split(body: bytes, line: bytes, *, most: int) -> list[bytes]:
    """What stands between the lines that are the boundary; the last one has two hyphens more, or is missing."""
    found: list[bytes] = []
    begin: int | None = None
    at = -1
    for _ in range(MAX_LOOKALIKES + most):
        at = body.find(line, at + 1)
        if at < 0:
            break
        if at > 0 and body[at - 1] != NEW_LINE:
            continue
        end = body.find(b"\n", at, at + MAX_BOUNDARY_BYTES)
        behind = body[at + len(line) : len(body) if end < 0 else end].strip(b" \t\r")
        if behind not in (b"", b"--"):
            continue
        if begin is not None:
            found.append(body[begin:at].removesuffix(b"\n").removesuffix(b"\r"))
            begin = None
        if behind:
            return found
        if len(found) >= most:
            raise PartsError(f"at most {most} calls in one batch; split it")
        begin = len(body) if end < 0 else end + 1
    else:
        raise PartsError("the boundary stands inside of the calls too often: choose another")
    if begin is not None:
        found.append(body[begin:])
    return found


def _part(raw: bytes, number: int) -> MimePart:
    cut = head_and_rest(raw)
    if cut is None:
        raise PartsError(f"the head of part {number} must be at most {MAX_HEAD_BYTES} bytes in {MAX_HEAD_LINES} lines")
    head = BytesHeaderParser().parsebytes(cut[0])
    return MimePart(head, _decoded(cut[1], str(head.get("Content-Transfer-Encoding", "")).strip().lower(), number))


def head_and_rest(raw: bytes) -> tuple[bytes, bytes] | None:
    """What is before and behind the first blank line; None for a head that is too long."""
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
            raise PartsError(f"part {number} is not base64: {error}") from None
    return decodestring(content) if encoding == "quoted-printable" else content

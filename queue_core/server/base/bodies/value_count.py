"""The number of values in a JSON body, found without parsing it, so that a hostile one is never parsed. Pure.

Each value that is parsed or refused takes time and memory, which no caller may ask for without bound (ADR 41).
"""

import re
from typing import Final

from queue_core.server.base.problems import refusal

MAX_VALUES: Final = 65_536
"""Values of a body, at most: 1,000 tasks with 64 members each."""
SHORT_BODY_BYTES: Final = 64 << 10
"""Bytes of a body that is parsed at once, whatever it contains."""
SLICE_BYTES: Final = 256 << 10
"""Bytes that one step looks at: other threads run in between."""
LONG_SLICE_BYTES: Final = 8 << 20
"""The same, where a step looks for one byte."""
_NO_MARKS: Final = bytes(sorted({*range(256)} - {*b'",'}))
_IN_STRING: Final = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)


def check_values(body: bytes | bytearray, *, most: int = MAX_VALUES) -> None:
    """Raise a `Problem` for a long body of more than `most` values. Its cost is that of a few passes over the bytes."""
    if len(body) > SHORT_BODY_BYTES and _commas(body, 0, len(body), most) > most and _values(body, most) > most:
        raise refusal(422, "too-many-values", f"a body must have at most {most} values; split the batch")


def _commas(body: bytes | bytearray, begin: int, end: int, most: int) -> int:
    """Count the commas of a part, up to some more than `most`."""
    found = 0
    while begin < end and found <= most:
        found += body.count(b",", begin, min(end, begin + SLICE_BYTES))
        begin += SLICE_BYTES
    return found


def _values(body: bytes | bytearray, most: int) -> int:
    """Count the commas outside strings, up to some more than `most`, as far as the body is JSON.

    In C, a slice at a time: a loop over the strings of a mebibyte takes sixty milliseconds.
    """
    found = quotes = at = 0
    while at < len(body) and found <= most:
        part = bytes(body[at : at + SLICE_BYTES])
        if (len(part) - len(part.rstrip(b"\\"))) % 2:
            part += body[at + len(part) : at + len(part) + 1]
        at += len(part)
        if b"\\" in part:
            part = part.replace(b"\\\\", b"").replace(b'\\"', b"")
        marks = part.translate(None, _NO_MARKS)
        is_inside, quotes = quotes % 2, quotes + marks.count(b'"')
        if quotes > 5 * most:  # in JSON a member has four, and each is a value
            return quotes
        found += sum(map(len, marks.split(b'"')[is_inside::2]))
    return found


def _find(body: bytes | bytearray, mark: bytes, begin: int, end: int) -> int:
    """Return the first place of a byte in a part; -1: it has none."""
    for at in range(begin, end, LONG_SLICE_BYTES):
        if (found := body.find(mark, at, min(end, at + LONG_SLICE_BYTES))) >= 0:
            return found
    return -1


def end_of_string(body: bytes | bytearray, at: int) -> int:
    """Return the place behind a string's closing quote, or the end of the body."""
    close = _find(body, b'"', at, len(body))
    if close < 0:
        return len(body)
    if _find(body, b"\\", at, close) >= 0:
        close = at
        while (match := _IN_STRING.match(body, close, close + SLICE_BYTES)) is not None and match.end() > close:
            close = match.end()
    return close + 1

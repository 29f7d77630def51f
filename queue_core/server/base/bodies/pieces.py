"""A long body of tasks in pieces, each a body of its own: none takes the interpreter for long. Pure.

A parser of JSON holds the lock of the interpreter until it is done: 60 MiB of letters beyond ASCII take 0.1 s (ADR 41).
"""

import re
from itertools import pairwise
from typing import Final

from queue_core.server.base.bodies.value_count import MAX_VALUES, end_of_string

PIECE_BYTES: Final = 4 << 20
"""Bytes of a piece, and those of one task more."""
MAX_DEPTH: Final = 200
_BEGIN: Final = re.compile(rb'\s*+\{\s*+"tasks"\s*+:\s*+\[')
_END: Final = re.compile(rb"\s*+\}\s*+")
_MARKS: Final = re.compile(rb"[\[\]{},]")
_OPEN: Final = (ord("["), ord("{"))
_COMMA: Final = ord(",")


def pieces_of(body: bytes | bytearray) -> list[bytes | bytearray]:
    """Return bodies that have the same tasks in order; one that is no plain list of tasks is returned as it is."""
    begin = _BEGIN.match(body)
    places = None if begin is None else _places(body, begin.end())
    if begin is None or places is None:
        return [body]
    cuts = [begin.end() - 1, *places]
    inner = [body[first + 1 : last] for first, last in pairwise(cuts)]
    if any(not one or one.isspace() for one in inner):  # such as a comma too many
        return [body]
    return [b"".join((b'{"tasks":[', one, b"]}")) for one in inner]


def _places(body: bytes | bytearray, at: int) -> list[int] | None:
    """Return the commas to cut at, and the end of the list; None: it has none, or is followed by something else."""
    found: list[int] = []
    begin, depth, marks = at, 0, 0
    while True:
        quote = body.find(b'"', at)
        for mark in _MARKS.finditer(body, at, len(body) if quote < 0 else quote):
            place, sign = mark.start(), body[mark.start()]
            marks += 1
            if marks > 8 * MAX_VALUES or depth > MAX_DEPTH:
                return None
            if sign in _OPEN:
                depth += 1
            elif sign != _COMMA and depth:
                depth -= 1
            elif sign != _COMMA:
                return [*found, place] if sign == ord("]") and _END.fullmatch(body, place + 1) else None
            elif not depth and place - begin >= PIECE_BYTES:
                found.append(place)
                begin = place
        if quote < 0:
            return None
        at = end_of_string(body, quote + 1)


def has_short_parts(body: bytes | bytearray, *, most: int) -> bool:
    """Return whether each string of a body has at most so many bytes, as they are written, and what is between two of
    them at most `PIECE_BYTES`: numbers, names of members, blanks."""
    end = 0
    while (at := body.find(b'"', end)) >= 0:
        if at - end > PIECE_BYTES:
            return False
        end = end_of_string(body, at + 1)
        if end - at > most + 2:
            return False
    return len(body) - end <= PIECE_BYTES

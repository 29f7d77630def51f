"""Refuse JSON in which an object has a key twice: a parser keeps the last, and nobody knows what was meant. Pure."""

import json
from typing import Final

from queue_core.server.problems import Problem, refusal

MAX_SHOWN_CHARACTERS: Final = 60
FAR_APART_BYTES: Final = 256
LONG_BYTES: Final = 4 << 10


def check_keys(body: bytes, parsed: int, *, colons: int = 0) -> None:
    """Raise a `Problem` that names a key which an object of `body` has twice.

    Every key in a text has a colon behind it. So there are at least as many colons as keys, and a text with no more
    colons than keys were parsed from it has none twice: that is told by counting, without parsing it again.

    Args:
        body: valid JSON.
        parsed: how many keys its objects have as they were parsed, all taken together.
        colons: how many colons there are in its strings, as far as known; they count where nothing is escaped.
    """
    found = body.count(b":") if len(body) < LONG_BYTES else _colons(body, most=parsed + colons)
    if found != parsed and (found != parsed + colons or b"\\" in body):
        check_every_key(body)


def _colons(body: bytes, *, most: int) -> int:
    """How many there are; a search for the next one passes over a long payload ten times as fast as a count."""
    if len(body) < (most + 1) * FAR_APART_BYTES:
        return body.count(b":")
    found, at = 0, body.find(b":")
    while at >= 0 and found <= most:
        found, at = found + 1, body.find(b":", at + 1)
    return found


def check_every_key(body: bytes) -> None:
    """The same for JSON of any kind: parses it anew, for what is seldom called or has colons in its texts."""
    json.loads(body, object_pairs_hook=_once, parse_int=_number, parse_float=_number, parse_constant=_number)


def _once(pairs: list[tuple[str, None]]) -> None:
    """Each object becomes nothing, so that a body is never held twice."""
    if len(pairs) > 1 and len({key for key, _ in pairs}) < len(pairs):
        raise _twice([key for key, _ in pairs])


def _twice(keys: list[str]) -> Problem:
    key = next(key for at, key in enumerate(keys) if key in keys[:at])
    shown = json.dumps(key if len(key) <= MAX_SHOWN_CHARACTERS else key[:MAX_SHOWN_CHARACTERS] + "...")
    return refusal(400, "duplicate-key", f"an object of the body has the key {shown} twice: which is meant?")


def _number(_text: str) -> None:
    """A number of any length, which is not looked at."""

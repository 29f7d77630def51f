"""A payload as people read it: text, JSON with its numbers as they were written, or bytes in hexadecimal. Pure."""

import json
import re
from binascii import Error, a2b_base64
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import translate
from functools import lru_cache
from typing import Final, Literal, cast

_LINE_BYTES: Final = 16
MASK: Final = '"***"'
MAX_HEX_BYTES: Final = 4_096
MAX_CHARACTERS: Final = 65_536
"""Characters of JSON with line breaks that are shown."""
MAX_DEPTH: Final = 32
"""Lists and objects within one another that are shown."""
MAX_PATH_CHARACTERS: Final = 1_000
"""Characters of a member's path that is compared with what is to be masked."""


@dataclass(frozen=True, slots=True)
class ShownPayload:
    """A payload as text, in which form, and how much of it there is. `is_cut`: the rest is left out."""

    form: Literal["empty", "json", "text", "hex", "hidden"]
    text: str
    size_bytes: int
    is_cut: bool


class _Written(str):
    """A number of JSON as it was written, which Python's may round."""

    __slots__ = ()


def shown_payload(base64: str, *, most_bytes: int, redact: Sequence[str] = ()) -> ShownPayload:
    """Return the payload that an API gave as base64, of which `most_bytes` are shown.

    `redact`: masks these members of JSON; what may be JSON and can't be read is hidden then.
    """
    try:
        data = a2b_base64(base64)
    except Error:
        data = b""
    is_cut = len(data) > most_bytes
    size, data = len(data), data[:most_bytes]
    if not data:
        return ShownPayload("empty", "", 0, is_cut=False)
    try:
        text = data.decode("utf-8", "ignore" if is_cut else "strict")
    except UnicodeDecodeError:
        return ShownPayload("hex", _hex(data), size, is_cut=is_cut or len(data) > MAX_HEX_BYTES)
    if "\x00" in text:
        return ShownPayload("hex", _hex(data), size, is_cut=is_cut or len(data) > MAX_HEX_BYTES)
    document = None if is_cut else _document(text, redact)
    if document is not None:
        return ShownPayload("json", document.text, size, document.is_cut)
    if redact and text.lstrip()[:1] in ("{", "[", '"'):
        return ShownPayload("hidden", "", size, is_cut)
    return ShownPayload("text", text, size, is_cut)


def hidden_payload(base64: str, *, most_bytes: int) -> ShownPayload:
    """Return what somebody sees who may see no payloads: its size, up to `most_bytes`. It is not read."""
    size = len(base64) // 4 * 3 - base64[-2:].count("=")
    return ShownPayload("hidden", "", size, is_cut=size > most_bytes)


def is_redacted(path: str, patterns: Sequence[str]) -> bool:
    """Return whether a member is masked, by its own name or its dotted path: `*` is any text, case does not count.

    Where something is to be masked, a very long path is masked unread.
    """
    if not patterns:
        return False
    if len(path) > MAX_PATH_CHARACTERS:
        return True
    whole, is_match = path.lower(), _pattern(tuple(patterns)).fullmatch
    return is_match(whole.rpartition(".")[2]) is not None or is_match(whole) is not None


@lru_cache(maxsize=64)
def _pattern(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(translate(one.lower()) for one in patterns))


def _document(text: str, redact: Sequence[str]) -> "_Document | None":
    """Return a JSON object or list with line breaks; None for other text."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        found = json.loads(text, parse_int=_Written, parse_float=_Written, object_pairs_hook=_Pairs)
    except (ValueError, RecursionError):
        return None
    return _Document(found, redact)


class _Pairs(list[tuple[str, object]]):
    """The members of an object in order, also of one that has a name twice."""


class _Document:
    """JSON with line breaks, bounded in characters and depth while it is written: what is beyond is left out."""

    def __init__(self, found: object, redact: Sequence[str]) -> None:
        self.is_cut = False
        self._redact = redact
        self._parts: list[str] = []
        self._left = MAX_CHARACTERS
        self._value(found, depth=1, path="")
        self.text = "".join(self._parts)

    def _write(self, text: str) -> None:
        """Write a text, as far as there is room."""
        if len(text) > self._left:
            self.is_cut = True
        self._parts.append(text[: self._left])
        self._left -= min(len(text), self._left)

    def _value(self, found: object, *, depth: int, path: str) -> None:
        if isinstance(found, _Written):
            self._write(found)
        elif not isinstance(found, list):
            self._write(json.dumps(found, ensure_ascii=False))
        elif depth > MAX_DEPTH and found:
            self._write("{...}" if isinstance(found, _Pairs) else "[...]")
            self.is_cut = True
        else:
            self._members(found, depth, path)

    def _members(self, found: list[object], depth: int, path: str) -> None:
        begin, end = "{}" if isinstance(found, _Pairs) else "[]"
        line_break = "\n" + "  " * depth
        self._write(begin)
        for number, one in enumerate(found):
            if self.is_cut and not self._left:
                return
            self._write(f",{line_break}" if number else line_break)
            if isinstance(found, _Pairs):
                self._named(cast("tuple[str, object]", one), depth, path)
            else:
                self._value(one, depth=depth + 1, path=path)
        self._write(f"{line_break[:-2]}{end}" if found else end)

    def _named(self, pair: tuple[str, object], depth: int, path: str) -> None:
        name, value = pair
        below = f"{path[: MAX_PATH_CHARACTERS + 1]}.{name}"
        self._write(f"{json.dumps(name, ensure_ascii=False)}: ")
        if is_redacted(below, self._redact):
            self._write(MASK)
        else:
            self._value(value, depth=depth + 1, path=below)


def _hex(data: bytes) -> str:
    """Return bytes in lines of 16: offset, hexadecimal, and what of them is printable."""
    lines = []
    for begin in range(0, min(len(data), MAX_HEX_BYTES), _LINE_BYTES):
        part = data[begin : begin + _LINE_BYTES]
        printable = "".join(chr(one) if 32 <= one < 127 else "." for one in part)
        lines.append(f"{begin:08x}  {part.hex(' '):<47}  {printable}")
    return "\n".join(lines)

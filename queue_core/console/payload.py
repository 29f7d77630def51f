"""A payload as people read it: text, JSON with its numbers as they were written, or bytes in hexadecimal. Pure."""

import json
from binascii import Error, a2b_base64
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final, Literal

_LINE_BYTES: Final = 16
MASK: Final = '"***"'
MAX_HEX_BYTES: Final = 4_096


@dataclass(frozen=True, slots=True)
class ShownPayload:
    """A payload as text, in which form, and how much of it there is. `is_cut`: the rest is left out."""

    form: Literal["empty", "json", "text", "hex", "hidden"]
    text: str
    size_bytes: int
    is_cut: bool


@dataclass(frozen=True, slots=True)
class _Written:
    """A number of JSON as it was written, which Python's may round."""

    text: str


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
    document = "" if is_cut else _indented(text, redact)
    if redact and not document and text.lstrip()[:1] in ("{", "[", '"'):
        return ShownPayload("hidden", "", size, is_cut)
    return ShownPayload("json", document, size, is_cut=False) if document else ShownPayload("text", text, size, is_cut)


def is_redacted(path: str, patterns: Sequence[str]) -> bool:
    """Return whether a member is masked, by its own name or its dotted path: `*` is any text, case does not count."""
    whole = path.lower()
    name = whole.rpartition(".")[2]
    return any(fnmatchcase(name, one.lower()) or fnmatchcase(whole, one.lower()) for one in patterns)


def _indented(text: str, redact: Sequence[str]) -> str:
    """Return a JSON object or list with line breaks; "" for other text."""
    if text.lstrip()[:1] not in ("{", "["):
        return ""
    try:
        found = json.loads(text, parse_int=_Written, parse_float=_Written, object_pairs_hook=_Pairs)
        return _dumped(found, "", "", redact)
    except (ValueError, RecursionError):
        return ""


class _Pairs(list[tuple[str, object]]):
    """The members of an object in order, also of one that has a name twice."""


def _dumped(found: object, indent: str, path: str, redact: Sequence[str]) -> str:
    deeper = f"{indent}  "
    if isinstance(found, _Written):
        return found.text
    if isinstance(found, _Pairs):
        members = []
        for name, one in found:
            below = f"{path}.{name}"
            value = MASK if is_redacted(below, redact) else _dumped(one, deeper, below, redact)
            members.append(f"{deeper}{json.dumps(name, ensure_ascii=False)}: {value}")
        return "{\n" + ",\n".join(members) + f"\n{indent}}}" if members else "{}"
    if isinstance(found, list):
        members = [f"{deeper}{_dumped(one, deeper, path, redact)}" for one in found]
        return "[\n" + ",\n".join(members) + f"\n{indent}]" if members else "[]"
    return json.dumps(found, ensure_ascii=False)


def _hex(data: bytes) -> str:
    """Return bytes in lines of 16: offset, hexadecimal, and what of them is printable."""
    lines = []
    for begin in range(0, min(len(data), MAX_HEX_BYTES), _LINE_BYTES):
        part = data[begin : begin + _LINE_BYTES]
        printable = "".join(chr(one) if 32 <= one < 127 else "." for one in part)
        lines.append(f"{begin:08x}  {part.hex(' '):<47}  {printable}")
    return "\n".join(lines)

"""The values of a payload: of JSON, pickles, forms and plain text, and of what is encoded within. Pure, and bounded.

Nothing is unpickled: the constants of a pickle are read by `pickletools`.
"""

import base64
import binascii
import json
import re
from collections.abc import Iterator
from typing import Final, Literal, TypeAlias
from urllib.parse import unquote_plus

from queue_core.attempts.secret_forms import is_secret_name
from queue_core.fast_values import value

Kind: TypeAlias = Literal["value", "name", "secret"]
"""A value; a member's name that reads as a field of a program and not as data; a value whose name calls it secret."""

MAX_DEPTH: Final = 4
"""Levels of documents within values, as JSON in a text, that are read."""
MAX_PARTS: Final = 50_000
"""Values and names of one document that are read."""
_FIELD_NAME: Final = re.compile(r"[A-Za-z]+(?:[_-]?[A-Za-z]+){0,9}_?\d{0,2}")
_BASE64: Final = re.compile(r"[A-Za-z0-9+/_-]{16,}={0,2}")
_PRINTABLE: Final = re.compile(r"[^\x00-\x1f\x7f\ufffd]{4,}")


@value
class Part:
    """A piece of a document, in its order."""

    text: str
    kind: Kind = "value"


def documents_of(payload: bytes, *, most: int) -> Iterator[list[Part]]:
    """Yield a payload as the parts of a document, then the documents within its values. `most`: bytes that are read."""
    waiting: list[tuple[bytes, Kind, int]] = [(payload[:most], "value", 0)]
    left = most
    while waiting:
        content, kind, depth = waiting.pop()
        parts = _parts_of(content, kind)
        yield parts
        if depth == MAX_DEPTH:
            continue
        for part in parts:
            for inner in _nested_values(part):
                left -= len(inner)
                if left >= 0 and inner != content:
                    waiting.append((inner, part.kind, depth + 1))


def _nested_values(part: Part) -> Iterator[bytes]:
    """Yield what a value has within: JSON as text, base64, and what is encoded as in URLs."""
    text = part.text
    if part.kind == "name" or len(text) < 4:
        return
    if text[:1] in '{["' and text[-1:] in '}]"':
        yield text.encode(errors="replace")
    if "%" in text and (plain := unquote_plus(text)) != text:
        yield plain.encode(errors="replace")
    if _BASE64.fullmatch(text):
        padded = text.rstrip("=").replace("-", "+").replace("_", "/")
        try:
            decoded = base64.b64decode(padded + "=" * (-len(padded) % 4))
        except binascii.Error:
            return
        if decoded[:1] == b"\x80" or _is_text(decoded):
            yield decoded


def _is_text(content: bytes) -> bool:
    try:
        return content.decode().isprintable() or content.lstrip()[:1] in (b"{", b"[")
    except UnicodeDecodeError:
        return False


def _parts_of(content: bytes, kind: Kind) -> list[Part]:
    if content[:1] == b"\x80" and (parts := _constants_of(content, kind)):
        return parts
    try:
        return list(_walked(json.loads(content), kind))
    except (ValueError, RecursionError):
        text = content.decode(errors="replace")
    if "\ufffd" in text or "\x00" in text:
        return [Part(run, kind) for run in _PRINTABLE.findall(text)[:MAX_PARTS]]
    return [Part(text, kind)]


def _walked(document: object, kind: Kind) -> Iterator[Part]:
    """Yield the texts, numbers and names of a JSON document in its order; `kind`: what all of it is."""
    below: list[tuple[object, Kind]] = [(document, kind)]
    count = 0
    while below and count < MAX_PARTS:
        part, kind = below.pop()
        count += 1
        if isinstance(part, dict):
            for name, one in reversed(part.items()):
                below.append((one, "secret" if kind == "secret" or is_secret_name(name) else "value"))
                below.append((_Name(name), kind))
        elif isinstance(part, list):
            below += [(one, kind) for one in reversed(part)]
        elif isinstance(part, _Name):
            yield Part(part.text, "name" if _FIELD_NAME.fullmatch(part.text) else kind)
        elif isinstance(part, str | int | float) and not isinstance(part, bool):
            yield Part(str(part), kind)
        else:
            yield Part(str(part), "name")


@value
class _Name:
    text: str


def _constants_of(content: bytes, kind: Kind) -> list[Part]:
    """Return the texts and numbers of a pickle, without what it would call; [] for what is none."""
    import pickletools  # few payloads are pickles

    parts: list[Part] = []
    try:
        for _, constant, _ in pickletools.genops(content):
            if isinstance(constant, bytes):
                parts.append(Part(constant.decode(errors="replace"), kind))
            elif isinstance(constant, str | int | float) and not isinstance(constant, bool):
                parts.append(Part(str(constant), kind))
            if len(parts) == MAX_PARTS:
                break
    except (ValueError, IndexError, EOFError, KeyError, AttributeError, NotImplementedError):
        return []
    return parts

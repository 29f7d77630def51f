"""Redaction: what leaves a worker as text shows no value of a payload, however it is quoted, and no secret.

All texts come through `redacted`: messages of errors, tracebacks, reasons, progress, a worker's last lines (ADR 45).
The time it takes is linear in the text and in what is read of the payloads, whatever they contain.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from queue_core.attempts.error_text import traceback_parts
from queue_core.attempts.payload_values import Part, documents_of
from queue_core.attempts.quoted_text import (
    LONG_CHARACTERS,
    SHORTEST_CHARACTERS,
    Reading,
    readings_of,
    skeleton,
)
from queue_core.attempts.secret_forms import MASK, is_secret_name, masked_text

SWITCH: Final = "TOWLINE_REDACT"
"""The variable that turns redaction `off`, as the setting `redact` of a pool does for its workers."""
SHORTEST_VALUE_CHARACTERS: Final = 6
"""Values shorter than this are shown: they would match unrelated text."""
SHORTEST_REDACTED_CHARACTERS: Final = 4
"""The same of whole payloads, and of values that their names call secret."""
MAX_PAYLOAD_BYTES_READ: Final = 524_288
"""Bytes of the payloads of one call that are looked for in a text; an error quotes little of more."""
MAX_TRACEBACK_CHARACTERS: Final = 60_000
"""Characters of a traceback that are redacted; the first are cut."""
MAX_SECRET_FILE_BYTES: Final = 4_096
_MAX_PROSE_CHARACTERS: Final = 256
"""Length from which on the words of a value are those of a language, and stay unless they have digits."""
_SHOWN_PAYLOAD: Final = "<payload>"
_WORD: Final = re.compile(r"[^\W_]{6,}")
_SEGMENT: Final = re.compile(r"[^\s/@:;,=&?#|<>()\[\]{}\"'\\]{6,}")
_DIGITS: Final = re.compile(r"\d(?:[-:. /,]?\d){5,}")
_PYDANTIC_INPUT: Final = re.compile(r"(?<=\binput_value=)[\s\S]{1,200}?(?=, input_type=)")
"""pydantic quotes at most 50 characters of what it was given."""
_FRAME: Final = re.compile(r'[ |+-]*File "[^"\n]*", line \d+, in ')


def redacted(
    text: str,
    payloads: Sequence[bytes] = (),
    *,
    code: Sequence[tuple[int, int]] = (),
    environment: Mapping[str, str] = os.environ,
) -> str:
    """Return a text with values of payloads replaced by `<payload>`, and what is or looks like a secret by `***`.

    Args:
        text: an error's, a traceback, lines of output.
        payloads: of the tasks that it may quote.
        code: where the text names files and functions, from and to: it is searched for forms of secrets only.
        environment: variables whose values are secrets if their names say so, and the switch.
    """
    if environment.get(SWITCH) == "off":
        return text
    secrets = secrets_of(environment)
    if payloads or secrets:
        text = _masked(text, payloads, secrets, code)
    return _PYDANTIC_INPUT.sub(MASK, masked_text(text))


def redacted_lines(
    lines: Sequence[str], payloads: Sequence[bytes] = (), *, environment: Mapping[str, str] = os.environ
) -> tuple[str, ...]:
    """Return a worker's last lines of output without values of payloads and secrets; lines of stacks stay."""
    code: list[tuple[int, int]] = []
    at = 0
    for line in lines:
        if _FRAME.match(line):
            code.append((at, at + len(line)))
        at += len(line) + 1
    return tuple(redacted("\n".join(lines), payloads, code=code, environment=environment).split("\n")) if lines else ()


def redacted_traceback(error: BaseException, payloads: Sequence[bytes] = (), *, limit: int = 30) -> str:
    """Return an error's traceback, its innermost `limit` calls, as text without values of payloads and secrets.

    Names of files and functions stay as they are.
    """
    return redacted_parts([part.text for part in traceback_parts(error, limit=limit)], payloads)


def redacted_parts(parts: Sequence[str], payloads: Sequence[bytes] = ()) -> str:
    """Return the parts of a traceback as text without values of payloads and secrets: see `redacted_traceback`."""
    text = "".join(parts)
    code: list[tuple[int, int]] = []
    at = 0
    for part in parts:
        if _FRAME.match(part):
            code.append((at, at + part.find("\n")))
        at += len(part)
    if len(text) > MAX_TRACEBACK_CHARACTERS:
        cut = len(text) - MAX_TRACEBACK_CHARACTERS
        text = text[cut:]
        code = [(max(0, begin - cut), end - cut) for begin, end in code if end > cut]
    return redacted(text, payloads, code=code)


def secrets_of(environment: Mapping[str, str]) -> list[str]:
    """Return the values of variables that are secrets by their names, the passwords in URLs, and what is in files.

    `TOKEN_FILE=/run/secrets/token` names a file with a secret, as containers have it.
    """
    found: list[str] = []
    for name, text in environment.items():
        if is_secret_name(name):
            found.append(text)
        elif name.endswith("_FILE") and is_secret_name(name.removesuffix("_FILE")):
            found.append(_secret_in(text))
        if "://" in text and "@" in text:
            found += _passwords_in(text)
    return [one for one in dict.fromkeys(found) if len(one) >= SHORTEST_VALUE_CHARACTERS]


def _secret_in(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            return file.read(MAX_SECRET_FILE_BYTES).decode().strip()
    except (OSError, ValueError):
        return ""


def _passwords_in(urls: str) -> Iterator[str]:
    for url in urls.split(","):
        try:
            password = urlsplit(url.strip()).password
        except ValueError:
            continue
        if password:
            yield password
            yield unquote(password)


def _masked(text: str, payloads: Sequence[bytes], secrets: Sequence[str], code: Sequence[tuple[int, int]]) -> str:
    readings = readings_of(text, code)
    known = _Known(readings)
    for secret in secrets:
        known.look_for(secret, MASK, shortest=SHORTEST_VALUE_CHARACTERS)
    left = MAX_PAYLOAD_BYTES_READ
    for payload in payloads:
        if left <= 0:
            break
        for parts in documents_of(payload, most=left):
            known.look_for_document(parts)
        left -= len(payload)
    spans = [(begin, end, _SHOWN_PAYLOAD) for begin, end in _exact(text, known.exact)]
    for reading in readings:
        spans += reading.spans(known.grams, known.words)
        spans += ((begin, end, _SHOWN_PAYLOAD) for begin, end in reading.spans_of_pieces(known.document_grams))
    return _replaced(text, [span for span in spans if not _is_code(span, code)])


class _Known:
    """Parts of payloads and secrets that the readings of a text have, and that are to be hidden there.

    Only what the text has is kept, so memory is bounded by the text.
    """

    def __init__(self, readings: Sequence[Reading]) -> None:
        self._text_grams = set[str]().union(*(reading.grams() for reading in readings))
        self._text_words = set[str]().union(*(reading.words() for reading in readings))
        self.grams: dict[str, str] = {}
        """Runs of `LONG_CHARACTERS` characters, and what is shown in their place."""
        self.document_grams: set[str] = set()
        """The same of whole documents, with the names in them."""
        self.words: dict[str, str] = {}
        """The same of shorter words."""
        self.exact: list[str] = []
        """Values of punctuation."""

    def look_for_document(self, parts: Sequence[Part]) -> None:
        """Look for the whole of a document, and for each of its values."""
        self._look_for_whole(parts)
        for part in parts:
            if part.kind == "secret":
                self.look_for(part.text, MASK, shortest=SHORTEST_REDACTED_CHARACTERS)
            elif part.kind == "value":
                self.look_for(part.text, _SHOWN_PAYLOAD, shortest=SHORTEST_VALUE_CHARACTERS)
                self._look_for_parts(part.text)

    def look_for(self, text: str, shown: str, *, shortest: int) -> None:
        """Look for a value: whole, its beginning and its end, and any long part of it."""
        if len(text) < shortest:
            return
        plain = skeleton(text)
        if len(plain) < SHORTEST_REDACTED_CHARACTERS:
            self.exact.append(text.strip())
        elif len(plain) >= LONG_CHARACTERS:
            for gram in self._text_grams.intersection(_grams(plain)):
                self._note(self.grams, gram, shown)
        else:
            self._look_for_word(plain, shown)
        for length in range(SHORTEST_VALUE_CHARACTERS, min(len(plain), LONG_CHARACTERS)):
            self._look_for_word(plain[:length], shown)
            self._look_for_word(plain[-length:], shown)

    def _look_for_whole(self, parts: Sequence[Part]) -> None:
        """Look for a document as it is written: short values count there, and names that are not alone."""
        pieces = [(skeleton(part.text), part.kind) for part in parts]
        plain = "".join(piece for piece, _ in pieces)
        if len(plain) < LONG_CHARACTERS:
            if len(plain) >= SHORTEST_REDACTED_CHARACTERS and any(kind != "name" for _, kind in pieces):
                self._look_for_word(plain, _SHOWN_PAYLOAD)
            return
        found = self._text_grams.intersection(_grams(plain))
        if not found:
            return
        at = begin = 0
        names: list[str] = []  # runs of names alone
        for piece, kind in [*pieces, ("", "value")]:
            if kind != "name":
                names.append(plain[begin:at])
                begin = at + len(piece)
            at += len(piece)
        self.document_grams |= found.difference(gram for run in names for gram in _grams(run))

    def _look_for_parts(self, text: str) -> None:
        """Look for the parts of a value that stand by themselves: words, what separators delimit, numbers."""
        is_prose = len(text) > _MAX_PROSE_CHARACTERS
        for pattern in (_WORD, _SEGMENT, _DIGITS):
            for part in pattern.findall(text):
                if not is_prose or any(map(str.isdigit, part)):
                    self._look_for_word(skeleton(part), _SHOWN_PAYLOAD)

    def _look_for_word(self, word: str, shown: str) -> None:
        if len(word) >= SHORTEST_CHARACTERS and word in self._text_words:
            self._note(self.words, word, shown)

    @staticmethod
    def _note(known: dict[str, str], found: str, shown: str) -> None:
        if known.get(found) != MASK:
            known[found] = shown


def _grams(plain: str) -> Iterator[str]:
    return (plain[at : at + LONG_CHARACTERS] for at in range(len(plain) - LONG_CHARACTERS + 1))


def _exact(text: str, values: Sequence[str]) -> Iterator[tuple[int, int]]:
    for one in dict.fromkeys(values):
        at = text.find(one) if one else -1
        while at >= 0:
            yield at, at + len(one)
            at = text.find(one, at + len(one))


def _is_code(span: tuple[int, int, str], code: Sequence[tuple[int, int]]) -> bool:
    return any(begin < span[1] and span[0] < end for begin, end in code)


def _replaced(text: str, spans: list[tuple[int, int, str]]) -> str:
    """Return the text with each run of spans that touch replaced; one with a payload's in it is the payload's."""
    if not spans:
        return text
    joined: list[tuple[int, int, str]] = []
    for begin, end, shown in sorted(spans):
        if joined and begin <= joined[-1][1]:
            first, last, before = joined[-1]
            joined[-1] = (first, max(last, end), before if before == shown else _SHOWN_PAYLOAD)
        else:
            joined.append((begin, end, shown))
    kept = [0, *(at for begin, end, _ in joined for at in (begin, end)), len(text)]
    pieces = [text[begin:end] for begin, end in list(pairwise(kept))[::2]]
    shown_in_turn = [shown for _, _, shown in joined]
    return "".join(piece + shown for piece, shown in zip(pieces, [*shown_in_turn, ""], strict=True))

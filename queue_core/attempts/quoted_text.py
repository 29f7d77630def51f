r"""A text as its letters and digits alone: as it is written, and with escapes and encodings undone. Pure.

`repr`, JSON, HTML and URLs write a value with other punctuation, spaces, escapes and case, and wrap it over lines; its
letters and digits stay. So values are compared by those, and what is found is replaced in the text itself.
"""

import base64
import binascii
import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final
from urllib.parse import unquote_to_bytes

LONG_CHARACTERS: Final = 12
"""Letters and digits in a row that two texts don't have in common by chance."""
SHORTEST_CHARACTERS: Final = 4
"""Letters and digits that a shorter word needs; it counts from a word's begin to a word's end only."""
_PUNCTUATION: Final = re.compile(r"[\W_]+")
_WORDS: Final = r"[^\W\d_]+|\d+"
_PLAIN: Final = re.compile(_WORDS)
_ESCAPED: Final = re.compile(
    r"(?P<bytes>(?:\\{1,8}x[0-9a-fA-F]{2}|%[0-9a-fA-F]{2})+)|(?P<unicode>(?:\\{1,8}u[0-9a-fA-F]{4})+)"
    r"|\\{1,8}U(?P<wide>[0-9a-fA-F]{8})|(?P<html>&#?\w{1,31};)|\\{1,8}[abfnrtv]|" + _WORDS
)
_ENCODED: Final = re.compile(r"[A-Za-z0-9+/_-]{8,}={0,2}")
_HEXADECIMAL: Final = re.compile(r"(?:[0-9a-fA-F]{2}){6,}")
_BARRIER: Final = "\x1f"
"""Between pieces that don't belong together; no value has it."""


def skeleton(text: str) -> str:
    """Return the letters and digits of a text, regardless of case."""
    return _PUNCTUATION.sub("", text).casefold()


class Reading:
    """The letters and digits of a text in a row, and where each piece of them is in the text."""

    def __init__(self, pieces: Sequence[tuple[str, int, int]], *, is_decoded: bool = False) -> None:
        """Args:
        pieces: letters and digits, and from where to where they are in the text, in order.
        is_decoded: whether each piece is a whole text that another one encodes.
        """
        self._pieces = pieces
        self._is_decoded = is_decoded
        self._starts: list[int] = []
        at = 0
        for plain, _, _ in pieces:
            self._starts.append(at)
            at += len(plain)
        self._plain = "".join(plain for plain, _, _ in pieces)

    def grams(self) -> Iterator[str]:
        """Yield all runs of `LONG_CHARACTERS` characters."""
        plain = self._plain
        return (plain[at : at + LONG_CHARACTERS] for at in range(len(plain) - LONG_CHARACTERS + 1))

    def words(self) -> Iterator[str]:
        """Yield all shorter runs that begin and end with a piece."""
        return (word for word, _, _ in self._words())

    def spans(self, grams: Mapping[str, str], words: Mapping[str, str]) -> Iterator[tuple[int, int, str]]:
        """Yield from where to where in the text these are, and what is shown in their place."""
        plain = self._plain
        if grams:
            for at in range(len(plain) - LONG_CHARACTERS + 1):
                shown = grams.get(plain[at : at + LONG_CHARACTERS])
                if shown is not None:
                    yield (*self._span(at, at + LONG_CHARACTERS), shown)
        if words:
            for word, at, end in self._words():
                if word in words:
                    yield (*self._span(at, end), words[word])

    def spans_of_pieces(self, grams: Collection[str]) -> Iterator[tuple[int, int]]:
        """Yield from where to where in the text the whole pieces within these runs are."""
        if not grams:
            return
        borders = [*self._starts, len(self._plain)]
        for at in range(len(self._plain) - LONG_CHARACTERS + 1):
            if self._plain[at : at + LONG_CHARACTERS] in grams:
                begin = borders[bisect_left(borders, at)]
                end = borders[bisect_right(borders, at + LONG_CHARACTERS) - 1]
                if self._is_decoded:
                    yield self._span(at, at + LONG_CHARACTERS)
                elif begin < end:
                    yield self._span(begin, end)

    def _words(self) -> Iterator[tuple[str, int, int]]:
        ends = [*self._starts[1:], len(self._plain)]
        for first, start in enumerate(self._starts):
            for end in ends[first : first + LONG_CHARACTERS]:
                if end - start >= LONG_CHARACTERS:
                    break
                if end - start >= SHORTEST_CHARACTERS:
                    yield self._plain[start:end], start, end

    def _span(self, begin: int, end: int) -> tuple[int, int]:
        return self._place(begin)[0], self._place(end - 1)[1]

    def _place(self, at: int) -> tuple[int, int]:
        """Return from where to where a character is in the text; of a piece that is written otherwise, all of it."""
        index = bisect_right(self._starts, at) - 1
        plain, begin, end = self._pieces[index]
        if len(plain) != end - begin:
            return begin, end
        return begin + at - self._starts[index], begin + at - self._starts[index] + 1


def readings_of(text: str, code: Sequence[tuple[int, int]] = ()) -> list[Reading]:
    """Return the readings of a text: as it is, without escapes where it has some, and of what it has encoded.

    `code`: from where to where nothing is read.
    """
    for begin, end in code:
        text = f"{text[:begin]}{_BARRIER * (end - begin)}{text[end:]}"
    found = [Reading(list(_pieces(text, _PLAIN)))]
    if "\\" in text or "%" in text or "&" in text:
        found.append(Reading(list(_pieces(text, _ESCAPED))))
    if encoded := list(_decoded(text)):
        found.append(Reading(encoded, is_decoded=True))
    return found


def _pieces(text: str, pattern: re.Pattern[str]) -> Iterator[tuple[str, int, int]]:
    end = 0
    for match in pattern.finditer(text):
        if _BARRIER in text[end : match.start()]:
            yield _BARRIER, end, match.start()
        end = match.end()
        word = match[0]
        plain = skeleton(_unescaped(match)) if word[0] in "\\%&" else word.casefold()
        if plain:
            yield plain, match.start(), end


def _unescaped(match: re.Match[str]) -> str:
    """Return the characters that escapes stand for; "" for white space."""
    if written := match["bytes"]:
        content = unquote_to_bytes(re.sub(r"\\{1,8}x", "%", written))
        try:
            return content.decode()
        except UnicodeDecodeError:
            return content.decode("latin-1")
    if written := match["unicode"]:
        return str(json.loads('"' + re.sub(r"\\{1,8}u", r"\\u", written) + '"'))
    if written := match["wide"]:
        number = int(written, 16)
        return chr(number) if number < 0x110000 else ""
    from html import unescape  # whose table of names takes 0.7 MB, which few workers need

    return unescape(match["html"] or "")


def _decoded(text: str) -> Iterator[tuple[str, int, int]]:
    """Yield what base64 and hexadecimal digits in a text say, each apart."""
    for match in _HEXADECIMAL.finditer(text):
        yield skeleton(bytes.fromhex(match[0]).decode(errors="ignore")), match.start(), match.end()
        yield _BARRIER, match.end(), match.end()
    for match in _ENCODED.finditer(text):
        word = match[0].rstrip("=").replace("-", "+").replace("_", "/")
        try:
            content = base64.b64decode(word[: len(word) // 4 * 4] + _base64_tail(word))
        except (binascii.Error, ValueError):
            continue
        yield skeleton(content.decode(errors="ignore")), match.start(), match.end()
        yield _BARRIER, match.end(), match.end()


def _base64_tail(word: str) -> str:
    """Return the last characters of base64 with their padding; "" for one that says nothing."""
    rest = word[len(word) // 4 * 4 :]
    return "" if len(rest) < 2 else rest.ljust(4, "=")

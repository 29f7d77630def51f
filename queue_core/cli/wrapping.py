"""Text in the columns of a terminal: its width, sentences broken at words, names cut in the middle, bars. Pure."""

import re
import unicodedata
from collections.abc import Iterator
from typing import Final, Literal

Align = Literal["left", "right"]

CUT: Final = "…"
"""The mark of a place where a name was cut."""
BLOCKS: Final = "\u2588\u2591"
"""The glyphs of a bar: of what there is, and of what there is not. They differ without any colour."""
ASCII_BLOCKS: Final = "#."
"""The same for a terminal that has only ASCII."""
NARROW_HANG: Final = 2
"""The hanging indent where the one asked for would leave less than half of the width."""
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_UNITS: Final = "ms|s|min|h|d|%|B|KiB|MiB|GiB"
_PHRASE: Final = re.compile(rf"(\s*)(\S*\d (?:{_UNITS})(?!\w)\S*|[^\s`]*`[^`\n]{{1,60}}`\S*|\S+)")
"""A phrase that is never broken, with the spaces before it: a word, a number with its unit, a command in backticks."""
_WORD: Final = re.compile(r"(\s*)(\S+)")


def columns_of(text: str) -> int:
    """Return how many columns `text` takes on a terminal: marks of colours take none, an ideograph takes two."""
    if text.isascii() and "\x1b" not in text:
        return len(text)
    return sum(map(_columns_of, _COLOUR.sub("", text)))


def padded(text: str, columns: int, align: Align = "left") -> str:
    """Return `text` with spaces to `columns`, after it or before it; a longer one as it is."""
    spaces = " " * max(0, columns - columns_of(text))
    return spaces + text if align == "right" else text + spaces


def shortened(text: str, columns: int) -> str:
    """Return `text` in at most `columns`, at least one: a longer one is cut in the middle, as names differ at the end.

    `text` has no marks of colours.
    """
    if columns_of(text) <= columns:
        return text
    tail = _beginning(text[::-1], (columns - 1) // 3)[::-1]
    return _beginning(text, columns - 1 - columns_of(tail)) + CUT + tail


def bar(value: float, most: float, columns: int, *, glyphs: str = BLOCKS) -> str:
    """Return a bar of `columns` for `value` of `most`: full only at `most`, and empty only at 0.

    >>> bar(1, 3, 6, glyphs=ASCII_BLOCKS)
    '##....'
    """
    filled = round(columns * min(1.0, value / most)) if most > 0 else columns * (value > 0)
    if 0 < value < most and columns > 1:
        filled = min(max(filled, 1), columns - 1)
    return glyphs[0] * filled + glyphs[1] * (columns - filled)


def wrapped(text: str, *, width: int | None, prefix: str = "", hang: int | None = None) -> list[str]:
    r"""Return the lines of `text` behind `prefix`, broken at spaces where a line would be longer than `width`.

    Args:
        text: a sentence or several; each of its own lines begins a line. Its control characters are escaped already.
        width: the columns of the terminal; None, as for a pipe: lines are never broken.
        prefix: the beginning of the first line, with the space behind it. It may have marks of colours.
        hang: the indent of the other lines, by default that of the text behind `prefix`; `NARROW_HANG` where that would
            leave less than half of `width`.

    A word is never broken: one longer than the terminal gets a line of its own. A number stays with its unit, and a
    command in backticks in one line where there is room for it.

    >>> wrapped("3 tasks waiting, no worker running", width=30, prefix="12:04:31  resize  ")
    ['12:04:31  resize  3 tasks', '  waiting, no worker running']
    """
    indent = columns_of(prefix) if hang is None else hang
    if width is not None and indent * 2 > width:
        indent = NARROW_HANG
    lines: list[str] = []
    start = prefix
    for part in text.split("\n"):
        lines += _wrapped(part, width=width, start=start, indent=" " * indent)
        start = " " * indent
    return lines


def _wrapped(text: str, *, width: int | None, start: str, indent: str) -> list[str]:
    if width is None or columns_of(start) + columns_of(text) <= width:
        return [(start + text).rstrip()]
    lines: list[str] = []
    line, used, is_begun = start, columns_of(start), False
    for spaces, word in _words(text, room=width - len(indent)):
        size = columns_of(word)
        # The first word stays behind its prefix even where it is too long, if it would be so on a line of its own.
        fits = used + len(spaces) + size <= width or (not is_begun and len(indent) + size > width)
        if fits or line == indent:
            line += (spaces if is_begun or not lines else "") + word
            used += (len(spaces) if is_begun or not lines else 0) + size
        else:
            lines.append(line.rstrip())
            line, used = indent + word, len(indent) + size
        is_begun = True
    return [*lines, line.rstrip()]


def _words(text: str, *, room: int) -> Iterator[tuple[str, str]]:
    """Yield what a line is not broken in; what is longer than a line only by its words."""
    for spaces, phrase in _PHRASE.findall(text):
        if columns_of(phrase) > room:
            yield from _WORD.findall(spaces + phrase)
        else:
            yield spaces, phrase


def _beginning(text: str, columns: int) -> str:
    """Return as much of the beginning of `text` as `columns` have room for."""
    used = 0
    for index, character in enumerate(text):
        used += _columns_of(character)
        if used > columns:
            return text[:index]
    return text


def _columns_of(character: str) -> int:
    if character.isascii():
        return 1
    if unicodedata.combining(character) or unicodedata.category(character) in {"Mn", "Me", "Cf"}:
        return 0
    return 2 if unicodedata.east_asian_width(character) in {"W", "F"} else 1

"""The standard streams: open them where they are closed, and escape untrusted text for a terminal."""

import os
import re
import sys
from typing import Final, Literal, TextIO


def open_missing_streams() -> None:
    """Open closed standard streams on /dev/null; call this before anything else is opened.

    Cron wrappers and daemons may close them; then a store's file could get descriptor 1, and a print would damage it.
    """
    for number in range(3):
        if _is_open(number):
            continue
        opened = os.open(os.devnull, os.O_RDWR)
        if opened != number:  # another thread had opened a file on it
            os.dup2(opened, number)
            os.close(opened)
        os.set_inheritable(number, True)  # noqa: FBT003 - positional only; programs that we start have them too
    if sys.stdin is None:
        sys.stdin = _stream(0, "r")
    if sys.stdout is None:
        sys.stdout = _stream(1, "w")
    if sys.stderr is None:
        sys.stderr = _stream(2, "w")


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _stream(number: int, mode: Literal["r", "w"]) -> TextIO:
    return open(number, mode, encoding="utf-8", errors="backslashreplace", closefd=False)


_HARMFUL: Final = "\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
"""Control characters (C0, DEL, C1); direction marks and overrides, which disguise a text; line and paragraph
separators; and lone surrogates, which no stream accepts."""
_IN_A_LINE: Final = re.compile(f"[{_HARMFUL}]")
_IN_LINES: Final = re.compile(f"(?!\n)[{_HARMFUL}]")
_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def clean(text: str) -> str:
    """Return the text on one line, with control characters escaped, as in `\\x1b`."""
    return text if text.isascii() and text.isprintable() else _IN_A_LINE.sub(_escaped, text)


def clean_lines(text: str) -> str:
    """Return a text of several lines with control characters other than newlines escaped."""
    return _IN_LINES.sub(_escaped, text)


def clean_json(text: str) -> str:
    """Return equivalent JSON with control characters escaped; in JSON they only occur in strings."""
    return _IN_LINES.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _escaped(found: re.Match[str]) -> str:
    character = found[0]
    code = ord(character)
    return _SHORT.get(character) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")

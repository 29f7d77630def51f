"""Opens descriptors 0 to 2 on /dev/null where whoever started us had closed them (a wrapper of cron, a daemon).

Else the next file that is opened, a store or a connection, is one of them, and a stray print is written into it.
"""

import os
import re
import sys
from typing import Final, Literal, TextIO


def open_missing_streams() -> None:
    """Open those that are closed; to be called before anything else is opened."""
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
"""Controls (C0, DEL, C1), which terminals obey; marks and overrides of direction, which make a text look like another
one; separators of lines and paragraphs; halves of characters, which no stream takes."""
_IN_A_LINE: Final = re.compile(f"[{_HARMFUL}]")
_IN_LINES: Final = re.compile(f"(?!\n)[{_HARMFUL}]")
_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def clean(text: str) -> str:
    """The text on one line, with everything that a terminal would obey written out, as `\\x1b`."""
    return text if text.isascii() and text.isprintable() else _IN_A_LINE.sub(_written_out, text)


def clean_lines(text: str) -> str:
    """The same for a text of several lines, which keep their ends."""
    return _IN_LINES.sub(_written_out, text)


def clean_json(text: str) -> str:
    """JSON that says the same, and that a terminal can be shown: in JSON such characters stand in strings only."""
    return _IN_LINES.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _written_out(found: re.Match[str]) -> str:
    character = found[0]
    code = ord(character)
    return _SHORT.get(character) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")

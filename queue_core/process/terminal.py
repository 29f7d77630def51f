"""The standard streams: open closed ones, tell what the terminal behind one can show, escape untrusted text for it."""

import os
import re
import signal
import sys
from dataclasses import dataclass
from typing import Final, Literal, TextIO


@dataclass(frozen=True, slots=True)
class TerminalSize:
    """The columns and lines of a terminal."""

    columns: int
    lines: int


DEFAULT_SIZE: Final = TerminalSize(80, 24)
"""The size of a terminal that does not know its own."""


def terminal_size(stream: TextIO | None) -> TerminalSize | None:
    """Return the size of the terminal behind a stream now; None where there is none."""
    if stream is None or not stream.isatty():
        return None
    try:
        found = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        return DEFAULT_SIZE
    return TerminalSize(found.columns or DEFAULT_SIZE.columns, found.lines or DEFAULT_SIZE.lines)


def allows_colours() -> bool:
    """Return whether a terminal may get colours: not one that is `dumb`, nor where the user has switched them off."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def has_cursor() -> bool:
    """Return whether what stands on the terminal can be written anew; TERM says so."""
    return os.environ.get("TERM", "dumb") not in {"dumb", ""}


def write_at_once(stream: TextIO, text: str) -> None:
    """Write past the stream's buffer: a rest that a closed terminal did not take would make the process fail.

    Raises `OSError` and `ValueError`.
    """
    data = text.encode(stream.encoding or "utf-8", "backslashreplace")
    while data:
        data = data[os.write(stream.fileno(), data) :]


def ignores_ctrl_c() -> bool:
    """Return whether a person at the terminal could press Ctrl-C in vain: it was started with SIGINT ignored.

    A shell that has no job control does so for what it starts by `&`, and a parent that ran `trap '' INT`.
    """
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        return False
    try:
        return os.isatty(0) and os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


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

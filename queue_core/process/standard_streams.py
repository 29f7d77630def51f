"""Opens descriptors 0 to 2 on /dev/null where whoever started us had closed them (a wrapper of cron, a daemon).

Else the next file that is opened, a store or a connection, is one of them, and a stray print is written into it.
"""

import os
import sys
from typing import Literal, TextIO


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

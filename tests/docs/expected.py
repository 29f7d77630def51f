"""Compare what a command printed with what its page shows: numbers and ids are alike, `...` is anything."""

import re
from collections.abc import Sequence
from typing import Final

_ESCAPES: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
_OVERWRITTEN: Final = re.compile(r"[^\n]*\r(?!\n)")
_DURATION: Final = re.compile(r"\b\d[\d.,]*\s?(?:us|µs|ms|s|min|h|d)\b(?:\s\d[\d.,]*\s?(?:ms|s|min|h)\b)*")
_ID: Final = re.compile(r"(?<=[a-z0-9]-)[a-z0-9]{6}\b(?![.-])")
_LONG_ID: Final = re.compile(r"\b(?=[0-9a-f-]*\d)[0-9a-f]{8,}(?:-[0-9a-f]{4,})*\b")
_NUMBER: Final = re.compile(r"\d[\d.,]*(?<![.,])")
_RULE: Final = re.compile(r"([-─━═=_])\1{2,}")
ANYTHING: Final = "..."


def readable(text: str) -> str:
    """Return output without escapes, and without what a terminal would have overwritten."""
    return _OVERWRITTEN.sub("", _ESCAPES.sub("", text).replace("\r\n", "\n"))


def alike(line: str) -> str:
    """Return a line in the form in which it is compared: blanks collapsed, numbers, durations and ids replaced."""
    line = " ".join(line.split())
    for pattern, sign in ((_LONG_ID, "#"), (_ID, "#"), (_DURATION, "#"), (_NUMBER, "#"), (_RULE, "---")):
        line = pattern.sub(sign, line)
    return line


def matches(shown: Sequence[str], printed: str, *, may_go_on: bool = False) -> bool:
    """Return whether `printed` is what a page shows.

    Lines are compared one by one. A sentence that is broken at other places is the same, so the whole is compared as
    one line, too. `may_go_on`: more may follow, and come before and between, as of a command that goes on.
    """
    lines = [alike(line) for line in readable(printed).splitlines() if line.strip()]
    wanted = [alike(line) for line in shown if line.strip()]
    if may_go_on:
        wanted = [part for line in wanted for part in (ANYTHING, line)] + [ANYTHING]
    by_line = "".join(r"(?:[^\n]*\n)*?" if line == ANYTHING else f"{_pattern(line)}\n" for line in wanted)
    if re.fullmatch(by_line, "".join(f"{line}\n" for line in lines)):
        return True
    return re.fullmatch(_pattern(" ".join(wanted), anything=".*"), " ".join(lines)) is not None


def _pattern(line: str, *, anything: str = r"[^\n]*?") -> str:
    """Return a pattern for a line: `...` matches anything, with the blanks beside it."""
    parts = [re.escape(part.strip()) for part in line.split(ANYTHING)]
    return rf"\s*{anything}\s*".join(parts)

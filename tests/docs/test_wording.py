"""Pages, man pages, help and screens say things as the field does, not in words translated from elsewhere.

Inline code is left out: a page may quote the value of a field.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
REPLACEMENTS: Final = {
    r"mend(?:s|ed|ing)?": "fix",
    r"begun": "started, restarted",
    r"told": "reported, logged",
    r"ask(?:s|ed|ing)? for": "request",
    r"of now": "current, now",
    r"let(?:s|ting)? go": "stop, scale down",
    r"let(?:s|ting)? finish": "finishes its task",
    r"held back": "limited by; must run alone",
    r"go(?:es)? on": "continue",
    r"lies (?:in|on|beside|under)": "is stored in",
    r"(?:is|are|was|were|be|been) away": "unavailable",
    r"(?:a|first) look": "a sample, a check",
    r"strangers?": "unauthenticated client, untrusted",
    r"none knows": "unknown",
    r"in vain": "failed",
    r"the same as": "like",
    r"for want of": "because there is no",
    r"ago's": "previous",
    r"whatever": "any, regardless of",
    r"whoever": "any process, anyone who",
    r"ended for": "stopped because",
    r"by (?:itself|themselves)": "automatically, on its own",
}
"""Words that go, as patterns, each with what the field says."""
WORD: Final = re.compile(rf"\b(?:{'|'.join(REPLACEMENTS)})\b".replace(" ", r"\s+"), re.IGNORECASE)
QUOTED: Final = re.compile(r"`[^`\n]*`")


def texts() -> list[Path]:
    """The files that people read: pages, man pages (which have the help of each command) and kept screens."""
    kept = (ROOT / "tests" / "screens" / "expected").glob("*.txt")
    pages = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "docs" / "man").glob("*.1"), *(ROOT / "examples").rglob("*.md")]
    return sorted([*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")), *pages, *kept])


def foreign_words(text: str) -> Iterator[str]:
    """Yield each word that goes, with its line and what to say in its place."""
    prose = QUOTED.sub(lambda code: "`" * len(code[0]), text)
    for found in WORD.finditer(prose):
        word = " ".join(found[0].split())
        better = next(
            said for pattern, said in REPLACEMENTS.items() if re.fullmatch(pattern, word, flags=re.IGNORECASE)
        )
        yield f"{prose.count(chr(10), 0, found.start()) + 1}: {word} -> {better}"


def test_no_text_that_people_read_has_a_word_that_the_field_does_not_use() -> None:
    found = [f"{path.relative_to(ROOT)}:{word}" for path in texts() for word in foreign_words(path.read_text())]
    assert found == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("It was\nmended.", ["2: mended -> fix"], id="one"),
        pytest.param(
            "its tasks go\n  on by itself", ["1: go on -> continue", "2: by itself -> automatically, on its own"]
        ),
        pytest.param("`fate` is `held back`", [], id="a value of a field"),
        pytest.param("Recommended; unbegun; it toldx", [], id="parts of other words"),
    ],
)
def test_a_word_is_found_across_lines_and_not_within_code_or_other_words(text: str, words: list[str]) -> None:
    assert list(foreign_words(text)) == words

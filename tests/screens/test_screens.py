"""Every command on terminals of several sizes: lines fit, words are whole, and no escape is where none should be."""

import re
from pathlib import Path
from typing import Final

import pytest

from queue_core.cli.wrapping import CUT, columns_of
from tests.screens.cases import BROKEN, CASES, SIZES, WIDE, Look, ScreenCase
from tests.screens.terminal import ForkedCommands, Seen, Size

EXPECTED: Final = Path(__file__).with_name("expected")
COLOURS: Final = {"TERM": "xterm-256color"}
LOOKS: Final[tuple[Look, ...]] = ("80 x 24", "120 x 40", "40 x 10", "dumb", "NO_COLOR", "pipe")
LEFT_OUT: Final = re.compile(r"no\s+room\s+here\s+for\s.*?terminal\s+of\s+[0-9]+\s+columns", re.DOTALL)
"""The sentence that names the columns for which a table has no room."""
FRAME: Final = frozenset("─━│┤\\")


def looks(name: str) -> list[object]:
    """Every look of a case, the broken ones marked."""
    return [
        pytest.param(look, marks=pytest.mark.xfail(reason=BROKEN[name, look], strict=True, raises=AssertionError))
        if (name, look) in BROKEN
        else look
        for look in LOOKS
    ]


def seen(commands: ForkedCommands, case: ScreenCase, look: Look, folder: Path, scratch: Path) -> Seen:
    """Run a case in one of its looks."""
    if look == "pipe":
        return commands.piped(*case.arguments, folder=folder, scratch=scratch, environment=COLOURS)
    environment = {"dumb": {"TERM": "dumb"}, "NO_COLOR": COLOURS | {"NO_COLOR": "1"}}.get(look, COLOURS)
    size = next((size for size in SIZES if str(size) == look), SIZES[0])
    return commands.on_terminal(*case.arguments, folder=folder, size=size, environment=environment)


def settled(text: str, folder: Path) -> str:
    """Return a text in which what differs between two runs is the same, and as long."""
    text = text.replace(str(folder), "/tmp/screens-12345678")  # noqa: S108
    text = re.sub(r"\b[0-9]{4}-[0-9]{2}-[0-9]{2}([ T])[0-9]{2}:[0-9]{2}:[0-9]{2}", r"2026-11-25\g<1>12:04:31", text)
    text = re.sub(r"\b[0-9]{2}:[0-9]{2}:[0-9]{2}\b", "12:04:31", text)
    return re.sub(r"\b([0-9]{3,}\.[0-9]) s\b", lambda found: re.sub("[0-9]", "9", found[1]) + " s", text)


@pytest.mark.parametrize(
    ("case", "look"),
    [
        pytest.param(case, *look.values, marks=look.marks, id=f"{case.name}, {look.values[0]}")
        if hasattr(look, "values")
        else pytest.param(case, look, id=f"{case.name}, {look}")
        for case in CASES
        for look in looks(case.name)
    ],
)
def test_a_screen_is_whole(
    commands: ForkedCommands, project: Path, tmp_path: Path, case: ScreenCase, look: Look
) -> None:
    found = seen(commands, case, look, project, tmp_path)
    assert found.code == case.code, found.raw
    assert too_long(found) == []
    assert escapes(found, look) == set()
    if look != "pipe":
        wide = commands.on_terminal(*case.arguments, folder=project, size=WIDE, environment={"TERM": "dumb"})
        assert words(found) - words(wide) == set(), found.screen


def too_long(found: Seen) -> list[str]:
    """The lines that the terminal would break, but for those of one word that has no room on any line."""
    return [
        line for line in found.lines if columns_of(line) > found.size.columns and len(line.split()) > 1
    ]


def escapes(found: Seen, look: Look) -> set[str]:
    """The control characters and sequences that should not be there: colours are only where they are wanted."""
    allowed = r"\x1b\[[0-9;]*m|\r\x1b\[K|\r\n" if look not in ("dumb", "NO_COLOR", "pipe") else r"\r\n|\n"
    allowed = r"\r\x1b\[K|\r\n" if look == "NO_COLOR" else allowed
    return set(re.findall(r"[\x00-\x1f\x7f-\x9f]", re.sub(allowed, "", found.raw)))


def words(found: Seen) -> set[str]:
    """The words of a screen, without those that a cut name or a frame has."""
    text = LEFT_OUT.sub("", "\n".join(found.lines))
    return {word for word in text.split() if CUT not in word and not set(word) <= FRAME}


@pytest.mark.parametrize("case", [case for case in CASES if not case.varies], ids=lambda case: case.name)
def test_screens_are_as_they_were(
    commands: ForkedCommands, project: Path, tmp_path: Path, case: ScreenCase, is_rewriting: bool
) -> None:
    parts = [f"$ towline {' '.join(case.arguments)}"]
    for look in (*map(str, SIZES), "pipe"):
        found = seen(commands, case, look, project, tmp_path)  # type: ignore[arg-type]
        text = "\n".join(found.lines).rstrip() if look == "pipe" else found.screen
        parts.append(f"== {look} ==\n{settled(text, project)}")
    text = "\n\n".join(parts) + "\n"
    page = EXPECTED / f"{case.name}.txt"
    if is_rewriting:
        page.write_text(text, encoding="utf-8")
    assert text == page.read_text(encoding="utf-8"), "changed on purpose? CONTRIBUTING.md has the command"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_without_colour_everything_is_still_there(
    commands: ForkedCommands, project: Path, tmp_path: Path, case: ScreenCase
) -> None:
    if case.varies:
        pytest.skip("its words depend on the machine's present state")
    coloured = seen(commands, case, "80 x 24", project, tmp_path)
    plain = seen(commands, case, "NO_COLOR", project, tmp_path)
    assert settled("\n".join(plain.lines), project) == settled("\n".join(coloured.lines), project)

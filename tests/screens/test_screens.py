"""Every command on terminals of several sizes: lines fit, words are whole, and no escape is where none should be."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from _pytest.mark.structures import ParameterSet

from queue_core.cli.wrapping import CUT, columns_of
from tests.screens.cases import BROKEN, CASES, SIZES, WIDE, Look, ScreenCase
from tests.screens.terminal import ForkedCommands, Seen

EXPECTED: Final = Path(__file__).with_name("expected")
COLOURS: Final = {"TERM": "xterm-256color"}
LOOKS: Final[tuple[Look, ...]] = ("80 x 24", "120 x 40", "40 x 10", "dumb", "NO_COLOR", "pipe")
KEPT: Final[tuple[Look, ...]] = ("80 x 24", "120 x 40", "40 x 10", "pipe")
"""The looks that are kept as text."""
LEFT_OUT: Final = re.compile(r"no\s+room\s+for\s.*?terminal\s+of\s+[0-9]+\s+columns", re.DOTALL)
"""The sentence that names the columns for which a table has no room."""
FRAME: Final = frozenset("─━│┤\\")


class Screens:
    """What each case shows in each look; a case runs once in each."""

    def __init__(self, commands: ForkedCommands, folder: Path, scratch: Path) -> None:
        self.folder = folder
        self._commands = commands
        self._scratch = scratch
        self._seen: dict[tuple[str, Look], Seen] = {}

    def of(self, case: ScreenCase, look: Look) -> Seen:
        """Return what a case shows in a look."""
        if (case.name, look) not in self._seen:
            self._seen[case.name, look] = self._run(case, look)
        return self._seen[case.name, look]

    def _run(self, case: ScreenCase, look: Look) -> Seen:
        if look == "pipe":
            return self._commands.piped(*case.arguments, folder=self.folder, scratch=self._scratch, environment=COLOURS)
        plain = {"TERM": "dumb"}
        environment = {"dumb": plain, "wide": plain, "NO_COLOR": COLOURS | {"NO_COLOR": "1"}}.get(look, COLOURS)
        size = next((size for size in SIZES if str(size) == look), WIDE if look == "wide" else SIZES[0])
        return self._commands.on_terminal(*case.arguments, folder=self.folder, size=size, environment=environment)

    def text(self, case: ScreenCase, look: Look) -> str:
        """Return what a case shows, in which what differs between two runs is the same, and as long."""
        found = self.of(case, look)
        text = "\n".join(found.lines).rstrip() if look == "pipe" else found.screen
        text = text.replace(str(self.folder), "/tmp/screens-12345678")
        text = re.sub(r"\b[0-9]{4}-[0-9]{2}-[0-9]{2}([ T])[0-9]{2}:[0-9]{2}:[0-9]{2}", r"2026-11-25\g<1>12:04:31", text)
        text = re.sub(r"\b[0-9]{2}:[0-9]{2}:[0-9]{2}\b", "12:04:31", text)
        return re.sub(r"\b([0-9]{3,}\.[0-9]) s\b", lambda found: re.sub("[0-9]", "9", found[1]) + " s", text)


@pytest.fixture(scope="session")
def screens(commands: ForkedCommands, project: Path, tmp_path_factory: pytest.TempPathFactory) -> Screens:
    return Screens(commands, project, tmp_path_factory.mktemp("piped"))


def every_look() -> Iterator[ParameterSet]:
    """Every look of every case, the broken ones marked."""
    for case in CASES:
        for look in LOOKS:
            reason = BROKEN.get((case.name, look), "")
            broken = pytest.mark.xfail(reason=reason, strict=True, raises=AssertionError)
            yield pytest.param(case, look, id=f"{case.name}, {look}", marks=(broken,) if reason else ())


@pytest.mark.parametrize(("case", "look"), [*every_look()])
def test_a_screen_is_whole(screens: Screens, case: ScreenCase, look: Look) -> None:
    found = screens.of(case, look)
    assert found.code == case.code, found.raw
    assert too_long(found) == []
    assert escapes(found, look) == set()
    if look != "pipe":
        known = words(screens.of(case, "wide"), varies=case.varies)
        assert words(found, varies=case.varies) - known == set(), found.screen


def too_long(found: Seen) -> list[str]:
    """The lines that the terminal would break, but for those of one word that has no room on any line."""
    return [line for line in found.lines if columns_of(line) > found.size.columns and len(line.split()) > 1]


def escapes(found: Seen, look: Look) -> set[str]:
    """The control characters that should not be there: colours are only where they are wanted."""
    coloured = r"\x1b\[[0-9;]*m|\r\x1b\[K|\r\n"
    allowed = {"dumb": r"\r\n", "pipe": r"\n", "NO_COLOR": r"\r\x1b\[K|\r\n"}.get(look, coloured)
    return set(re.findall(r"[\x00-\x1f\x7f-\x9f]", re.sub(allowed, "", found.raw)))


def words(found: Seen, *, varies: bool) -> set[str]:
    """The words of a screen, without those that a cut name or a frame has; and without figures where they vary."""
    text = LEFT_OUT.sub("", "\n".join(found.lines))
    if varies:
        text = re.sub(r"[0-9][0-9.,]*", "0", text)
    return {word for word in text.split() if CUT not in word and not set(word) <= FRAME}


@pytest.mark.parametrize("case", [case for case in CASES if not case.varies], ids=lambda case: case.name)
def test_screens_are_as_they_were(screens: Screens, case: ScreenCase, is_rewriting: bool) -> None:
    parts = [f"$ towline {' '.join(case.arguments)}", *(f"== {look} ==\n{screens.text(case, look)}" for look in KEPT)]
    text = "\n\n".join(parts) + "\n"
    page = EXPECTED / f"{case.name}.txt"
    if is_rewriting:
        page.write_text(text, encoding="utf-8")
    assert text == page.read_text(encoding="utf-8"), "changed on purpose? CONTRIBUTING.md has the command"


@pytest.mark.parametrize("case", [case for case in CASES if not case.varies], ids=lambda case: case.name)
def test_without_colour_everything_is_still_there(screens: Screens, case: ScreenCase) -> None:
    assert screens.text(case, "NO_COLOR") == screens.text(case, "80 x 24")

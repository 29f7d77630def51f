"""Every command on terminals of several sizes: lines fit, words are whole, and no escape is where none should be."""

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from _pytest.mark.structures import ParameterSet

from queue_core.cli import exits
from queue_core.cli.wrapping import CUT, columns_of
from tests.screens.cases import BROKEN, CASES, SIZES, WIDE, Look, ScreenCase
from tests.screens.fork_server import DEMO_VIEW, EVERY_HELP
from tests.screens.project import SeededProject
from tests.screens.terminal import ForkedCommands, PseudoTerminal, Seen, Size

EXPECTED: Final = Path(__file__).with_name("expected")
COLOURS: Final = {"TERM": "xterm-256color"}
LOOKS: Final[tuple[Look, ...]] = ("80 x 24", "120 x 40", "40 x 10", "dumb", "NO_COLOR", "pipe")
KEPT: Final[tuple[Look, ...]] = ("80 x 24", "120 x 40", "40 x 10", "pipe")
"""The looks that are kept as text."""
LEFT_OUT: Final = re.compile(r"no\s+room\s+for\s.*?terminal\s+of\s+[0-9]+\s+columns", re.DOTALL)
"""The sentence that names the columns for which a table has no room."""
BAR: Final = re.compile(r"\s*[0-9.]*\s*[┤│]")
"""The beginning of a line of a chart, whose scale depends on the width."""
COLOUR_CODE: Final = re.compile(r"\x1b\[[0-9;]*\b(?:[349][0-7]|[34]8;[0-9;]*)m")
FRAME: Final = frozenset("─━\\")


class Screens:
    """What each case shows in each look; a case runs once in each."""

    def __init__(self, commands: ForkedCommands, project: SeededProject, scratch: Path) -> None:
        self._project = project
        self._commands = commands
        self._scratch = scratch
        self._seen: dict[tuple[str, Look], Seen] = {}

    def of(self, case: ScreenCase, look: Look) -> Seen:
        """Return what a case shows in a look."""
        if (case.name, look) not in self._seen:
            self._seen[case.name, look] = self._run(case, look)
        return self._seen[case.name, look]

    def _run(self, case: ScreenCase, look: Look) -> Seen:
        folder = self._project.fresh()
        if look == "pipe":
            return self._commands.piped(*case.arguments, folder=folder, scratch=self._scratch, environment=COLOURS)
        plain = {"TERM": "dumb"}
        environment = {"dumb": plain, "wide": plain, "NO_COLOR": COLOURS | {"NO_COLOR": "1"}}.get(look, COLOURS)
        size = next((size for size in SIZES if str(size) == look), WIDE if look == "wide" else SIZES[0])
        return self._commands.on_terminal(*case.arguments, folder=folder, size=size, environment=environment)

    def text(self, case: ScreenCase, look: Look) -> str:
        """Return what a case shows, in which what differs between two runs is the same, and as long."""
        found = self.of(case, look)
        text = "\n".join(found.lines).rstrip() if look == "pipe" else found.screen
        return settled(text, self._project.fresh())


def settled(text: str, folder: Path) -> str:
    """Return a text in which what differs between two runs is the same, and as long."""
    text = text.replace(str(folder), "/tmp/screens-12345678")
    text = re.sub(r"\b[0-9]{2}:[0-9]{2}:[0-9]{2}\b", "12:04:31", text)
    return re.sub(r"\b([0-9]{3,}\.[0-9]) s\b", lambda found: re.sub("[0-9]", "9", found[1]) + " s", text)


@pytest.fixture(scope="session")
def screens(commands: ForkedCommands, project: SeededProject, tmp_path_factory: pytest.TempPathFactory) -> Screens:
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
        assert words(found, varies=case.varies) - words(screens.of(case, "wide"), varies=case.varies) == set(), (
            found.screen
        )


def too_long(found: Seen) -> list[str]:
    """The lines that the terminal would break, but for those of one word that has no room on any line."""
    lines = (line.removesuffix(" \\") for line in found.lines)
    return [line for line in lines if columns_of(line) > found.size.columns and len(line.split()) > 1]


def escapes(found: Seen, look: Look) -> set[str]:
    """The control characters that should not be there: colours are only where they are wanted."""
    coloured = r"\x1b\[[0-9;]*m|\r\x1b\[K|\r|\n"
    allowed = {"dumb": r"\r|\n", "pipe": r"\n", "NO_COLOR": r"\r\x1b\[K|\r|\n"}.get(look, coloured)
    return set(re.findall(r"[\x00-\x1f\x7f-\x9f]", re.sub(allowed, "", found.raw)))


def words(found: Seen, *, varies: bool) -> set[str]:
    """The words of a screen, without a sign at their end, and without those that a cut name or a frame has.

    Figures that vary are all the same.
    """
    text = LEFT_OUT.sub("", "\n".join(line for line in found.lines if not BAR.match(line)))
    text = re.sub(r"[0-9][0-9.,]*", "0", text) if varies else settled(text, Path("/nowhere"))
    return {word.rstrip(".,;:") for word in text.split() if CUT not in word and not set(word) <= FRAME}


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


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_every_help_page_fits(commands: ForkedCommands, project: SeededProject, size: Size) -> None:
    found, wide = (
        commands.on_terminal(EVERY_HELP, folder=project.fresh(), size=each, environment=COLOURS)
        for each in (size, WIDE)
    )
    assert too_long(found) == []
    assert escapes(found, "dumb") == set()
    assert words(found, varies=False) - words(wide, varies=False) == set()
    assert found.raw.count("Usage: ") > 40


@contextmanager
def live(
    commands: ForkedCommands, argument: str, folder: Path, size: Size, **environment: str
) -> Iterator[PseudoTerminal]:
    """A command on a terminal, which goes on until it is told to end."""
    with PseudoTerminal(size) as terminal:
        streams = (terminal.path,) * 3
        pid = commands.begin(argument, folder=folder, environment=COLOURS | environment, streams=streams)
        try:
            yield terminal
            terminal.read_until(commands.has_ended)
        except BaseException:
            os.kill(pid, signal.SIGKILL)
            commands.end()
            raise
        assert commands.end() in (exits.OK, exits.INTERRUPTED), terminal.raw


def wait_for_screen(terminal: PseudoTerminal, text: str, folder: Path) -> None:
    """Wait until a terminal shows a text and nothing else."""
    terminal.read_until(lambda: settled(terminal.screen, folder) == text)


@pytest.mark.parametrize(
    ("argument", "last", "keys", "most_important"),
    [
        pytest.param("top", "\nq ", "q", ("POOL", "WORKERS", "READY", "resize", " more"), id="top"),
        pytest.param(DEMO_VIEW, " killed ", "\x03", ("pool", "workers", "ready", "parse", " left"), id="demo"),
    ],
)
def test_a_live_screen_is_drawn_whole_after_each_change_of_size(
    commands: ForkedCommands,
    project: SeededProject,
    is_rewriting: bool,
    argument: str,
    last: str,
    keys: str,
    most_important: tuple[str, ...],
) -> None:
    fresh, folder = {}, project.fresh(seconds=1.0)
    for size in SIZES:
        with live(commands, argument, folder, size) as terminal:
            terminal.read_until(lambda: last in terminal.screen)
            fresh[size] = settled(terminal.screen, folder)
            terminal.type(keys)
    assert [word for word in most_important if word not in fresh[SIZES[2]]] == []
    for size, text in fresh.items():
        assert max(map(columns_of, text.splitlines())) <= size.columns
        assert len(text.splitlines()) <= size.lines
    with live(commands, argument, folder, SIZES[0]) as terminal:
        for size in (SIZES[0], SIZES[2], SIZES[1], SIZES[0]):
            terminal.resize(size)
            wait_for_screen(terminal, fresh[size], folder)
        terminal.type(keys)
    with live(commands, argument, folder, SIZES[0], NO_COLOR="1") as terminal:
        wait_for_screen(terminal, fresh[SIZES[0]], folder)
        terminal.type(keys)
    assert COLOUR_CODE.findall(terminal.raw) == []
    kept = "\n\n".join(f"== {size} ==\n{text}" for size, text in fresh.items()) + "\n"
    page = EXPECTED / f"{argument.replace(' ', '-')}-live.txt"
    if is_rewriting:
        page.write_text(kept, encoding="utf-8")
    assert kept == page.read_text(encoding="utf-8"), "changed on purpose? CONTRIBUTING.md has the command"


def test_top_on_a_dumb_terminal_prints_anew_without_escapes(commands: ForkedCommands, project: SeededProject) -> None:
    with live(commands, "top", project.fresh(), SIZES[0], TERM="dumb") as terminal:
        terminal.read_until(lambda: terminal.raw.count("POOL ") >= 2)
        terminal.type("\x03")
    seen = Seen(terminal.raw.replace("^C", ""), SIZES[0])
    assert escapes(seen, "dumb") == set()
    assert too_long(seen) == []

"""Types a page as its reader would: files into an editor, commands into terminals; and compares what is shown.

It knows the page's text alone. `towline up` keeps its terminal, so what comes after it is typed into another one, and
a ```text block is what the first terminal shows.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from tests.docs.blocks import Block, Command, Page
from tests.docs.expected import matches, readable
from tests.docs.shell import goes_on
from tests.screens.terminal import CLOCK, PseudoTerminal, Size
from tests.support.eventually import eventually

WIDE: Final = Size(250, 50)
"""No line of a page is longer, so none is broken."""
COMMAND_SECONDS: Final = 300.0
SHOWN_SECONDS: Final = 60.0
_PROMPT: Final = "@@$?@@"
_PROMPTED: Final = re.compile(r"(?:\([\w.-]+\) )?@@(\d+)@@$")


class PageFailedError(AssertionError):
    """A command or a screen is not as the page says."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the page is: the heading that it comes to, and the seconds since its beginning."""

    heading: str
    seconds: float


class ShellTerminal:
    """A terminal with a shell."""

    def __init__(self, shell: Sequence[str]) -> None:
        self._terminal = PseudoTerminal(WIDE).__enter__()
        streams = [os.open(self._terminal.path, os.O_RDWR | os.O_NOCTTY) for _ in range(3)]
        self._process = subprocess.Popen(
            shell,
            stdin=streams[0],
            stdout=streams[1],
            stderr=streams[2],
            start_new_session=True,
            preexec_fn=self._control,  # noqa: PLW1509  no threads here
        )
        for descriptor in streams:
            os.close(descriptor)
        self._seen = 0
        self._begin(f"stty -echo; PS1='{_PROMPT}' PS2=''")
        self._await_prompt()
        self.run("true")  # the prompt before may be the one that echoed

    @property
    def text(self) -> str:
        """What it has shown since the last command was begun."""
        while self._terminal.read(0.0):
            pass
        return readable(self._terminal.raw[self._seen :])

    def run(self, command: str) -> tuple[int, str]:
        """Type a command, and return its exit code and what it showed."""
        self._begin(command)
        return self._await_prompt()

    def begin(self, command: str) -> None:
        """Type a command that goes on."""
        self._begin(command)

    def interrupt(self) -> str:
        """Press Ctrl-C, and return what was shown since."""
        self._seen = len(self._terminal.raw)
        self._terminal.type("\x03")
        return self._await_prompt()[1]

    def close(self) -> None:
        """Hang up."""
        self._process.kill()
        self._process.wait()
        self._terminal.close()

    def _control(self) -> None:
        os.close(os.open(self._terminal.path, os.O_RDWR))  # a session's first terminal controls it

    def _begin(self, command: str) -> None:
        self._seen = len(self._terminal.raw)
        self._terminal.type(f"{command}\n")

    def _await_prompt(self) -> tuple[int, str]:
        self._terminal.read_until(lambda: _PROMPTED.search(self.text), seconds=COMMAND_SECONDS)
        found = _PROMPTED.search(self.text)
        assert found
        return int(found[1]), self.text[: found.start()]


class Typist:
    """Works through one page; use it as a context manager, which hangs its terminals up.

    Args:
        shell: the command of a new terminal's shell.
        write: saves a file, by its absolute path.
    """

    def __init__(self, page: Page, shell: Sequence[str], write: Callable[[str, str], None]) -> None:
        self._page = page
        self._shell = shell
        self._write = write
        self._terminals: list[ShellTerminal] = []
        self._is_kept = False  # the first terminal shows a command that goes on

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for terminal in reversed(self._terminals):
            terminal.close()

    def work(self, headings: Sequence[tuple[int, str]]) -> Iterator[Progress]:
        """Type the page from top to bottom; yield at the end of each part, which `headings` names by line.

        Raises `PageFailedError`.
        """
        began = CLOCK.monotonic()
        self._terminals.append(ShellTerminal(self._shell))
        lines = [line for line, _ in headings[1:]] + [sys.maxsize]
        for (begin, heading), end in zip(headings, lines, strict=True):
            for block in self._page.blocks:
                if begin < block.line < end:
                    self._type(block)
            yield Progress(heading, CLOCK.monotonic() - began)

    @property
    def _current(self) -> ShellTerminal:
        """The terminal for the next command."""
        if self._is_kept and len(self._terminals) == 1:
            self._terminals.append(ShellTerminal(self._shell))
        return self._terminals[-1]

    def _type(self, block: Block) -> None:
        if block.title:
            folder = self._terminals[0].run("pwd")[1].strip()
            self._write(f"{folder}/{block.title}", block.text)
        elif block.language == "text":
            self._await_shown(block.line, block.text.splitlines())
        elif block.language == "console":
            for command in block.commands:
                self._command(block, command)

    def _command(self, block: Block, command: Command) -> None:
        if command.is_interrupt:
            self._compare(command, self._terminals[0].interrupt(), may_go_on=True)
        elif goes_on(command.text):
            self._is_kept = True
            self._terminals[0].begin(command.text)
            self._await_shown(command.line, command.expected)
        elif block.until and command == block.commands[-1]:
            self._compare(command, self._until(command, block.until))
        else:
            code, shown = self._current.run(command.text)
            if code != command.code:
                self._fail(command.line, f"$ {command.text}\nexit code {code}\n{shown}", f"exit code {command.code}")
            self._compare(command, shown)

    def _until(self, command: Command, text: str) -> str:
        shown = ""

        def has_it() -> bool:
            nonlocal shown
            shown = self._current.run(command.text)[1]
            return text in shown

        try:
            eventually(has_it, seconds=SHOWN_SECONDS)
        except AssertionError:
            self._fail(command.line, f"$ {command.text}\n{shown}", text)
        return shown

    def _await_shown(self, line: int, expected: Sequence[str]) -> None:
        """Wait until the first terminal shows these lines."""
        first = self._terminals[0]
        try:
            eventually(lambda: matches(expected, first.text, may_go_on=True), seconds=SHOWN_SECONDS)
        except AssertionError:
            self._fail(line, first.text, "\n".join(expected))

    def _compare(self, command: Command, shown: str, *, may_go_on: bool = False) -> None:
        if command.expected and not matches(command.expected, shown, may_go_on=may_go_on):
            self._fail(command.line, f"$ {command.text}\n{shown}", "\n".join(command.expected))

    def _fail(self, line: int, came: str, expected: str) -> None:
        raise PageFailedError(f"{self._page.path}:{line}\n--- came:\n{came.rstrip()}\n--- the page shows:\n{expected}")


def headings_of(text: str) -> list[tuple[int, str]]:
    """Return the headings of a page's parts with their lines, from 1."""
    lines = re.sub(r"(?ms)^```.*?^```", lambda block: "\n" * block[0].count("\n"), text).splitlines()
    return [(number, line.lstrip("# ")) for number, line in enumerate(lines, 1) if line.startswith("## ")]

"""Run a command of Towline on a terminal of its own, and read what it shows."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.screens.terminal import PseudoTerminal, Size
from tests.support.commands import program_environment

LONG_SECONDS = 60.0
USUAL = Size(80, 24)


class TowlineOnTerminal:
    """A command of Towline with a terminal of its own."""

    def __init__(self, terminal: PseudoTerminal, process: subprocess.Popen[bytes]) -> None:
        self.terminal = terminal
        self.process = process

    @property
    def text(self) -> str:
        """All it has written, each event in one line: without colours and without the breaks at words."""
        lines: list[str] = []
        for line in re.sub(r"\x1b\[[0-9;]*m", "", self.terminal.raw).replace("\r\n", "\n").split("\n"):
            if line.startswith("    ") and lines:
                lines[-1] += f" {line.strip()}"
            else:
                lines.append(line.strip())
        return "\n".join(lines)

    def await_text(self, pattern: str) -> re.Match[str]:
        """Read until a pattern is there."""
        self.terminal.read_until(lambda: re.search(pattern, self.text, re.MULTILINE), seconds=LONG_SECONDS)
        found = re.search(pattern, self.text, re.MULTILINE)
        assert found
        return found

    def ended(self) -> int:
        """Read until it has ended, and return its exit code."""
        self.terminal.read_until(lambda: self.process.poll() is not None, seconds=LONG_SECONDS)
        while self.terminal.read(0.1):
            pass
        return self.process.wait()


@contextmanager
def on_terminal(
    *arguments: str, folder: Path, size: Size = USUAL, term: str = "dumb", ignores_hang_up: bool = False
) -> Iterator[TowlineOnTerminal]:
    """Run a command of Towline on a terminal that controls it; `ignores_hang_up`: as `nohup` does."""
    with PseudoTerminal(size) as terminal:

        def take_terminal() -> None:
            os.close(os.open(terminal.path, os.O_RDWR))  # a session's first terminal controls it
            # Not as this process has it: a supervisor that a test ran in it has ignored them.
            signal.signal(signal.SIGHUP, signal.SIG_IGN if ignores_hang_up else signal.SIG_DFL)

        streams = [os.open(terminal.path, os.O_RDWR | os.O_NOCTTY) for _ in range(3)]
        environment = {
            name: text for name, text in program_environment().items() if name not in ("NO_COLOR", "COLUMNS")
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "orchestrator", *arguments],
            cwd=folder,
            env=environment | {"TERM": term},
            stdin=streams[0],
            stdout=streams[1],
            stderr=streams[2],
            start_new_session=True,
            preexec_fn=take_terminal,  # noqa: PLW1509  no threads here
        )
        for descriptor in streams:
            os.close(descriptor)
        running = TowlineOnTerminal(terminal, process)
        try:
            yield running
        finally:
            if process.poll() is None:
                process.terminate()
                process.terminate()
                running.ended()

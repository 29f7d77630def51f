"""A pseudo-terminal of a size, the screen that a terminal would show, and commands that run on it."""

import codecs
import fcntl
import json
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self

import pyte

from queue_core.clock import SystemClock
from tests.support.commands import ROOT, program_environment

CLOCK = SystemClock()
SECONDS = 30.0
"""How long a command may take."""
MAX_LINES = 400
"""Lines of a screen on which nothing scrolls away."""
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
PROGRESS = re.compile(r"[^\n]*\r\x1b\[K")
"""A line of progress that was erased."""


@cache
def noon() -> str:
    """The time zone in which it was between 12 and 1 o'clock when it was first asked for: no time is of yesterday."""
    return f"NOON{CLOCK.now() // 3_600_000_000 % 24 - 12:+d}"


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a terminal."""

    columns: int
    lines: int

    def __str__(self) -> str:
        return f"{self.columns} x {self.lines}"


@dataclass(frozen=True, slots=True)
class Seen:
    """The output of a command and its exit code: as it was written, and as a terminal that does not scroll shows it."""

    raw: str
    size: Size
    code: int = 0

    @property
    def lines(self) -> list[str]:
        """Its lines as they were written, without colours and without progress that was erased."""
        text = COLOUR.sub("", PROGRESS.sub("", self.raw.replace("\r\n", "\n")))
        return [line.rstrip() for line in text.split("\n")]

    @property
    def screen(self) -> str:
        """What the terminal shows, with all that would have scrolled away."""
        return shown(self.raw, Size(self.size.columns, MAX_LINES))


def shown(raw: str, size: Size) -> str:
    """Return the screen of a terminal that got `raw`."""
    screen = pyte.Screen(size.columns, size.lines)
    pyte.Stream(screen).feed(raw)
    return text_of(screen)


def text_of(screen: pyte.Screen) -> str:
    """Return the lines of a screen, without the empty ones at its end."""
    return "\n".join(line.rstrip() for line in screen.display).rstrip()


class PseudoTerminal:
    """A pseudo-terminal; use it as a context manager."""

    def __init__(self, size: Size) -> None:
        self.size = size
        self.raw = ""
        self._screen = pyte.Screen(size.columns, size.lines)
        self._stream = pyte.Stream(self._screen)
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def __enter__(self) -> Self:
        self._master, self._slave = os.openpty()
        self.path = os.ttyname(self._slave)
        self._set_size()
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up: the programs on it lose it."""
        for descriptor in (self._master, self._slave):
            if descriptor >= 0:
                os.close(descriptor)
        self._master = self._slave = -1

    def resize(self, size: Size) -> None:
        """Change the size; the kernel tells the programs on it."""
        self.size = size
        self._screen.resize(size.lines, size.columns)
        self._set_size()

    @property
    def screen(self) -> str:
        """What it shows now."""
        return text_of(self._screen)

    def type(self, keys: str) -> None:
        """Type keys."""
        os.write(self._master, keys.encode())

    def read(self, seconds: float) -> bool:
        """Read what there is, or wait for it; False at the end and when nothing came."""
        if self._master < 0 or not select.select([self._master], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self._master, 1 << 16)
        except OSError:  # no program has the terminal open any more
            return False
        text = self._decoder.decode(data)
        self.raw += text
        self._stream.feed(text)
        return bool(data)

    def read_until(self, is_enough: Callable[[], object], *, seconds: float = SECONDS) -> None:
        """Read until it is enough, or fail."""
        deadline = CLOCK.monotonic() + seconds
        while not is_enough():
            self.read(0.05)
            assert CLOCK.monotonic() < deadline, f"the terminal never showed it; it shows:\n{self.screen}"

    def read_to_end(self) -> None:
        """Read the rest of a program that has ended."""
        os.close(self._slave)
        self._slave = -1
        while self.read(5.0):
            pass

    def _set_size(self) -> None:
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", self.size.lines, self.size.columns, 0, 0))


class ForkedCommands:
    """Runs commands in forks of a process that has imported them; use it as a context manager."""

    def __enter__(self) -> Self:
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.screens.fork_server"],
            cwd=ROOT,
            env=program_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        self._read = b""
        return self

    def __exit__(self, *_error: object) -> None:
        assert self._server.stdin
        assert self._server.stdout
        self._server.stdin.close()
        self._server.wait(SECONDS)
        self._server.stdout.close()

    def begin(
        self, *arguments: str, folder: Path, environment: Mapping[str, str], streams: tuple[str, str, str]
    ) -> int:
        """Start a command and return its process id."""
        assert self._server.stdin
        known = {name: text for name, text in program_environment().items() if name not in ("NO_COLOR", "COLUMNS")}
        request = {
            "arguments": arguments,
            "folder": str(folder),
            "environment": known | {"TZ": noon()} | dict(environment),
            "streams": streams,
        }
        self._server.stdin.write(json.dumps(request).encode() + b"\n")
        return int(self._answer()["pid"])

    def end(self) -> int:
        """Wait for the command's exit code."""
        return int(self._answer()["code"])

    def has_ended(self) -> bool:
        """Return whether `end` would not wait."""
        assert self._server.stdout
        return b"\n" in self._read or bool(select.select([self._server.stdout], [], [], 0)[0])

    def on_terminal(self, *arguments: str, folder: Path, size: Size, environment: Mapping[str, str]) -> Seen:
        """Run a command on a terminal of a size."""
        with PseudoTerminal(size) as terminal:
            pid = self.begin(*arguments, folder=folder, environment=environment, streams=(terminal.path,) * 3)
            deadline = CLOCK.monotonic() + SECONDS
            while not self.has_ended():
                terminal.read(0.005)
                if CLOCK.monotonic() > deadline:
                    os.kill(pid, signal.SIGKILL)
                    break
            code = self.end()
            terminal.read_to_end()
            return Seen(terminal.raw, size, code)

    def piped(self, *arguments: str, folder: Path, scratch: Path, environment: Mapping[str, str]) -> Seen:
        """Run a command whose stdout and stderr are no terminals; both are in `raw`, stdout first."""
        streams = ("/dev/null", str(scratch / "stdout"), str(scratch / "stderr"))
        for path in streams[1:]:
            Path(path).write_bytes(b"")
        self.begin(*arguments, folder=folder, environment=environment, streams=streams)
        code = self.end()
        return Seen("".join(Path(path).read_text(encoding="utf-8") for path in streams[1:]), Size(10_000, 1), code)

    def _answer(self) -> dict[str, int]:
        assert self._server.stdout
        while b"\n" not in self._read:  # its two answers about a quick command may come together
            data = os.read(self._server.stdout.fileno(), 1 << 16)
            assert data, "the process that runs commands has ended"
            self._read += data
        line, _, self._read = self._read.partition(b"\n")
        answer = json.loads(line)
        assert isinstance(answer, dict)
        return answer

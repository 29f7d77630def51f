"""A terminal that `towline top` draws on: given back as it was, and redrawn whole, in a real pseudo-terminal."""

import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pyte
import pytest

from orchestrator.base.clock import SystemMonotonicClock
from orchestrator.state.directory import StateDir
from tests.support.commands import program_environment
from tests.support.eventually import eventually

SETTINGS = """\
store: sqlite:///queue.db
server: {listen: "unix:none.sock"}
queues: {thumbs: {}}
pools:
  resize: {queue: thumbs, app: "tasks:app", slo: 30s, workers: {max: 4}}
  render: {queue: thumbs, app: "tasks:app", slo: 30s, workers: {max: 4}}
"""
LONG_SECONDS = 60.0
TAKEN, LEFT = b"\x1b[?1049h", b"\x1b[?1049l"


class DrawnProgram:
    """`towline top` in a pseudo-terminal of 80 columns and 24 lines, and its screen."""

    def __init__(self, folder: Path) -> None:
        self.pid, self.descriptor = pty.fork()
        if not self.pid:
            os.chdir(folder)
            os.execve(sys.executable, [sys.executable, "-m", "orchestrator", "top"], self._environment())
        self.screen = pyte.Screen(80, 24)
        self._stream = pyte.ByteStream(self.screen)
        self.sent = b""
        self.resize(80, 24)

    @staticmethod
    def _environment() -> dict[str, str]:
        return program_environment() | {"TERM": "xterm-256color"}

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.screen.resize(lines, columns)

    def shows(self, text: str, *, in_line: int | None = None) -> bool:
        """Whether the screen has `text`, after all that was sent up to now."""
        while select.select([self.descriptor], [], [], 0.01)[0]:
            try:
                data = os.read(self.descriptor, 65_536)
            except OSError:  # the program has ended
                break
            self.sent += data
            self._stream.feed(data)
        lines = self.screen.display if in_line is None else [self.screen.display[in_line]]
        return text in "\n".join(lines)

    def press(self, keys: str) -> None:
        os.write(self.descriptor, keys.encode())

    def has_echo(self) -> bool:
        return bool(termios.tcgetattr(self.descriptor)[3] & termios.ECHO)

    def code(self) -> int:
        """The exit code, once it has ended."""
        eventually(lambda: self.shows("") and LEFT in self.sent, seconds=LONG_SECONDS)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.fixture
def program(tmp_path: Path) -> Iterator[DrawnProgram]:
    (tmp_path / "towline.yaml").write_text(SETTINGS)
    files = StateDir(tmp_path / ".towline")
    files.path.mkdir()
    settings = {"queue": "thumbs", "slo_seconds": 30.0, "settings_min": 0, "settings_max": 1}
    pool = {"current": 0, "target": 0, "settings": settings, "sample": {"ready": 7}}
    now = SystemMonotonicClock().wall_seconds()
    files.write_snapshot({"phase": "leading", "shown_at": now, "pools": dict.fromkeys(("resize", "render"), pool)})
    shown = DrawnProgram(tmp_path)
    eventually(lambda: shown.shows("q leave"), seconds=LONG_SECONDS)
    yield shown
    os.close(shown.descriptor)


def test_keys_choose_scale_and_leave(program: DrawnProgram, tmp_path: Path) -> None:
    assert program.shows("> resize")
    assert not program.has_echo()
    program.press("\x1b[B")
    eventually(lambda: program.shows("> render"), seconds=LONG_SECONDS)
    program.press("+")
    eventually(lambda: program.shows("render: scaled to 1 by hand"), seconds=LONG_SECONDS)
    scale = StateDir(tmp_path / ".towline").read_overrides()["render"].scale
    assert scale is not None
    assert scale.workers == 1
    program.press("+")
    eventually(lambda: program.shows("its max is 1"), seconds=LONG_SECONDS)
    program.press("0")
    eventually(lambda: program.shows("render: as its settings say"), seconds=LONG_SECONDS)
    program.press("q")
    assert program.code() == 0
    assert program.has_echo()


def test_a_resized_terminal_is_redrawn_whole(program: DrawnProgram) -> None:
    program.resize(40, 10)
    eventually(lambda: program.shows("q leave", in_line=9), seconds=LONG_SECONDS)
    assert [line for line in program.screen.display if "q leave" in line] == [program.screen.display[9]]
    program.resize(100, 30)
    eventually(lambda: program.shows("q leave", in_line=29), seconds=LONG_SECONDS)
    assert sum("q leave" in line for line in program.screen.display) == 1
    assert sum("POOL" in line for line in program.screen.display) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_gives_the_terminal_back(program: DrawnProgram, number: signal.Signals) -> None:
    os.kill(program.pid, number)
    assert program.code() == 128 + number
    assert program.has_echo()


def test_a_stop_gives_the_terminal_back_and_takes_it_again(program: DrawnProgram) -> None:
    program.press("\x1a")  # the kernel stops nobody here: no shell could let the program go on
    eventually(lambda: program.shows("q leave") and program.sent.count(TAKEN) == 2, seconds=LONG_SECONDS)
    assert program.sent.index(LEFT) < program.sent.rindex(TAKEN)
    assert not program.has_echo()
    program.press("q")
    eventually(lambda: program.shows("") and program.sent.count(LEFT) == 2, seconds=LONG_SECONDS)
    assert program.code() == 0

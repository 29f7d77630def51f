"""What the terminal behind a stream can show, as far as it and the environment tell."""

import fcntl
import os
import struct
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from queue_core.process.terminal import DEFAULT_SIZE, TerminalSize, allows_colours, has_cursor, terminal_size


@pytest.fixture
def terminal() -> Iterator[TextIO]:
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "w") as stream:
        yield stream
    os.close(ours)


def test_the_size_is_that_of_now_and_a_usual_one_where_the_terminal_knows_none(terminal: TextIO) -> None:
    assert terminal_size(terminal) == DEFAULT_SIZE
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 10, 40, 0, 0))
    assert terminal_size(terminal) == TerminalSize(columns=40, lines=10)


def test_a_stream_that_is_no_terminal_has_no_size(tmp_path: Path) -> None:
    with (tmp_path / "output").open("w") as file:
        assert terminal_size(file) is None
    assert terminal_size(None) is None


@pytest.mark.parametrize(
    ("environment", "colours", "cursor"),
    [
        pytest.param({"TERM": "xterm"}, True, True, id="a usual terminal"),
        pytest.param({"TERM": "xterm", "NO_COLOR": "1"}, False, True, id="switched off"),
        pytest.param({"TERM": "xterm", "NO_COLOR": ""}, True, True, id="an empty NO_COLOR is none"),
        pytest.param({"TERM": "dumb"}, False, False, id="dumb"),
        pytest.param({}, True, False, id="unknown"),
    ],
)
def test_the_environment_says_what_a_terminal_can_show(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], colours: bool, cursor: bool
) -> None:
    for name in ("TERM", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, text in environment.items():
        monkeypatch.setenv(name, text)
    assert (allows_colours(), has_cursor()) == (colours, cursor)

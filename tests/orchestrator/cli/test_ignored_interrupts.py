"""A command that a person can't end by Ctrl-C, as it was started with SIGINT ignored, says so and how to end it."""

import os
import pty
import re
import signal
import sys
from pathlib import Path

import pytest

from tests.support.commands import program_environment


def shown_by(folder: Path, *arguments: str, is_ignored: bool) -> tuple[int, str]:
    """Run a command in a terminal of its own; return its pid and what it shows."""
    pid, descriptor = pty.fork()
    if not pid:
        signal.signal(signal.SIGINT, signal.SIG_IGN if is_ignored else signal.SIG_DFL)
        os.chdir(folder)
        os.execve(sys.executable, [sys.executable, "-m", "orchestrator", *arguments], program_environment())
    shown = b""
    while True:
        try:
            part = os.read(descriptor, 65_536)
        except OSError:  # the terminal of a program that has ended
            break
        if not part:
            break
        shown += part
    os.waitpid(pid, 0)
    os.close(descriptor)
    return pid, " ".join(shown.decode().split())


@pytest.mark.parametrize("is_ignored", [True, False])
def test_a_person_is_told_how_to_end_a_command_that_ignores_ctrl_c(tmp_path: Path, is_ignored: bool) -> None:
    (tmp_path / "towline.yaml").write_text("store: sqlite:///queue.db\nqueues: {thumbs: {}}\n")
    pid, shown = shown_by(tmp_path, "config", is_ignored=is_ignored)
    assert ("Ctrl-C is ignored" in shown, f"kill {pid}" in shown) == (is_ignored, is_ignored)


def test_a_command_that_stops_at_ctrl_c_all_the_same_does_not_say_so(tmp_path: Path) -> None:
    _, shown = shown_by(tmp_path, "serve", "--help", is_ignored=True)
    assert re.search("Usage: towline serve", shown)
    assert "Ctrl-C is ignored" not in shown

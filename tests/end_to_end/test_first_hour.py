"""A stranger's first hour: a handler raises; the error is seen where people look, mended, and the task redriven."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.commands import program_environment, run_program
from tests.support.eventually import eventually
from tests.support.terminal import TowlineOnTerminal, on_terminal

SETTINGS = """\
store: sqlite:///queue.db
server: {listen: "unix:towline.sock"}
queues:
  thumbs: {max_leases: 2, retry: {min: 10ms, max: 10ms}}
pools:
  resize: {queue: thumbs, app: "tasks:app", slo: 5s, workers: {min: 1, max: 1}}
"""
BROKEN = """\
from queue_core import App

app = App("towline.yaml")


@app.function(queue="thumbs")
def resize(path: str, width: int = 200) -> None:
    if width < 0:
        raise ValueError(f"bad width: {width}")
    print(f"resized {path} to {width}")
"""
MENDED = BROKEN.replace("if width < 0", "if width < -100")
PRODUCER = 'import tasks; print(tasks.resize.add("cat.jpg", width=-1).name)'
ERROR = "ValueError: bad width: -1 (tasks.py:9)"


@contextmanager
def up(folder: Path) -> Iterator[TowlineOnTerminal]:
    """Run `towline up` on a terminal of its own."""
    with on_terminal("up", folder=folder) as running:
        eventually(lambda: run_program("health", folder=folder).code == 0)
        yield running


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "towline.yaml").write_text(SETTINGS)
    (tmp_path / "tasks.py").write_text(BROKEN)
    return tmp_path


def python(code: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=program_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.strip()


def why(name: str, folder: Path) -> str:
    return run_program("why", name, folder=folder).out


def test_an_error_is_seen_mended_and_its_task_redriven(folder: Path) -> None:
    with up(folder) as running:
        name = python(PRODUCER, folder)
        eventually(lambda: "dead for" in why(name, folder))
        told = why(name, folder)
        assert f"  reason: {ERROR}" in told
        assert [line.split()[0] for line in told.splitlines() if "raised after" in line] == ["1.", "2."]
        running.await_text("bad width: -1")
        running.await_text(
            r"resize[^\n]* x task _1 failed \(lease 1 of 2\): ValueError: bad width: -1, tasks\.py:9; again in 10 ms"
        )
        running.await_text(
            r"x task _1 failed \(lease 2 of 2\): [^;]*; it is dead \(towline redrive thumbs --named _1\)"
        )
        for named in (["resize"], ["--task", name]):
            said = run_program("logs", *named, folder=folder).out
            assert re.search(r"(?m)handler\.failed .*lease_number=1 .*message=bad width: -1 place=tasks\.py:9$", said)
    (folder / "tasks.py").write_text(MENDED)
    with up(folder):
        assert run_program("redrive", "thumbs", folder=folder).out == "1 ready again\n"
        eventually(lambda: f"thumbs/{name}, tag resize: done" in why(name, folder))
        eventually(lambda: "resized cat.jpg to -1" in run_program("logs", "resize", folder=folder).out)
    told = why(name, folder)
    assert told.count(ERROR) == 2  # from the history, with nothing running
    events = run_program("events", "--task", name, folder=folder).out
    assert events.splitlines()[-1].split()[1] == "task.deleted"

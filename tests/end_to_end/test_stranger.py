"""A stranger's first hour by the README alone: what `towline init` wrote is run, broken, killed, mended and ended."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.support.commands import program_environment, run_program
from tests.support.eventually import eventually
from tests.support.terminal import on_terminal

PRINTS: Final = '    print(f"resizing {path} to {width}")\n'
RAISES: Final = '    if path == "broken.jpg":\n        raise ValueError("not an image")\n'
HOLDS: Final = '    if path == "slow.jpg":\n        import time; time.sleep(600)\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with what `towline init` writes; only its address is changed, as other tests run at the same time."""
    made = run_program("init", folder=tmp_path)
    assert (made.code, made.out.splitlines()[:2]) == (0, ["wrote towline.yaml", "wrote tasks.py"])
    settings = tmp_path / "towline.yaml"
    settings.write_text(settings.read_text().replace("listen: 127.0.0.1:7878 ", "listen: unix:towline.sock "))
    return tmp_path


def produce(folder: Path, *pictures: str) -> list[str]:
    """Add tasks as `towline init` says, and return their names."""
    done = subprocess.run(
        [sys.executable, "tasks.py", *pictures],
        cwd=folder,
        env=program_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return re.findall(r"^added (\S+)$", done.stdout, re.MULTILINE)


def edit(folder: Path, change: Callable[[str], str]) -> str:
    """Change tasks.py and reload, as the README says; return what `towline reload` said."""
    program = folder / "tasks.py"
    program.write_text(change(program.read_text()))
    reloaded = run_program("reload", folder=folder)
    return " ".join((reloaded.out + reloaded.err).split())


def leasing(folder: Path) -> list[str]:
    """Return the workers that may lease: after an edit, those from before it leave."""
    shown = json.loads(run_program("workers", "--json", folder=folder).out)
    return [str(one["worker"]) for one in shown["workers"] if one["state"] not in {"finishing", "draining"}]


def holder(folder: Path) -> int:
    """Return the process of the worker that holds a task; 0 where none does."""
    shown = json.loads(run_program("workers", "--json", folder=folder).out)
    return next((int(one["pid"]) for one in shown["workers"] if one["holding"]), 0)


def test_the_first_hour(folder: Path) -> None:
    with on_terminal("up", folder=folder) as up:
        up.await_text(r"Ctrl-C lets them finish\.$")

        produce(folder, "cat.jpg")
        up.await_text(r"resize-\w+ \| resizing cat\.jpg to 200$")

        old = set(leasing(folder))
        edit(folder, lambda text: text.replace(PRINTS, PRINTS + RAISES))
        eventually(lambda: not old & set(leasing(folder)), seconds=60)
        (broken,) = produce(folder, "broken.jpg")
        place = up.await_text(
            rf"x task {broken} failed \(lease 1 of 5\): ValueError: not an image, (tasks\.py:\d+); again in 1 s"
        )[1]
        assert f"ValueError: not an image ({place})" in run_program("why", broken, folder=folder).out

        typed = run_program("add", "thumbs", "x", "--tag", "rezise", folder=folder)
        assert (typed.code, "did you mean `resize`?" in typed.err) == (0, True)
        up.await_text(r"thumbs +! 1 task has the tag `rezise`, and no pool works on that tag: did you mean `resize`\?")

        old = set(leasing(folder))
        edit(folder, lambda text: text.replace(PRINTS, PRINTS + HOLDS))
        eventually(lambda: not old & set(leasing(folder)), seconds=60)
        (slow,) = produce(folder, "slow.jpg")
        os.kill(eventually(lambda: holder(folder), seconds=60), signal.SIGKILL)
        worker = up.await_text(r"(resize-\w+) x killed by SIGKILL; its task was restarted after")[1]
        assert f"thumbs/{slow}" in run_program("why-died", worker, folder=folder).out

        told = edit(folder, lambda text: text.replace(") -> None:", ") -> None", 1))
        assert "error: pools.resize.app: can't import tasks: tasks.py:" in told
        up.await_text(r"resize +x its application can't be used: can't import tasks: tasks\.py:\d+: expected ':'")
        edit(folder, lambda text: text.replace(") -> None", ") -> None:", 1))
        up.await_text(r"resize +its application can be used again$")

        up.terminal.type("\x03")
        up.await_text(
            rf"Finishing 1 task \(resize-\w+, task {slow}, .* so far\), for at most 30 s\. Ctrl-C again ends it"
        )
        up.terminal.type("\x03")
        assert up.ended() == 0
        assert "ended: you asked twice" in up.text
        assert re.search(r"Stopped\. 1 done, \d dead, \d still wait in sqlite:///towline\.db\.", up.text)

"""What `towline up` makes is its owner's alone: store and log, the supervisor's folder, workers' output, sockets."""

import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import program_environment
from tests.support.eventually import eventually

SETTINGS = """\
store: sqlite:///data.db
server: {listen: "unix:queue.sock"}
queues:
  work: {}
pools:
  workers:
    queue: work
    command: [sh, -c, "echo started; sleep 60"]
    slo: 30s
    workers: {min: 1, max: 1}
    grace: 1s
"""
OURS = {"towline.yaml", "output.txt"}


def modes(folder: Path) -> dict[str, str]:
    """By path, what is neither a folder of 0700 nor a file or socket of 0600."""
    wrong = {}
    for path in folder.rglob("*"):
        if path.name in OURS:
            continue
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:
            continue  # a draft that has taken its place
        if stat.S_IMODE(mode) != (0o700 if stat.S_ISDIR(mode) else 0o600):
            wrong[str(path.relative_to(folder))] = stat.filemode(mode)
    return wrong


@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_nobody_else_may_read_what_a_supervisor_and_its_server_make(tmp_path: Path, umask: int) -> None:
    (tmp_path / "towline.yaml").write_text(SETTINGS)
    with (tmp_path / "output.txt").open("wb") as output:
        running = subprocess.Popen(
            [sys.executable, "-m", "orchestrator", "up"],
            cwd=tmp_path,
            env=program_environment(),
            stdout=output,
            stderr=output,
            umask=umask,
        )
    try:
        state = tmp_path / ".towline"
        eventually(lambda: list((state / "workers").glob("*.log")) and (state / "decisions.jsonl").exists(), seconds=30)
        eventually(lambda: (state / "supervisor.json").exists() and (tmp_path / "queue.sock").exists(), seconds=20)
        assert modes(tmp_path) == {}
    finally:
        running.send_signal(signal.SIGTERM)
        running.wait(30)
    assert {"data.db", ".towline"} <= {each.name for each in tmp_path.iterdir()}
    assert modes(tmp_path) == {}

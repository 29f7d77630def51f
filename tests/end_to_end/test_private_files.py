"""What the product writes is its owner's alone, whatever the umask: SECURITY.md promises it."""

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.commands import program_environment
from tests.support.eventually import eventually

OTHERS = stat.S_IRWXG | stat.S_IRWXO
SETTINGS = """
store: sqlite:///data/q.db
log: data/events.jsonl
server:
  listen: "unix:q.sock"
  tokens: [{role: admin, token_file: admin.tok}]
queues: {q: {}}
pools:
  p: {queue: q, app: "tasks:app", slo: 5s, workers: {min: 1, max: 1}}
"""
TASKS = """
from queue_core import App
app = App()

@app.task(queue="q")
def work(payload):
    print("working")
    raise ValueError("no")
"""
SHAPE = "poisson:1/s,service=1s,for=1m"
TOKEN = "admin-0123456789abcdef"


def open_to_others(folder: Path, *, given: set[str]) -> dict[str, str]:
    """Return what others may use in a folder, with its mode: what lies in a closed folder is closed."""
    found: dict[str, str] = {}
    for path in sorted(folder.iterdir()):
        mode = stat.S_IMODE(path.lstat().st_mode)
        if path.name in given or not mode & OTHERS:
            continue
        if not path.is_dir():
            found[path.name] = oct(mode)
        elif mode & OTHERS:
            found |= {f"{path.name}/": oct(mode), **open_to_others(path, given=set())}
    return found


def run(folder: Path, *words: str, code: int = 0) -> str:
    environment = program_environment() | {"TOWLINE_TOKEN": TOKEN}
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator", *words],
        cwd=folder,
        env=environment,
        umask=0,
        capture_output=True,
        check=False,
        text=True,
        timeout=100,
    )
    assert done.returncode == code, done.stderr
    return done.stdout


@contextmanager
def up(folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    with (folder / "up.log").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "orchestrator", "up", "--json"],
            cwd=folder,
            env=program_environment(),
            umask=0,
            stdout=output,
            stderr=output,
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project's folder in which everybody could write."""
    (tmp_path / "towline.yaml").write_text(SETTINGS)
    (tmp_path / "tasks.py").write_text(TASKS)
    (tmp_path / "admin.tok").write_text(TOKEN)
    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(0o777)
    return tmp_path


def test_a_fleet_at_work_and_what_commands_write_beside_it(folder: Path) -> None:
    given = {"towline.yaml", "tasks.py", "admin.tok", "up.log", "__pycache__"}
    with up(folder):
        eventually(lambda: (folder / "q.sock").exists() or None)
        for number in range(3):
            run(folder, "add", "q", f"secret-{number}")
        eventually(lambda: "lease.released" in (folder / "data/events.jsonl").read_text())
        run(folder, "reload")
        run(folder, "scale", "p", "1")
        run(folder, "drain")
        run(folder, "undrain")
        run(folder, "backup", "copy.db", "--store", "sqlite:///data/q.db")
        run(folder, "export", "dump.jsonl", "--store", "sqlite:///data/q.db")
        run(folder, "export", "dump.jsonl.gz", "--store", "sqlite:///data/q.db")
        assert open_to_others(folder, given=given) == {"data/": "0o777"}
        state = [path for path in (folder / ".towline").rglob("*") if path.is_file() or path.is_socket()]
        assert len(state) > 5
        assert not [path for path in state if path.stat().st_mode & OTHERS]
    assert open_to_others(folder, given=given) == {"data/": "0o777"}
    kinds = {path.name for path in (folder / "data").iterdir()}
    assert {"q.db", "events.jsonl"} <= kinds


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("init", "--dir", "made"), id="init"),
        pytest.param(("export", "--to", "systemd", "--out", "made"), id="manifests"),
        pytest.param(
            (
                "simulate",
                "--shape",
                "poisson:1/s,service=1s,for=1m",
                "--slo",
                "5s",
                "--rules",
                "none",
                "--svg",
                "made.svg",
            ),
            id="a chart",
        ),
    ],
)
def test_files_without_secrets_are_never_others_to_change(words: tuple[str, ...], tmp_path: Path) -> None:
    if words[0] == "export":
        (tmp_path / "towline.yaml").write_text("queues: {q: {}}\npools: {p: {queue: q, app: 'a:app', slo: 5s}}\n")
        (tmp_path / "towline.yaml").chmod(0o644)
    run(tmp_path, *words)
    made = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert made
    assert {stat.S_IMODE(path.stat().st_mode) & 0o022 for path in made} == {0}


def test_the_folder_of_a_demo_is_its_owner_s(tmp_path: Path) -> None:
    from orchestrator.cli.commands.demo import _prepared

    before = os.umask(0)
    try:
        made = _prepared(tmp_path / "a" / "demo")
    finally:
        os.umask(before)
    assert [oct(stat.S_IMODE(path.stat().st_mode)) for path in (made, made.parent)] == ["0o700", "0o700"]

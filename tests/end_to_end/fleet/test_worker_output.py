"""Workers of `towline up` leave their output behind, and how they died on their tasks' attempts."""

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from orchestrator.state.directory import StateDir
from queue_core.attempts.failures import host_name
from queue_core.client.connect import open_queues
from queue_core.task import StoredTask
from tests.support.commands import program_environment, run_program
from tests.support.eventually import eventually

SETTINGS = """\
store: sqlite:///queue.db
server: {listen: "unix:towline.sock"}
queues:
  thumbs: {lease: 30s, max_leases: 5}
pools:
  resize: {queue: thumbs, app: "tasks:app", slo: 2s, grace: 2s, workers: {min: 1, max: 1}, env: {ME: "{worker}"}}
"""
TASKS = """\
import os, pathlib, signal, sys, time
from queue_core import App
app = App()
@app.task(queue="thumbs")
def resize(task):
    print("resizing", task.text, "as", os.environ["ME"], flush=True)
    if task.text == "bad":
        raise ValueError("not a picture")
    if task.lease_number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    while not pathlib.Path("go").exists():
        time.sleep(0.05)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "towline.yaml").write_text(SETTINGS)
    (tmp_path / "tasks.py").write_text(TASKS)
    return tmp_path


@contextmanager
def towline_up(folder: Path, *options: str, stdout: int | None = None) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / "up.out").open("wb") as out, (folder / "up.err").open("wb") as err:
        up = subprocess.Popen(
            [sys.executable, "-m", "orchestrator", "up", *options],
            cwd=folder,
            env=program_environment(),
            stdout=out if stdout is None else stdout,
            stderr=err,
        )
    try:
        eventually(lambda: (folder / "towline.sock").exists() or up.poll() is not None, seconds=30)
        yield up
    finally:
        (folder / "go").touch()
        up.terminate()
        assert up.wait(timeout=30) == 0, (folder / "up.err").read_text()


def tasks(folder: Path) -> Sequence[StoredTask]:
    queues = open_queues(f"unix:{folder}/towline.sock")
    try:
        return queues.queue("thumbs").peek().tasks
    finally:
        queues.close()


def output_of(worker: str, folder: Path) -> list[str]:
    """Return what the worker has printed, by the lines of `up`; its log entries are left out."""
    lines = [json.loads(line) for line in (folder / "up.out").read_text().splitlines(keepends=True) if line[-1] == "\n"]
    return [line["line"] for line in lines if line["worker"] == worker and not line["line"].startswith("{")]


def add(folder: Path, payload: str, name: str) -> None:
    told = run_program("add", "thumbs", payload, "--name", name, folder=folder)
    assert told.code == 0, told.err


def test_a_task_shows_how_its_worker_was_killed_and_its_output_is_found(folder: Path) -> None:
    with towline_up(folder, "--logs"):
        add(folder, "cat", "t-1")
        eventually(lambda: any(task.leases == 2 for task in tasks(folder)), seconds=40)
        (task,) = tasks(folder)
        (attempt,) = task.attempts
        assert (attempt.outcome, attempt.error, attempt.lease_number) == ("worker_died", "SIGKILL", 1)
        assert attempt.message == f"ended by SIGKILL; see `towline why-died {attempt.worker}`"
        assert attempt.host == host_name()
        (death,) = StateDir(folder / ".towline").read_deaths(limit=9)
        assert death["worker"] == attempt.worker
        why = run_program("why-died", attempt.worker, folder=folder)
        assert "thumbs/t-1 for" in why.out
        assert ", attempt 1: given back" in why.out

        first, second = attempt.worker, task.worker
        eventually(lambda: output_of(second, folder) == [f"resizing cat as {second}"], seconds=20)
        assert output_of(first, folder) == [f"resizing cat as {first}"]
        every = run_program("logs", "resize", folder=folder)
        assert f"resizing cat as {first}\n" in every.out
        assert f"resizing cat as {second}\n" in every.out
        of_first = run_program("logs", first[:-1], folder=folder)  # it has ended, and its name is cut
        assert f"resizing cat as {first}\n" in of_first.out
        assert second not in of_first.out
        over_http = run_program("logs", second, "--json", "--url", f"unix:{folder}/towline.sock", folder=folder)
        assert {"pool": "resize", "worker": second, "line": f"resizing cat as {second}"} in over_http.lines
        of_task = run_program("logs", "--task", "t-1", "--json", folder=folder)
        assert {json.loads(line)["worker"] for line in of_task.out.splitlines()} == {first, second}
        assert run_program("logs", "--task", "t-2", folder=folder).out == ""


def test_output_is_not_printed_where_stdout_is_no_terminal(folder: Path) -> None:
    with towline_up(folder):
        add(folder, "bad", "t-1")
        eventually(lambda: "not a picture" in run_program("logs", folder=folder).out, seconds=40)
    assert (folder / "up.out").read_text() == ""


def test_a_terminal_shows_a_handlers_traceback_as_its_lines(folder: Path) -> None:
    ours, theirs = pty.openpty()
    os.set_blocking(ours, False)
    seen = bytearray()

    def shows(text: bytes) -> bool:
        with suppress(BlockingIOError):
            seen.extend(os.read(ours, 65536))
        return text in seen

    try:
        with towline_up(folder, stdout=theirs):
            os.close(theirs)
            add(folder, "bad", "t-1")
            eventually(lambda: shows(b"ValueError: not a picture"), seconds=40)
            eventually(lambda: shows(b"raise ValueError"), seconds=10)
    finally:
        os.close(ours)
    assert b" | resizing bad as resize-" in seen


def test_a_follower_goes_on_over_a_restart_and_ends_as_other_followers_do(folder: Path) -> None:
    with towline_up(folder):
        add(folder, "cat", "t-1")
        eventually(lambda: run_program("logs", folder=folder).code == 0, seconds=20)
        follower = subprocess.Popen(
            [sys.executable, "-m", "orchestrator", "logs", "resize", "--follow", "--lines", "1000"],
            cwd=folder,
            env=program_environment(),
            stdout=subprocess.PIPE,
        )
        assert follower.stdout is not None
        seen: set[str] = set()
        for line in follower.stdout:
            text = line.decode()
            if "resizing cat as " in text:
                seen.add(text.split(" as ")[1].strip())
            if len(seen) == 2:
                break
        follower.send_signal(signal.SIGINT)
        assert follower.wait(timeout=20) == 130
        follower.stdout.close()

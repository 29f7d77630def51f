"""Commands whose stdout is cut: its reader has gone, or its disk is full."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from queue_core.cli.cut_output import guarded_output
from queue_core.client.connect import open_queues
from queue_core.client.queue import Queue
from queue_core.task import NewTask
from tests.support.commands import CommandResult, program_environment

SETTINGS = "store: sqlite:///queue.db\nqueues: {thumbs: {max_leases: 1, lease: 1h}}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "towline.yaml").write_text(SETTINGS)
    assert run("pause", "thumbs", folder=tmp_path, stdout=subprocess.DEVNULL).code == 0
    assert run("resume", "thumbs", folder=tmp_path, stdout=subprocess.DEVNULL).code == 0
    return tmp_path


@contextmanager
def opened(folder: Path) -> Iterator[Queue]:
    queues = open_queues(f"sqlite:///{folder}/queue.db")
    try:
        yield queues.queue("thumbs")
    finally:
        queues.close()


@contextmanager
def no_reader() -> Iterator[int]:
    """The end of a pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        yield writing
    finally:
        os.close(writing)


@contextmanager
def no_space() -> Iterator[int]:
    """A file whose disk is full."""
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        yield full
    finally:
        os.close(full)


def run(*arguments: str, folder: Path, stdout: int, stdin: bytes = b"", stderr: int = subprocess.PIPE) -> CommandResult:
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator", *arguments],
        cwd=folder,
        env=program_environment(),
        input=stdin,
        stdout=stdout,
        stderr=stderr,
        timeout=60,
        check=False,
    )
    return CommandResult(done.returncode, "", (done.stderr or b"").decode())


def added(folder: Path, count: int = 3) -> list[str]:
    with opened(folder) as queue:
        return [one.name for one in queue.add([NewTask(b"x", name=f"task-{number}") for number in range(count)])]


@pytest.mark.parametrize("cut", [no_reader, no_space])
def test_all_tasks_are_added_and_counted_when_nobody_reads_their_names(folder: Path, cut: type[no_reader]) -> None:
    lines = b"".join(b"%d\n" % number for number in range(2500))
    with cut() as stdout:
        told = run("add", "thumbs", "--lines", "--names", folder=folder, stdin=lines, stdout=stdout)
    assert told.code == 74
    assert "2,500 tasks added" in told.err
    assert "try again" not in told.err
    with opened(folder) as queue:
        assert queue.stats().ready == 2500


def test_a_task_is_added_once_and_nobody_is_told_to_try_again(folder: Path) -> None:
    with no_space() as stdout:
        told = run("add", "thumbs", "x", folder=folder, stdout=stdout)
    assert (told.code, told.err.splitlines()[-1]) == (74, "1 task added to thumbs")
    assert "try again" not in told.err


def test_every_token_that_stdout_did_not_take_is_on_stderr(folder: Path) -> None:
    added(folder, 100)
    with no_reader() as stdout:
        told = run("lease", "thumbs", "--count", "100", "--json", folder=folder, stdout=stdout)
    assert told.code == 74
    with opened(folder) as queue:
        assert queue.stats().in_flight == 100
        tokens = [line.split('"token": "')[1].split('"')[0] for line in told.err.splitlines() if '"token"' in line]
        assert len(tokens) == 100
        queue.delete(tokens)
        assert queue.stats().in_flight == 0


def test_a_reader_that_goes_after_its_first_line_leaves_no_token_unknown(folder: Path) -> None:
    added(folder, 300)
    leasing = subprocess.Popen(
        [sys.executable, "-m", "orchestrator", "lease", "thumbs", "--count", "300"],
        cwd=folder,
        env=program_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert leasing.stdout is not None
    assert leasing.stderr is not None
    assert os.read(leasing.stdout.fileno(), 10) == b"TOKEN     "
    leasing.stdout.close()
    told = leasing.stderr.read().decode()
    leasing.stderr.close()
    assert leasing.wait(timeout=60) == 74
    with opened(folder) as queue:
        assert queue.stats().in_flight == 300
        queue.delete([line.split()[0] for line in told.splitlines() if line[0].isdigit()])
        assert queue.stats().in_flight == 0


def test_a_reader_that_reads_all_is_no_cut_whenever_it_goes(folder: Path) -> None:
    added(folder, 1)
    script = "exec 3>&1; { towline lease thumbs --json; echo $? >&3; } | head -n 1 > /dev/null"
    program = script.replace("towline", f"{sys.executable} -m orchestrator")
    done = subprocess.run(["sh", "-c", program], cwd=folder, env=program_environment(), capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"0\n", b"")


def test_a_change_is_finished_when_neither_stdout_nor_stderr_has_a_reader(folder: Path) -> None:
    lines = b"".join(b"%d\n" % number for number in range(1500))
    with no_reader() as nobody:
        told = run("add", "thumbs", "--lines", "--names", folder=folder, stdin=lines, stdout=nobody, stderr=nobody)
    assert told.code == 74
    with opened(folder) as queue:
        assert queue.stats().ready == 1500


@pytest.mark.parametrize(
    "arguments",
    [
        ["delete", "thumbs", "--named", "task-0", "--named", "task-1"],
        ["purge", "thumbs", "--yes"],
        ["redrive", "thumbs"],
        ["pause", "thumbs"],
        ["resume", "thumbs"],
        ["queues", "storage", "--limit", "1MiB", "--json"],
        ["init", "--dir", "new"],
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_a_change_whose_answer_is_cut_says_that_it_is_finished(folder: Path, arguments: list[str]) -> None:
    added(folder)
    with no_space() as stdout:
        told = run(*arguments, folder=folder, stdout=stdout)
    assert told.code == 74
    assert "stdout was cut (No space left on device); the change is finished anyway" in told.err
    assert "try again" not in told.err


def test_a_change_that_fails_is_told_as_that_whatever_became_of_its_output(folder: Path) -> None:
    added(folder)
    with no_space() as stdout:
        told = run("release", "thumbs", "1.1", folder=folder, stdout=stdout)
    assert told.code == 75


def test_what_only_shows_ends_when_its_reader_has_gone_and_says_when_its_disk_is_full(folder: Path) -> None:
    added(folder)
    with no_reader() as stdout:
        told = run("peek", "thumbs", folder=folder, stdout=stdout)
    assert (told.code, told.err) == (0, "")
    for arguments in (["peek", "thumbs"], ["--help"], ["peek", "--help"], ["schema"]):
        with no_space() as stdout:
            told = run(*arguments, folder=folder, stdout=stdout)
        assert told.code == 74
        assert "stdout was cut: No space left on device" in told.err


def test_an_export_ends_when_its_reader_has_gone(folder: Path) -> None:
    added(folder, 1000)
    with no_reader() as stdout:
        told = run("export", "-", folder=folder, stdout=stdout)
    assert "Traceback" not in told.err
    assert told.code == 0


def test_lines_that_are_added_before_one_fails_are_told_with_where_to_go_on(folder: Path) -> None:
    lines = b"short\n" * 1200 + b"x" * (1 << 20) + b"x\n"
    told = run("add", "thumbs", "--lines", folder=folder, stdin=lines, stdout=subprocess.DEVNULL)
    assert told.code == 65
    with opened(folder) as queue:
        ready = queue.stats().ready
    assert ready
    assert f"{ready:,} tasks, lines 1 to {ready:,}, are added" in told.err


def test_an_output_whose_stream_was_closed_before_it_is_closed_without_a_complaint(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As a test's capture does with its own; Python 3.14 prints what a forgotten stream raises when it is closed."""
    stream = (tmp_path / "shown.txt").open("w")
    monkeypatch.setattr(sys, "stdout", stream)
    with guarded_output("stop"):
        guarded = sys.stdout
    stream.close()
    guarded.close()
    assert guarded.closed

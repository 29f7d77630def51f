"""What people get wrong, through the real command: the message names place, value, limit and fix; nothing changes."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from queue_core.client.connect import open_queue
from queue_core.stats import QueueStats
from queue_core.task import NewTask
from queue_core.verbs import Page
from tests.support.commands import CommandResult, program_environment, run_program
from tests.support.eventually import eventually

SETTINGS = """\
store: sqlite:///queue.db
server: {listen: "unix:towline.sock"}
queues:
  thumbs: {lease: 30s, max_leases: 5}
"""
BROKEN = """\
store: postgre://db
durabilty: strict
queues:
  thumbs: {lease: 30x, retry: {min: 10m, max: 5m}}
  mails: {lease: 9d}
  mails: {}
pools:
  resize: {queue: thumb, slow: 30s, app: "tasks:app", command: [a]}
"""
BROKEN_BUT_ONCE = BROKEN.replace("  mails: {}\n", "")


@dataclass(frozen=True, slots=True)
class Case:
    """A command, its exit code, and what its error must say."""

    arguments: tuple[str, ...]
    code: int
    told: tuple[str, ...]
    stdin: bytes = b""


CASES = [
    pytest.param(
        Case(("add", "thumbs"), 65, ("1048576 bytes", "1048577", "keep the data elsewhere"), b"x" * (1024 * 1024 + 1)),
        id="a payload of 1 MiB and a byte",
    ),
    pytest.param(
        Case(("add", "q" * 101, "a"), 65, ("1 to 100 letters", "queue name"), b""),
        id="a queue's name out of range",
    ),
    pytest.param(Case(("add", "thumbz", "a"), 66, ("thumbz", "did you mean 'thumbs'")), id="an unknown queue"),
    pytest.param(Case(("lease", "thumbs", "--for", "-1"), 2, ("between 0 s and", "-1")), id="a negative lease"),
    pytest.param(Case(("lease", "thumbs", "--for", "8d"), 65, ("[0, 604800] s", "691200")), id="an eight-day lease"),
    pytest.param(Case(("lease", "thumbs", "-n", "1001"), 2, ("1<=x<=1000", "1001")), id="1,001 tasks"),
    pytest.param(Case(("lease", "thumbs", "--wait", "10m"), 65, ("[0, 300] s", "600")), id="a wait too long"),
    pytest.param(Case(("delete", "thumbs", "7.1234"), 75, ("7.1234", "no longer current")), id="a stale token"),
    pytest.param(Case(("delete", "thumbs", "seven"), 65, ("'seven'", "token")), id="a text that is no token"),
    pytest.param(Case(("add", "thumbs", "a", "--tag", "t" * 501), 65, ("500 bytes", "501")), id="a tag too long"),
    pytest.param(Case(("add", "thumbs", "a", "--name", "a b"), 65, ("'a b'", "1 to 500")), id="a task's name"),
    pytest.param(Case(("add", "thumbs", "a", "--delay", "31d"), 65, ("2592000", "2678400")), id="a delay too long"),
    pytest.param(Case(("ad", "thumbs", "a"), 2, ("`ad`", "did you mean `add`")), id="a command that does not exist"),
    pytest.param(Case(("queues", "-f", "none.yaml"), 66, ("none.yaml", "towline init")), id="a file that is missing"),
    pytest.param(
        Case(("queues", "--url", "http://127.0.0.1:1"), 69, ("127.0.0.1:1", "towline up")),
        id="a server that is not there",
    ),
    pytest.param(Case(("work", "absent:app"), 78, ("absent", "no such module")), id="a worker that can't be imported"),
    pytest.param(Case(("work", "broken:app"), 78, ("broken.py:1", "1 / 0")), id="an app that fails to import"),
    pytest.param(
        Case(("queues", "--store", "sqlite:///notes.txt"), 69, ("notes.txt", "towline doctor")), id="no SQLite file"
    ),
    pytest.param(Case(("queues", "--store", "mysql://x"), 78, ("sqlite:///",)), id="a store nobody knows"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "towline.yaml").write_text(SETTINGS)
    (tmp_path / "notes.txt").write_text("dear diary, this is no database at all\n" * 100)
    (tmp_path / "broken.py").write_text("app = 1 / 0\n")
    with closing(open_queue(f"sqlite:///{tmp_path}/queue.db", "thumbs")) as queue:
        queue.add(NewTask(b"here before", name="before"))
    return tmp_path


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_told_and_changes_nothing(folder: Path, case: Case) -> None:
    before = contents(folder)
    told = run_program(*case.arguments, folder=folder, stdin=case.stdin)
    assert told.code == case.code, told.err
    for words in case.told:
        assert words in told.err
    assert "Traceback" not in told.err or case.arguments[0] == "work"  # a worker's log has the app's own
    assert told.out == ""
    assert contents(folder) == before


def test_every_mistake_of_a_settings_file_is_told_with_its_place_in_one_run(folder: Path) -> None:
    (folder / "towline.yaml").write_text(BROKEN_BUT_ONCE)
    told = run_program("check", folder=folder)
    assert told.code == 78
    lines = [line.removeprefix("error:").strip() for line in told.err.splitlines() if "towline.yaml:" in line]
    places = [line.partition(" ")[0] for line in lines]
    assert places == [
        "towline.yaml:1:1:",
        "towline.yaml:2:1:",
        "towline.yaml:4:12:",
        "towline.yaml:4:32:",
        "towline.yaml:5:11:",
        "towline.yaml:7:3:",
        "towline.yaml:7:12:",
        "towline.yaml:7:26:",
        "towline.yaml:7:55:",
    ]
    assert "did you mean 'durability'" in told.err
    assert "did you mean 'thumbs'" in told.err
    assert "did you mean 'slo'" in told.err
    assert "either app or command" in told.err


@pytest.mark.parametrize("command", ["up", "serve"])
def test_a_key_given_twice_is_told_with_all_else_that_is_wrong(folder: Path, command: str) -> None:
    (folder / "towline.yaml").write_text(BROKEN)
    told = run_program(command, folder=folder)
    assert told.code == 78
    assert "towline.yaml:6:3: queues.mails: is given twice; first in line 5" in told.err
    assert "towline.yaml:4:12: queues.thumbs.lease: 30x" in told.err
    assert "towline.yaml:5:11: queues.mails.lease: " in told.err  # of the first; the second is not looked at


def test_a_key_given_twice_is_a_mistake_where_nothing_else_is(folder: Path) -> None:
    (folder / "towline.yaml").write_text("queues: {thumbs: {}}\nqueues: {thumbs: {}}\n")
    for command in ("check", "serve"):
        told = run_program(command, folder=folder)
        assert told.code == 78
        assert "towline.yaml:2:1: queues: is given twice; first in line 1: keep one of them" in told.err


@pytest.mark.parametrize("command", ["check", "up", "serve", "supervise"])
def test_the_settings_file_is_named_after_the_command_or_by_its_option(folder: Path, command: str) -> None:
    (folder / "other.yaml").write_text("queues: {a b: {}}\n")
    for arguments in (("other.yaml",), ("--file", "other.yaml")):
        told = run_program(command, *arguments, folder=folder)
        assert told.code == 78
        assert "other.yaml:1:10: queues.a b: " in told.err
        assert "`towline check other.yaml`" in told.err


def test_a_settings_file_named_twice_is_refused_and_one_in_the_environment_gives_way(folder: Path) -> None:
    (folder / "other.yaml").write_text("queues: {a b: {}}\n")
    for arguments in (("towline.yaml", "--file", "other.yaml"), ("--file", "other.yaml", "towline.yaml")):
        told = run_program("check", *arguments, folder=folder)
        assert told.code == 2
        assert "given twice: towline.yaml and --file other.yaml" in told.err
    told = run_program("check", "towline.yaml", folder=folder, environment={"TOWLINE_FILE": "other.yaml"})
    assert told.code == 0
    assert run_program("check", folder=folder, environment={"TOWLINE_FILE": "other.yaml"}).code == 78


def test_a_port_in_use_is_named_with_the_way_out(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for command in ("up", "serve"):
            told = run_program(command, "--listen", address, folder=folder)
            assert told.code == 73
            assert address in told.err
            assert "--listen" in told.err


def test_a_full_disk_refuses_the_add_and_keeps_what_was_there(folder: Path) -> None:
    told = on_a_mount(
        folder,
        "mount -t tmpfs -o size=1m tmpfs small && cp towline.yaml small/ && cd small && "
        "$TOWLINE add thumbs first --name first && head -c 900000 /dev/urandom > filler; "
        "head -c 400000 /dev/urandom | $TOWLINE add thumbs; echo code $?; rm -f filler; "
        "$TOWLINE peek thumbs --json; $TOWLINE add thumbs again --name again",
    )
    assert "code 69" in told.out
    assert '"name": "first"' in told.out
    assert told.out.rstrip().endswith("again")
    assert "free disk space" in told.err


def test_a_read_only_file_is_told_as_such(folder: Path) -> None:
    told = on_a_mount(
        folder,
        "cp towline.yaml small/ && $TOWLINE add thumbs a --store sqlite:///small/queue.db -f towline.yaml; "
        "mount --bind small small && mount -o remount,bind,ro small && cd small && $TOWLINE add thumbs a; echo code $?",
    )
    assert "code 77" in told.out, told.err
    assert "writable" in told.err


def test_a_handler_that_never_returns_is_left_behind_when_the_fleet_stops(folder: Path) -> None:
    (folder / "stuck.py").write_text(
        "import threading\n"
        "from queue_core import App\n"
        "app = App()\n"
        "@app.task(queue='thumbs')\n"
        "def stuck(task): threading.Event().wait()\n"
    )
    pool = "pools:\n  stuck: {queue: thumbs, app: 'stuck:app', slo: 5s, grace: 500ms}\n"
    (folder / "towline.yaml").write_text(SETTINGS + pool)
    with (folder / "up.log").open("wb") as log:
        up = subprocess.Popen(
            [sys.executable, "-m", "orchestrator", "up", "--json"],
            cwd=folder,
            env=program_environment(),
            stdout=log,
            stderr=log,
        )
    try:
        eventually(lambda: counts(folder).in_flight == 1, seconds=30)
        up.send_signal(signal.SIGTERM)
        assert up.wait(timeout=30) == 0
    finally:
        up.kill()
        up.wait()
    assert (counts(folder).in_flight, counts(folder).ready) == (0, 1)


def contents(folder: Path) -> Page:
    """The tasks of the queue, as an outsider sees them."""
    with closing(open_queue(f"sqlite:///{folder}/queue.db", "thumbs")) as queue:
        return queue.peek(payload_bytes=100)


def counts(folder: Path) -> QueueStats:
    """How many tasks stand where."""
    with closing(open_queue(f"sqlite:///{folder}/queue.db", "thumbs")) as queue:
        return queue.stats()


def on_a_mount(folder: Path, script: str) -> CommandResult:
    """Run a script where it may mount file systems of its own; skipped where that is not allowed."""
    (folder / "small").mkdir()
    if shutil.which("unshare") is None or _fails(
        ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", str(folder / "small")]
    ):
        pytest.skip("mount namespaces (unshare -rm) are not allowed here")
    environment = program_environment() | {"TOWLINE": f"{sys.executable} -m orchestrator"}
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script],
        cwd=folder,
        env=environment,
        capture_output=True,
        timeout=120,
        check=False,
    )
    return CommandResult(done.returncode, done.stdout.decode(), done.stderr.decode())


def _fails(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False, env=dict(os.environ)).returncode != 0

"""The commands as the first process of a container: nobody's zombies stay, signals arrive, exit codes are told."""

import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from orchestrator.state.directory import StateDir
from queue_core.client.connect import open_queues
from queue_core.task import QueueSpec
from tests.soak.figures import zombies_of
from tests.support.commands import program_environment
from tests.support.eventually import eventually

UNSHARE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
SETTINGS = """\
store: sqlite:///queue.db
server: {listen: unix:towline.sock}
queues: {thumbs: {max_leases: 5}}
pools:
  resize:
    queue: thumbs
    command: [sh, -c, "(sleep 0.3 & sleep 0.1 &); exec sleep 1000"]
    slo: 5s
    grace: 2s
    workers: {min: 2, max: 2}
"""


def _can_be_first() -> bool:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    return subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode == 0


pytestmark = pytest.mark.skipif(not _can_be_first(), reason="needs root, and a kernel with process namespaces")


@contextmanager
def first_process(arguments: Sequence[str], folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A Python program as the first process of a namespace, and its pid out here."""
    with (folder / "log").open("wb") as log:
        outer = subprocess.Popen(
            [*UNSHARE, sys.executable, *arguments], cwd=folder, env=program_environment(), stdout=log, stderr=log
        )
    try:
        yield outer, int(eventually(lambda: _children(outer.pid) or (outer.poll() is not None and [0]))[0])
    finally:
        outer.kill()
        outer.wait()


def _children(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in path.read_text().split()] if path.exists() else []


def _handles(pid: int, number: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    (caught,) = [line.split()[1] for line in status.splitlines() if line.startswith("SigCgt")]
    return bool(int(caught, 16) >> (number - 1) & 1)


def test_its_own_children_are_its_own_and_orphans_are_nobodys(tmp_path: Path) -> None:
    program = textwrap.dedent("""
        import os, subprocess, sys, time
        from queue_core.process.init_process import run_as_init
        run_as_init()
        assert os.getpid() != 1
        for code in range(40):
            subprocess.Popen(["sh", "-c", "(sleep 0.05 &); (exit 3 &)"]).wait()
            assert subprocess.run(["sh", "-c", f"exit {code}"]).returncode == code
        def is_zombie(pid):
            try:
                return ") Z " in open(f"/proc/{pid}/stat").read()
            except OSError:  # it is gone by now
                return False
        deadline = time.monotonic() + 5.0
        while time.monotonic() < deadline:
            if not any(is_zombie(pid) for pid in os.listdir("/proc") if pid.isdecimal()):
                sys.exit(17)
        sys.exit(1)
    """)
    with first_process(["-c", program], tmp_path) as (outer, _):
        assert outer.wait(timeout=30) == 17, (tmp_path / "log").read_text()


def test_a_runtime_that_is_first_collects_orphans_behind_a_worker_that_ended(tmp_path: Path) -> None:
    program = textwrap.dedent("""
        import os, subprocess, sys, time
        from pathlib import Path
        from orchestrator.runtimes import procfs
        from orchestrator.runtimes.process import OtherProcesses
        assert os.getpid() == 1
        others = OtherProcesses(Path("state"), lock=None)
        worker = subprocess.Popen(["true"])
        while procfs.ended_children_of(1) != [worker.pid]:
            time.sleep(0.01)
        subprocess.run(["sh", "-c", "for i in 1 2 3; do (exit 3 &); done"])
        while len(procfs.ended_children_of(1)) < 4:
            time.sleep(0.01)
        others.collect(others={worker.pid})
        assert procfs.ended_children_of(1) == [worker.pid]
        assert worker.wait() == 0
    """)
    with first_process(["-c", program], tmp_path) as (outer, _):
        assert outer.wait(timeout=30) == 0, (tmp_path / "log").read_text()


def test_signals_are_passed_on_and_its_end_is_told_as_a_shell_tells_it(tmp_path: Path) -> None:
    program = textwrap.dedent("""
        import signal, sys
        from queue_core.process.init_process import run_as_init
        run_as_init()
        for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGWINCH):
            signal.signal(number, lambda number, _: print(number, flush=True))
        signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGKILL))
        print("up", flush=True)
        while True:
            signal.pause()
    """)
    with first_process(["-c", program], tmp_path) as (outer, first):
        eventually(lambda: (tmp_path / "log").read_text() == "up\n")
        for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGWINCH):
            os.kill(first, number)
            eventually(lambda: (tmp_path / "log").read_text().endswith(f"\n{number}\n"))  # noqa: B023
        os.kill(first, signal.SIGTERM)
        assert outer.wait(timeout=10) == 128 + signal.SIGKILL


def test_a_program_without_a_handler_is_ended_by_sigterm(tmp_path: Path) -> None:
    program = "from queue_core.process.init_process import run_as_init; run_as_init(); print('up', flush=True); input()"
    with first_process(["-c", f"import os; r, w = os.pipe(); os.dup2(r, 0); {program}"], tmp_path) as (outer, first):
        eventually(lambda: (tmp_path / "log").read_text() == "up\n")
        os.kill(first, signal.SIGTERM)
        assert outer.wait(timeout=10) == 128 + signal.SIGTERM


@pytest.mark.parametrize("command", ["up", "supervise"])
def test_a_supervisor_leaves_no_zombie_reloads_and_stops(tmp_path: Path, command: str) -> None:
    (tmp_path / "towline.yaml").write_text(SETTINGS)
    with closing(open_queues(f"sqlite:///{tmp_path}/queue.db")) as queues:
        queues.put_queue(QueueSpec("thumbs"))
    files = StateDir(tmp_path / ".towline")
    arguments = [
        "-m",
        "orchestrator",
        command,
        *(["--url", f"sqlite:///{tmp_path}/queue.db"] if command == "supervise" else []),
    ]
    with first_process(arguments, tmp_path) as (outer, first):
        eventually(lambda: len((files.read_snapshot() or {}).get("workers") or ()) == 2, seconds=30)  # type: ignore[arg-type]
        for _ in range(4):  # their orphans end meanwhile
            (supervisor,) = _children(first)[:1]
            eventually(lambda: not zombies_of(first) and not zombies_of(supervisor), seconds=2)  # noqa: B023
        assert not zombies_of(first)
        os.kill(first, signal.SIGHUP)
        eventually(lambda: files.reload_answer().get("changes") == [])
        os.kill(first, signal.SIGTERM)
        assert outer.wait(timeout=30) == 0, (tmp_path / "log").read_text()
    assert (files.read_snapshot() or {})["phase"] == "stopped"


@pytest.mark.parametrize("command", [["serve", "--listen", "unix:queue.sock"], ["work", "tasks:app"]], ids=str)
def test_a_server_and_a_worker_stop_in_order(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "tasks.py").write_text(
        'from queue_core import App\napp = App()\n@app.task(queue="default")\ndef work(task): pass\n'
    )
    arguments = ["-m", "orchestrator", *command, "--store", "sqlite:///queue.db"]
    with closing(open_queues(f"sqlite:///{tmp_path}/queue.db")) as queues:
        queues.put_queue(QueueSpec("default"))
    with first_process(arguments, tmp_path) as (outer, first):
        eventually(
            lambda: outer.poll() is not None or [c for c in _children(first) if _handles(c, signal.SIGTERM)], seconds=30
        )
        eventually(lambda: outer.poll() is not None or (tmp_path / "log").read_text(), seconds=30)
        os.kill(first, signal.SIGTERM)
        assert outer.wait(timeout=20) == 0, (tmp_path / "log").read_text()

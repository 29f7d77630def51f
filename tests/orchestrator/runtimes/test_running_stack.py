"""The stack of a running worker: asked for by a signal, bounded, without values; a sentence where it can't be had."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from orchestrator.base.clock import ManualMonotonicClock, SystemMonotonicClock
from orchestrator.runtimes import procfs
from orchestrator.runtimes.running_stack import StackRequests, own_lines, stacks_in, why_not, worker_in
from orchestrator.runtimes.worker_logs import MAX_STACK_LINES, without_dumps
from orchestrator.state.directory import StateDir
from tests.support.eventually import eventually

OURS: Final = {"app": "tasks:app", "runtime": "process"}
WORKER: Final = {"worker": "resize-1", "pool": "resize"}
PROGRAM: Final = """\
import faulthandler, signal, sys, threading
faulthandler.register(signal.SIGRTMIN + 1, file=2, all_threads=True)
def handler(payload):
    print("running", file=sys.stderr, flush=True)
    threading.Event().wait()
handler("hunter2")
"""
DUMP: Final = """\
{"event": "lease.granted"}
Thread 0x00007f01 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait
printed in between
  File "/srv/tasks.py", line 14 in resize

Current thread 0x00007f00 (most recent call first):
  File "/srv/main.py", line 3 in main
  File "not a frame
"""


def test_a_dump_is_found_among_other_output_with_the_signalled_thread_first() -> None:
    assert stacks_in(DUMP) == (
        "Current thread 0x00007f00 (most recent call first):",
        '  File "/srv/main.py", line 3 in main',
        "Thread 0x00007f01 (most recent call first):",
        '  File "/usr/lib/python3.11/threading.py", line 331 in wait',
        '  File "/srv/tasks.py", line 14 in resize',
    )
    assert (
        len(stacks_in("Thread 0x1 (most recent call first):\n" + '  File "a", line 1 in b\n' * 999)) == MAX_STACK_LINES
    )
    assert stacks_in("") == ()


def test_a_stack_that_was_asked_for_is_not_among_the_last_lines_of_a_worker() -> None:
    traceback = ["Traceback (most recent call last):", '  File "a.py", line 1, in b', "ValueError: no"]
    dump = ["Thread 0x01 (most recent call first):", '  File "a.py", line 1 in b', "  ..."]
    fault = ["Fatal Python error: Segmentation fault", "Current thread 0x01 (most recent call first):", '  File "c"']
    assert without_dumps(["begun", *dump, *dump, "said", *traceback]) == ["begun", "said", *traceback]
    assert without_dumps([*dump, *fault]) == fault


def test_the_user_s_own_lines_are_told_from_those_of_libraries() -> None:
    assert own_lines(stacks_in(DUMP), lambda file: not file.endswith("tasks.py")) == [
        "Thread 0x00007f01 (most recent call first):",
        '  File "/srv/tasks.py", line 14 in resize',
    ]
    assert own_lines([], lambda _file: False) == []


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        pytest.param({"command": ["sleep"], "runtime": "process"}, "a program of your own", id="a command"),
        pytest.param({"celery": {"app": "site"}, "runtime": "process"}, "a worker of Celery", id="celery"),
        pytest.param({"app": "tasks:app", "runtime": "docker"}, "in a container", id="a container"),
        pytest.param({"app": "tasks:app", "runtime": "external"}, "another system started it", id="external"),
    ],
)
def test_where_there_is_no_stack_a_sentence_says_why(tmp_path: Path, settings: dict[str, object], said: str) -> None:
    requests = StackRequests(StateDir(tmp_path), SystemMonotonicClock())
    found = requests.stack_of({**WORKER, "ref": "pid:1@1/b"}, settings)
    assert (found.lines, said in found.why) == ((), True)


def test_a_worker_of_an_app_may_be_asked() -> None:
    assert why_not({"ref": "pid:1@1/b"}, OURS) == ""


def test_a_worker_is_found_with_its_pool_s_settings() -> None:
    snapshot = {"workers": [WORKER], "pools": {"resize": {"settings": OURS}}}
    assert worker_in(snapshot, "resize-1") == (WORKER, OURS)
    assert worker_in(snapshot, "resize-2") is None


@pytest.fixture
def running(tmp_path: Path) -> Iterator[tuple[StateDir, "subprocess.Popen[bytes]"]]:
    files = StateDir(tmp_path)
    (tmp_path / "workers").mkdir()
    log = tmp_path / "workers" / "resize-1.log"
    with log.open("ab") as output:
        process = subprocess.Popen([sys.executable, "-c", PROGRAM], stderr=output)
    try:
        eventually(lambda: "running" in log.read_text())
        yield files, process
    finally:
        process.kill()
        process.wait()


def test_a_running_worker_tells_where_its_handler_is_and_no_value(
    running: tuple[StateDir, "subprocess.Popen[bytes]"],
) -> None:
    files, process = running
    stat = procfs.read_stat(process.pid)
    assert stat is not None
    ref = procfs.ref_of(process.pid, stat.start_ticks)
    requests = StackRequests(files, ManualMonotonicClock())
    found = requests.stack_of({**WORKER, "ref": ref}, OURS)
    assert any("in handler" in line for line in found.lines)
    assert "hunter2" not in "\n".join(found.lines)
    assert found.why == ""
    size = (files.path / "workers" / "resize-1.log").stat().st_size
    assert requests.stack_of({**WORKER, "ref": ref}, OURS) == found
    assert (files.path / "workers" / "resize-1.log").stat().st_size == size, "it is asked once for all"


def test_a_process_that_is_not_the_worker_is_never_signalled(tmp_path: Path) -> None:
    (tmp_path / "workers").mkdir()
    (tmp_path / "workers" / "resize-1.log").touch()
    requests = StackRequests(StateDir(tmp_path), SystemMonotonicClock())
    assert "has ended" in requests.stack_of({**WORKER, "ref": f"pid:{os.getpid()}@1/{procfs.boot()}"}, OURS).why
    stat = procfs.read_stat(os.getpid())
    assert stat is not None
    own = {"worker": "resize-2", "ref": procfs.ref_of(stat.pid, stat.start_ticks)}
    assert "has not started yet" in requests.stack_of(own, OURS).why, "it would end by a signal that it does not handle"

"""Logging as commands set it up, and the lifecycle file."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from queue_core.client.http_calls import HttpQueues
from queue_core.clock import Instant, ManualClock
from queue_core.errors import InvalidSettingError
from queue_core.events import TASK_ADDED, TASK_LEASED, QueueEvent
from queue_core.process.logs import LifecycleFile
from queue_core.server.base.options import ServeOptions
from queue_core.server.server import ServerThread
from queue_core.stores.memory.store import MemoryStore
from queue_core.task import QueueSpec
from tests.support.stores.small_disk import a_small_disk, fill

ROOT = Path(__file__).resolve().parents[2]
ADDED = QueueEvent(TASK_ADDED, Instant(5), "thumbs", "cat", "resize")


def lines_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_an_event_is_a_json_object_a_line_without_what_does_not_apply(tmp_path: Path) -> None:
    log = LifecycleFile(tmp_path / "log.jsonl", lifecycle="task")
    log.record([ADDED, QueueEvent(TASK_LEASED, Instant(6), "thumbs", "cat", None, "w", 1, 0.5)])
    log.close()
    assert lines_of(tmp_path / "log.jsonl") == [
        {"event": "task.added", "at": 5, "queue": "thumbs", "task": "cat", "tag": "resize", "count": 1},
        {
            "event": "task.leased",
            "at": 6,
            "queue": "thumbs",
            "task": "cat",
            "worker": "w",
            "lease_number": 1,
            "waited_seconds": 0.5,
            "count": 1,
        },
    ]


def test_a_file_that_was_moved_away_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log = LifecycleFile(path, lifecycle="task")
    log.record([ADDED])
    path.rename(tmp_path / "old.jsonl")
    log.record([ADDED, ADDED])
    log.close()
    assert (len(lines_of(tmp_path / "old.jsonl")), len(lines_of(path))) == (1, 2)


def test_lines_that_cant_be_written_are_counted_and_let_go(tmp_path: Path) -> None:
    log = LifecycleFile(Path("/dev/full"), lifecycle="task")
    log.record([ADDED, ADDED])
    assert log.dropped_total == 2
    log.close()
    log.record([ADDED])
    assert log.dropped_total == 3


def test_lost_lines_are_told_once_a_minute_and_so_is_the_end_of_it(tmp_path: Path) -> None:
    clock = ManualClock()
    folder = tmp_path / "logs"
    folder.mkdir()
    path = folder / "log.jsonl"
    log = LifecycleFile(path, lifecycle="task", clock=clock)
    folder.rename(tmp_path / "gone")
    with capture_logs() as logged_lines:
        for _ in range(120):
            log.record([ADDED, ADDED])
            clock.advance(1)
        folder.mkdir()
        log.record([ADDED])
        log.record([ADDED])
    log.close()
    assert [(line["event"], line.get("lines"), line.get("total")) for line in logged_lines] == [
        ("log.lines_lost", 2, 2),
        ("log.lines_lost", 120, 122),
        ("log.recovered", None, None),
    ]
    assert {line["path"] for line in logged_lines} == {str(path)}
    assert logged_lines[-1]["lost"] == log.dropped_total == 240
    assert len(lines_of(path)) == 2


def test_a_line_that_a_full_disk_cut_short_does_not_spoil_the_next(tmp_path: Path) -> None:
    with a_small_disk(tmp_path, size="1m") as disk:
        path = disk / "log.jsonl"
        log = LifecycleFile(path, lifecycle="task")
        log.record([ADDED])  # takes a page of the disk, which the last line will not fit in
        filler = fill(disk)
        while not log.dropped_total:
            log.record([ADDED])
        filler.unlink()
        log.record([ADDED])
        log.close()
        lines = path.read_text().splitlines()
    assert json.loads(lines[-1])["event"] == TASK_ADDED
    for line in lines[:-2]:
        json.loads(line)


@pytest.mark.parametrize("kind", ["folder", "socket", "FIFO"])
def test_a_log_that_is_no_file_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "log"
    with socket.socket(socket.AF_UNIX) as listener:
        if kind == "folder":
            path.mkdir()
        elif kind == "FIFO":
            os.mkfifo(path)
        else:
            listener.bind(str(path))
        with pytest.raises(InvalidSettingError, match="log: "):
            LifecycleFile(path, lifecycle="task")


def test_a_fifo_whose_reader_is_slow_costs_lines_and_no_time(tmp_path: Path) -> None:
    path = tmp_path / "log"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        log = LifecycleFile(path, lifecycle="task")
        for _ in range(10_000):
            log.record([ADDED])
        assert 0 < log.dropped_total < 10_000
        log.close()
    finally:
        os.close(reader)


def test_metrics_count_lost_lines() -> None:
    log = LifecycleFile(Path("/dev/full"), lifecycle="task")
    store = MemoryStore()
    thread = ServerThread(store, ServeOptions(port=0), log=log)
    url = thread.start()
    try:
        with contextlib.closing(HttpQueues(url)) as queues:
            queues.put_queue(QueueSpec("work"))
            queues.queue("work").add(b"x")
        with urllib.request.urlopen(f"{url}/metrics") as answer:
            assert f"towline_log_lost_lines_total {log.dropped_total}.0" in answer.read().decode()
        assert log.dropped_total > 0
    finally:
        thread.stop()
        log.close()


def test_a_log_that_cant_be_opened_at_the_start_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        LifecycleFile(tmp_path / "none" / "log.jsonl", lifecycle="task")


def logged(program: str, **settings: object) -> subprocess.CompletedProcess[str]:
    imports = "from queue_core.process import logs; import structlog"
    text = f"{imports}; logs.configure(**{settings}); log = structlog.get_logger()\n"
    return subprocess.run(
        [sys.executable, "-c", text + program], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )


def test_elsewhere_than_on_a_terminal_a_log_is_json_with_time_level_and_event_first() -> None:
    done = logged("log.info('pool.decided', pool='thumbs', target=3)")
    (line,) = done.stderr.splitlines()
    assert list(json.loads(line)) == ["timestamp", "level", "event", "pool", "target"]
    assert done.stdout == ""


def test_what_is_quieter_than_the_level_is_left_out() -> None:
    done = logged("log.info('a'); log.warning('b')", level="warning")
    assert [json.loads(line)["event"] for line in done.stderr.splitlines()] == ["b"]


def test_a_traceback_is_one_line_of_json() -> None:
    done = logged("try: 1 / 0\nexcept ZeroDivisionError: log.exception('turn.failed')")
    (line,) = done.stderr.splitlines()
    assert "ZeroDivisionError" in json.loads(line)["exception"]


def test_a_closed_stderr_stops_nobody() -> None:
    done = logged("import os; os.close(2)\nfor _ in range(100): log.info('a')\nprint('done')")
    assert (done.returncode, done.stdout) == (0, "done\n")


def test_logging_does_not_bring_rich() -> None:
    done = logged("import sys; print('rich' in sys.modules); import rich.table; print('rich' in sys.modules)")
    assert done.stdout.split() == ["False", "True"]


def test_warnings_of_libraries_are_lines_like_our_own() -> None:
    script = (
        "import logging; from queue_core.process import logs;"
        "logs.configure(shape='json'); logs.configure(shape='json');"
        "logging.getLogger('uvicorn.error').warning('so %s', 'much'); logging.getLogger('uvicorn.error').info('no');"
        "logging.getLogger('asyncio').error('failed', exc_info=ValueError('why'))"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    logged_lines = [json.loads(line) for line in ran.stderr.splitlines()]
    assert [(one["event"], one["logger"], one["message"]) for one in logged_lines] == [
        ("library.logged", "uvicorn.error", "so much"),
        ("library.logged", "asyncio", "failed"),
    ]
    assert "ValueError: why" in logged_lines[1]["exception"]

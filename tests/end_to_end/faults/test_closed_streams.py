"""Commands and workers that are started with standard input, output or error closed, as some wrappers of cron do."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from queue_core.client.connect import open_queues
from queue_core.task import NewTask, QueueSpec
from tests.support.eventually import eventually

ROOT = Path(__file__).parents[3]
TOWLINE = (sys.executable, "-m", "orchestrator")
WORKER = (sys.executable, "-m", "queue_core.worker")
CLOSED = [(0,), (1,), (2,), (0, 1, 2)]

closed_streams = pytest.mark.parametrize("closed", CLOSED, ids=lambda numbers: "".join(map(str, numbers)))


@contextmanager
def started(
    command: tuple[str, ...], closed: tuple[int, ...], log: Path, **environment: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A program that begins with these descriptors closed; what it says on the others goes to the log."""
    closing = " ".join(f"{number}>&-" for number in closed)
    with log.open("ab") as output:
        process = subprocess.Popen(
            ["/bin/sh", "-c", f'exec "$@" {closing}', "sh", *command],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait(timeout=10)


def streams_of(pid: int) -> list[str]:
    """What descriptors 0 to 2 of a process are."""
    links = [Path(f"/proc/{pid}/fd/{number}") for number in range(3)]
    return [str(link.readlink()) if link.is_symlink() else "" for link in links]


@closed_streams
@pytest.mark.parametrize(
    "words", ["--version", "queues", "add q x", "lease q", "stats q", "work nowhere:app --queue q"]
)
def test_a_command_does_what_it_does_with_open_streams(tmp_path: Path, closed: tuple[int, ...], words: str) -> None:
    store = f"sqlite:///{tmp_path}/q.db"
    queues = open_queues(store, durability="relaxed")
    queues.put_queue(QueueSpec("q"))
    queues.queue("q").add([NewTask(b"x")])
    queues.close()
    given = [] if words == "--version" else ["--store", store]
    with started((*TOWLINE, *words.split(), *given), closed, tmp_path / "log") as process:
        code = process.wait(timeout=30)
    said = (tmp_path / "log").read_text()
    assert code == (78 if words.startswith("work") else 0), said
    assert "bug in Towline" not in said
    assert "Traceback" not in said


@closed_streams
@pytest.mark.parametrize("kind", ["up", "serve"])
def test_a_daemon_has_no_store_or_socket_as_a_standard_stream(
    tmp_path: Path, closed: tuple[int, ...], kind: str
) -> None:
    settings = tmp_path / "towline.yaml"
    settings.write_text(f"store: sqlite:///{tmp_path}/q.db\nqueues:\n  q: {{}}\n")
    command = (*TOWLINE, kind, *([str(settings)] if kind == "up" else ["-f", str(settings)]))
    with started((*command, "--listen", f"unix:{tmp_path}/s"), closed, tmp_path / "log") as process:
        eventually(lambda: (tmp_path / "s").exists() or process.poll() is not None, seconds=30)
        assert process.poll() is None, (tmp_path / "log").read_text()
        streams = streams_of(process.pid)
    expected = ["/dev/null" if number in closed or number == 0 else str(tmp_path / "log") for number in range(3)]
    assert streams == expected


@closed_streams
def test_a_worker_has_no_store_or_socket_as_a_standard_stream(tmp_path: Path, closed: tuple[int, ...]) -> None:
    store = f"sqlite:///{tmp_path}/q.db"
    queues = open_queues(store, durability="relaxed")
    queues.put_queue(QueueSpec("thumbs"))
    notes = tmp_path / "notes"
    queues.queue("thumbs").add([NewTask(f"hold {notes}".encode())])
    told = {"TOWLINE_APP": "tests.support.fleet.recording_app:app", "TOWLINE_WORKER": "w-1", "TOWLINE_URL": store}
    with started(WORKER, closed, tmp_path / "log", **told) as process:
        eventually(notes.exists)
        streams = streams_of(process.pid)
        Path(f"{notes}.go").touch()
        eventually(lambda: queues.queue("thumbs").stats().deleted_total == 1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0
    expected = ["/dev/null" if number in closed or number == 0 else str(tmp_path / "log") for number in range(3)]
    assert streams == expected
    queues.close()

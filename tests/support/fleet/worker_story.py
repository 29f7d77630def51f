"""A worker process and its queue, for stories about its environment, its handlers' records and its log."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from queue_core.client.connect import open_queues
from queue_core.client.local_calls import LocalQueue, LocalQueues
from queue_core.task import NewTask, QueueSpec

ROOT = Path(__file__).parents[3]


class WorkerStory:
    """A store on disk with queue "thumbs", a worker of it, and what both have written."""

    def __init__(self, directory: Path, url: str, queues: LocalQueues) -> None:
        self.notes = directory / "notes"
        self.log = directory / "log"
        self.url = url
        self.queues = queues
        self.queue: LocalQueue = queues.queue("thumbs")

    def add(self, verb: str) -> str:
        """Add a task for `tests.support.fleet.recording_app`."""
        return self.queue.add([NewTask(f"{verb} {self.notes}".encode())])[0].name

    def let_go(self) -> None:
        """Let the held task finish."""
        Path(f"{self.notes}.go").touch()

    def starts(self) -> list[str]:
        """Return one line per handler call."""
        return self.notes.read_text().splitlines() if self.notes.exists() else []

    def logged(self, event: str) -> list[dict[str, object]]:
        """Return the worker's log entries of an event."""
        lines = (json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{"))
        return [line for line in lines if line["event"] == event]

    @contextmanager
    def worker(self, **environment: object) -> Iterator[subprocess.Popen[bytes]]:
        """Run a worker process, ended with the block."""
        told = {
            "TOWLINE_APP": "tests.support.fleet.recording_app:app",
            "TOWLINE_WORKER": "w-1",
            "TOWLINE_URL": self.url,
            "TOWLINE_QUEUE": "thumbs",
            **{f"TOWLINE_{name.upper()}": str(value) for name, value in environment.items()},
        }
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "queue_core.worker"],
                cwd=ROOT,
                env={**os.environ, **told},
                stdout=log,
                stderr=log,
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait(timeout=10)


@contextmanager
def worker_story(tmp_path: Path) -> Iterator[WorkerStory]:
    """Open a story in this folder."""
    url = f"sqlite:///{tmp_path}/queue.db"
    queues = open_queues(url, durability="relaxed")
    queues.put_queue(QueueSpec("thumbs", lease_seconds=30.0, max_lease_seconds=3600.0))
    yield WorkerStory(tmp_path, url, queues)
    queues.close()

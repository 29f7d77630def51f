"""A state directory, a store on disk, and the supervisor processes started over them."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from orchestrator.runtimes import procfs
from orchestrator.state.directory import StateDir
from queue_core.client.connect import open_queues
from queue_core.client.queue import Queue, Queues
from queue_core.task import NewTask, QueueSpec
from tests.support.eventually import eventually

REPOSITORY: Final = Path(__file__).parents[3]
POOL: Final = {
    "queue": "thumbs",
    "app": "tests.support.fleet.recording_app:app",
    "slo": "5s",
    "workers": {"max": 2},
    "grace": "5s",
}


@dataclass
class SupervisedSite:
    """One state directory, one store, and their supervisor processes."""

    folder: Path
    queues: Queues
    queue: Queue
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def files(self) -> StateDir:
        return StateDir(self.folder / "state")

    @property
    def settings(self) -> Path:
        return self.folder / "settings.json"

    def write(self, *, orphan_grace: str = "60s", **pools: dict[str, object]) -> None:
        """Write the settings file atomically, as an editor does."""
        draft = self.folder / "draft.json"
        store = f"sqlite:///{self.folder}/towline.db"
        draft.write_text(
            json.dumps(
                {"store": store, "state_dir": str(self.files.path), "orphan_grace": orphan_grace, "pools": pools}
            )
        )
        draft.replace(self.settings)

    def start(self) -> subprocess.Popen[bytes]:
        """Start a supervisor and wait until it leads."""
        with (self.folder / "supervisor.log").open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.fleet.supervisor_program", str(self.settings)],
                cwd=REPOSITORY,
                stdout=output,
                stderr=output,
            )
        self.processes.append(process)
        is_up = {"pid": process.pid, "phase": "leading"}
        eventually(lambda: is_up.items() <= self.shown().items(), seconds=30)
        return process

    def shown(self) -> dict[str, object]:
        return self.files.read_snapshot() or {}

    def logged(self, event: str) -> list[dict[str, object]]:
        """Return the supervisors' log entries of one event."""
        lines = (self.folder / "supervisor.log").read_text().splitlines()
        logged = [json.loads(line) for line in lines if line.startswith("{")]
        return [entry for entry in logged if entry["event"] == event]

    def workers(self) -> dict[str, int]:
        """Return living workers with their pids, according to the kernel."""
        found = procfs.worker_processes(str(self.files.path))
        return {process.worker: process.pid for process in found if process.leads}

    def notes(self) -> list[list[str]]:
        """Return the handlers' records: worker, pid, time, lease number."""
        notes = self.folder / "notes"
        return [line.split() for line in notes.read_text().splitlines()] if notes.exists() else []

    def hold(self) -> None:
        """Add a task whose handler works until `let_go`."""
        self.queue.add(NewTask(f"hold {self.folder}/notes".encode()))

    def let_go(self) -> None:
        (self.folder / "notes.go").touch()

    def is_done(self) -> bool:
        stats = self.queue.stats()
        return stats.deleted_total == stats.added_total


@contextmanager
def a_site(folder: Path) -> Iterator[SupervisedSite]:
    """Open a site in an empty folder; nothing of it runs at the end."""
    queues = open_queues(f"sqlite:///{folder}/towline.db")
    queues.put_queue(QueueSpec("thumbs", lease_seconds=120))
    site = SupervisedSite(folder, queues, queues.queue("thumbs"))
    try:
        yield site
    finally:
        for process in site.processes:
            process.kill()
            process.wait()
        for worker in procfs.worker_processes(str(site.files.path)):
            procfs.signal_exactly(worker, signal.SIGKILL)
        queues.close()

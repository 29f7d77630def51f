"""The stage of stories about pools of Celery's workers: `towline up` in a folder, a producer, and the tasks' notes."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from celery import Celery

import queue_core.kombu  # noqa: F401 - registers the transport
from orchestrator.runtimes import procfs
from orchestrator.state.directory import StateDir
from queue_core.celery.transport.broker import close_brokers
from queue_core.client.connect import open_queues
from queue_core.stats import QueueStats
from queue_core.task import StoredTask, TaskState
from tests.support.commands import program_environment
from tests.support.eventually import eventually
from tests.support.fleet.celery_app import FOLDER_VARIABLE, NAME

QUEUES: Final = ("default", "odd_images")
"""Celery's names; the second is one that the store can't have."""
STORE_QUEUES: Final = ("default", "odd--5fimages")
START_SECONDS: Final = 60.0
ADMIN_TOKEN: Final = "the-token-of-the-admin-of-the-site"
WORKER_TOKEN: Final = "the-token-of-the-workers-of-the-site"


@dataclass(frozen=True, slots=True)
class TaskNote:
    """A task's note: `what` is "begin" or "end", `at` in seconds since the epoch."""

    what: str
    task: str
    at: float
    pid: int
    worker: str


@dataclass
class CelerySite:
    """A folder with settings, `towline up` in it, and what producers and workers do."""

    folder: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _app: Celery | None = None

    @property
    def url(self) -> str:
        return f"unix://{self.folder}/towline.sock"

    @property
    def files(self) -> StateDir:
        return StateDir(self.folder / ".towline")

    def pool(self, *, celery: Mapping[str, object] | None = None, **settings: object) -> dict[str, object]:
        """Return a pool that runs `celery_app`; `celery` are its workers' settings."""
        return {
            "celery": {"app": NAME, "queues": list(QUEUES), "concurrency": 2, **(celery or {})},
            "slo": "5s",
            "workers": {"max": 2},
            "env": {FOLDER_VARIABLE: str(self.folder)},
            **settings,
        }

    def write(self, *, queues: Mapping[str, object] | None = None, **pools: dict[str, object]) -> None:
        """Write the settings file."""
        document = {
            "store": "sqlite:///towline.db",
            "server": {
                "listen": f"unix:{self.folder}/towline.sock",
                "tokens": [
                    {"role": "admin", "token_env": "SITE_ADMIN_TOKEN"},
                    {"role": "worker", "token_env": "SITE_WORKER_TOKEN"},
                ],
            },
            "queues": dict(queues or {}),
            "pools": pools,
        }
        (self.folder / "towline.yaml").write_text(json.dumps(document, indent=1))

    @property
    def environment(self) -> dict[str, str]:
        tokens = {"SITE_ADMIN_TOKEN": ADMIN_TOKEN, "SITE_WORKER_TOKEN": WORKER_TOKEN, "TOWLINE_TOKEN": ADMIN_TOKEN}
        return program_environment() | tokens

    def up(self) -> subprocess.Popen[bytes]:
        """Start `towline up`, and wait until its supervisor leads."""
        with (self.folder / "up.log").open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "orchestrator", "up", "--json"],
                cwd=self.folder,
                env=self.environment,
                stdout=output,
                stderr=output,
            )
        self.processes.append(process)
        eventually(lambda: self.logged("supervisor.leading"), seconds=START_SECONDS)
        return process

    def down(self) -> None:
        """Stop it, and check that it ended well and left no worker."""
        process = self.processes[-1]
        process.terminate()
        assert process.wait(timeout=START_SECONDS) == 0
        assert not procfs.worker_processes(str(self.files.path))

    def send(self, task: str, *arguments: object, queue: str = "default") -> None:
        """Publish a task of Celery's, as a producer does."""
        if self._app is None:
            self._app = Celery("producer", broker=f"towline+{self.url}", set_as_current=False)
            self._app.conf.broker_transport_options = {"token": ADMIN_TOKEN}
        self._app.send_task(task, arguments, queue=queue)

    def logged(self, event: str) -> list[dict[str, object]]:
        """Return the supervisor's log entries of one event."""
        path = self.folder / "up.log"
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        logged = [json.loads(line) for line in lines if line.startswith("{")]
        return [entry for entry in logged if entry.get("event") == event]

    def pids(self) -> dict[str, int]:
        """Return the workers that were ever started, with their pids."""
        return {str(one["worker"]): int(str(one["ref"])[4:].partition("@")[0]) for one in self.logged("worker.spawned")}

    def notes(self, what: str = "begin") -> list[TaskNote]:
        """Return the tasks' notes in order."""
        path = self.folder / "notes"
        lines = path.read_text().splitlines() if path.exists() else []
        notes = [TaskNote(w, task, float(at), int(pid), worker) for w, task, at, pid, worker in map(str.split, lines)]
        return [note for note in notes if note.what == what]

    def let_go(self, name: str) -> None:
        """Let a task end that holds."""
        (self.folder / f"{name}.go").touch()

    def stats(self, queue: str = "default") -> QueueStats:
        """Return the counts of a queue by its name in the store."""
        queues = open_queues(self.url, token=ADMIN_TOKEN)
        try:
            return queues.queue(queue).stats()
        finally:
            queues.close()

    def tasks(self, state: TaskState, queue: str = "default") -> Sequence[StoredTask]:
        """Return the tasks of a queue in one state, from the server or, when that has ended, from the store."""
        is_up = self.processes[-1].poll() is None
        queues = open_queues(self.url if is_up else f"sqlite:///{self.folder}/towline.db", token=ADMIN_TOKEN)
        try:
            return queues.queue(queue).peek(states=frozenset({state})).tasks
        finally:
            queues.close()

    def shown(self) -> dict[str, object]:
        return self.files.read_snapshot() or {}

    def workers(self) -> dict[str, dict[str, object]]:
        """Return the workers as the supervisor sees them."""
        found = self.shown().get("workers")
        return {str(one["worker"]): one for one in found} if isinstance(found, list) else {}

    def deaths(self) -> dict[str, Mapping[str, object]]:
        """Return the death certificates by worker."""
        return {str(death["worker"]): death for death in self.files.read_deaths(limit=1_000)}

    def close(self) -> None:
        """End what is left."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        for process in procfs.worker_processes(str(self.files.path)):
            procfs.signal_exactly(process, 9)
        if self._app is not None:
            self._app.close()
        close_brokers()


@contextmanager
def celery_site(parent: Path | None = None) -> Iterator[CelerySite]:
    """Make a site in a folder of its own, with a short path, for its socket."""
    folder = Path(tempfile.mkdtemp(prefix="tw-cel-", dir=parent or os.environ.get("TMPDIR")))
    site = CelerySite(folder)
    try:
        yield site
    finally:
        site.close()
        shutil.rmtree(folder, ignore_errors=True)

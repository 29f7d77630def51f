"""The stage of container stories: a Docker Engine, a queue server on a socket, supervisors over one state directory."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.base.clock import SystemMonotonicClock
from orchestrator.state.directory import StateDir
from queue_core.client.http_calls import HttpQueue, HttpQueues
from queue_core.server.base.options import ServeOptions
from queue_core.server.server import ServerThread
from queue_core.store import Store
from queue_core.stores.memory.store import MemoryStore
from queue_core.task import NewTask, QueueSpec
from tests.support.commands import program_environment
from tests.support.docker.container_app import FOLDER
from tests.support.docker.engine import PrivateDockerEngine
from tests.support.eventually import eventually

QUEUE = "thumbs"
START_SECONDS = 120.0
DEATHS = 1_000
SHOWN_CHARS = 6_000


@dataclass(frozen=True, slots=True)
class HandlerRecord:
    """A handler's record: `what` is "begin" or "end", `at` in seconds since the epoch."""

    what: str
    task: str
    worker: str
    at: float
    lease_number: int


@dataclass
class DockerSite:
    """The queue, the engine, the supervisors' logs and records, and the handlers' records."""

    folder: Path
    engine: PrivateDockerEngine
    url: str
    queues: HttpQueues
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def queue(self) -> HttpQueue:
        return self.queues.queue(QUEUE)

    @property
    def files(self) -> StateDir:
        return StateDir(self.folder / ".towline")

    def pool(self, *, container: Mapping[str, object] | None = None, **settings: object) -> dict[str, object]:
        """Return a pool that runs `tests.support.docker.container_app`; `container` are its container's settings."""
        docker = {
            "image": self.engine.image(),
            "engine": self.engine.url,
            "network": "none",
            "pull": "never",
            "volumes": [f"{self.folder}:{self.folder}"],
            **(container or {}),
        }
        pool: dict[str, object] = {
            "queue": QUEUE,
            "slo": "10s",
            "grace": "5s",
            "env": {FOLDER: str(self.folder)},
            **({} if "command" in settings else {"app": "tests.support.docker.container_app:app"}),
            **settings,
        }
        return {**pool, "runtime": {"docker": docker}}

    def write(self, *, orphan_grace: str = "60s", **pools: dict[str, object]) -> None:
        """Write the settings file atomically, as an editor does."""
        draft = self.folder / "draft.yaml"
        draft.write_text(
            json.dumps({"queues": {QUEUE: {}}, "supervisor": {"orphan_grace": orphan_grace}, "pools": pools}, indent=1)
        )
        draft.replace(self.folder / "towline.yaml")

    def start(self, *, until: str = "leading") -> subprocess.Popen[bytes]:
        """Start a supervisor and wait until it leads, or is in another phase."""
        with (self.folder / "supervisor.log").open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "orchestrator", "supervise", "--json", "--url", self.url],
                cwd=self.folder,
                env=program_environment(),
                stdout=output,
                stderr=output,
            )
        self.processes.append(process)
        eventually(lambda: self._is(process, until), seconds=START_SECONDS)
        return process

    def stop(self) -> None:
        """Stop the last supervisor gracefully, and check that no worker or container is left."""
        self.processes[-1].terminate()
        assert self.processes[-1].wait(timeout=START_SECONDS) == 0
        eventually(lambda: not self.engine.containers())
        assert self.engine.processes() == 0

    def shown(self) -> dict[str, object]:
        return self.files.read_snapshot() or {}

    def believed(self) -> set[str]:
        """Return the workers in the supervisor's snapshot."""
        workers = self.shown().get("workers")
        return {str(worker["worker"]) for worker in workers} if isinstance(workers, list) else set()

    def living(self) -> dict[str, str]:
        """Return workers whose containers run or are paused, with their containers, according to the engine."""
        with self.engine.client() as client:
            return {found["Labels"].get("towline.worker", ""): found["Id"] for found in client.containers()}

    def logged(self, event: str) -> list[dict[str, object]]:
        """Return the supervisors' log entries of one event."""
        lines = (self.folder / "supervisor.log").read_text().splitlines()
        logged = [json.loads(line) for line in lines if line.startswith("{")]
        return [entry for entry in logged if entry.get("event") == event]

    def deaths(self) -> dict[str, Mapping[str, object]]:
        """Return the death certificates by worker."""
        return {str(death["worker"]): death for death in self.files.read_deaths(limit=DEATHS)}

    def notes(self, what: str = "begin") -> list[HandlerRecord]:
        """Return the handlers' records in order."""
        path = self.folder / "notes"
        lines = path.read_text().splitlines() if path.exists() else []
        notes = [HandlerRecord(w, task, worker, float(at), int(n)) for w, task, worker, at, n in map(str.split, lines)]
        return [note for note in notes if note.what == what]

    def add(self, *payloads: str) -> list[str]:
        """Add a task for each payload and return their names."""
        return [added.name for added in self.queue.add([NewTask(payload.encode()) for payload in payloads])]

    @staticmethod
    def now() -> float:
        """Return seconds since the epoch, the clock of the handlers' records."""
        return SystemMonotonicClock().wall_seconds()

    def is_done(self) -> bool:
        """Return whether every task ever added is finished."""
        stats = self.queue.stats()
        return stats.deleted_total == stats.added_total and not stats.dead

    def _is(self, process: subprocess.Popen[bytes], phase: str) -> bool:
        assert process.poll() is None, (self.folder / "supervisor.log").read_text()[-2000:]
        return self.shown().get("pid") == process.pid and self.shown().get("phase") == phase


@contextmanager
def docker_site(
    engine: PrivateDockerEngine,
    *,
    lease_seconds: float = 120.0,
    max_leases: int | None = None,
    store: Store | None = None,
) -> Iterator[DockerSite]:
    """Run a site on this engine and remove everything at the end. Its paths are short, for sockets."""
    with tempfile.TemporaryDirectory(prefix="towline-site-") as path:
        folder = Path(path)
        (folder / "q").mkdir()
        store = store or MemoryStore()
        thread = ServerThread(store, ServeOptions(socket_path=folder / "q" / "queue.sock"))
        url = thread.start()
        queues = HttpQueues(url)
        site = DockerSite(folder, engine, url, queues)
        try:
            queues.put_queue(QueueSpec(QUEUE, lease_seconds=lease_seconds, max_leases=max_leases))
            yield site
        except BaseException:
            log = folder / "supervisor.log"
            print(log.read_text()[-SHOWN_CHARS:] if log.exists() else "no supervisor was started")  # noqa: T201
            raise
        finally:
            for process in site.processes:
                process.kill()
                process.wait()
            engine.remove_containers()
            queues.close()
            thread.stop()
            store.close()

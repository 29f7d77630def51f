"""The stage of stories in Pods: real nodes, a real queue server that Pods reach, and supervisors with their rights."""

import json
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from orchestrator.state.directory import StateDir
from queue_core.client.http_calls import HttpQueue, HttpQueues
from queue_core.errors import QueueError
from queue_core.task import NewTask
from tests.support.commands import program_environment
from tests.support.eventually import eventually
from tests.support.kubernetes.cluster import Json, worker_of
from tests.support.kubernetes.images import TOWLINE
from tests.support.kubernetes.pod_app import RECORDER
from tests.support.kubernetes.recorder import Recorder, a_recorder
from tests.support.kubernetes.stage import Stage
from tests.support.stores.engines import free_port

QUEUE: Final = "thumbs"
START_SECONDS: Final = 120.0
DEATHS: Final = 1_000
TOKEN_SECRET: Final = "towline-token"
APP: Final = "tests.support.kubernetes.pod_app:app"


@dataclass
class PodSite:
    """The queue, a namespace, the supervisors' logs and records, and the handlers' records."""

    folder: Path
    stage: Stage
    recorder: Recorder
    url: str
    token: str = field(repr=False)
    server: subprocess.Popen[bytes] | None = None
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.queues = HttpQueues(self.url, token=self.token)

    @property
    def queue(self) -> HttpQueue:
        return self.queues.queue(QUEUE)

    @property
    def files(self) -> StateDir:
        return StateDir(self.folder / ".towline")

    def pool(self, *, pod: Mapping[str, object] | None = None, **settings: object) -> dict[str, object]:
        """Return a pool that runs `tests.support.kubernetes.pod_app`; `pod` are its Pod's settings."""
        given: dict[str, object] = {
            "image": TOWLINE,
            "pull": "never",
            "memory": "200MiB",
            "cpus": 0.01,
            "worker_secret": TOKEN_SECRET,
            "image_patience": "3s",
            "node_patience": "3s",
            **(pod or {}),
        }
        pool: dict[str, object] = {
            "queue": QUEUE,
            "app": APP,
            "slo": "10s",
            "grace": "5s",
            "env": {RECORDER: self.recorder.url},
            **settings,
        }
        return {**pool, "runtime": {"kubernetes": given}}

    def write(self, **pools: dict[str, object]) -> None:
        """Write the settings file atomically, as an editor does."""
        draft = self.folder / "draft.yaml"
        settings = {
            "server": {
                "listen": self.url.removeprefix("http://"),
                "tokens": [
                    {"role": "admin", "token_file": str(self.folder / "admin.token")},
                    {"role": "worker", "token_file": str(self.folder / "worker.token")},
                ],
            },
            "queues": {QUEUE: {"lease": "30s"}},
            "pools": pools,
        }
        draft.write_text(json.dumps(settings, indent=1))
        draft.replace(self.folder / "towline.yaml")

    def start_server(self) -> None:
        """Start the queue server and wait until it answers."""
        self.server = self._program("serve", "--lifecycle", "task", "--log", "leases.log", log="server.log")
        eventually(self._answers, seconds=START_SECONDS)

    def start(self) -> subprocess.Popen[bytes]:
        """Start a supervisor and wait until it leads."""
        process = self.start_beside(".towline")
        eventually(lambda: self._leads(process), seconds=START_SECONDS)
        return process

    def start_beside(self, state_dir: str) -> subprocess.Popen[bytes]:
        """Start a supervisor with a state folder of its own, as on another host; one of them leads."""
        given = {"TOWLINE_STATE_DIR": state_dir}
        process = self._program("supervise", "--json", "--url", self.url, log="supervisor.log", given=given)
        self.processes.append(process)
        return process

    def stop(self) -> None:
        """Stop the last supervisor gracefully, and check that no Pod is left."""
        self.processes[-1].terminate()
        assert self.processes[-1].wait(timeout=START_SECONDS) == 0
        self.until(lambda: not self.pods())

    def end(self) -> None:
        """End every process, and every Pod at once."""
        self.queues.close()
        for process in [*self.processes, *([self.server] if self.server else [])]:
            process.kill()
            process.wait()
        for pod in self.pods():
            self.stage.cluster.delete(str(pod["metadata"]["name"]), self.stage.namespace, grace_seconds=1)
        eventually(lambda: not self.pods(), seconds=START_SECONDS)

    def pods(self) -> list[Json]:
        return self.stage.pods()

    def living(self) -> set[str]:
        """Return workers whose Pods run and are not being deleted, according to the apiserver."""
        running = [pod for pod in self.pods() if pod["status"].get("phase") == "Running"]
        return {worker_of(pod) for pod in running if "deletionTimestamp" not in pod["metadata"]}

    def shown(self) -> dict[str, object]:
        return self.files.read_snapshot() or {}

    def believed(self) -> set[str]:
        """Return the workers in the supervisor's snapshot."""
        workers = self.shown().get("workers")
        return {str(worker["worker"]) for worker in workers} if isinstance(workers, list) else set()

    def logged(self, event: str) -> list[dict[str, object]]:
        """Return the supervisors' log entries of one event."""
        return [entry for entry in _entries(self.folder / "supervisor.log") if entry.get("event") == event]

    def changes(self) -> list[dict[str, object]]:
        """Return the lifecycle log of the queue: each lease and its end."""
        return _entries(self.folder / "leases.log")

    def deaths(self) -> dict[str, Mapping[str, object]]:
        """Return the death certificates by worker."""
        return {str(death["worker"]): death for death in self.files.read_deaths(limit=DEATHS)}

    def add(self, *payloads: str) -> list[str]:
        """Add a task for each payload and return their names."""
        return [added.name for added in self.queue.add([NewTask(payload.encode()) for payload in payloads])]

    def begun(self, count: int = 1) -> list[str]:
        """Wait until so many tasks were begun; return the workers that began them."""
        eventually(lambda: len(self.recorder.notes()) >= count, seconds=START_SECONDS)
        return [note.worker for note in self.recorder.notes()]

    def is_done(self) -> bool:
        """Return whether every task ever added is finished."""
        stats = self.queue.stats()
        return stats.deleted_total == stats.added_total and not stats.dead

    def until(self, check: Callable[[], object], *, seconds: float = START_SECONDS) -> None:
        """Wait for a state; a failure shows what the supervisor said last."""
        try:
            eventually(check, seconds=seconds)
        except AssertionError as error:
            said = (self.folder / "supervisor.log").read_text()[-4_000:]
            raise AssertionError(f"{error}\n{said}") from error

    def _program(self, *arguments: str, log: str, given: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        ours = {"KUBECONFIG": str(self.stage.kubeconfig), "TOWLINE_TOKEN": self.token, "HOME": str(self.folder)}
        with (self.folder / log).open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "orchestrator", *arguments],
                cwd=self.folder,
                env=program_environment() | ours | dict(given or {}),
                stdout=output,
                stderr=output,
            )

    def _answers(self) -> bool:
        assert self.server is not None
        assert self.server.poll() is None, (self.folder / "server.log").read_text()[-2000:]
        try:
            self.queue.stats()
        except (QueueError, OSError):
            return False
        return True

    def _leads(self, process: subprocess.Popen[bytes]) -> bool:
        assert process.poll() is None, (self.folder / "supervisor.log").read_text()[-2000:]
        return self.shown().get("pid") == process.pid and self.shown().get("phase") == "leading"


def _entries(file: Path) -> list[dict[str, object]]:
    lines = file.read_text().splitlines() if file.exists() else []
    return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]


@contextmanager
def pod_site(stage: Stage, folder: Path) -> Iterator[PodSite]:
    """Open a site over a namespace of a plane with nodes; nothing of it runs at the end."""
    assert stage.plane is not None, "a site needs real nodes"
    address = stage.plane.address
    tokens = {name: secrets.token_hex(16) for name in ("admin", "worker")}
    for name, token in tokens.items():
        (folder / f"{name}.token").write_text(token)
        (folder / f"{name}.token").chmod(0o600)
    secret: Json = {"metadata": {"name": TOKEN_SECRET}, "stringData": {"token": tokens["worker"]}}
    stage.cluster.call("POST", f"/api/v1/namespaces/{stage.namespace}/secrets", secret)
    with a_recorder(address) as recorder:
        site = PodSite(folder, stage, recorder, f"http://{address}:{free_port()}", tokens["admin"])
        site.write()
        site.start_server()
        try:
            yield site
        finally:
            site.end()

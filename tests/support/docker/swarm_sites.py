"""A supervisor with its queue on a socket and a pool on a private swarm, for stories and the long run."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.state.directory import StateDir
from queue_core.client.http_calls import HttpQueues
from queue_core.client.queue import Queue
from queue_core.task import NewTask
from tests.support.docker.swarms import IMAGE, REPOSITORY, VOLUMES, Swarm
from tests.support.eventually import eventually


@dataclass
class SwarmSite:
    """A settings file, its `towline up` processes, and the queue as producers see it."""

    folder: Path
    swarm: Swarm
    queues: HttpQueues
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def queue(self) -> Queue:
        """The pool's queue."""
        return self.queues.queue("thumbs")

    @property
    def files(self) -> StateDir:
        """The supervisor's state directory."""
        return StateDir(self.folder / ".towline")

    def write(self, *, nodes: Mapping[str, str] | None = None, **pool: object) -> None:
        """Write the settings atomically: one pool, `resize`, with these settings."""
        runtime = {
            "image": IMAGE,
            "network": "host",
            "volumes": [*VOLUMES, f"{self.folder}:{self.folder}"],
            "python": sys.executable,
            "engine": self.swarm.url,
            "nodes": dict(nodes or {}),
        }
        resize = {
            "queue": "thumbs",
            "app": "tests.support.docker.swarm_app:app",
            "slo": "2s",
            "grace": "5s",
            "env": {"PYTHONPATH": str(REPOSITORY), "PYTHONDONTWRITEBYTECODE": "1"},
            "runtime": {"swarm": runtime},
            **pool,
        }
        settings = {
            "store": f"sqlite:///{self.folder}/towline.db",
            "server": {"listen": f"unix:{self.folder}/queue.sock"},
            "queues": {"thumbs": {"lease": "30s"}},
            "pools": {"resize": resize},
        }
        draft = self.folder / "draft"
        draft.write_text(json.dumps(settings))
        draft.replace(self.folder / "towline.yaml")

    def start(self) -> subprocess.Popen[bytes]:
        """Start `towline up` and wait until it leads."""
        with (self.folder / "supervisor.log").open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "orchestrator", "up", "-f", str(self.folder / "towline.yaml"), "--json"],
                cwd=REPOSITORY,
                stdout=output,
                stderr=output,
                env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            )
        self.processes.append(process)
        eventually(
            lambda: self.shown().get("pid") == process.pid and self.shown().get("phase") == "leading", seconds=60
        )
        return process

    def shown(self) -> Mapping[str, object]:
        """Return the supervisor's snapshot of the fleet."""
        return self.files.read_snapshot() or {}

    def workers(self) -> list[str]:
        """Return the workers in the snapshot."""
        shown = self.shown().get("workers")
        return [str(worker["worker"]) for worker in shown] if isinstance(shown, list) else []

    def running(self) -> list[int]:
        """Return how many containers run on each node, according to the engines."""
        return [node.running() for node in self.swarm.nodes]

    def logged(self, event: str) -> list[dict[str, object]]:
        """Return the supervisors' log entries of one event."""
        lines = (self.folder / "supervisor.log").read_text().splitlines()
        logged = [json.loads(line) for line in lines if line.startswith("{")]
        return [entry for entry in logged if entry.get("event") == event]

    def add(self, tasks: int, *, seconds: float) -> None:
        """Add tasks that take `seconds` each."""
        self.queue.add([NewTask(f"{self.folder}/done {seconds:g}".encode()) for _ in range(tasks)])

    def done(self) -> list[list[str]]:
        """Return worker, task and lease number for every run of a task."""
        path = self.folder / "done"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def is_done(self) -> bool:
        """Return whether every added task was deleted."""
        stats = self.queue.stats()
        return stats.deleted_total == stats.added_total

    def end(self) -> None:
        """Stop the supervisors gracefully."""
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def swarm_site(folder: Path, swarm: Swarm) -> Iterator[SwarmSite]:
    """Prepare a site that has not started; nothing of it runs at the end."""
    queues = HttpQueues(f"unix://{folder}/queue.sock")
    site = SwarmSite(folder, swarm, queues)
    try:
        yield site
    finally:
        queues.close()
        site.end()
        swarm.remove_services()

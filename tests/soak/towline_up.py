"""A complete `towline up` with one pool under steady load, and what its workers and logs reported afterwards."""

import json
import signal
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final, Self

from orchestrator.base.clock import SystemMonotonicClock
from orchestrator.runtimes import procfs
from orchestrator.state.directory import StateDir
from queue_core.client.http_calls import HttpQueues
from queue_core.client.queue import Queue
from queue_core.task import NewTask
from tests.support.commands import program_environment
from tests.support.eventually import eventually

CLOCK: Final = SystemMonotonicClock()
START_SECONDS: Final = 60.0
MANY_ADDED: Final = 10


@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """The outcome of the tasks: `twice` were begun more than once, `lost` were added and never done."""

    added: int
    lost: int
    twice: int
    released: int
    expired: int


class TowlineUp:
    """One `towline up` in a folder, and everything that it started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = StateDir(folder / ".towline")
        self.settings = folder / "towline.yaml"
        self.notes = folder / "notes"
        self.notes.mkdir()
        self.added = 0
        self.process: subprocess.Popen[bytes] | None = None

    def write(self, *, workers: int, colour: str, slo: str = "10s", more: str = "") -> None:
        """Write the settings atomically; only workers started later can have this `colour`."""
        draft = self.folder / "draft"
        draft.write_text(
            f"""\
store: sqlite:///{self.folder}/towline.db
durability: relaxed
server: {{listen: "unix:{self.folder}/queue.sock"}}
log: events.jsonl
queues:
  jobs: {{lease: 60s, max_leases: 20}}
pools:
  crew:
    queue: jobs
    app: tests.soak.jobs:app
    slo: {slo}
    workers: {{min: {workers}, max: {workers}}}
    grace: 30s
    env: {{NOTES: "{self.notes}", COLOUR: {colour}}}
{more}"""
        )
        draft.replace(self.settings)

    def start(self) -> int:
        """Start `towline up`; return its pid once it leads."""
        pid = self.start_any_phase()
        eventually(lambda: self.shown("phase") == "leading", seconds=START_SECONDS)
        return pid

    def start_any_phase(self) -> int:
        """Start `towline up`; return its pid once it has published a snapshot."""
        with (self.folder / "log").open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "orchestrator", "up", "--json"],
                cwd=self.folder,
                env=program_environment(),
                stdout=output,
                stderr=output,
            )
        eventually(lambda: self.shown("pid") == self.process.pid, seconds=START_SECONDS)  # type: ignore[union-attr]
        return self.process.pid

    def signal(self, number: int) -> None:
        """Signal the supervisor."""
        assert self.process is not None
        self.process.send_signal(number)

    def shown(self, key: str) -> object:
        """Return one entry of the supervisor's snapshot."""
        return (self.files.read_snapshot() or {}).get(key)

    def queues(self) -> HttpQueues:
        return HttpQueues(f"unix://{self.folder}/queue.sock")

    def workers(self) -> dict[str, int]:
        """Return living workers with their pids, according to the kernel."""
        return {p.worker: p.pid for p in procfs.worker_processes(str(self.files.path)) if p.leads}

    def add(self, queue: Queue, tasks: int, *, seconds: float) -> None:
        """Add `tasks` tasks of this length."""
        for _ in range(tasks):
            queue.add(NewTask(f"{self.added} {seconds:.3f}".encode()))
            self.added += 1

    def end(self) -> int:
        """Stop it and everything left; return its exit code."""
        code = -1
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            try:
                code = self.process.wait(timeout=START_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for worker in procfs.worker_processes(str(self.files.path)):
            procfs.signal_exactly(worker, signal.SIGKILL)
        return code

    # -- afterwards -----------------------------------------------------------------------------------------------

    def done(self, queue: Queue) -> TaskOutcome:
        """Return the outcome of the tasks."""
        begun, done = Counter[str](), Counter[str]()
        for path in self.notes.iterdir():
            for line in path.read_text().splitlines():
                what, number, *_ = line.split()
                (begun if what == "begun" else done)[number] += 1
        stats = queue.stats()
        return TaskOutcome(
            self.added,
            self.added - len(done),
            sum(1 for times in begun.values() if times > 1),
            stats.released_total,
            stats.expired_total,
        )

    def logged(self, *events: str) -> list[dict[str, object]]:
        """Return the supervisor's log entries of these events."""
        lines = (self.folder / "log").read_text().splitlines()
        found = [json.loads(line) for line in lines if line.startswith("{")]
        return [entry for entry in found if entry["event"] in events]

    def capacity(self) -> list[tuple[float, int]]:
        """Return the number of workers ready to lease, with each instant at which it changed.

        By the workers' own logs: ready from the start until asked to finish, or ended. An idle worker that is retired
        is no longer ready from the supervisor's log entry on.
        """
        changes: list[tuple[float, int]] = []
        going = self.logged("worker.finishing", "worker.retired", "worker.draining")
        let_go = {str(entry["worker"]): _seconds(entry) for entry in reversed(going)}
        ended = {str(e["worker"]): _seconds(e) for e in self.logged("worker.reaped")}
        for path in (self.files.path / "workers").glob("*.log"):
            told = [json.loads(line) for line in path.read_text().splitlines() if line.startswith("{")]
            started = [_seconds(entry) for entry in told if entry["event"] == "worker.started"]
            leaving = [_seconds(entry) for entry in told if entry["event"] in {"worker.draining", "worker.retired"}]
            leaving += [instants[path.stem] for instants in (let_go, ended) if path.stem in instants]
            if started:
                changes.append((started[0], 1))
                changes += [(min(leaving), -1)] if leaving else []
        row, ready = [], 0
        for at, change in sorted(changes, key=lambda pair: (pair[0], -pair[1])):
            ready += change
            row.append((at, ready))
        return row


class SteadyLoad:
    """A thread that adds `a_second` tasks per second, each taking `seconds`."""

    def __init__(self, crew: TowlineUp, *, a_second: float, seconds: float) -> None:
        self._crew = crew
        self._pause = 1.0 / a_second
        self._seconds = seconds
        self._is_over = threading.Event()
        self.failures = 0
        self._thread = threading.Thread(target=self._add, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(timeout=START_SECONDS)

    def _add(self) -> None:
        queues = self._crew.queues()
        queue = queues.queue("jobs")
        try:
            while not self._is_over.wait(self._pause):
                self._crew.add(queue, 1, seconds=self._seconds)
        except Exception:
            self.failures += 1
            raise
        finally:
            queues.close()


def _seconds(entry: dict[str, object]) -> float:
    return datetime.fromisoformat(str(entry["timestamp"])).timestamp()

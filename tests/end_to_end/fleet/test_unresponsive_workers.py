"""Workers that hang, as real processes of a supervisor: their tasks start elsewhere in time, and they are ended."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator.base.clock import SystemMonotonicClock
from orchestrator.fleet.external import WAITS_SECONDS
from orchestrator.runtimes import procfs
from orchestrator.state.directory import StateDir
from queue_core.client.connect import open_queues
from queue_core.client.http_calls import HttpQueues
from queue_core.client.queue import Queue
from queue_core.task import NewTask, QueueSpec
from tests.support.commands import ROOT, program_environment, run_program
from tests.support.eventually import eventually

CLOCK = SystemMonotonicClock()
SLO_SECONDS = 1.0
LEASE_SECONDS = 3.0
START_SECONDS = 6.0
"""How long one worker's start may take on a busy machine."""


@dataclass
class Up:
    """One `towline up` in a folder, with a pool of two to three workers."""

    folder: Path
    queues: HttpQueues

    @property
    def queue(self) -> Queue:
        return self.queues.queue("jobs")

    @property
    def files(self) -> StateDir:
        return StateDir(self.folder / ".towline")

    def workers(self, *states: str) -> dict[str, int]:
        """Workers in these states, with their pids, as the supervisor shows them."""
        workers = (self.files.read_snapshot() or {}).get("workers")
        shown = [one for one in workers if isinstance(one, dict)] if isinstance(workers, list) else []
        return {str(one["worker"]): int(one["pid"]) for one in shown if one["state"] in states}

    def shown_at(self) -> float:
        """When the supervisor last showed itself, in seconds since the epoch."""
        return float(str((self.files.read_snapshot() or {})["shown_at"]))

    def notes(self, lease: int) -> list[list[str]]:
        """What handlers noted of leases of that number: worker, pid, time, number."""
        notes = self.folder / "notes"
        lines = notes.read_text().splitlines() if notes.exists() else []
        return [found for line in lines if (found := line.split())[3] == str(lease)]

    def two_notes(self, lease: int) -> list[list[str]]:
        """The same once there are two."""
        return eventually(lambda: found if len(found := self.notes(lease)) == 2 else [], seconds=30)

    def logged(self, event: str) -> list[dict[str, object]]:
        """What was logged of one event."""
        lines = (self.folder / "log").read_text().splitlines()
        return [told for line in lines if line.startswith("{") and (told := json.loads(line))["event"] == event]


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    (tmp_path / "towline.yaml").write_text(
        f"""\
store: sqlite:///{tmp_path}/towline.db
server: {{listen: "unix:{tmp_path}/queue.sock"}}
queues:
  jobs: {{lease: {LEASE_SECONDS:g}s}}
pools:
  crew:
    queue: jobs
    app: tests.support.fleet.hanging_app:app
    slo: {SLO_SECONDS:g}s
    workers: {{min: 2, max: 3}}
    grace: 4s
"""
    )
    with (tmp_path / "log").open("wb") as output:
        program = subprocess.Popen(
            [sys.executable, "-m", "orchestrator", "up", "--json"],
            cwd=tmp_path,
            env=program_environment(),
            stdout=output,
            stderr=output,
        )
    queues = HttpQueues(f"unix://{tmp_path}/queue.sock")
    one = Up(tmp_path, queues)
    try:
        eventually(lambda: len(one.workers("idle")) == 2, seconds=60)
        yield one
    finally:
        queues.close()
        program.send_signal(signal.SIGTERM)
        try:
            program.wait(timeout=20)
        finally:
            program.kill()
            for worker in procfs.worker_processes(str(one.files.path)):
                procfs.signal_exactly(worker, signal.SIGKILL)


def _keep_the_lock_in_a_regex(up: Up) -> None:
    up.queue.add([NewTask(f"regex {up.folder}".encode()) for _ in range(2)])


def _keep_the_lock_in_an_extension(up: Up) -> None:
    up.queue.add([NewTask(f"native {up.folder}".encode()) for _ in range(2)])


def _stop_the_processes(up: Up) -> None:
    up.queue.add([NewTask(f"hold {up.folder}".encode()) for _ in range(2)])
    for _, pid, _, _ in up.two_notes(1):
        os.kill(int(pid), signal.SIGSTOP)


@pytest.mark.parametrize(
    ("hang", "known"),
    [
        pytest.param(_keep_the_lock_in_a_regex, "in match", id="a-regex-keeps-the-interpreter-lock"),
        pytest.param(
            _keep_the_lock_in_an_extension, "fleet/hanging_app.py", id="an-extension-keeps-the-interpreter-lock"
        ),
        pytest.param(_stop_the_processes, "stopped (SIGSTOP)", id="stopped"),
    ],
)
def test_the_tasks_of_workers_that_hang_start_elsewhere_in_time(up: Up, hang: Callable[[Up], None], known: str) -> None:
    hang(up)
    hung = {note[0] for note in up.two_notes(1)}
    eventually(lambda: up.queue.stats().ready == 2, seconds=30)
    ready_at = CLOCK.wall_seconds()
    again = up.two_notes(2)
    assert not hung & {note[0] for note in again}
    assert max(float(note[2]) for note in again) - ready_at <= SLO_SECONDS + START_SECONDS
    assert {told["worker"] for told in up.logged("worker.unresponsive")} == hung
    deaths = eventually(lambda: found if len(found := _deaths(up, hung)) == 2 else [], seconds=30)
    for death in deaths:
        assert death["cause"] == "unresponsive"
        assert known in f"{death['detail']} {death['stack']}"
    assert not set(up.workers("idle", "busy", "unresponsive")) & hung
    why = run_program("workers", folder=up.folder)
    assert "unresponsive" in why.out


def _deaths(up: Up, workers: set[str]) -> list[dict[str, object]]:
    return [death for death in up.files.read_deaths(limit=100) if death.get("worker") in workers]


def test_nobody_is_taken_for_hung_who_waits_on_a_paused_queue_while_the_supervisor_stood_still(up: Up) -> None:
    workers = up.workers("idle")
    up.queue.pause()
    up.queue.add(NewTask(f"note {up.folder}".encode()))
    _let_pass(WAITS_SECONDS + 2)
    supervisor = int(str((up.files.read_snapshot() or {})["pid"]))
    os.kill(supervisor, signal.SIGSTOP)
    _let_pass(WAITS_SECONDS + 2)
    os.kill(supervisor, signal.SIGCONT)
    continued_at = CLOCK.wall_seconds()
    eventually(
        lambda: float(str((up.files.read_snapshot() or {})["shown_at"])) > continued_at + WAITS_SECONDS + 1, seconds=30
    )
    assert up.logged("worker.unresponsive") == []
    assert up.workers("idle") == workers
    up.queue.resume()
    eventually(lambda: up.notes(1), seconds=10)
    assert up.workers("idle", "busy") == workers


def test_where_workers_open_the_store_themselves_the_work_of_those_that_hang_is_done_too(tmp_path: Path) -> None:
    queues = open_queues(f"sqlite:///{tmp_path}/towline.db")
    queues.put_queue(QueueSpec("jobs", lease_seconds=LEASE_SECONDS))
    pool = {"queue": "jobs", "app": "tests.support.fleet.hanging_app:app", "slo": "1s", "workers": {"min": 2, "max": 3}}
    files = StateDir(tmp_path / "state")
    settings = {"store": f"sqlite:///{tmp_path}/towline.db", "state_dir": str(files.path)}
    (tmp_path / "settings.json").write_text(json.dumps({**settings, "pools": {"crew": {**pool, "grace": "2s"}}}))
    with (tmp_path / "log").open("wb") as output:
        supervisor = subprocess.Popen(
            [sys.executable, "-m", "tests.support.fleet.supervisor_program", str(tmp_path / "settings.json")],
            cwd=ROOT,
            stdout=output,
            stderr=output,
        )
    try:
        queue = queues.queue("jobs")
        queue.add([NewTask(f"regex {tmp_path}".encode()) for _ in range(2)])
        eventually(lambda: queue.stats().deleted_total == 2, seconds=90)
        deaths = eventually(lambda: found if len(found := files.read_deaths(limit=100)) >= 2 else [], seconds=90)
        assert {death["cause"] for death in deaths} == {"unresponsive"}
    finally:
        supervisor.kill()
        supervisor.wait()
        for worker in procfs.worker_processes(str(files.path)):
            procfs.signal_exactly(worker, signal.SIGKILL)
        queues.close()


def _let_pass(seconds: float) -> None:
    """Time itself is what is waited for: how long somebody was silent."""
    until = CLOCK.monotonic() + seconds
    eventually(lambda: CLOCK.monotonic() >= until, seconds=seconds + 5)

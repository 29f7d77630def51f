"""Two supervisors on one store that both reach over a network: one leads, and the other takes over within its bound."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from orchestrator.base import events
from orchestrator.base.clock import SystemMonotonicClock
from orchestrator.runtimes import procfs
from orchestrator.state.directory import StateDir
from orchestrator.supervisor.leader import HEAD_START_SECONDS, LEAD_SECONDS, RENEWALS
from queue_core.client.connect import open_queues
from queue_core.client.queue import Queue
from queue_core.task import NewTask, QueueSpec
from tests.support.commands import ROOT, program_environment
from tests.support.cutting_proxy import CuttingTcpProxy, TcpFate
from tests.support.eventually import eventually
from tests.support.stores.stores import new_url

BOUND_SECONDS = LEAD_SECONDS + HEAD_START_SECONDS + 5.0
GIVEN_UP_SECONDS = LEAD_SECONDS - LEAD_SECONDS / RENEWALS
"""Sooner than a lead ends by itself: so it was given up. It takes about a second."""
RESTARTS = 4
TASK_SECONDS = 0.2
CALL_SECONDS = 10.0
"""A call that is under way as its lead ends is seen through; it does not act on what it hears."""
POOL = {
    "queue": "thumbs",
    "app": "tests.support.fleet.recording_app:app",
    "slo": "5s",
    "workers": {"min": 1, "max": 2},
    "grace": "60s",
}


@dataclass
class Host:
    """A supervisor with a state directory of its own, and its way to the store, which can be cut."""

    folder: Path
    url: str = ""
    lead: str = "15s"
    is_cut: bool = False
    process: subprocess.Popen[bytes] | None = None
    wire: CuttingTcpProxy = field(init=False)

    @property
    def files(self) -> StateDir:
        return StateDir(self.folder / "state")

    def start(self, *, pool: Mapping[str, object] = POOL) -> None:
        settings = self.folder / "settings.json"
        where = {"store": self.url, "state_dir": str(self.files.path)}
        settings.write_text(json.dumps({**where, "orphan_grace": "60s", "lead": self.lead, "pools": {"resize": pool}}))
        with (self.folder / "log").open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.fleet.supervisor_program", str(settings)],
                cwd=ROOT,
                env=program_environment(),
                stdout=output,
                stderr=output,
            )

    def phase(self) -> str:
        return str((self.files.read_snapshot() or {}).get("phase"))

    def workers(self) -> dict[str, int]:
        found = procfs.worker_processes(str(self.files.path))
        return {process.worker: process.pid for process in found if process.leads}

    def logged(self, event: str) -> list[str]:
        """When it logged an event."""
        lines = (self.folder / "log").read_text().splitlines()
        logged = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
        return [entry["timestamp"] for entry in logged if entry["event"] == event]

    def stop(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)

    def fate(self) -> TcpFate:
        return "drop" if self.is_cut else "pass"

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        for pid in self.workers().values():
            os.kill(pid, signal.SIGKILL)
        self.wire.close()


def _a_host(folder: Path, url: str) -> Host:
    folder.mkdir()
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    host = Host(folder)
    host.wire = CuttingTcpProxy(parts.hostname, parts.port, choose=host.fate)
    address = parts.netloc.replace(f"{parts.hostname}:{parts.port}", f"127.0.0.1:{host.wire.port}")
    host.url = parts._replace(netloc=address).geturl()
    return host


@pytest.fixture(params=["postgresql", "redis"])
def url(request: pytest.FixtureRequest) -> str:
    return new_url(request.param)


@pytest.fixture
def queue(url: str) -> Iterator[Queue]:
    queues = open_queues(url)
    queues.put_queue(QueueSpec("thumbs", lease_seconds=120))
    yield queues.queue("thumbs")
    queues.close()


@pytest.fixture
def hosts(request: pytest.FixtureRequest, tmp_path: Path, url: str, queue: Queue) -> Iterator[tuple[Host, Host]]:
    with ExitStack() as stack:
        first, second = (_a_host(tmp_path / name, url) for name in ("a", "b"))
        first.lead = second.lead = getattr(request, "param", "15s")
        stack.callback(first.end)
        stack.callback(second.end)
        first.start()
        eventually(lambda: first.phase() == "leading" and len(first.workers()) == 1, seconds=30.0)
        # Who can't reach the store as it starts gives up, and nobody would start another while the wire is cut.
        eventually(lambda: first.logged(events.WORKER_STARTED), seconds=30.0)
        second.start()
        eventually(lambda: second.phase() == "standby", seconds=30.0)
        yield first, second


def test_another_supervisor_takes_over_from_one_that_was_killed(hosts: tuple[Host, Host]) -> None:
    first, second = hosts
    assert first.process is not None
    clock = SystemMonotonicClock()
    killed_at = clock.monotonic()
    first.process.kill()
    eventually(lambda: second.phase() == "leading", seconds=BOUND_SECONDS)
    assert clock.monotonic() - killed_at < BOUND_SECONDS
    eventually(lambda: len(second.workers()) == 1)
    assert len(first.workers()) == 1  # it works on, until its own supervisor is missed for too long
    assert len(second.logged(events.WORKER_ELSEWHERE)) == 1


def test_a_leader_that_stops_gives_up_its_lead_while_its_worker_finishes(
    hosts: tuple[Host, Host], queue: Queue, tmp_path: Path
) -> None:
    first, second = hosts
    assert first.process is not None
    (worker,) = first.workers()
    queue.add(NewTask(f"hold {tmp_path}/held".encode()))
    eventually((tmp_path / "held").exists)
    clock = SystemMonotonicClock()
    stopped_at = clock.monotonic()
    first.stop()
    eventually(lambda: second.phase() == "leading")
    assert clock.monotonic() - stopped_at < GIVEN_UP_SECONDS
    assert list(first.workers()) == [worker]  # it still has the task, within its grace
    assert first.process.poll() is None
    queue.add(NewTask(f"note {tmp_path}/noted".encode()))
    eventually((tmp_path / "noted").exists, seconds=30.0)
    (tmp_path / "held.go").touch()
    assert first.process.wait(timeout=30.0) == 0
    assert (tmp_path / "held").read_text().count("\n") == 1
    eventually(lambda: queue.stats().deleted_total == 2)
    assert (first.phase(), second.phase()) == ("stopped", "leading")


def test_while_leaders_are_restarted_in_turn_no_task_waits_for_a_lead_to_end(
    hosts: tuple[Host, Host], queue: Queue, tmp_path: Path
) -> None:
    leading, waiting = hosts
    added: list[float] = []
    is_over = threading.Event()
    clock = SystemMonotonicClock()

    def add() -> None:
        while not is_over.wait(TASK_SECONDS):
            added.append(clock.wall_seconds())
            queue.add(NewTask(f"note {tmp_path}/task-{len(added)}".encode()))

    producer = threading.Thread(target=add)
    producer.start()
    try:
        for _ in range(RESTARTS):
            assert leading.process is not None
            leading.stop()
            eventually(lambda: waiting.phase() == "leading", seconds=BOUND_SECONDS)  # noqa: B023
            assert leading.process.wait(timeout=30.0) == 0
            leading.start()
            eventually(lambda: leading.phase() == "standby", seconds=30.0)  # noqa: B023
            leading, waiting = waiting, leading
    finally:
        is_over.set()
        producer.join()
    eventually(lambda: queue.stats().deleted_total == len(added), seconds=30.0)
    begun = [float((tmp_path / f"task-{n}").read_text().split()[2]) for n in range(1, len(added) + 1)]
    assert max(began - was_added for was_added, began in zip(added, begun, strict=True)) < GIVEN_UP_SECONDS


@pytest.mark.parametrize("hosts", ["5s"], indirect=True)
def test_a_short_lead_is_taken_over_from_a_killed_leader_sooner(hosts: tuple[Host, Host]) -> None:
    first, second = hosts
    assert first.process is not None
    clock = SystemMonotonicClock()
    killed_at = clock.monotonic()
    first.process.kill()
    eventually(lambda: second.phase() == "leading", seconds=BOUND_SECONDS)
    assert clock.monotonic() - killed_at < GIVEN_UP_SECONDS


def test_a_supervisor_that_is_cut_off_leads_no_more_when_another_does_and_keeps_its_workers(
    hosts: tuple[Host, Host],
) -> None:
    first, second = hosts
    (worker,) = first.workers()
    first.is_cut = True
    first.wire.sever()
    eventually(lambda: second.phase() == "leading", seconds=BOUND_SECONDS)
    assert list(first.workers()) == [worker]
    eventually(lambda: first.phase() == "standby", seconds=CALL_SECONDS)
    assert list(first.workers()) == [worker]
    assert len(first.logged(events.WORKER_SPAWNED)) == 1
    first.is_cut = False
    eventually(lambda: first.workers() == {}, seconds=30.0)  # its workers go, as another one leads
    assert (first.phase(), second.phase()) == ("standby", "leading")
    assert len(second.workers()) == 1

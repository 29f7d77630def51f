"""Two supervisors on one store that both reach over a network: one leads, and the other takes over within its bound."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from orchestrator import events
from orchestrator.clock import SystemMonotonicClock
from orchestrator.runtimes import procfs
from orchestrator.state.directory import StateDir
from orchestrator.supervisor.leader import HEAD_START_SECONDS, LEAD_SECONDS
from queue_core.connect import open_queues
from queue_core.task import QueueSpec
from tests.support.commands import ROOT, program_environment
from tests.support.cutting_proxy import CuttingTcpProxy, TcpFate
from tests.support.eventually import eventually
from tests.support.stores.stores import new_url

BOUND_SECONDS = LEAD_SECONDS + HEAD_START_SECONDS + 5.0
CALL_SECONDS = 10.0
"""A call that is under way as its lead ends is seen through; it does not act on what it hears."""
POOL = {
    "queue": "thumbs",
    "app": "tests.support.fleet.recording_app:app",
    "slo": "5s",
    "workers": {"min": 1, "max": 2},
    "grace": "5s",
}


@dataclass
class Host:
    """A supervisor with a state directory of its own, and its way to the store, which can be cut."""

    folder: Path
    url: str = ""
    is_cut: bool = False
    process: subprocess.Popen[bytes] | None = None
    wire: CuttingTcpProxy = field(init=False)

    @property
    def files(self) -> StateDir:
        return StateDir(self.folder / "state")

    def start(self) -> None:
        settings = self.folder / "settings.json"
        settings.write_text(
            json.dumps(
                {"store": self.url, "state_dir": str(self.files.path), "orphan_grace": "60s", "pools": {"resize": POOL}}
            )
        )
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
def hosts(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Host, Host]]:
    url = new_url(request.param)
    queues = open_queues(url)
    queues.put_queue(QueueSpec("thumbs"))
    queues.close()
    with ExitStack() as stack:
        first, second = (_a_host(tmp_path / name, url) for name in ("a", "b"))
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

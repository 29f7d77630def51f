"""Not one file descriptor is left: it is told once, nothing spins, and all goes on when there are some again."""

import json
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from orchestrator.base.clock import SystemMonotonicClock
from orchestrator.runtimes import procfs
from tests.soak.empty_source import POOLS
from tests.soak.starts import SoakFleet
from tests.support.commands import program_environment
from tests.support.eventually import eventually

CLOCK = SystemMonotonicClock()
WATCHED_SECONDS = 3.0


def descriptors(pid: int) -> list[int]:
    return sorted(int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir())


def cpu_seconds_while(pid: int, *, seconds: float) -> float:
    """What the process takes in so long; nothing is waited for but the time itself."""
    stat = procfs.read_stat(pid)
    assert stat is not None
    until = CLOCK.monotonic() + seconds
    eventually(lambda: CLOCK.monotonic() >= until, seconds=seconds + 5)
    later = procfs.read_stat(pid)
    assert later is not None, "it ended"
    return later.cpu_seconds - stat.cpu_seconds


def told(text: str, event: str) -> list[dict[str, object]]:
    entries = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return [entry for entry in entries if entry["event"] == event]


@contextmanager
def no_more_descriptors(pid: int) -> Iterator[None]:
    """Every number below the limit is taken."""
    taken = descriptors(pid)
    limit = next(number for number in range(len(taken) + 1) if number not in taken)
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def test_a_supervisor_goes_on_and_heeds_afterwards_what_it_could_not_read(tmp_path: Path) -> None:
    fleet = SoakFleet(tmp_path)
    pid = fleet.process.pid
    try:
        fleet.order(1)
        eventually(lambda: fleet.shown_workers() == len(POOLS) == len(fleet.workers()), seconds=30)
        with no_more_descriptors(pid):
            fleet.order(2)
            procfs.signal_exactly(fleet.workers()[0], signal.SIGKILL)
            assert cpu_seconds_while(pid, seconds=WATCHED_SECONDS) < 1.0
            for event in ("turn.failed", "state.not_read"):
                assert len(told(fleet.log(), event)) <= 1 + 2 * len(POOLS), event
            assert fleet.process.poll() is None
        eventually(lambda: len(fleet.workers()) == 2 * len(POOLS), seconds=60)
        fleet.process.send_signal(signal.SIGTERM)
        assert fleet.process.wait(timeout=60) == 0
    finally:
        fleet.process.kill()
        fleet.process.wait()
        for worker in procfs.worker_processes(str(fleet.files.path)):
            procfs.signal_exactly(worker, signal.SIGKILL)


def test_a_server_lets_callers_wait_until_it_can_accept_them(tmp_path: Path) -> None:
    address = f"{tmp_path}/q.sock"
    log = tmp_path / "log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", "orchestrator", "serve", "--json", "--listen", f"unix:{address}"],
            cwd=tmp_path,
            env=program_environment(),
            stdout=output,
            stderr=output,
        )
    try:
        eventually(lambda: told(log.read_text(), "server.started"), seconds=30)
        limit = descriptors(server.pid)[-1] + 3
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (limit, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        with ExitStack() as stack:
            callers = [stack.enter_context(a_caller(address)) for _ in range(20)]
            eventually(lambda: told(log.read_text(), "connections.refused"))
            assert cpu_seconds_while(server.pid, seconds=WATCHED_SECONDS) < 0.5
            for caller in callers[:-1]:
                caller.close()
            assert callers[-1].recv(100).startswith(b"HTTP/1.1 200")
        eventually(lambda: told(log.read_text(), "connections.accepted"))
        assert [entry["limit"] for entry in told(log.read_text(), "connections.refused")] == [limit]
        assert "Traceback" not in log.read_text()
    finally:
        server.terminate()
        assert server.wait(timeout=20) == 0


@contextmanager
def a_caller(address: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(20)
        caller.connect(address)
        caller.sendall(b"GET /healthz HTTP/1.1\r\nHost: q\r\n\r\n")
        yield caller

"""Run Towline's commands as a user does, each in its own process, and measure those processes."""

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.bench.measure import MeasurementFailedError, check_alive, end_group
from tests.bench.places import BenchStore
from tests.bench.record import RECORDING_VARIABLE
from tests.bench.site import BenchSite
from tests.support.stores.engines import free_port

ROOT = Path(__file__).resolve().parents[3]
TOWLINE = (sys.executable, "-m", "orchestrator")
START_SECONDS = 20.0
POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class ServedTowline:
    """A running server: the clients' URL, its address, and its process."""

    url: str
    address: tuple[str, int]
    process: subprocess.Popen[bytes] = field(repr=False)


@contextmanager
def serving(site: BenchSite, place: BenchStore, *, arguments: Sequence[str] = ("serve",)) -> Iterator[ServedTowline]:
    """Run `towline serve`, or another serving command, over the store at that place; ended by SIGTERM."""
    port = free_port()
    settings = {
        "TOWLINE_STORE": place.url,
        "TOWLINE_DURABILITY": place.durability,
        "TOWLINE_LISTEN": f"127.0.0.1:{port}",
    }
    home = site.new_directory("served")
    with towline(arguments, settings, home) as process:
        _await_ready(process, port, home)
        yield ServedTowline(f"http://127.0.0.1:{port}", ("127.0.0.1", port), process)


@contextmanager
def working(site: BenchSite, url: str, recording: Path) -> Iterator[Callable[[], None]]:
    """Run `towline work` with the no-op handler, one task at a time; yield a check that raises when it has ended."""
    home = site.new_directory("worker")
    with towline(*work_command(url), home, recording=recording) as process:
        yield check_alive([process], home / "log")


def work_command(url: str, *, app: str = "tests.bench.handlers:app") -> tuple[Sequence[str], Mapping[str, str]]:
    """Return the arguments and settings of a worker for a server or a store."""
    return ("work", app), {"TOWLINE_URL": url}


@contextmanager
def towline(
    arguments: Sequence[str], settings: Mapping[str, str], home: Path, *, recording: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a Towline command with its log in `home`; end it by SIGTERM, then all it started."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TOWLINE_")}
    environment |= {**settings, "PYTHONPATH": str(ROOT)}
    if recording is not None:
        environment[RECORDING_VARIABLE] = str(recording)
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(
            [*TOWLINE, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=home,  # no settings file of the user is there
            env=environment,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        end_group(process)


def tree(pid: int) -> list[psutil.Process]:
    """Return the process and its descendants."""
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of the tree so far, including reaped processes."""
    total = 0.0
    for process in tree(pid):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def cpu_share(pid: int, *, seconds: float) -> float:
    """Return the tree's share of one core over the next `seconds`."""
    before, began = cpu_seconds(pid), time.monotonic()
    time.sleep(seconds)
    return (cpu_seconds(pid) - before) / (time.monotonic() - began)


def resident_bytes(pid: int) -> int:
    """Return the sum of resident memory over the tree; shared pages count once per process."""
    return sum(process.memory_info().rss for process in tree(pid))


def proportional_bytes(pid: int) -> int:
    """Return the tree's memory with shared pages divided among their users."""
    return sum(process.memory_full_info().pss for process in tree(pid))


def _await_ready(process: subprocess.Popen[bytes], port: int, home: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not _is_ready(port):
        if process.poll() is not None or time.monotonic() > deadline:
            said = (home / "log").read_text(errors="replace").strip().splitlines()[-8:]
            raise MeasurementFailedError("towline did not become ready: " + "\n".join(said))
        time.sleep(POLL_SECONDS)


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2) as response:
            return bool(response.status == 200)
    except OSError:
        return False

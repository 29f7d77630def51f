"""Measure what `towline up` costs on a terminal: idle, and relaying 10,000 lines a second of its workers' output.

    python3 -m tests.bench.alone.relaying

prints the figures. `turn` is how long a supervisor's turn takes meanwhile, beside the same output that nobody follows.
"""

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import psutil

from queue_core.client.http_calls import HttpQueues
from queue_core.task import NewTask
from tests.bench.alone.served import ROOT, TOWLINE
from tests.bench.measure import MeasurementFailedError
from tests.bench.places import Engine
from tests.bench.site import BenchSite
from tests.support.stores.engines import free_port

WORKERS = 4
LINES = 10_000
"""Lines a second of all workers together."""
WATCH_SECONDS = 8.0
SETTLE_SECONDS = 3.0
START_SECONDS = 30.0
APP = """\
import time
from queue_core import App

app = App()


@app.task(queue="chatter")
def chatter(task):
    lines = int(task.text)
    end = time.monotonic() + 120
    while time.monotonic() < end:
        began = time.monotonic()
        print("\\n".join(f"line {number} of a worker that has much to say" for number in range(lines // 10)))
        time.sleep(max(0.0, began + 0.1 - time.monotonic()))
"""
SETTINGS = f"""\
store: sqlite:///queue.db
queues: {{chatter: {{}}}}
pools:
  chatter: {{queue: chatter, app: "program:app", slo: 30s, workers: {{min: {WORKERS}, max: {WORKERS}}}, grace: 1s}}
"""


class Terminal:
    """A pseudo-terminal whose output is read and counted."""

    def __init__(self) -> None:
        self._master, self.slave = os.openpty()
        self.bytes = 0
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            while data := os.read(self._master, 1 << 16):
                self.bytes += len(data)
        except OSError:  # no program has it open any more
            return


def measure(site: BenchSite, engine: Engine) -> Mapping[str, float]:
    """Return core shares and bytes on the terminal of an idle and of a relaying `up`, and the seconds of a turn."""
    watch_seconds = max(WATCH_SECONDS / site.divide_loads_by, 3.0)
    return _figures(site.new_directory("relaying"), watch_seconds)


def _figures(home: Path, watch_seconds: float) -> Mapping[str, float]:
    (home / "towline.yaml").write_text(SETTINGS)
    (home / "program.py").write_text(APP)
    with _up(home) as (process, terminal, queues, url):
        time.sleep(SETTLE_SECONDS)
        before = terminal.bytes
        idle = _share(process, watch_seconds)
        idle_bytes = terminal.bytes - before
        _chatter(queues)
        written, before, began = _written(home), terminal.bytes, time.monotonic()
        relaying, relaying_turn = _share_and_turn(process, url, watch_seconds)
        seconds = time.monotonic() - began
        lines = (_written(home) - written) / seconds
        shown = (terminal.bytes - before) / seconds
    with _up(home, relays=False) as (process, terminal, queues, url):
        _chatter(queues)
        silent, silent_turn = _share_and_turn(process, url, watch_seconds)
    return {
        "idle_cpu_share": idle,
        "idle_bytes": float(idle_bytes),
        "relaying_cpu_share": relaying - silent,
        "lines_a_second": lines,
        "shown_bytes_a_second": shown,
        "silent_turn": silent_turn,
        "relaying_turn": relaying_turn,
    }


def _chatter(queues: HttpQueues) -> None:
    """Let the workers write."""
    queue = queues.queue("chatter")
    queue.purge()
    queue.add([NewTask(str(LINES // WORKERS).encode()) for _ in range(WORKERS)])
    time.sleep(SETTLE_SECONDS)


@contextmanager
def _up(home: Path, *, relays: bool = True) -> Iterator[tuple[psutil.Process, Terminal, HttpQueues, str]]:
    terminal = Terminal()
    port = free_port()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TOWLINE_")}
    environment |= {"PYTHONPATH": str(ROOT), "TERM": "xterm-256color"}
    command = [*TOWLINE, "up", "--listen", f"127.0.0.1:{port}"]
    process = subprocess.Popen(
        command,
        cwd=home,
        env=environment,
        start_new_session=True,
        stdin=terminal.slave,
        stdout=terminal.slave if relays else subprocess.DEVNULL,
        stderr=terminal.slave if relays else subprocess.DEVNULL,
    )
    os.close(terminal.slave)
    try:
        until = time.monotonic() + START_SECONDS
        while not _answers(port):
            if process.poll() is not None or time.monotonic() > until:
                raise MeasurementFailedError(f"`towline up` has not started within {START_SECONDS:g} s")
            time.sleep(0.05)
        url = f"http://127.0.0.1:{port}"
        with closing(HttpQueues(url)) as queues:
            yield psutil.Process(process.pid), terminal, queues, url
    finally:
        process.terminate()
        process.wait(timeout=START_SECONDS)


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
    except OSError:
        return False
    return True


def _share(process: psutil.Process, seconds: float) -> float:
    """Return the share of a core that the process itself takes, without its workers."""
    began, before = time.monotonic(), process.cpu_times()
    time.sleep(seconds)
    after, took = process.cpu_times(), time.monotonic() - began
    return (after.user + after.system - before.user - before.system) / took


def _share_and_turn(process: psutil.Process, url: str, seconds: float) -> tuple[float, float]:
    """Return the share of a core, and the mean length of a round of turns."""
    took, count = _turns(url)
    share = _share(process, seconds)
    took_then, count_then = _turns(url)
    return share, (took_then - took) / max(1.0, count_then - count)


def _written(home: Path) -> int:
    """Return the lines that the chattering workers have written, as far as their logs keep them."""
    logs = [path for path in (home / ".towline" / "workers").iterdir() if path.name.startswith("chatter-")]
    return sum(path.read_bytes().count(b"\n") for path in logs)


def _turns(url: str) -> tuple[float, float]:
    """Return the seconds that all rounds of turns took so far, and their number."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=START_SECONDS) as answer:
        lines = answer.read().decode().splitlines()
    name = "towline_supervisor_turn_duration_seconds"
    found = {line.split()[0]: float(line.split()[1]) for line in lines if line.startswith(name)}
    return found[f"{name}_sum"], found[f"{name}_count"]


def main() -> int:
    """Print the figures, and whether they are within their bounds."""
    with tempfile.TemporaryDirectory() as home:
        figures = _figures(Path(home), WATCH_SECONDS)
    for name, value in figures.items():
        print(f"{name:22} {value:,.4g}")
    is_well = figures["relaying_cpu_share"] < 0.1 and figures["idle_cpu_share"] < 0.01 and not figures["idle_bytes"]
    print("within bounds" if is_well else "OUT OF BOUNDS: relaying under 10 % of a core, idle under 1 % and 0 bytes")
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())

"""`python3 -m tests.soak external`: a stand-in for KEDA starts and ends workers by the supervisor's numbers.

It queries as the metrics-api scaler does, starts the wanted workers, and ends any worker with SIGTERM, busy or not.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.error import HTTPError
from urllib.request import urlopen

from orchestrator.base.clock import SystemMonotonicClock
from queue_core.client.http_calls import HttpQueue
from queue_core.task import NewTask
from tests.support.commands import program_environment
from tests.support.eventually import eventually

CLOCK: Final = SystemMonotonicClock()
POLL_SECONDS: Final = 2.0
MOST_SECONDS: Final = 300.0
SETTINGS: Final = """\
store: sqlite:///queue.db
server: {listen: "127.0.0.1:0"}
queues:
  thumbs: {lease: 30s, max_leases: 5}
pools:
  resize: {queue: thumbs, app: "tasks:app", runtime: external, slo: 20s, churn: 1s, workers: {max: WORKERS}}
"""
TASKS: Final = """\
import time
from queue_core.worker.app import App
app = App()
@app.task(queue="thumbs")
def resize(task): time.sleep(float(task.text))
"""


@dataclass
class Platform:
    """Starts and ends workers to match a number, without knowledge of their work."""

    folder: Path
    url: str
    chance: random.Random = field(default_factory=lambda: random.Random(1))
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)
    leaving: list[subprocess.Popen[bytes]] = field(default_factory=list)
    started: int = 0

    def wanted(self) -> dict[str, object] | None:
        """Return the pool's statistics; None while they may not be acted on."""
        try:
            with urlopen(f"{self.url}/v1/pools/resize/stats", timeout=10) as answer:
                return dict(json.loads(answer.read()))
        except HTTPError as refused:
            assert refused.code == 503
            return None

    def scale(self, count: int) -> None:
        """Start or end workers until there are `count`."""
        self.running = [worker for worker in self.running if worker.poll() is None]
        self.leaving = [worker for worker in self.leaving if worker.poll() is None]
        while len(self.running) < count:
            self.started += 1
            told = {"TOWLINE_POOL": "resize", "TOWLINE_APP": "tasks:app", "HOSTNAME": f"pod-{self.started}"}
            self.running.append(
                subprocess.Popen(
                    [sys.executable, "-m", "orchestrator", "work", "--url", self.url],
                    cwd=self.folder,
                    env=program_environment() | told,
                    stderr=subprocess.DEVNULL,
                )
            )
        while len(self.running) > count:
            worker = self.running.pop(self.chance.randrange(len(self.running)))
            worker.terminate()
            self.leaving.append(worker)

    def close(self) -> None:
        self.scale(0)
        for worker in self.leaving:
            worker.wait(timeout=60)


def main(arguments: Sequence[str]) -> int:
    """Return 0 when every task was done once, and the platform grew beyond one worker and back to none."""
    parser = argparse.ArgumentParser(prog="python3 -m tests.soak external", description=__doc__)
    parser.add_argument("--tasks", type=int, default=120)
    parser.add_argument("--task-seconds", type=float, default=1.0)
    parser.add_argument("--workers", type=int, default=4, help="max of the pool")
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "towline.yaml").write_text(SETTINGS.replace("WORKERS", str(asked.workers)))
        (folder / "tasks.py").write_text(TASKS)
        with (folder / "up.log").open("wb") as log:
            command = [sys.executable, "-m", "orchestrator", "up", "--json"]
            up = subprocess.Popen(command, cwd=folder, env=program_environment(), stderr=log)
        try:
            return _run(folder, tasks=asked.tasks, task_seconds=asked.task_seconds)
        finally:
            up.terminate()
            up.wait(timeout=60)


def _url(folder: Path) -> str:
    lines = [line for line in (folder / "up.log").read_text().splitlines() if '"event":"server.started"' in line]
    return str(json.loads(lines[0])["url"]) if lines else ""


def _run(folder: Path, *, tasks: int, task_seconds: float) -> int:
    url = eventually(lambda: _url(folder), seconds=60)
    platform, queue = Platform(folder, url), HttpQueue(url, "thumbs", token=None)
    most, is_added, began_at = 0, False, CLOCK.monotonic()
    try:
        while CLOCK.monotonic() < began_at + MOST_SECONDS:
            told = platform.wanted()
            if told is not None and not is_added:
                is_added = True
                queue.add([NewTask(str(task_seconds).encode()) for _ in range(tasks)])
            elif told is not None:
                wanted = int(str(told["desired_workers"]))
                platform.scale(wanted)
                most = max(most, wanted)
                shown = (
                    "ready",
                    "desired_workers",
                    "starting_workers",
                    "idle_workers",
                    "busy_workers",
                    "draining_workers",
                )
                seconds = CLOCK.monotonic() - began_at
                print(f"{seconds:5.0f} s", *[f"{word.partition('_')[0]} {told[word]}" for word in shown], sep="  ")
                if most and not (wanted or platform.running or platform.leaving or told["ready"]):
                    break
            time.sleep(POLL_SECONDS)
        stats = queue.stats()
    finally:
        platform.close()
        queue.close()
    print(f"{stats.deleted_total} of {tasks} done, {stats.leased_total} leases, {platform.started} workers started")
    print(f"at most {most} wanted, {len(platform.running)} left")
    is_well = stats.deleted_total == tasks == stats.leased_total - stats.released_total and most > 1
    return 0 if is_well and not platform.running else 1

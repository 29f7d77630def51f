"""A pool whose workers somebody else starts: how many there should be is told, and whoever comes is counted."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

from tests.support.commands import program_environment, run_program
from tests.support.eventually import eventually

SETTINGS = """\
store: sqlite:///queue.db
server: {listen: "127.0.0.1:0"}
queues:
  thumbs: {lease: 30s, max_leases: 5}
pools:
  resize: {queue: thumbs, runtime: external, slo: 5s, workers: {max: 3}}
"""
TASKS = """\
import time
from queue_core.worker.app import App
app = App()
@app.task(queue="thumbs")
def resize(task): time.sleep(float(task.text))
"""


@contextmanager
def towline_up(folder: Path) -> Iterator[str]:
    (folder / "towline.yaml").write_text(SETTINGS)
    (folder / "tasks.py").write_text(TASKS)
    with (folder / "up.log").open("wb") as log:
        up = subprocess.Popen(
            [sys.executable, "-m", "orchestrator", "up", "--json"],
            cwd=folder,
            env=program_environment(),
            stdout=log,
            stderr=log,
        )
    try:
        yield eventually(lambda: _url(folder))
    finally:
        up.terminate()
        assert up.wait(timeout=60) == 0


def _url(folder: Path) -> str:
    lines = [line for line in (folder / "up.log").read_text().splitlines() if '"event":"server.started"' in line]
    return str(json.loads(lines[0])["url"]) if lines else ""


def number(url: str, metric: str) -> float | None:
    with urlopen(f"{url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(metric)), None)


def workers(url: str, state: str) -> float | None:
    return number(url, f'towline_pool_workers{{pool="resize",state="{state}"}}')


def test_whoever_starts_the_workers_is_told_how_many_and_they_are_seen(tmp_path: Path) -> None:
    with towline_up(tmp_path) as url:
        eventually(lambda: number(url, 'towline_pool_desired_workers{pool="resize"}') == 0)
        try:
            urlopen(f"{url}/v1/pools/resize/stats", timeout=10)
        except HTTPError as refused:
            assert refused.code == 503
            assert json.loads(refused.read())["type"] == "urn:towline:problem:supervisor-not-ready"
        assert run_program("add", "thumbs", "3", "--url", url, folder=tmp_path).code == 0
        eventually(lambda: number(url, 'towline_pool_desired_workers{pool="resize"}') == 1)
        assert workers(url, "starting") == 1
        worker = subprocess.Popen(
            [sys.executable, "-m", "orchestrator", "work", "tasks:app", "--url", url],
            cwd=tmp_path,
            env=program_environment() | {"TOWLINE_POOL": "resize"},
            stderr=subprocess.DEVNULL,
        )
        eventually(lambda: workers(url, "busy") == 1)
        assert workers(url, "starting") == 0
        assert number(url, 'towline_pool_starts_total{pool="resize"}') == 1
        assert (number(url, 'towline_pool_startup_seconds{pool="resize"}') or 0) > 0
        eventually(lambda: workers(url, "idle") == 1)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(timeout=60) == 0
        eventually(lambda: workers(url, "idle") == 0)
        assert run_program("health", "--url", url, folder=tmp_path).out.endswith("supervisor: leading\n")

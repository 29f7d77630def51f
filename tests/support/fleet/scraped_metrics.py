"""The Prometheus metrics of a running `towline up`: names, labels and label values."""

import subprocess
import sys
from pathlib import Path
from typing import Final, TypeAlias
from urllib.error import URLError
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from tests.support.commands import program_environment
from tests.support.eventually import eventually
from tests.support.stores.engines import free_port

METRICS: TypeAlias = dict[str, dict[str, set[str]]]

_SETTINGS: Final = """\
store: sqlite:///queue.db
queues:
  files: {lease: 30s, max_leases: 5}
pools:
  checksums: {queue: files, app: "tasks:app", slo: 1s, grace: 2s, workers: {min: 0, max: 2}}
"""
_TASKS: Final = """\
from queue_core.worker.app import App
app = App()
@app.task(queue="files")
def checksum(task): ...
"""
_LAST_TO_COME: Final = "towline_pool_decisions_total"


def scraped_from_a_running_fleet(folder: Path) -> METRICS:
    """Return every sample's name with its labels and their values, once a pool has decided."""
    (folder / "towline.yaml").write_text(_SETTINGS)
    (folder / "tasks.py").write_text(_TASKS)
    port = free_port()
    command = [sys.executable, "-m", "orchestrator", "up", "--listen", f"127.0.0.1:{port}"]
    with (folder / "up.log").open("wb") as log:
        up = subprocess.Popen(command, cwd=folder, env=program_environment(), stdout=log, stderr=log)
    try:

        def scraped() -> METRICS:
            assert up.poll() is None, (folder / "up.log").read_text()
            told = _labels_of(_scrape(port))
            return told if _LAST_TO_COME in told else {}

        return eventually(scraped, seconds=60)
    finally:
        up.terminate()
        up.wait(timeout=30)


def _scrape(port: int) -> str:
    try:
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            return str(answer.read().decode())
    except (URLError, OSError):
        return ""


def _labels_of(text: str) -> METRICS:
    told: METRICS = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = told.setdefault(sample.name, {})
            for name, value in sample.labels.items():
                labels.setdefault(name, set()).add(value)
    return told

"""A supervisor whose folder and log lie on a disk that fills up: workers are looked after as before, and it says so."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.runtimes import procfs
from tests.soak.empty_source import POOLS
from tests.soak.starts import SoakFleet
from tests.support.eventually import eventually
from tests.support.stores.small_disk import a_small_disk, fill


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with a_small_disk(tmp_path, size="1m") as disk:
        yield disk


def test_a_full_disk_costs_notes_and_no_worker(small_disk: Path) -> None:
    fleet = SoakFleet(small_disk)
    try:
        fleet.order(1)
        eventually(lambda: fleet.shown_workers() == len(POOLS) == len(fleet.workers()), seconds=30)
        filler = fill(small_disk)
        before = {worker.worker for worker in fleet.workers()}
        for worker in fleet.workers():
            procfs.signal_exactly(worker, signal.SIGKILL)
        # Its log is full as well, and yet the dead are replaced.
        eventually(
            lambda: len(now := {w.worker for w in fleet.workers()}) == len(POOLS) and not now & before, seconds=30
        )
        assert fleet.process.poll() is None
        orders = json.loads((fleet.files.path / "orders.json").read_text())
        assert sorted(orders["pools"]) == sorted(POOLS)

        filler.unlink()
        fleet.order(2)
        eventually(lambda: len(fleet.workers()) == 2 * len(POOLS), seconds=30)
        eventually(lambda: fleet.shown_workers() == 2 * len(POOLS), seconds=15)
        assert "Traceback" not in fleet.log()
        fleet.process.send_signal(signal.SIGTERM)
        assert fleet.process.wait(timeout=60) == 0
        assert (fleet.files.read_snapshot() or {})["phase"] == "stopped"
    finally:
        fleet.process.kill()
        fleet.process.wait()
        for worker in procfs.worker_processes(str(fleet.files.path)):
            procfs.signal_exactly(worker, signal.SIGKILL)

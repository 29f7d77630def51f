"""`python3 -m tests.soak starts --starts 10000`: a supervisor's resources over many starts and exits of workers.

Four pools are scaled to up to 60 workers each and down to none, over and over, and some workers are killed. Resources
are sampled only while there is no worker.
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from orchestrator.base.clock import SystemMonotonicClock
from orchestrator.config.overrides import Expiry, Moment, Overrides, ScaleOverride
from orchestrator.runtimes import procfs
from orchestrator.runtimes.procfs import boot
from orchestrator.state.directory import StateDir
from tests.soak.empty_source import MOST, POOLS
from tests.soak.figures import Look, bytes_a_start, look_at
from tests.support.commands import ROOT, program_environment
from tests.support.eventually import eventually

CLOCK: Final = SystemMonotonicClock()
PROGRAM: Final = ("/bin/sleep", "3600")
WARM_STARTS: Final = 2 * len(POOLS) * MOST
"""Starts before the first sample: what Python and the pools load once, they keep."""
MOST_BYTES_A_START: Final = 64.0
"""More growth per start is no longer flat: with a start a second a fleet would grow by 5 MiB a day."""
SMALL_GROWTH_BYTES: Final = 4 << 20
"""A smaller growth over the whole run is the allocators': a few of Python's arenas of 1 MiB each."""
SWING_SECONDS: Final = 60.0


class SoakFleet:
    """The supervisor, and the client that overrides its pools' sizes."""

    def __init__(self, folder: Path) -> None:
        self.files = StateDir(folder / "state")
        self._folder = folder
        self._random = random.Random(6)  # which workers are killed
        with (folder / "log").open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.soak.empty_source", str(folder), *PROGRAM],
                cwd=ROOT,
                env=program_environment(),
                stdout=output,
                stderr=output,
            )

    def order(self, workers: int) -> None:
        """Scale each pool to `workers` workers."""
        now = Moment(CLOCK.wall_seconds(), CLOCK.monotonic(), boot())
        for pool in POOLS:
            self.files.change_overrides(
                pool, lambda _before: Overrides(ScaleOverride(workers, Expiry.after(3600.0, now)))
            )

    def swing(self, workers: int) -> None:
        """Scale each pool up to `workers` workers, kill a few, and scale down to none."""
        self.order(workers)
        eventually(lambda: len(self.workers()) == workers * len(POOLS), seconds=SWING_SECONDS)
        for process in self._random.sample(self.workers(), k=3):
            procfs.signal_exactly(process, signal.SIGKILL)
        self.order(0)
        eventually(lambda: not self.workers() and not self.shown_workers(), seconds=SWING_SECONDS)

    def workers(self) -> list[procfs.WorkerProcess]:
        """Return living workers, according to the kernel."""
        return [process for process in procfs.worker_processes(str(self.files.path)) if process.leads]

    def shown_workers(self) -> int:
        """Return the workers in the supervisor's snapshot."""
        workers = (self.files.read_snapshot() or {}).get("workers")
        return len(workers) if isinstance(workers, list) else 0

    def log(self) -> str:
        """Return the supervisor's warnings and errors."""
        return (self._folder / "log").read_text()


def soak(folder: Path, *, starts: int, workers: int = MOST) -> tuple[list[Look], int, str]:
    """Sample a supervisor over `starts` starts; return the samples, its exit code, and its log."""
    fleet = SoakFleet(folder)
    a_swing = workers * len(POOLS)
    try:
        looks: list[Look] = []
        done = 0
        while done < starts or not looks:
            fleet.swing(workers)
            done += a_swing
            if done >= min(WARM_STARTS, starts // 2):
                looks.append(look_at(fleet.process.pid, starts=done))
        fleet.process.send_signal(signal.SIGTERM)
        return looks, fleet.process.wait(timeout=SWING_SECONDS), fleet.log()
    finally:
        fleet.process.kill()
        fleet.process.wait()
        for worker in procfs.worker_processes(str(fleet.files.path)):
            procfs.signal_exactly(worker, signal.SIGKILL)


def faults(looks: Sequence[Look], code: int) -> list[str]:
    """Return what is not as it must be."""
    first, last = looks[0], looks[-1]
    found = [f"the supervisor ended with {code}"] if code else []
    if last.descriptors > first.descriptors:
        found.append(f"descriptors grew from {first.descriptors} to {last.descriptors}")
    if last.threads > first.threads:
        found.append(f"threads grew from {first.threads} to {last.threads}")
    if any(look.zombies for look in looks):
        found.append(f"{max(look.zombies for look in looks)} zombies")
    if last.memory_bytes - first.memory_bytes > SMALL_GROWTH_BYTES and bytes_a_start(looks) > MOST_BYTES_A_START:
        found.append(f"memory grows by {bytes_a_start(looks):.0f} bytes a start")
    return found


def main(arguments: Sequence[str]) -> int:
    """Run it and print its figures; return 0 when they are flat."""
    parser = argparse.ArgumentParser(prog="python3 -m tests.soak starts", description=__doc__)
    parser.add_argument("--starts", type=int, default=10_000, help="worker starts, about [10000]")
    parser.add_argument("--json", action="store_true", help="figures as one JSON value")
    options = parser.parse_args(arguments)
    began_at = CLOCK.monotonic()
    with tempfile.TemporaryDirectory(prefix="towline-soak-") as folder:
        looks, code, _said = soak(Path(folder), starts=options.starts)
    seconds = CLOCK.monotonic() - began_at
    found = faults(looks, code)
    if options.json:
        shown = [{name: getattr(look, name) for name in Look.__slots__} for look in looks]
        slope = round(bytes_a_start(looks), 1)
        print(json.dumps({"seconds": round(seconds, 1), "looks": shown, "bytes_a_start": slope, "faults": found}))
        return 1 if found else 0
    print(f"{looks[-1].starts:,} worker starts and stops in {seconds:.0f} s; the supervisor with no worker left:")
    print(f"{'':12}{'starts':>8}{'memory':>12}{'descriptors':>13}{'threads':>9}{'zombies':>9}")
    for name, look in zip(("start", "1st quarter", "half", "3rd quarter", "end"), quarters(looks), strict=True):
        memory = f"{look.memory_bytes / 2**20:.2f} MiB"
        print(f"{name:12}{look.starts:>8}{memory:>12}{look.descriptors:>13}{look.threads:>9}{look.zombies:>9}")
    print(f"slope: {bytes_a_start(looks):.1f} bytes a start")
    print("\n".join(found) or "flat")
    return 1 if found else 0


def quarters(looks: Sequence[Look]) -> list[Look]:
    """Return the first sample, the last one, and three between."""
    return [looks[round(part * (len(looks) - 1) / 4)] for part in range(5)]

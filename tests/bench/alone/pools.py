"""Measure the cost of 300 idle pools: core share of `towline up`, and CPU time of its commands."""

import os
import resource
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.bench.alone.served import ROOT, TOWLINE, cpu_share, serving
from tests.bench.measure import MeasurementFailedError
from tests.bench.places import Engine, new_place
from tests.bench.site import BenchSite

POOLS: Final = 300
SETTLE_SECONDS: Final = 15.0
WATCH_SECONDS: Final = 20.0
COMMANDS: Final = (("top", "--once"), ("plan",), ("pools",), ("workers",), ("why", "p7"), ("check",))


def measure(site: BenchSite, engine: Engine) -> Mapping[str, float]:
    """Return the core share of an idle `towline up` with 300 pools and queues, and CPU seconds per command.

    CPU seconds don't depend on the machine's other programs as wall-clock seconds do.
    """
    home = site.new_directory("pools")
    file = home / "towline.yaml"
    queues = "".join(f"  q{number}: {{}}\n" for number in range(POOLS))
    pools = "".join(
        f"  p{number}: {{queue: q{number}, app: 'tests.bench.handlers:app', slo: 10s, workers: {{max: 2}}}}\n"
        for number in range(POOLS)
    )
    file.write_text(f"queues:\n{queues}pools:\n{pools}")
    with (
        new_place(site, engine) as place,
        serving(site, place, arguments=("up", "--file", str(file))) as served,
    ):
        time.sleep(SETTLE_SECONDS)
        seconds = max(WATCH_SECONDS / site.divide_loads_by, 10.0)
        figures = {"cpu_share": cpu_share(served.process.pid, seconds=seconds)}
        for command in COMMANDS:
            figures[f"{command[0]}_seconds"] = _command_seconds(home, served.url, command)
        return figures


def _command_seconds(home: Path, url: str, command: Sequence[str]) -> float:
    """Return the CPU time of one command beside the settings file."""
    before = _children_seconds()
    environment = {**os.environ, "TOWLINE_URL": url, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([*TOWLINE, *command], cwd=home, env=environment, capture_output=True, check=False)
    if done.returncode:
        raise MeasurementFailedError(f"towline {' '.join(command)}: {done.stderr.decode(errors='replace')[-300:]}")
    return _children_seconds() - before


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime

"""The demo's plan: tasks and their arrivals, the pools' settings, when a worker is killed. Pure but for a data file."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orchestrator.base.clock import MonotonicClock
from orchestrator.demo.tasks import FOLDER_VARIABLE, QUEUE, REST_VARIABLE

STAGES: Final = ("parse", "render")
"""The pools, which are named as the tags of their tasks."""
SHAPE: Final = Path(__file__).with_name("arrivals.csv")


def recorded_shape(path: Path = SHAPE) -> list[int]:
    """Return the recorded arrivals per slot."""
    rows = (line for line in path.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#"))
    return [int(row.partition(",")[2]) for row in rows]


def due_seconds(shape: Sequence[int], *, tasks: int, feed_seconds: float) -> list[float]:
    """Return when each task arrives, in seconds from the start, with `shape` stretched over `feed_seconds`.

    Arrivals are spread evenly inside a slot. Raises `ValueError` for a shape without arrivals.
    """
    total = sum(shape)
    if total <= 0:
        raise ValueError("a shape needs at least one arrival")
    slot_seconds = feed_seconds / len(shape)
    starts: list[float] = []
    before = 0
    for slot, arrivals in enumerate(shape):
        first, last = round(before * tasks / total), round((before + arrivals) * tasks / total)
        starts += [(slot + (index + 0.5) / (last - first)) * slot_seconds for index in range(last - first)]
        before += arrivals
    return starts


MIN_SECONDS: Final = 20.0
MAX_SECONDS: Final = 3_600.0
ALL_MODULES_SECONDS: Final = 40.0
"""A shorter demo uses only a share of the modules."""
FEED_SHARE: Final = 0.8
KILL_SHARE: Final = 0.5
MEAN_WORKERS: Final = 3.5
"""Workers that the work needs on average; bursts need several times as many."""
WORK_SECONDS: Final = 0.012
"""About how long a task takes, without its rest."""
SLO_SECONDS: Final = 5.0
MAX_SLO_SECONDS: Final = 60.0
STARTS_PER_SLO: Final = 8.0
"""The slo in start times: starts are slower beside a busy fleet, and a late fleet plans with half of the slo."""
MAX_WORKERS_PER_POOL: Final = 6
GRACE_SECONDS: Final = 10
"""How long a worker may take to finish its task when the fleet ends."""
STORE: Final = "towline.db"


@dataclass(frozen=True, slots=True)
class Script:
    """One run: the modules with their files, when each is due, and when a worker is killed."""

    seconds: float
    modules: tuple[tuple[str, Path], ...]
    due_seconds: tuple[float, ...]
    rest_seconds: float
    kill_at_seconds: float
    slo_seconds: float = SLO_SECONDS

    @property
    def tasks(self) -> int:
        """The number of tasks of the run: two for each module, and the index."""
        return 2 * len(self.modules) + 1


def slo_for(start_seconds: float) -> float:
    """Return an slo in whole seconds that pools can keep without spare workers for the time a start takes.

    Args:
        start_seconds: the start time of a worker on an otherwise idle machine.
    """
    return round(min(MAX_SLO_SECONDS, max(SLO_SECONDS, STARTS_PER_SLO * start_seconds)))


def script_of(
    modules: Sequence[tuple[str, Path]], shape: Sequence[int], *, seconds: float, slo_seconds: float = SLO_SECONDS
) -> Script:
    """Return a run of `seconds` over `modules`. Raises `ValueError` when there are none."""
    if not modules:
        raise ValueError("no module of the standard library was found: is this Python installed without its sources?")
    share = min(1.0, seconds / ALL_MODULES_SECONDS)
    taken = [modules[int(index / share)] for index in range(max(1, int(len(modules) * share)))]
    feed_seconds = FEED_SHARE * seconds
    rest_seconds = max(0.01, MEAN_WORKERS * feed_seconds / (2 * len(taken)) - WORK_SECONDS)
    due = due_seconds(shape, tasks=len(taken), feed_seconds=feed_seconds)
    return Script(seconds, tuple(taken), tuple(due), rest_seconds, KILL_SHARE * seconds, slo_seconds)


def settings_text(folder: Path, *, listen: str, rest_seconds: float, slo_seconds: float = SLO_SECONDS) -> str:
    """Return the demo's towline.yaml; its short `churn` lets the demo end soon."""
    environment = json.dumps({FOLDER_VARIABLE: str(folder), REST_VARIABLE: f"{rest_seconds:.4f}"})
    pools = "".join(
        f"""\
  {stage}:
    queue: {QUEUE}
    tags: [{stage}]
    app: orchestrator.demo.tasks:app
    runtime: process
    slo: {slo_seconds:.0f}s
    workers: {{min: 0, max: {MAX_WORKERS_PER_POOL}}}
    grace: {GRACE_SECONDS}s
    churn: 1s          # a worker is retired soon: the demo is short
    env: {environment}
"""
        for stage in STAGES
    )
    return f"""\
# Written by `towline demo`.
store: sqlite:///{STORE}
server: {{listen: {json.dumps(listen)}}}
console: {{writes: on}}
lifecycle: task
log: events.jsonl
queues:
  {QUEUE}:
    lease: 30s
    max_leases: 5
pools:
{pools}"""


TRIAL: Final = "import queue_core.worker.main, orchestrator.demo.tasks"
"""Imports what a worker of the demo has loaded when it begins."""


def start_seconds(clock: MonotonicClock, *, at_a_time: int) -> float:
    """Return how long `at_a_time` processes, started together, take to load what a worker needs."""
    began_at = clock.monotonic()
    command = [sys.executable, "-c", TRIAL]
    started = [
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(at_a_time)
    ]
    for process in started:
        process.wait()
    return clock.monotonic() - began_at

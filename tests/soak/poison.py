"""`python3 -m tests.soak poison`: a few tasks that end their process, among many: who dies, what it costs the rest."""

import argparse
import itertools
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orchestrator.base.clock import SystemMonotonicClock
from orchestrator.state.directory import StateDir
from queue_core.client.http_calls import HttpQueues
from queue_core.client.queue import Queue
from queue_core.task import NewTask, TaskState
from tests.soak.poisonous import POISONS
from tests.support.commands import program_environment
from tests.support.eventually import eventually

CLOCK: Final = SystemMonotonicClock()
MOST_SECONDS: Final = 600.0
LEAST_RATIO: Final = 0.8


@dataclass(frozen=True, slots=True)
class Shape:
    """A run's tasks, their seconds, and its workers; the pool may have `room` more."""

    tasks: int = 10_000
    poisons: int = 5
    task_seconds: float = 0.1
    workers: int = 4
    room: int = 2
    concurrency: int = 4
    max_leases: int = 5


@dataclass(frozen=True, slots=True)
class Poisoned:
    """The result of a run. `a_second`: innocent tasks done; `deaths` of workers that held something."""

    innocents: int
    done: int
    a_second: float
    deaths: int
    dead_poison: int
    dead_innocents: int
    reasons: tuple[str, ...]


USUAL: Final = Shape()


def run(folder: Path, shape: Shape, *, poisons: int) -> Poisoned:
    """Let one `towline up` finish all tasks, or make them dead."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "towline.yaml").write_text(_settings(folder, shape))
    with (folder / "log").open("wb") as output:
        program = subprocess.Popen(
            [sys.executable, "-m", "orchestrator", "up", "--json"],
            cwd=folder,
            env=program_environment(),
            stdout=output,
            stderr=output,
        )
    queues = HttpQueues(f"unix://{folder}/queue.sock")
    files = StateDir(folder / ".towline")
    try:
        eventually(lambda: (files.read_snapshot() or {}).get("phase") == "leading", seconds=60)
        queue = queues.queue("jobs")
        eventually(lambda: _idle(files) >= shape.workers, seconds=60)
        names = _add(queue, shape, poisons=poisons)
        began_at = CLOCK.monotonic()
        innocents = shape.tasks - poisons
        eventually(lambda: queue.stats().deleted_total >= innocents, seconds=MOST_SECONDS)
        seconds = CLOCK.monotonic() - began_at
        eventually(lambda: queue.stats().dead + queue.stats().deleted_total >= shape.tasks, seconds=MOST_SECONDS)
        dead = queue.peek(states=frozenset({TaskState.DEAD}), limit=1000).tasks
        eventually(lambda: not [w for w in _workers(files) if w.get("state") == "alone"], seconds=60)
        deaths = [one for one in files.read_deaths(limit=10_000) if one.get("held_total")]
        return Poisoned(
            innocents,
            queue.stats().deleted_total,
            innocents / seconds,
            len(deaths),
            sum(1 for task in dead if task.shown_name in names),
            sum(1 for task in dead if task.shown_name not in names),
            tuple(task.reason for task in dead),
        )
    finally:
        queues.close()
        program.send_signal(signal.SIGTERM)
        program.wait(timeout=60)


def _settings(folder: Path, shape: Shape) -> str:
    return f"""\
store: sqlite:///{folder}/towline.db
durability: relaxed
server: {{listen: "unix:{folder}/queue.sock"}}
queues:
  jobs: {{lease: 60s, max_leases: {shape.max_leases}}}
pools:
  crew:
    queue: jobs
    app: tests.soak.poisonous:app
    slo: 10m
    workers: {{min: {shape.workers}, max: {shape.workers + shape.room}}}
    concurrency: {shape.concurrency}
    grace: 10s
"""


def _add(queue: Queue, shape: Shape, *, poisons: int) -> set[str]:
    """Add the tasks with the poison spread among them; return the poison's names."""
    kinds = itertools.cycle(POISONS)
    step = shape.tasks // (poisons + 1)
    places = {step * (number + 1): next(kinds) for number in range(poisons)}
    tasks = [
        NewTask(places.get(number, str(shape.task_seconds)).encode(), name=f"task-{number}")
        for number in range(shape.tasks)
    ]
    for first in range(0, len(tasks), 1000):
        queue.add(tasks[first : first + 1000])
    return {f"task-{number}" for number in places}


def _workers(files: StateDir) -> list[dict[str, object]]:
    workers = (files.read_snapshot() or {}).get("workers")
    return [one for one in workers if isinstance(one, dict)] if isinstance(workers, list) else []


def _idle(files: StateDir) -> int:
    return sum(1 for worker in _workers(files) if worker.get("state") in {"idle", "busy"})


def main(arguments: Sequence[str]) -> int:
    """Run it clean and poisoned and print both; return 0 when only the poison died and the rest was hardly slower."""
    parser = argparse.ArgumentParser(prog="python3 -m tests.soak poison", description=__doc__)
    parser.add_argument("--tasks", type=int, default=USUAL.tasks)
    parser.add_argument("--poisons", type=int, default=USUAL.poisons)
    parser.add_argument("--task-seconds", type=float, default=USUAL.task_seconds)
    parser.add_argument("--workers", type=int, default=USUAL.workers)
    parser.add_argument("--room", type=int, default=USUAL.room, help="Workers that the pool may have beyond these.")
    parser.add_argument("--concurrency", type=int, default=USUAL.concurrency)
    parser.add_argument("--max-leases", type=int, default=USUAL.max_leases)
    parser.add_argument("--folder", type=Path, help="Keep everything here  [default: a folder of its own, removed]")
    asked = parser.parse_args(arguments)
    shape = Shape(
        asked.tasks,
        asked.poisons,
        asked.task_seconds,
        asked.workers,
        asked.room,
        asked.concurrency,
        asked.max_leases,
    )
    with tempfile.TemporaryDirectory() as scratch:
        folder = asked.folder or Path(scratch)
        clean = run(folder / "clean", shape, poisons=0)
        poisoned = run(folder / "poisoned", shape, poisons=shape.poisons)
    ratio = poisoned.a_second / clean.a_second
    print(f"clean     {clean.done:,} tasks done, {clean.a_second:,.0f} a second")
    print(
        f"poisoned  {poisoned.done:,} of {poisoned.innocents:,} innocent tasks done, {poisoned.a_second:,.0f} a second;"
        f" {poisoned.deaths} workers died holding something"
    )
    print(f"dead      {poisoned.dead_poison} of {shape.poisons} poison tasks, {poisoned.dead_innocents} innocent ones")
    for reason in poisoned.reasons:
        print(f"          {reason}")
    print(f"ratio     {ratio:.0%} of the clean throughput (at least {LEAST_RATIO:.0%})")
    is_right = (poisoned.dead_poison, poisoned.dead_innocents) == (shape.poisons, 0) and ratio >= LEAST_RATIO
    return 0 if is_right else 1

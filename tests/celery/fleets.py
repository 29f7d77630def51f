"""Fleets that exist, sized without being changed: `python -m tests.celery.fleets`, or with `redis` or `rabbitmq`.

The same recorded crowd at each broker, under `towline up` with `source: celery`: how many tasks are late, whether any
is lost, whether the fleet goes from nothing to nothing, and whether a worker was signalled while it ran a task.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orchestrator.base.clock import SystemMonotonicClock
from tests.support.eventually import eventually
from tests.support.fleet.celery_program import CeleryProgram, TaskLine
from tests.support.rabbitmq import rabbitmq
from tests.support.stores.engines import free_port, redis

if TYPE_CHECKING:
    from tests.celery.claims import Claim, Conditions, Figure

CLOCK: Final = SystemMonotonicClock()
BROKERS: Final = ("redis", "rabbitmq")
CROWD: Final = (1, 2, 4, 8, 14, 18, 16, 12, 8, 9, 12, 7, 4, 2, 1, 1)
"""Tasks of each three seconds of a recorded crowd."""
SMALL_CROWD: Final = (3, 3)
STEP_SECONDS: Final = 3.0
TASK_SECONDS: Final = 1.0
SLO_SECONDS: Final = 12.0
LATE_SHARE: Final = 0.01
END_SECONDS: Final = 180.0


@dataclass(frozen=True, slots=True)
class CrowdFigure:
    """What a crowd showed at one broker."""

    broker: str
    tasks: int
    late: int
    lost: int
    twice: int
    worst_seconds: float
    peak: int
    left: int
    busy_signalled: int

    @property
    def is_met(self) -> bool:
        """Whether it is what was promised."""
        is_clean = not (self.lost or self.twice or self.left or self.busy_signalled)
        return is_clean and self.peak > 0 and self.late <= LATE_SHARE * self.tasks

    @property
    def line(self) -> str:
        """The figure in a line."""
        return (
            f"{self.broker}: {self.late} of {self.tasks} late (worst {self.worst_seconds:.1f} s of {SLO_SECONDS:.0f}), "
            f"{self.lost} lost, {self.twice} twice, 0 -> {self.peak} -> {self.left}, "
            f"{self.busy_signalled} signalled while busy"
        )


class FleetSite:
    """`towline up` in a folder with a pool for each broker."""

    def __init__(self, folder: Path, programs: Mapping[str, CeleryProgram], *, most: int) -> None:
        self.folder = folder
        self._programs = programs
        pools = {name: self._pool(program, most) for name, program in programs.items()}
        settings = {
            "store": "sqlite:///t.db",
            "server": {"listen": f"127.0.0.1:{free_port()}"},
            "queues": {"own": {}},
            "pools": {**pools, "own": {"queue": "own", "command": ["sleep", "99"], "slo": "30s"}},
        }
        (folder / "towline.yaml").write_text(json.dumps(settings))

    def _pool(self, program: CeleryProgram, most: int) -> dict[str, object]:
        return {
            "source": {"celery": {"broker": program.broker}},
            "command": program.command("{worker}"),
            "cwd": str(program.folder),
            "env": {"SHOP_BROKER": program.broker, "PYTHONPATH": program.environment["PYTHONPATH"]},
            "slo": SLO_SECONDS,
            "churn": 5.0,
            "workers": {"min": 0, "max": most},
        }

    @contextmanager
    def up(self) -> Iterator["FleetSite"]:
        """Run it; all workers end with it."""
        with (self.folder / "up.log").open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "orchestrator", "up"], cwd=self.folder, stdout=output, stderr=output
            )
        try:
            eventually(lambda: self.events("supervisor.leading"))
            yield self
        finally:
            process.terminate()
            process.wait(60)

    def events(self, name: str) -> list[dict[str, object]]:
        """What it has logged under a name."""
        lines = (self.folder / "up.log").read_text().splitlines()
        found = [json.loads(line) for line in lines if line.startswith("{") and f'"{name}"' in line]
        return [one for one in found if one.get("event") == name]

    def workers(self, pool: str) -> list[str]:
        """The workers of a pool that live now."""
        begun = [str(one["worker"]) for one in self.events("worker.spawned") if one["pool"] == pool]
        ended = {str(one["worker"]) for one in self.events("worker.reaped")}
        return [worker for worker in begun if worker not in ended]

    def peak(self, pool: str) -> int:
        """The most workers that a pool had at one time."""
        steps = [(str(one["timestamp"]), 1) for one in self.events("worker.spawned") if one["pool"] == pool]
        steps += [(str(one["timestamp"]), -1) for one in self.events("worker.reaped") if one["pool"] == pool]
        size = most = 0
        for _, change in sorted(steps):
            size += change
            most = max(most, size)
        return most

    def run(self, crowd: Sequence[int]) -> list[CrowdFigure]:
        """Send a crowd to every broker, wait until all is done and all workers have gone, and return what was seen."""
        number, begun = 0, CLOCK.wall_seconds()
        for step, count in enumerate(crowd):
            time.sleep(max(0.0, begun + step * STEP_SECONDS - CLOCK.wall_seconds()))
            for program in self._programs.values():
                program.send(range(number, number + count), seconds=TASK_SECONDS, added=CLOCK.wall_seconds())
            number += count
        found = []
        for name, program in self._programs.items():
            ended = lambda program=program: _numbers(program.lines(), "end") >= set(range(number))  # noqa: E731
            eventually(ended, seconds=END_SECONDS)
            eventually(lambda name=name: not self.workers(name), seconds=END_SECONDS)
            found.append(self._figure(name, program.lines(), number))
        return found

    def _figure(self, name: str, lines: Sequence[TaskLine], tasks: int) -> CrowdFigure:
        waits = [line.seconds for line in lines if line.word == "begin"]
        held = [int(str(one["held"])) for one in self.events("worker.reaped") if one["pool"] == name]
        return CrowdFigure(
            name,
            tasks,
            sum(1 for seconds in waits if seconds > SLO_SECONDS),
            tasks - len(_numbers(lines, "end")),
            len(waits) - len(_numbers(lines, "begin")),
            max(waits),
            self.peak(name),
            len(self.workers(name)),
            sum(1 for count in held if count),
        )


def _numbers(lines: Sequence[TaskLine], word: str) -> set[int]:
    return {line.number for line in lines if line.word == word}


@contextmanager
def site_of(brokers: Sequence[str], folder: Path, *, most: int) -> Iterator[FleetSite]:
    """Start these brokers, and a supervisor with a pool for each. Raises `EngineUnavailableError`."""
    with ExitStack() as stack:
        programs = {}
        for name in brokers:
            home = folder / name
            home.mkdir()
            is_redis = name == "redis"
            url = stack.enter_context(redis(folder)).tcp_url if is_redis else stack.enter_context(rabbitmq()).url
            programs[name] = CeleryProgram(home, url)
        yield stack.enter_context(FleetSite(folder, programs, most=most).up())


def crowds(brokers: Sequence[str], folder: Path) -> Iterator[CrowdFigure]:
    """Run the recorded crowd at one broker after the other."""
    for name in brokers:
        home = folder / f"at-{name}"
        home.mkdir()
        with site_of([name], home, most=8) as site:
            yield from site.run(CROWD)


def claims() -> "list[Claim]":
    """See `tests.celery.claims`."""
    from tests.celery.claims import Claim, Figure

    def measure(conditions: "Conditions") -> "Figure":
        found = list(crowds(BROKERS, conditions.folder))
        return Figure("; ".join(one.line for one in found), "late <= 1 %", all(one.is_met for one in found))

    return [Claim("C16b", "a crowd at brokers of fleets that exist", measure)]


def main(arguments: Sequence[str]) -> int:
    """Print a line a broker; return 1 when one is short."""
    is_met = True
    with tempfile.TemporaryDirectory(prefix="towline-fleets-") as path:
        for figure in crowds(arguments or BROKERS, Path(path)):
            is_met = is_met and figure.is_met
            sys.stdout.write(("met    " if figure.is_met else "SHORT  ") + figure.line + "\n")
            sys.stdout.flush()
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

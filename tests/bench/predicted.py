"""Compare a simulation with reality: real workers under `towline up`, and the same arrivals simulated.

    python3 -m tests.bench.predicted                      # 5 minutes of arrivals, three times
    python3 -m tests.bench.predicted --seconds 60 --repeats 1

Arrivals follow a recorded shape; each task sleeps for a time drawn beforehand. Half a minute after the last task is
done, the simulator gets the same settings, the run's lifecycle log, and the supervisor's measurements: start-up times
of workers that had a core each, and the CPU time of a start. Worker-seconds must agree within 10 %, the share of late
tasks within 1 point. The prediction is the mean of several seeds, which draw different start-up times.
"""

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Final

from orchestrator.capacity.worker_usage import WorkerUsages
from orchestrator.cli.arrivals import read_files
from orchestrator.cli.project_file import load_project
from orchestrator.config.pools import PoolSpec
from orchestrator.demo.fleet_process import FleetProcess
from orchestrator.demo.script import due_seconds, recorded_shape
from orchestrator.settings_file import state_of
from orchestrator.simulation.charts import workers_over
from orchestrator.simulation.results import RunResult, quantile
from orchestrator.simulation.scaler import PolicyScaler
from orchestrator.simulation.study import simulate
from orchestrator.simulation.workload import ServiceTimes, SimulatedWorld
from orchestrator.simulation.workloads.lifecycle_log import LogFilter, RecordedTasks
from queue_core.client.http_calls import HttpQueue, HttpQueues
from queue_core.errors import StoreUnavailableError
from queue_core.task import NewTask
from tests.bench.sleeping import QUEUE

COST_SHARE: Final = 0.10
LATE_POINTS: Final = 0.01
SEEDS: Final = 5
UP_SECONDS: Final = 30.0
DONE_SECONDS: Final = 180.0
"""Seconds after the last arrival within which all tasks must be done."""
IDLE_SECONDS: Final = 30.0
"""Seconds for which the fleet is watched after the last task."""
LOOK_SECONDS: Final = 0.1
POOL: Final = "sleepers"
SETTINGS: Final = """\
store: sqlite:///towline.db
server: {{listen: "unix:queue.sock"}}
lifecycle: task
log: events.jsonl
queues:
  {queue}: {{lease: 1m, max_leases: 5}}
pools:
  {pool}: {{queue: {queue}, app: "tests.bench.sleeping:app", slo: {slo}s, workers: {{max: {most}}}}}
"""


@dataclass(frozen=True)
class FleetOutcome:
    """Worker-seconds, late tasks, waits in slos and starts of a run, real or predicted."""

    worker_seconds: float
    late_share: float
    starts: float
    wait_p95: float
    p99_over_slo: float
    worst_over_slo: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, predict and compare; return 1 when a prediction was off."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300.0, help="how long tasks arrive")
    parser.add_argument("--rate", type=float, default=1.5, help="tasks a second, on average")
    parser.add_argument("--service", type=float, default=2.0, help="mean seconds a task takes")
    parser.add_argument("--slo", type=int, default=10)
    parser.add_argument("--max", type=int, default=16, dest="most")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args(arguments)
    heads = (("run", -5), ("tasks", 6), ("starts take", 12), ("worker-seconds", 24), ("", 7), ("late", 15), ("p95", 13))
    heads += (("p99/slo", 11), ("worst/slo", 11), ("starts", 11))
    print(" ".join(f"{head:<{-width}}" if width < 0 else f"{head:>{width}}" for head, width in heads))
    is_right = True
    for repeat in range(1, options.repeats + 1):
        with tempfile.TemporaryDirectory(prefix="towline-predicted-") as name:
            folder = Path(name)
            settings = SETTINGS.format(queue=QUEUE, pool=POOL, slo=options.slo, most=options.most)
            (folder / "towline.yaml").write_text(settings)
            rng = Random(repeat)
            ends_at = _play(folder, seconds=options.seconds, rate=options.rate, service=options.service, rng=rng)
            is_right &= _compare(folder, repeat, ends_at)
    print("as predicted" if is_right else "not as predicted")
    return 0 if is_right else 1


def _play(folder: Path, *, seconds: float, rate: float, service: float, rng: Random) -> float:
    """Feed a real fleet, and watch it until it has been idle for a while; return that time in epoch seconds."""
    due = due_seconds(recorded_shape(), tasks=round(seconds * rate), feed_seconds=seconds)
    sleeps = ServiceTimes(service).drawn(len(due), rng)
    fleet = FleetProcess(folder)
    try:
        queues = connected(fleet, folder)
        queue = queues.queue(QUEUE)
        begun = time.monotonic()
        fed = 0
        while fed < len(due):
            now = time.monotonic() - begun
            ripe = [NewTask(b"%.3f" % sleeps[n]) for n in range(fed, len(due)) if due[n] <= now]
            if ripe:
                queue.add(ripe)
                fed += len(ripe)
            fleet.check()
            time.sleep(LOOK_SECONDS if fed == len(due) or due[fed] - now > LOOK_SECONDS else 0.02)
        wait_until_done(fleet, queue)
        time.sleep(IDLE_SECONDS)
        ends_at = time.time()
        queues.close()
        return ends_at
    finally:
        fleet.stop()


def connected(fleet: FleetProcess, folder: Path) -> HttpQueues:
    """Open the queues of a starting fleet, once it answers."""
    give_up_at = time.monotonic() + UP_SECONDS
    while True:
        fleet.check()
        queues = HttpQueues(f"unix://{folder / 'queue.sock'}")
        try:
            queues.queues()
        except StoreUnavailableError:
            queues.close()
            if time.monotonic() > give_up_at:
                raise
            time.sleep(LOOK_SECONDS)
        else:
            return queues


def wait_until_done(fleet: FleetProcess, queue: HttpQueue, *, within_seconds: float = DONE_SECONDS) -> None:
    """Wait until the queue is empty. Raises `SystemExit` after `within_seconds`, and when the fleet has ended."""
    give_up_at = time.monotonic() + within_seconds
    while True:
        fleet.check()
        counts = queue.stats()
        if not (counts.ready or counts.in_flight or counts.delayed):
            return
        if time.monotonic() > give_up_at:
            raise SystemExit(f"not done in time: {counts}")
        time.sleep(LOOK_SECONDS)


def _compare(folder: Path, repeat: int, ends_at: float) -> bool:
    project = load_project(folder / "towline.yaml")
    spec = project.pools[POOL]
    recorded = read_files(
        [folder / "events.jsonl"], rng=Random(1), service=None, slot_seconds=None, wanted=LogFilter(QUEUE)
    )
    starts = [ended_at - began_at for began_at, ended_at in _starts(folder)]
    real = _real(folder, recorded, spec, ends_at)
    told = _predicted(recorded, spec, world_of(folder), ends_at)
    away = told.worker_seconds / real.worker_seconds - 1.0
    points = told.late_share - real.late_share
    is_right = abs(away) <= COST_SHARE and abs(points) <= LATE_POINTS
    print(
        f"{repeat:<5} {recorded.workload.tasks:>6} {statistics.mean(starts):>10.2f} s "
        f"{real.worker_seconds:>11.1f} {told.worker_seconds:>12.1f} {away:>+7.1%} "
        f"{real.late_share:>7.2%} {told.late_share:>7.2%} {real.wait_p95:>6.1f} {told.wait_p95:>6.1f} "
        f"{real.p99_over_slo:>5.2f} {told.p99_over_slo:>5.2f} {real.worst_over_slo:>5.2f} {told.worst_over_slo:>5.2f} "
        f"{real.starts:>5.0f} {told.starts:>5.1f}{'' if is_right else '   OFF'}",
        flush=True,
    )
    return is_right


def _real(folder: Path, recorded: RecordedTasks, spec: PoolSpec, ends_at: float) -> FleetOutcome:
    deaths = state_of(load_project(folder / "towline.yaml")).read_deaths(limit=100_000)
    lives = [(float(str(death["at"])), float(str(death["lived_seconds"]))) for death in deaths]
    lived = math.fsum(max(0.0, min(at, ends_at) - (at - seconds)) for at, seconds in lives)
    late = sum(1 for seconds in recorded.waits if seconds > spec.slo) / len(recorded.waits)
    p99, worst = quantile(recorded.waits, 0.99) / spec.slo, recorded.waits[-1] / spec.slo
    return FleetOutcome(lived, late, len(lives), quantile(recorded.waits, 0.95), p99, worst)


def _predicted(recorded: RecordedTasks, spec: PoolSpec, world: SimulatedWorld, ends_at: float) -> FleetOutcome:
    runs = simulated(recorded, spec, world)
    until = ends_at - recorded.begins_at
    return FleetOutcome(
        statistics.mean(workers_over(run.sizes, end_at=until, slots=1)[0] * until for run in runs),
        statistics.mean(run.late_share for run in runs),
        statistics.mean(run.starts for run in runs),
        statistics.mean(run.wait_p95 for run in runs),
        statistics.mean(run.p99_over_slo for run in runs),
        statistics.mean(run.worst_over_slo for run in runs),
    )


def simulated(recorded: RecordedTasks, spec: PoolSpec, world: SimulatedWorld) -> list[RunResult]:
    """Simulate the same tasks once for each seed."""
    start_seconds = world.computed_start_seconds
    return [
        simulate(
            recorded.workload,
            world,
            PolicyScaler(spec, cores=world.cores, start_seconds=start_seconds),
            slo_seconds=spec.slo,
            seed=seed,
        )
        for seed in range(1, SEEDS + 1)
    ]


def world_of(folder: Path) -> SimulatedWorld:
    """Return this host as a run measured it; start-up times are those of starts with a core each."""
    cores, starts = len(os.sched_getaffinity(0)), _starts(folder)
    alone = [
        ended_at - began_at
        for began_at, ended_at in starts
        if sum(1 for others, until in starts if others < ended_at and began_at < until) <= cores
    ]
    usage = state_of(load_project(folder / "towline.yaml")).read_usage()
    return SimulatedWorld(
        startup_samples=tuple(alone),
        start_cpu_seconds=WorkerUsages.from_json(usage["appetites"]).of(POOL).start_seconds,
        cores=cores,
    )


def _starts(folder: Path) -> list[tuple[float, float]]:
    """Return when each start began and ended, in epoch seconds, from the supervisor's log."""
    began_at: dict[str, float] = {}
    found = []
    for line in (folder / "up.log").read_text(errors="replace").splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if not isinstance(event, dict):
            continue
        if event.get("event") == "worker.spawned":
            began_at[event["worker"]] = datetime.fromisoformat(event["timestamp"]).timestamp()
        elif event.get("event") == "worker.started":
            at = began_at[event["worker"]]
            found.append((at, at + float(event["seconds"])))
    return found


if __name__ == "__main__":
    sys.exit(main())

"""Choose the pools a simulation tries and the world it runs in, from settings files, flags and learned state."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from orchestrator.capacity.worker_usage import WorkerUsages
from orchestrator.cli.project_file import load_project
from orchestrator.config.pools import PoolSpec
from orchestrator.scaling.learning import PolicyState
from orchestrator.settings_file import DEFAULT_FILE, Project, state_of
from orchestrator.simulation.limits import QueueLimits
from orchestrator.simulation.results import quantile
from orchestrator.simulation.study import PoolCandidate
from orchestrator.simulation.workload import SimulatedWorld
from orchestrator.simulation.workloads.lifecycle_log import LogFilter
from queue_core.cli import exits
from queue_core.cli.failure import CommandError
from queue_core.config.messages import did_you_mean
from queue_core.config.units import parse_seconds
from queue_core.process.wording import counted

UNNAMED: Final = "towline"
MAX_SECONDS: Final = 7 * 86_400.0


@dataclass(frozen=True, slots=True)
class PoolChoice:
    """A pool from a settings file, or one made from flags alone (`project` is None)."""

    name: str
    spec: PoolSpec
    project: Project | None = None

    @property
    def wanted(self) -> LogFilter:
        """The filter that selects this pool's tasks in a lifecycle log."""
        if self.project is None:
            return LogFilter()
        tags = frozenset(self.spec.tags) if self.spec.tags else None
        return LogFilter(self.spec.queue, tags, self.spec.untagged)

    @property
    def learned(self) -> PolicyState | None:
        """The policy state that a supervisor of the same project has learned for the pool."""
        if self.project is None:
            return None
        try:
            kept = state_of(self.project).read_learned().get(self.spec.name)
            return None if kept is None else PolicyState.from_json(kept)
        except ValueError:
            return None

    @property
    def start_cpu_seconds(self) -> float | None:
        """The CPU time of one start, as a supervisor of the same project measured it."""
        if self.project is None:
            return None
        try:
            kept = state_of(self.project).read_usage().get("appetites", {})
            return WorkerUsages.from_json(kept).of(self.spec.name).start_seconds
        except ValueError:
            return None


def chosen_pools(files: Sequence[Path], *, pool: str | None, slo: float | None) -> list[PoolChoice]:
    """Return the pools of every file (by default ./towline.yaml), or only those named `pool`.

    Without a settings file, return one default pool with `slo`. Raises `CommandError`.
    """
    paths = list(files) or [path for path in (Path(DEFAULT_FILE),) if path.exists()]
    if not paths:
        if slo is None:
            fix = "give --slo 30s, or a settings file with -f"
            raise CommandError("no slo is given: how long may a task wait?", code=exits.NO_INPUT, fix=fix)
        return [PoolChoice(UNNAMED, pool_of_defaults(slo))]
    chosen: list[PoolChoice] = []
    for path in paths:
        project = load_project(path)
        if pool is not None and pool not in project.pools:
            message = f"there is no pool '{pool}'{did_you_mean(pool, list(project.pools))}"
            raise CommandError(message, code=exits.NO_INPUT, where=str(path), fix="`towline check` lists them")
        for name, spec in project.pools.items():
            if pool in (None, name):
                chosen.append(PoolChoice(name if len(paths) == 1 else f"{path.stem}:{name}", spec, project))
    if not chosen:
        fix = "write one under `pools:`, or give --slo without a file"
        raise CommandError("there is no pool", code=exits.NO_INPUT, where=str(paths[0]), fix=fix)
    return chosen


def pool_of_defaults(slo: float) -> PoolSpec:
    """Return a pool with this slo and defaults for everything else."""
    return PoolSpec.model_validate({"name": UNNAMED, "queue": UNNAMED, "app": "tasks:app", "slo": slo})


def candidates_of(
    chosen: Sequence[PoolChoice],
    *,
    slos: Sequence[float],
    least: int | None,
    most: int | None,
    is_informed: bool = False,
) -> list[PoolCandidate]:
    """Return one candidate for each pool and slo; `least` and `most` replace the pool's own bounds.

    Without `slos` each pool keeps its own. With `is_informed` the candidates start from the supervisor's learned state.
    """
    candidates = []
    for one in chosen:
        bounds = {"min": one.spec.workers.min if least is None else least}
        bounds["max"] = one.spec.workers.max if most is None else most
        if bounds["min"] > bounds["max"]:
            message = f"min {bounds['min']} is above max {bounds['max']}"
            raise CommandError(message, code=exits.USAGE, fix="give a lower --min, or a higher --max")
        workers = type(one.spec.workers).model_validate(bounds)
        state = one.learned if is_informed else None
        candidates += [
            PoolCandidate(one.name, one.spec.model_copy(update={"slo": slo, "workers": workers}), state)
            for slo in (slos or [one.spec.slo])
        ]
    return candidates


def parsed_slos(text: str | None) -> list[float]:
    """Parse "10,20,60" or "10s,1m" to seconds. Raises `CommandError`."""
    return [] if text is None else _seconds_list(text, option="--slo")


def world_of(
    chosen: Sequence[PoolChoice], *, startup: str | None, cores: int | None
) -> tuple[SimulatedWorld, list[str]]:
    """Return the simulated world, and notes about its assumptions for the user.

    The start-up time is `startup` (one mean or several samples), else what a supervisor learned of the first pool, else
    2 s. Retry settings are those of the first pool's queue.
    """
    world, notes = SimulatedWorld(cores=cores or len(os.sched_getaffinity(0))), []
    first = chosen[0]
    if startup is not None:
        seconds = _seconds_list(startup, option="--startup")
        world = replace(world, startup_seconds=seconds[0], startup_samples=tuple(seconds) if len(seconds) > 1 else ())
    elif (learned := first.learned) is not None and (times := learned.estimates.starts):
        executed, forked = learned.estimates.executed, learned.estimates.forked
        world = replace(
            world,
            startup_seconds=executed.mean_seconds,
            start_cpu_seconds=first.start_cpu_seconds,
            fork_seconds=forked.mean_seconds if forked.count else None,
        )
        notes.append(f"start-up as the supervisor measured it, {counted(times, 'time')}")
    else:
        notes.append("start-up is a guess: give --startup, or let a supervisor run first")
    if first.project is not None and first.spec.source is None:
        queue = first.project.queue_file.queues[first.spec.queue]
        world = replace(
            world,
            max_leases=queue.max_leases or world.max_leases,
            retry_min_seconds=queue.retry.min,
            retry_max_seconds=queue.retry.max,
            limits=QueueLimits(queue.max_in_flight, queue.bucket(), queue.per_tag.limits()),
        )
        if queue.per_tag.fair:
            notes.append("tags take turns in the queue, which is not simulated: it changes whose tasks wait")
    return world, notes


def recorded_figures(waits: Sequence[float], *, slo: float) -> dict[str, float]:
    """Return a recorded run's figures under the names of a simulated run's. `waits` is sorted and not empty."""
    late = sum(1 for seconds in waits if seconds > slo)
    p99 = quantile(waits, 0.99)
    return {
        "slo_seconds": slo,
        "late_share": late / len(waits),
        "p99_over_slo": p99 / slo,
        "worst_over_slo": waits[-1] / slo,
        "wait_p50": quantile(waits, 0.50),
        "wait_p95": quantile(waits, 0.95),
        "wait_p99": p99,
        "wait_max": waits[-1],
    }


def _seconds_list(text: str, *, option: str) -> list[float]:
    found = []
    for part in text.split(","):
        try:
            seconds = float(part)
        except ValueError:
            try:
                seconds = parse_seconds(part.strip())
            except ValueError as error:
                raise CommandError(f"{option}: {error}", code=exits.USAGE, fix=f"as in {option} 10,20s,1m") from None
        if not 0 < seconds <= MAX_SECONDS:
            message = f"{option} must be more than 0 s and at most a week: {part.strip()}"
            raise CommandError(message, code=exits.USAGE, fix=f"as in {option} 10,20s,1m")
        found.append(seconds)
    return found

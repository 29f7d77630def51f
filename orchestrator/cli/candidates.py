"""Which pools a simulation tries, and in which world: settings files, flags, and what a supervisor has learned."""

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
from orchestrator.simulation.results import quantile
from orchestrator.simulation.study import PoolCandidate
from orchestrator.simulation.workload import SimulatedWorld
from orchestrator.simulation.workloads.lifecycle_log import LogFilter
from queue_core.cli import exits
from queue_core.cli.failure import CommandError
from queue_core.config.messages import did_you_mean
from queue_core.config.units import parse_seconds

UNNAMED: Final = "towline"
MAX_SECONDS: Final = 7 * 86_400.0


@dataclass(frozen=True, slots=True)
class Chosen:
    """A pool of a settings file, or one made up of flags (no project)."""

    name: str
    spec: PoolSpec
    project: Project | None = None

    @property
    def wanted(self) -> LogFilter:
        """Its tasks in a lifecycle log."""
        if self.project is None:
            return LogFilter()
        tags = frozenset(self.spec.tags) if self.spec.tags else None
        return LogFilter(self.spec.queue, tags, self.spec.untagged)

    @property
    def learned(self) -> PolicyState | None:
        """What a supervisor of the same project has learned of it."""
        if self.project is None:
            return None
        try:
            kept = state_of(self.project).read_learned().get(self.spec.name)
            return None if kept is None else PolicyState.from_json(kept)
        except ValueError:
            return None

    @property
    def start_cpu_seconds(self) -> float | None:
        """The CPU time of one start, as a supervisor of the same project has measured it."""
        if self.project is None:
            return None
        try:
            kept = state_of(self.project).read_usage().get("appetites", {})
            return WorkerUsages.from_json(kept).of(self.spec.name).start_seconds
        except ValueError:
            return None


def chosen_pools(files: Sequence[Path], *, pool: str | None, slo: float | None) -> list[Chosen]:
    """The pools of every file (of ./towline.yaml where there is one), or the one called `pool` in each.

    Without any file, a pool with `slo`. Raises `CommandError`.
    """
    paths = list(files) or [path for path in (Path(DEFAULT_FILE),) if path.exists()]
    if not paths:
        if slo is None:
            fix = "give --slo 30s, or a settings file with -f"
            raise CommandError("nothing says how long a task may wait", code=exits.NO_INPUT, fix=fix)
        return [Chosen(UNNAMED, made_up(slo))]
    chosen: list[Chosen] = []
    for path in paths:
        project = load_project(path)
        if pool is not None and pool not in project.pools:
            told = f"there is no pool '{pool}'{did_you_mean(pool, list(project.pools))}"
            raise CommandError(told, code=exits.NO_INPUT, where=str(path), fix="`towline check` lists them")
        for name, spec in project.pools.items():
            if pool in (None, name):
                chosen.append(Chosen(name if len(paths) == 1 else f"{path.stem}:{name}", spec, project))
    if not chosen:
        fix = "write one under `pools:`, or give --slo without a file"
        raise CommandError("there is no pool", code=exits.NO_INPUT, where=str(paths[0]), fix=fix)
    return chosen


def made_up(slo: float) -> PoolSpec:
    """A pool with nothing but an slo, and defaults."""
    return PoolSpec.model_validate({"name": UNNAMED, "queue": UNNAMED, "app": "tasks:app", "slo": slo})


def candidates_of(
    chosen: Sequence[Chosen],
    *,
    slos: Sequence[float],
    least: int | None,
    most: int | None,
    is_informed: bool = False,
) -> list[PoolCandidate]:
    """Each pool at each slo (at its own without any), within other bounds where they are given.

    `is_informed`: they begin with what a supervisor has learned.
    """
    candidates = []
    for one in chosen:
        bounds = {"min": one.spec.workers.min if least is None else least}
        bounds["max"] = one.spec.workers.max if most is None else most
        if bounds["min"] > bounds["max"]:
            told = f"min {bounds['min']} is above max {bounds['max']}"
            raise CommandError(told, code=exits.USAGE, fix="give a lower --min, or a higher --max")
        workers = type(one.spec.workers).model_validate(bounds)
        state = one.learned if is_informed else None
        candidates += [
            PoolCandidate(one.name, one.spec.model_copy(update={"slo": slo, "workers": workers}), state)
            for slo in (slos or [one.spec.slo])
        ]
    return candidates


def parsed_slos(text: str | None) -> list[float]:
    """Seconds from "10,20,60" or "10s,1m". Raises `CommandError`."""
    return [] if text is None else _seconds_list(text, option="--slo")


def world_of(chosen: Sequence[Chosen], *, startup: str | None, cores: int | None) -> tuple[SimulatedWorld, list[str]]:
    """The world the workers live in, and what people should know of it.

    A start takes what `startup` says (one mean, or several measured ones); else what a supervisor learned of the first
    pool, else 2 s. Retries are those of the first pool's queue.
    """
    world, notes = SimulatedWorld(cores=cores or len(os.sched_getaffinity(0))), []
    first = chosen[0]
    if startup is not None:
        seconds = _seconds_list(startup, option="--startup")
        world = replace(world, startup_seconds=seconds[0], startup_samples=tuple(seconds) if len(seconds) > 1 else ())
    elif (learned := first.learned) is not None and learned.estimates.startup.count:
        mean = learned.estimates.startup.mean_seconds
        world = replace(world, startup_seconds=mean, start_cpu_seconds=first.start_cpu_seconds)
        notes.append(f"start-up as the supervisor measured it, {learned.estimates.startup.count} times")
    else:
        notes.append("start-up is a guess: give --startup, or let a supervisor run first")
    if first.project is not None:
        queue = first.project.queue_file.queues[first.spec.queue]
        world = replace(
            world,
            max_leases=queue.max_leases or world.max_leases,
            retry_min_seconds=queue.retry.min,
            retry_max_seconds=queue.retry.max,
        )
    return world, notes


def real_of(waits: Sequence[float], *, slo: float) -> dict[str, float]:
    """The figures of a recorded run have the names of a simulated one's; `waits` are in order, at least one."""
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
            told = f"{option} must be more than 0 s and at most a week: {part.strip()}"
            raise CommandError(told, code=exits.USAGE, fix=f"as in {option} 10,20s,1m")
        found.append(seconds)
    return found

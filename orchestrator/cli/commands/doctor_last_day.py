"""The check of `towline doctor` that replays the last day: would one worker per task have done better?"""

import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from random import Random
from typing import Final

from orchestrator.base.clock import SystemMonotonicClock
from orchestrator.cli.arrivals import log_files
from orchestrator.cli.candidates import PoolChoice, recorded_figures, world_of
from orchestrator.cli.finding import Finding
from orchestrator.config.pools import PoolSpec
from orchestrator.settings_file import Project
from orchestrator.simulation.comparison import against_rule, shown_slos
from orchestrator.simulation.study import PoolCandidate
from orchestrator.simulation.workload import WorkloadError
from orchestrator.simulation.workloads.lifecycle_log import LogFilter, RecordedTasks, read_lifecycles
from queue_core.cli.output import shown_seconds
from queue_core.process.wording import counted

DAY_SECONDS: Final = 86_400.0
MAX_BYTES: Final = 64 << 20
"""Bytes of the log to read, from its end: about a day at one task per second."""
MAX_TASKS: Final = 100_000
"""Tasks to replay over all pools; each pool gets its newest."""
MAX_SECONDS: Final = 15.0
"""Time for replaying pools; those not started by then are left to `towline backtest`."""
MIN_TASKS: Final = 200
"""A pool with fewer tasks isn't judged: either could be better by chance."""
SEEDS: Final = (1, 2, 3)
MANY_TASKS: Final = 10_000
"""With this many tasks one run is as reliable as several."""


def findings_of_last_day(project: Project) -> Iterator[Finding]:
    """Yield one finding for each pool that can be judged, and one that says why others can't."""
    specs = {name: spec for name, spec in project.pools.items() if not spec.dry_run}
    if not specs:
        return
    chosen = {name: PoolChoice(name, spec, project) for name, spec in specs.items()}
    paths = log_files(project)
    if not paths and project.queue_file.log is not None:
        lack = (
            f"nothing is recorded in {project.queue_file.log} yet: `towline up` writes it as tasks are added and done"
        )
        yield _not_compared(specs, lack)
        return
    try:
        found = _recorded(paths, {name: one.wanted for name, one in chosen.items()})
        is_long = sum(path.stat().st_size for path in paths) > MAX_BYTES
    except (WorkloadError, OSError) as error:
        yield _not_compared(specs, f"{error}; {error.fix}" if isinstance(error, WorkloadError) else str(error))
        return
    missing: dict[str, list[str]] = {}
    clock = SystemMonotonicClock()
    begun_at = clock.monotonic()
    for name, one in chosen.items():
        recorded = found.get(name)
        lack = _lack(one, recorded, others=[other for other in specs.values() if other.name != name])
        if not lack and clock.monotonic() - begun_at > MAX_SECONDS:
            lack = f"the others took {MAX_SECONDS:.0f} s already: `towline backtest --pool POOL` compares one"
        if recorded is None or lack:
            missing.setdefault(lack, []).append(name)
        else:
            yield _compared(one, recorded, is_cut=bool(recorded.left_out) or is_long)
    for lack, names in missing.items():
        yield _not_compared(names, lack)


def _not_compared(pools: Iterable[str], lack: str) -> Finding:
    return Finding("last day", "ok", f"{', '.join(pools)}: not compared with a worker per task: {lack}")


def _recorded(paths: Sequence[Path], wanted: Mapping[str, LogFilter]) -> Mapping[str, RecordedTasks]:
    """Return each pool's recorded tasks. Raises `WorkloadError` or `OSError`."""
    if not paths:
        fix = "write `log: events.jsonl` and `lifecycle: task` in the settings file, and let some tasks be done"
        raise WorkloadError("there is no lifecycle log", where="", fix=fix)
    return read_lifecycles(
        tail(paths, max_bytes=MAX_BYTES),
        name=str(paths[-1]),
        rng=Random(1),  # noqa: S311  no secret
        wanted=wanted,
        since=SystemMonotonicClock().wall_seconds() - DAY_SECONDS,
        newest=max(MIN_TASKS, MAX_TASKS // len(wanted)),
    )


def tail(paths: Sequence[Path], *, max_bytes: int) -> Iterator[str]:
    """Yield the whole lines within the last `max_bytes` of several files, oldest first."""
    parts: list[Iterator[str]] = []
    for path in reversed(paths):
        size = path.stat().st_size
        parts.append(_lines(path, begin=max(0, size - max_bytes)))
        max_bytes -= size
        if max_bytes <= 0:
            break
    return chain.from_iterable(reversed(parts))


def _lines(path: Path, *, begin: int) -> Iterator[str]:
    with path.open("rb") as file:
        if begin:
            file.seek(begin - 1)
            file.readline()
        for line in file:
            yield line.decode(errors="replace")


def _lack(chosen: PoolChoice, recorded: RecordedTasks | None, *, others: Sequence[PoolSpec]) -> str:
    """Return why a pool can't be compared; "" when it can."""
    tasks = len(recorded.waits) if recorded else 0
    if tasks < MIN_TASKS:
        return f"the log has {counted(tasks, 'task')} of the last day, {MIN_TASKS} are needed"
    spec = chosen.spec
    if spec.schedule or spec.finish_by or spec.budget is not None or spec.min_billing:
        return "its size follows its schedule, finish_by, budget or min_billing too"
    sharers = [other.name for other in others if _share(spec, other)]
    if sharers:
        return f"{', '.join(sharers)} works on the same tasks"
    learned = chosen.learned
    if learned is None or not learned.estimates.starts:
        return "no start of its workers was measured yet"
    return ""


def _share(one: PoolSpec, other: PoolSpec) -> bool:
    if set(one.queues).isdisjoint(other.queues):
        return False
    if one.untagged or other.untagged:
        return one.untagged == other.untagged or not (one.tags or other.tags)
    return not (one.tags and other.tags) or not set(one.tags).isdisjoint(other.tags)


def _compared(chosen: PoolChoice, recorded: RecordedTasks, *, is_cut: bool) -> Finding:
    workload = recorded.workload
    world, _ = world_of([chosen], startup=None, cores=None)
    world = replace(world, begins_at=recorded.begins_at or world.begins_at)
    gc.disable()  # see `simulate.studied`
    try:
        compared = against_rule(
            workload,
            world,
            PoolCandidate(chosen.name, chosen.spec),
            seeds=SEEDS if workload.tasks <= MANY_TASKS else SEEDS[:1],
        )
    finally:
        gc.enable()
    span_seconds = SystemMonotonicClock().wall_seconds() - world.begins_at
    over = "the last day" if span_seconds > 0.95 * DAY_SECONDS else f"the last {shown_seconds(span_seconds)}"
    newest = f"{workload.tasks:,} tasks, the newest of the log" if is_cut else f"{workload.tasks:,} tasks"
    real = recorded_figures(recorded.waits, slo=chosen.spec.slo)
    message = (
        f"{chosen.name}: over {over} ({newest}) a worker per task would have {compared.sentence()}; "
        f"as it was: p99 {shown_slos(real['p99_over_slo'])} slo, {real['late_share']:.1%} late"
    )
    if not compared.is_worse:
        return Finding("last day", "ok", message)
    fix = f"`towline backtest --pool {chosen.name}` replays it with other settings"
    return Finding("last day", "warn", message, fix)

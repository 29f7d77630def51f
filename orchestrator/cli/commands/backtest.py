"""`towline backtest`: replay the arrivals of the system's own lifecycle log with the current or other settings."""

import math
from dataclasses import replace
from pathlib import Path
from random import Random

import click

from orchestrator.base.clock import SystemMonotonicClock
from orchestrator.cli.arrivals import log_files, read_files
from orchestrator.cli.candidates import PoolChoice, candidates_of, chosen_pools, parsed_slos, recorded_figures, world_of
from orchestrator.cli.commands.simulate import parsed_rules, studied, study_options
from orchestrator.cli.study_output import show
from orchestrator.settings_file import DEFAULT_FILE, Project, state_of
from orchestrator.simulation.workloads.lifecycle_log import RecordedTasks
from queue_core.cli import exits
from queue_core.cli.failure import CommandError
from queue_core.cli.group import command
from queue_core.cli.options import DURATION, file_option, json_option
from queue_core.process.wording import counted

MAX_DEATHS = 100_000


@command(
    "backtest",
    examples=(
        "towline backtest --since 24h",
        "towline backtest --since 7d --pool resize --slo 10,20,60",
        "towline backtest --since 24h --rules none --json",
    ),
)
@click.option("--since", default="24h", show_default=True, type=DURATION, help="How far back.")
@study_options
@file_option
@json_option
def backtest(
    since: float,
    pool: str | None,
    slo: str | None,
    least: int | None,
    most: int | None,
    rules: str,
    startup: str | None,
    cores: int | None,
    seed: int,
    chart: bool,  # noqa: FBT001
    svg: Path | None,
    file: Path | None,
    as_json: bool,  # noqa: FBT001
) -> int:
    """Simulate the last day's tasks with other settings: their cost, and how late they would be.

    Reads the lifecycle log that `log:` of the settings file names, and simulates each pool on its own tasks (see
    `towline simulate`). The row "as it was" shows the logged waits, and the worker-hours of the pool's workers that
    ended in that time.
    """
    slos, names = parsed_slos(slo), parsed_rules(rules)
    path = file or Path(DEFAULT_FILE)
    chosen = chosen_pools([path], pool=pool, slo=None)
    if svg is not None and len(chosen) > 1:
        raise click.UsageError("--svg draws one pool: choose it with --pool")
    begin = SystemMonotonicClock().wall_seconds() - since
    for place, one in enumerate(chosen):
        recorded = _recorded(one, Random(seed), since=begin)  # noqa: S311  no secret
        world, notes = world_of([one], startup=startup, cores=cores)
        if recorded.unfinished:
            notes.append(f"{counted(recorded.unfinished, 'task')} not finished: assumed to take as long as others did")
        world = replace(world, begins_at=recorded.begins_at or world.begins_at)
        candidates = candidates_of([one], slos=slos, least=least, most=most)
        rows = studied(recorded.workload, world, candidates, rules=names, seed=seed, is_json=as_json)
        if place and not as_json:
            click.echo()
        real = _real(one, recorded, since=begin)
        show(recorded.workload, world, rows, notes=notes, as_json=as_json, has_chart=chart, svg=svg, real=real)
    return exits.OK


def _recorded(one: PoolChoice, rng: Random, *, since: float) -> RecordedTasks:
    project = _project_of(one)
    if project.queue_file.log is None:
        fix = "write `log: events.jsonl` and `lifecycle: task` there, and let it run for a while"
        raise CommandError("the settings file names no lifecycle log", code=exits.NO_INPUT, fix=fix)
    paths = log_files(project)
    if not paths:
        raise CommandError(
            "no task is recorded yet: the lifecycle log does not exist",
            code=exits.NO_INPUT,
            where=str(project.directory / project.queue_file.log),
            fix="start `towline up` and add tasks: each change of one is recorded there",
        )
    return read_files(paths, rng=rng, service=None, slot_seconds=None, wanted=one.wanted, since=since)


def _real(one: PoolChoice, recorded: RecordedTasks, *, since: float) -> dict[str, float]:
    real = recorded_figures(recorded.waits, slo=one.spec.slo)
    deaths = state_of(_project_of(one)).read_deaths(limit=MAX_DEATHS)
    lived = [_lived_seconds(death, since=since) for death in deaths if death.get("pool") == one.spec.name]
    return real | ({"worker_seconds": math.fsum(lived)} if lived else {})


def _lived_seconds(death: dict[str, object], *, since: float) -> float:
    """Return how long a worker lived after `since`."""
    at, lived = death.get("at"), death.get("lived_seconds")
    if not isinstance(at, int | float) or not isinstance(lived, int | float):
        return 0.0
    return max(0.0, min(float(lived), at - since))


def _project_of(one: PoolChoice) -> Project:
    if one.project is None:
        raise CommandError("a backtest needs a settings file", code=exits.NO_INPUT, fix="name it with -f")
    return one.project

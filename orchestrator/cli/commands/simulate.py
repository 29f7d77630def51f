"""`towline simulate`: what arrivals would cost, and how late tasks would be, with the pools of settings files."""

import gc
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Final

import click

from orchestrator.cli.arrivals import as_command_error, read_files
from orchestrator.cli.candidates import PoolChoice, candidates_of, chosen_pools, parsed_slos, world_of
from orchestrator.cli.study_output import end_progress, progress_of, show
from orchestrator.config.model import MAX_WORKERS
from orchestrator.simulation.rules import RULES
from orchestrator.simulation.study import PoolCandidate, StudyRow, study
from orchestrator.simulation.workload import ServiceTimes, SimulatedWorld, Workload
from orchestrator.simulation.workloads.lifecycle_log import LogFilter, RecordedTasks
from orchestrator.simulation.workloads.shapes import read_shape
from queue_core.cli import exits
from queue_core.cli.failure import CommandError
from queue_core.cli.group import command
from queue_core.cli.options import ANY_ID, DURATION, FiniteRange, json_option, tag_options
from queue_core.config.messages import did_you_mean

_ALL: Final = "all"
_NONE: Final = "none"


def study_options(function: Callable[..., int]) -> Callable[..., int]:
    """Add the options for what is tried, in which world, and how it is shown."""
    for option in (
        click.option("--svg", type=click.Path(path_type=Path, dir_okay=False), help="Write a chart to this SVG file."),
        click.option("--chart", is_flag=True, help="Draw arrivals and workers over time."),
        click.option("--seed", default=1, show_default=True, type=ANY_ID, help="The same seed gives the same run."),
        click.option("--cores", type=click.IntRange(1, 4096), help="Cores of the host  [default: this one's]"),
        click.option("--startup", metavar="SECONDS", help="Mean start-up time, or several measured ones: 1.1,1.3"),
        click.option(
            "--rules",
            default=_ALL,
            show_default=True,
            metavar="NAMES",
            help=f"Scaling rules to compare with: {', '.join(RULES)}; or none.",
        ),
        click.option("--max", "most", type=click.IntRange(1, MAX_WORKERS), help="Replaces workers.max."),
        click.option("--min", "least", type=click.IntRange(0, MAX_WORKERS), help="Replaces workers.min."),
        click.option("--slo", metavar="LIST", help="Replaces the pools' own slo, such as 30s; several: 10,20,60"),
        click.option("--pool", help="Only this pool  [default: every pool of the file]"),
    ):
        function = option(function)
    return function


@command(
    "simulate",
    examples=(
        "towline simulate arrivals.csv --slo 10,20,60 --startup 2s",
        "towline simulate counts.csv --slot 60s --service 3s -f towline.yaml --pool resize --chart",
        "towline simulate events.jsonl --queue thumbs --tag resize -f now.yaml -f idea.yaml --svg fleet.svg",
        "towline simulate --shape poisson:2/s,service=3s,for=4h --slo 30s --rules one-per-task,celery",
        "towline simulate --shape sine:1/s..5/s,every=2h,for=6h --slo 20s --max 60 --json",
    ),
)
@click.argument("arrivals", nargs=-1, type=click.Path(path_type=Path))
@click.option("--shape", metavar="SHAPE", help="Generate arrivals: poisson, even, sine, steps or bursts; see above.")
@click.option("--slot", type=DURATION, help="Length of a slot, for a file of counts.")
@click.option("--service", type=DURATION, help="How long a task takes, if the file does not say.")
@click.option(
    "--spread",
    default=1.0,
    show_default=True,
    type=FiniteRange(0, 100),
    help="Standard deviation of that time over its mean.",
)
@click.option("--queue", help="Of a lifecycle log: this queue's tasks  [default: the pool's]")
@tag_options
@study_options
@click.option("-f", "--file", "files", multiple=True, type=click.Path(path_type=Path), help="Settings.")
@json_option
def simulate(
    arrivals: Sequence[Path],
    shape: str | None,
    slot: float | None,
    service: float | None,
    spread: float,
    queue: str | None,
    tags: Sequence[str],
    untagged: bool,  # noqa: FBT001
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
    files: Sequence[Path],
    as_json: bool,  # noqa: FBT001
) -> int:
    """Simulate ARRIVALS with the pools of a settings file: their cost, and how late tasks would be.

    Pools decide as under a supervisor, in virtual time: a day with a task per second takes seconds. Each pool is
    compared with the cheapest schedule in hindsight, and with scaling rules that other systems use.

    ARRIVALS is a CSV file with a header (arrival_s and service_s, a row per task; or count, a row per slot), or the
    queue's lifecycle log. SHAPE is poisson:RATE, even:RATE, sine:LOW..HIGH, steps:LOW..HIGH or bursts:TASKS, then
    service=, spread=, for=, every=, within= (bursts), base= (bursts); a RATE is 2/s, 30/m or 5/h.
    """
    slos, names = parsed_slos(slo), parsed_rules(rules)
    chosen = chosen_pools(files, pool=pool, slo=slos[0] if slos else None)
    world, notes = world_of(chosen, startup=startup, cores=cores)
    wanted = _wanted(chosen, queue=queue, tags=tags, untagged=untagged)
    recorded = _recorded(arrivals, shape, Random(seed), _services(service, spread), slot, wanted)  # noqa: S311
    workload, world = recorded.workload, replace(world, begins_at=recorded.begins_at or world.begins_at)
    candidates = candidates_of(chosen, slos=slos, least=least, most=most)
    rows = studied(workload, world, candidates, rules=names, seed=seed, is_json=as_json)
    show(workload, world, rows, notes=notes, as_json=as_json, has_chart=chart, svg=svg)
    return exits.OK


def studied(
    workload: Workload,
    world: SimulatedWorld,
    candidates: Sequence[PoolCandidate],
    *,
    rules: Sequence[str],
    seed: int,
    is_json: bool,
) -> list[StudyRow]:
    """Run a study and show its progress."""
    progress = progress_of(is_json=is_json)
    gc.disable()  # garbage collection takes a tenth of the time and finds nothing: these values have no cycles
    try:
        return study(workload, world, candidates, rules=rules, seed=seed, progress=progress)
    finally:
        gc.enable()
        end_progress(progress)


def parsed_rules(text: str) -> list[str]:
    """Parse the names of rules. Raises `CommandError`."""
    if text == _ALL:
        return list(RULES)
    names = [] if text == _NONE else [name.strip() for name in text.split(",")]
    for name in names:
        if name not in RULES:
            message = f"there is no rule '{name}'{did_you_mean(name, list(RULES))}"
            raise CommandError(message, code=exits.USAGE, fix=f"there are {', '.join(RULES)}; or all, or none")
    return names


def _recorded(
    arrivals: Sequence[Path],
    shape: str | None,
    rng: Random,
    service: ServiceTimes | None,
    slot: float | None,
    wanted: LogFilter,
) -> RecordedTasks:
    if bool(arrivals) == (shape is not None):
        raise click.UsageError("give either a file of arrivals or --shape")
    if slot is not None and slot <= 0:
        raise click.UsageError(f"--slot must be more than 0 s: {slot:g}")
    if shape is not None:
        with as_command_error():
            return RecordedTasks(read_shape(shape, rng=rng))
    return read_files(arrivals, rng=rng, service=service, slot_seconds=slot, wanted=wanted)


def _services(service: float | None, spread: float) -> ServiceTimes | None:
    if service is not None and service <= 0:
        raise click.UsageError(f"--service must be more than 0 s: {service:g}")
    return None if service is None else ServiceTimes(service, spread)


def _wanted(chosen: Sequence[PoolChoice], *, queue: str | None, tags: Sequence[str], untagged: bool) -> LogFilter:
    """Return which tasks of a lifecycle log to use: those the options name, else those of the only pool."""
    if queue is not None or tags or untagged:
        return LogFilter(queue, frozenset(tags) or None, untagged)
    filters = {one.wanted for one in chosen}
    return filters.pop() if len(filters) == 1 else LogFilter()

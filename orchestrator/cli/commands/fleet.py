"""`towline pools` and `towline workers`: the fleet of now."""

from typing import Final, TypeAlias, Unpack, cast

import click

from orchestrator.base.clock import SystemMonotonicClock
from orchestrator.base.json_fields import list_in, mappings_of, text_in
from orchestrator.cli.commands.overrides import finish_by
from orchestrator.cli.fleet_tables import DEATH_HEADS, POOL_HEADS, WORKER_HEADS, pool_row, worker_row
from orchestrator.cli.live_fleet import FleetReader, ShownFleet, fleet_source, json_times
from orchestrator.cli.project_file import load_project
from orchestrator.cli.supervisor_calls import supervisor_at, supervisor_url
from orchestrator.cli.supervisor_hosts import host_option
from orchestrator.cli.times import TypedInstant, parse_instant
from orchestrator.fleet.figures import figures_of
from orchestrator.runtimes.running_stack import StackRequests, own_lines, worker_in
from orchestrator.settings_file import state_of
from queue_core.cli import exits
from queue_core.cli.event_lines import is_library_file
from queue_core.cli.failure import CommandError
from queue_core.cli.group import command
from queue_core.cli.options import target_options
from queue_core.cli.output import echo, print_info, print_json, print_table
from queue_core.cli.target import TargetOptions
from queue_core.config.messages import did_you_mean
from queue_core.process.terminal import clean
from queue_core.process.wording import counted, shown_seconds

Json: TypeAlias = dict[str, object]

_CONCERNS: Final = {
    "late": "late",
    "at_max": "at its max",
    "held_back": "limited",
    "no_starts": "starts no worker",
    "misconfigured": "misconfigured",
}


def titled(concern: Json) -> str:
    """Return a line that says what is wrong with a pool, and why."""
    kinds = concern["kinds"]
    assert isinstance(kinds, list)
    return f"{', '.join(_CONCERNS.get(kind, str(kind)) for kind in kinds)}: {concern['why']}"


def concerns_in(snapshot: Json) -> list[Json]:
    """Return the problems of pools that the supervisor reported: `pool`, `kinds` and `why` of each."""
    pools = figures_of(snapshot, now_seconds=0.0).pools
    return [
        {"pool": pool.pool, "kinds": list(pool.concern_kinds), "why": pool.concern} for pool in pools if pool.concern
    ]


@command(
    "pools",
    examples=("towline pools", "towline pools resize --finish-by 09:00", "towline pools resize --finish-by never"),
)
@click.argument("pool", required=False)
@click.option("--finish-by", "by", metavar="TIME", help="Size POOL to finish its backlog by this time (never: cancel).")
@host_option
@target_options
def pools(pool: str | None, by: str | None, as_json: bool, **where: Unpack[TargetOptions]) -> int:  # noqa: FBT001
    """List the pools, or one: workers, tasks and waits now, the rule that set the size, and overrides in force.

    P99/SLO shows how late the leases of the last hour began: the 99th percentile of their waits over the slo; --json
    has the longest wait too. Suspected tasks, which were held at several deaths and wait to run alone, are counted.
    --finish-by takes 09:00 (the next one, local time), 2026-03-29T09:00, or 2h from now. The pool then gets the
    smallest fleet that finishes its backlog by then, and never fewer workers than its slo needs.

    --url shows the pools of a supervisor elsewhere.
    """
    if by is not None:
        if pool is None:
            raise click.UsageError("--finish-by goes with a POOL")
        return finish_by(pool, _instant(by), where=where, as_json=as_json)
    with FleetReader(fleet_source(**where)) as reader:
        shown = reader.read()
    if pool is not None and pool not in shown.pools:
        message = f"there is no pool '{pool}'{did_you_mean(pool, shown.pools)}"
        raise CommandError(message, code=exits.NO_INPUT, fix="`towline pools` lists them")
    if as_json:
        found = {name: one for name, one in shown.pools.items() if pool in (None, name)}
        state = {"alive": shown.is_alive, "phase": shown.snapshot.get("phase"), "drained": shown.is_drained}
        state["unserved"] = shown.snapshot.get("unserved", [])
        age_seconds = round(shown.figures_age_seconds, 3)
        print_json({**state, "age_seconds": age_seconds, "pools": json_times(found)})
        return exits.OK
    rows = [pool_row(one) for one in shown.figures.pools if pool in (None, one.pool)]
    print_table(POOL_HEADS, rows, empty="no pools in the settings file")
    _print_sentences(shown, pool)
    return exits.OK


@command(
    "workers",
    examples=(
        "towline workers",
        "towline workers --deaths 20",
        "towline workers --stack resize-7f3k2q",
        "towline workers --json",
        "kill -9 $(towline workers --pids)",
    ),
)
@click.option("--deaths", default=5, show_default=True, type=click.IntRange(0, 1000), help="Recent deaths to show.")
@click.option("--pids", "pids_only", is_flag=True, help="Print only the ids of their processes, one a line.")
@click.option("--stack", metavar="WORKER", help="Show where the threads of this worker are now, and nothing else.")
@host_option
@target_options
def workers(
    deaths: int,
    stack: str | None,
    pids_only: bool,  # noqa: FBT001
    as_json: bool,  # noqa: FBT001
    **where: Unpack[TargetOptions],
) -> int:
    """List the workers with what each does now, tasks done and memory; and the latest deaths with their cause.

    A worker is starting until it first requests a task, then leasing (a call of it waits for a task), busy (FOR counts
    since it leased the task), or idle; finishing once it was asked to end. The memory of a forked worker is its own
    part, without what it shares with its pool's template. Pools whose workers can't be forked safely are named below,
    with the reason. --url shows the workers of a supervisor elsewhere. --pids leaves out workers in containers.

    Workers that no supervisor started, such as those of `towline work`, are listed as unsupervised, with their host.

    --stack asks a worker that is a process of an `app:` for files, lines and functions, never for values; they tell
    where its handler waits. It also writes that into its output. Exit code 69: that can't be had.
    """
    if pids_only and (as_json or stack is not None):
        raise click.UsageError("--pids goes with neither --json, which has the `pid` of each worker, nor --stack")
    if stack is not None:
        return _print_stack(stack, where, as_json=as_json)
    with FleetReader(fleet_source(**where)) as reader:
        shown = reader.read_workers(deaths=deaths)
    if pids_only:
        if not shown.is_alive:
            message = "no supervisor is running: the ids of its workers may be those of other processes by now"
            raise CommandError(message, code=exits.UNAVAILABLE, fix="`towline workers` shows what it saw last")
        for worker in shown.figures.workers:
            if worker.pid is not None:
                echo(str(worker.pid))
        return exits.OK
    if as_json:
        templates = {pool: record.to_json() for pool, record in shown.templates.items()}
        others = shown.snapshot.get("unsupervised", [])
        found = json_times(
            {"workers": shown.workers, "unsupervised": others, "deaths": shown.deaths, "templates": templates}
        )
        age_seconds = round(shown.figures_age_seconds, 3)
        print_json({"alive": shown.is_alive, "age_seconds": age_seconds} | cast("Json", found))
        return exits.OK
    rows = [worker_row(worker) for worker in shown.figures.all_workers]
    print_table(WORKER_HEADS, rows, empty="no workers now")
    if shown.deaths:
        echo()
        ended = [(one.get("worker"), one.get("cause"), one.get("detail"), _lived(one)) for one in shown.deaths]
        print_table(DEATH_HEADS, ended, empty="")
    for pool, record in sorted(shown.templates.items()):
        if record.reason:
            print_info(f"{pool}: {record.sentence}")
    _print_sentences(shown)
    return exits.OK


def _print_stack(worker: str, where: TargetOptions, *, as_json: bool) -> int:
    """Print where a worker's threads are."""
    if where["store"] is not None:
        raise click.UsageError("--store does not go with --stack: the supervisor is named by --url, or by -f")
    url = supervisor_url(where["url"], where["file"])
    if url is None:
        files = state_of(load_project(where["file"]))
        snapshot = files.read_snapshot() or {}
        known = worker_in(snapshot, worker)
        if known is None:
            names = [text_in(one, "worker") for one in mappings_of(snapshot.get("workers"))]
            message = f"there is no worker '{worker}'{did_you_mean(worker, names)}"
            raise CommandError(message, code=exits.NO_INPUT, where=str(files.path), fix="`towline workers` lists them")
        found = StackRequests(files, SystemMonotonicClock()).stack_of(*known)
        lines, why = [clean(line) for line in found.lines], found.why
        own = own_lines(lines, is_library_file)
    else:
        with supervisor_at(url, where["token_file"]) as supervisor:
            told = supervisor.get("workers", worker, "stack")
        lines, own = ([str(line) for line in list_in(told, name)] for name in ("lines", "own"))
        why = text_in(told, "why")
    if as_json:
        print_json({"worker": worker, "lines": lines, "own": own, "why": why})
    elif lines:
        for line in own or lines:
            click.echo(line)
        if own and len(own) < len(lines):
            print_info(f"{counted(len(lines) - len(own), 'line')} of libraries left out: --json has them")
    if why and not as_json:
        raise CommandError(f"no stack of {worker}: {why}", code=exits.UNAVAILABLE)
    return exits.UNAVAILABLE if why else exits.OK


def _instant(text: str) -> TypedInstant | None:
    if text == "never":
        return None
    now = SystemMonotonicClock().wall_seconds()
    try:
        instant = parse_instant(text, now=now, side="next")
    except ValueError as error:
        raise click.UsageError(f"--finish-by {error}") from None
    if instant.at <= now:
        raise click.UsageError(f"--finish-by {text}: that is in the past")
    return instant


def _print_sentences(shown: ShownFleet, pool: str | None = None) -> None:
    for sentence in shown.sentences(pool):
        print_info(f"! {sentence}")
    for sentence in shown.not_in_force:
        print_info(f"! {sentence}")
    if shown.age:
        print_info(shown.age)


def _lived(death: Json) -> str:
    seconds = death.get("lived_seconds")
    return shown_seconds(float(seconds)) if isinstance(seconds, int | float) else ""

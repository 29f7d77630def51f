"""`towline why POOL`: the decisions behind a pool's size, newest first."""

from pathlib import Path
from typing import Final

import click

from orchestrator.cli.fleet import Json, shown_fleet
from orchestrator.cli.project_file import load_project, state_of
from orchestrator.clock import SystemClock
from queue_core.cli import exits
from queue_core.cli.failure import CommandError
from queue_core.cli.group import command
from queue_core.cli.options import file_option, json_option
from queue_core.cli.output import print_json, say, shown_seconds
from queue_core.mistakes import did_you_mean

MAX_READ: Final = 10_000
_INPUTS: Final = (
    ("ready", ""),
    ("delayed", ""),
    ("in_flight", ""),
    ("dead", ""),
    ("busy", ""),
    ("idle", ""),
    ("starting", ""),
    ("draining", ""),
    ("service_seconds", "s"),
    ("startup_seconds", "s"),
    ("fast_rate", "/s"),
    ("slow_rate", "/s"),
    ("slack", ""),
    ("slo_seconds", "s"),
    ("usable_slo_seconds", "s"),
)


@command("why", examples=("towline why resize", "towline why resize --last 20", "towline why resize --json"))
@click.argument("pool")
@click.option("--last", default=5, show_default=True, type=click.IntRange(1, 1000), help="Decisions to show.")
@file_option
@json_option
def why(pool: str, last: int, file: Path | None, as_json: bool) -> int:  # noqa: FBT001
    """Why POOL has the size it has: the last decisions, with every number they were made from."""
    project = load_project(file)
    files = state_of(project)
    shown = shown_fleet(files)
    if pool not in shown.pools and pool not in project.pools:
        told = f"there is no pool '{pool}'{did_you_mean(pool, [*shown.pools, *project.pools])}"
        raise CommandError(told, code=exits.NO_INPUT, fix="`towline pools` lists them")
    found = [one for one in files.read_decisions(limit=MAX_READ) if one.get("pool") == pool][:last]
    current = shown.pools.get(pool, {}).get("decision")
    if as_json:
        print_json({"pool": pool, "now": current, "decisions": found})
        return exits.OK
    if isinstance(current, dict):
        _print_now(pool, current)
    now = SystemClock().wall_seconds()
    if found:
        click.echo(f"\nlast {len(found)} decisions, newest first")
    for one in found:
        at = one.get("at")
        ago = shown_seconds(now - at) + " ago" if isinstance(at, int | float) else ""
        click.echo(f"  {ago:<12} {one.get('current')} -> {one.get('target')}  {one.get('rule')}: {one.get('why')}")
    if not found and current is None:
        say("no decision yet")
    return exits.OK


def _print_now(pool: str, decision: Json) -> None:
    click.echo(
        f"{pool}: {decision.get('current')} -> {decision.get('target')} workers, by rule `{decision.get('rule')}`"
    )
    click.echo(f"  {decision.get('why')}")
    limits = decision.get("limits")
    for limit in limits if isinstance(limits, list) else ():
        click.echo(f"  limited: {limit}")
    if decision.get("limits"):
        click.echo(f"  without guards it would be {decision.get('would_be_without_guards')}")
    known = ((name, decision[name], unit) for name, unit in _INPUTS if name in decision)
    told = (f"{name.removesuffix('_seconds').replace('_', ' ')} {value:g}{unit}" for name, value, unit in known)
    click.echo("  from: " + ", ".join(told))

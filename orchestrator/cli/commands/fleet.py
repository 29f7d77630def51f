"""`towline pools` and `towline workers`: the fleet as its supervisor last published it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias, cast

import click

from orchestrator.cli.commands.drain import drained_note, is_drained
from orchestrator.cli.commands.overrides import finish_by
from orchestrator.cli.project_file import load_project
from orchestrator.cli.times import TypedInstant, parse_instant
from orchestrator.clock import SystemMonotonicClock
from orchestrator.settings_file import state_of
from orchestrator.state.directory import StateDir
from queue_core.cli import exits
from queue_core.cli.failure import CommandError
from queue_core.cli.group import command
from queue_core.cli.options import file_option, json_option
from queue_core.cli.output import columns, echo, print_info, print_json, print_table, shown_seconds
from queue_core.config.messages import did_you_mean
from queue_core.config.units import format_bytes, format_seconds

Json: TypeAlias = dict[str, object]

STALE_SECONDS: Final = 15.0
_MIB: Final = 1 << 20
_CONCERNS: Final = {"late": "late", "at_max": "at its max", "no_starts": "starts no worker"}


@dataclass(frozen=True, slots=True)
class ShownFleet:
    """The supervisor's last snapshot, and whether the supervisor is alive."""

    snapshot: Json
    is_alive: bool
    age_seconds: float

    @property
    def pools(self) -> dict[str, Json]:
        """The pools by name."""
        return cast("dict[str, Json]", self.snapshot.get("pools", {}))

    @property
    def workers(self) -> list[Json]:
        """The workers, oldest first."""
        return cast("list[Json]", self.snapshot.get("workers", []))


def shown_fleet(files: StateDir) -> ShownFleet:
    """Return the fleet of a state directory. Raises `CommandError` when no supervisor ever ran there."""
    snapshot = files.read_snapshot()
    if snapshot is None:
        raise CommandError(
            "no supervisor has run here",
            code=exits.UNAVAILABLE,
            where=str(files.path),
            fix="start it with `towline up`, or name another settings file with -f",
        )
    shown_at = snapshot.get("shown_at")
    age = SystemMonotonicClock().wall_seconds() - shown_at if isinstance(shown_at, int | float) else 0.0
    return ShownFleet(snapshot, files.is_supervised(), max(0.0, age))


def titled(concern: Json) -> str:
    """Return a line that says what is wrong with a pool, and why."""
    kinds = concern["kinds"]
    assert isinstance(kinds, list)
    return f"{', '.join(_CONCERNS.get(kind, str(kind)) for kind in kinds)}: {concern['why']}"


def concerns_in(snapshot: Json) -> list[Json]:
    """Return the problems of pools that the supervisor reported: `pool`, `kinds` and `why` of each."""
    pools = snapshot.get("pools")
    found = []
    for name, pool in (pools if isinstance(pools, dict) else {}).items():
        match pool.get("concern"):
            case {"kinds": list(kinds), "why": str(why)}:
                found.append({"pool": name, "kinds": kinds, "why": why})
    return found


@command(
    "pools",
    examples=("towline pools", "towline pools resize --finish-by 09:00", "towline pools resize --finish-by never"),
)
@click.argument("pool", required=False)
@click.option("--finish-by", "by", metavar="TIME", help="Size POOL to finish its backlog by this time (never: cancel).")
@file_option
@json_option
def pools(pool: str | None, by: str | None, file: Path | None, as_json: bool) -> int:  # noqa: FBT001
    """List the pools, or one: workers, backlog, the rule that set their size, and overrides in force.

    P99/SLO shows how late the leases of the last hour began: the 99th percentile of their waits over the slo; --json
    has the longest wait too. Suspected tasks, which were held at several deaths and wait to run alone, are counted.
    --finish-by takes 09:00 (the next one, local time), 2026-03-29T09:00, or 2h from now. The pool then gets the
    smallest fleet that finishes its backlog by then, and never fewer workers than its slo needs.
    """
    if by is not None:
        if pool is None:
            raise click.UsageError("--finish-by goes with a POOL")
        return finish_by(pool, _instant(by), file=file, as_json=as_json)
    files = state_of(load_project(file))
    shown = shown_fleet(files)
    if pool is not None and pool not in shown.pools:
        message = f"there is no pool '{pool}'{did_you_mean(pool, shown.pools)}"
        raise CommandError(message, code=exits.NO_INPUT, fix="`towline pools` lists them")
    found = {name: one for name, one in shown.pools.items() if pool in (None, name)}
    if as_json:
        state = {"alive": shown.is_alive, "phase": shown.snapshot.get("phase"), "drained": is_drained(files)}
        print_json({**state, "pools": found})
        return exits.OK
    rows = [pool_row(name, one, shown.workers) for name, one in found.items()]
    heads = columns(
        *(
            "POOL",
            ">WORKERS",
            ">TARGET",
            ">BUSY",
            ">READY",
            ">IN-FLIGHT",
            ">OLDEST",
            ">SLO",
            ">P99/SLO",
            "RULE",
            "LIMITED BY",
        ),
        "IN FORCE",
    )
    print_table(heads, rows, empty="no pools in the settings file")
    if note := drained_note(files):
        print_info(note)
    _warn(shown)
    return exits.OK


@command("workers", examples=("towline workers", "towline workers --deaths 20", "towline workers --json"))
@click.option("--deaths", default=5, show_default=True, type=click.IntRange(0, 1000), help="Recent deaths to show.")
@file_option
@json_option
def workers(deaths: int, file: Path | None, as_json: bool) -> int:  # noqa: FBT001
    """List the workers with state, leases and memory; and the latest deaths with their cause.

    The memory of a forked worker is its own part, without what it shares with its pool's template. Pools whose workers
    can't be forked safely are named below, with the reason.
    """
    files = state_of(load_project(file))
    shown = shown_fleet(files)
    ended = files.read_deaths(limit=deaths)
    templates = files.read_templates()
    if as_json:
        told = {pool: record.to_json() for pool, record in templates.items()}
        print_json({"alive": shown.is_alive, "workers": shown.workers, "deaths": ended, "templates": told})
        return exits.OK
    now = SystemMonotonicClock().wall_seconds()
    rows = [worker_row(worker, now) for worker in shown.workers]
    heads = columns("WORKER", "POOL", ">PID", "STATE", ">FOR", ">HOLDS", ">DONE", ">MEMORY", ">AGE", "")
    print_table(heads, rows, empty="no workers now")
    if ended:
        echo()
        ended_rows = [(d.get("worker"), d.get("cause"), d.get("detail"), _lived(d)) for d in ended]
        print_table(columns("ENDED", "CAUSE", "WHY", ">LIVED"), ended_rows, empty="")
    for pool, record in sorted(templates.items()):
        if record.reason:
            print_info(f"{pool}: {record.sentence}")
    _warn(shown)
    return exits.OK


def pool_row(name: str, pool: Json, workers: list[Json]) -> tuple[object, ...]:
    """Return a pool as a table row."""
    sample, decision = _part(pool, "sample"), _part(pool, "decision")
    settings, waited = _part(pool, "settings"), _part(pool, "waited")
    busy = sum(1 for worker in workers if worker.get("pool") == name and worker.get("state") == "busy")
    limits = decision.get("limited_by")
    return (
        name,
        pool.get("current"),
        pool.get("target"),
        busy,
        sample.get("ready"),
        sample.get("in_flight"),
        shown_seconds(_number(sample, "oldest_seconds")) if sample.get("ready") else "",
        format_seconds(_number(settings, "slo_seconds")),
        f"{_number(waited, 'p99_over_slo'):.2f}" if waited.get("leases") else "",
        decision.get("rule", ""),
        ", ".join(map(str, limits)) if isinstance(limits, list) else "",
        "; ".join(_notes(pool, decision)),
    )


def worker_row(worker: Json, now: float) -> tuple[object, ...]:
    """Return a worker as a table row."""
    memory = int(_number(worker, "memory_bytes"))
    notes = [word for word in ("forked", "adopted") if worker.get(word)]
    if worker.get("state") == "unresponsive":
        notes.append(str(worker.get("condition") or "neither holds nor requests a lease"))
    if worker.get("replaced_by"):
        notes.append(f"replaced by {worker['replaced_by']}")
    return (
        worker.get("worker"),
        worker.get("pool"),
        str(worker.get("pid") or ""),
        worker.get("state"),
        shown_seconds(max(0.0, now - _number(worker, "since"))),
        worker.get("holding"),
        worker.get("finished"),
        format_bytes(round(memory / _MIB) * _MIB) if memory else "",
        shown_seconds(max(0.0, now - _number(worker, "spawned_at"))),
        ", ".join(notes),
    )


def _notes(pool: Json, decision: Json) -> list[str]:
    """Return the overrides in force, and how many suspected tasks wait."""
    known = decision.get("notes")
    notes = list(map(str, known)) if isinstance(known, list) else []
    if suspects := int(_number(pool, "suspects")):
        notes.append("1 suspect waits" if suspects == 1 else f"{suspects} suspects wait")
    return notes


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


def _warn(shown: ShownFleet) -> None:
    if not shown.is_alive:
        print_info(f"no supervisor is alive: this was {shown_seconds(shown.age_seconds)} ago")
    elif shown.age_seconds > STALE_SECONDS:
        print_info(f"the supervisor has published nothing for {shown_seconds(shown.age_seconds)}: is it stuck?")


def _part(pool: Json, name: str) -> Json:
    part = pool.get(name)
    return part if isinstance(part, dict) else {}


def _number(values: Json, name: str) -> float:
    value = values.get(name)
    return float(value) if isinstance(value, int | float) else 0.0


def _lived(death: Json) -> str:
    return shown_seconds(_number(death, "lived_seconds"))

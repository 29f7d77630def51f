"""`towline schedules`: the schedules of a store, their next and last ticks; run, pause and resume one."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Unpack

import click

from queue_core.cli import exits
from queue_core.cli.group import INSPECT, Command, CommandEntry, CommandWithSubcommands, command
from queue_core.cli.options import target_options
from queue_core.cli.output import columns, print_info, print_json, print_table
from queue_core.cli.target import Target, TargetOptions, opened
from queue_core.cli.verb_commands import command_of
from queue_core.clock import MICROSECONDS, Instant, SystemClock, seconds_between
from queue_core.process.wording import iso_instant, shown_ahead, shown_clock, shown_setting
from queue_core.unit.schedule_verbs import PauseSchedule, ResumeSchedule, RunSchedule
from queue_core.unit.verb import Verb
from queue_core.verbs.wire import flat_json

if TYPE_CHECKING:
    from queue_core.client.schedules import ScheduleStatus

_MODULE: Final = "queue_core.cli.commands.schedules"
_INSTANTS: Final = ("next_tick", "last_tick", "last_missed", "last_skipped", "paused_at", "tick")


@command(
    "schedules",
    examples=(
        "towline schedules",
        "towline schedules --json",
        "towline schedules run nightly",
        "towline schedules pause nightly",
    ),
    cls=CommandWithSubcommands,
    entries={
        "run": CommandEntry(_MODULE, INSPECT, "add a task of a schedule now", "run_now"),
        "pause": CommandEntry(_MODULE, INSPECT, "add no more ticks of a schedule"),
        "resume": CommandEntry(_MODULE, INSPECT, "add its ticks again, from now on"),
    },
)
@target_options
@click.pass_context
def schedules(ctx: click.Context, as_json: bool, **where: Unpack[TargetOptions]) -> int:  # noqa: FBT001
    """List the schedules: when their next tick is, and when the last task was added.

    Schedules are under `schedules:` in the settings file, or above functions (@app.periodic). The leading supervisor
    adds their tasks, each once. NEXT and LAST are by the local clock; WHEN is by the schedule's own time zone. MISSED
    counts ticks that were given up by the schedule's catch_up; SKIPPED those that overlap: skip left out.
    """
    if ctx.invoked_subcommand is not None:
        return exits.OK
    with opened(**where) as (queues, target):
        found = queues.schedules.list()
    unread = _unread(target, found)
    if as_json:
        print_json({"schedules": [_json(one) for one in found], "not_declared": unread})
        return exits.OK
    now = SystemClock().now()
    rows = [
        (
            one.name,
            _tick_text(one),
            one.queue,
            _next(one, now),
            _clock(one.last_tick, now),
            one.missed or None,
            one.skipped or None,
            "paused" if one.paused_at is not None else "",
        )
        for one in found
    ]
    heads = columns(
        *("SCHEDULE", "WHEN", "QUEUE", "NEXT", "LAST", ">MISSED", ">SKIPPED", "STATE"),
        least=("MISSED", "SKIPPED", "QUEUE", "LAST"),
        keeps=("NEXT", "STATE"),
        folds=("WHEN", "NEXT"),
    )
    empty = "no schedules: set some under `schedules:` in towline.yaml, or above a function with @app.periodic"
    print_table(heads, rows, empty=empty if not unread else "no schedules yet")
    for one in found:
        if one.trouble:
            print_info(f"! {one.name}: {one.trouble}")
    if unread:
        names = ", ".join(unread)
        print_info(f"! {names}: in {target.file}, but no supervisor has read it: `towline up`, or `towline reload`")
    return exits.OK


def _one(kind: type[Verb[Any]], name: str) -> Command:
    example = f"towline schedules {name} nightly"
    return command_of(kind, name, examples=(example,), record=lambda _, result: _json(result))


run_now = _one(RunSchedule, "run")
pause = _one(PauseSchedule, "pause")
resume = _one(ResumeSchedule, "resume")


def _unread(target: Target, found: Sequence["ScheduleStatus"]) -> list[str]:
    """Return the schedules of the settings file that no supervisor has declared."""
    if target.file is None:
        return []
    from queue_core.cli.settings_file import load_queue_file

    settings, _ = load_queue_file(target.file)
    known = {one.name for one in found}
    return [name for name in settings.schedules if name not in known]


def _json(value: object) -> dict[str, object]:
    """Return a value of plain fields as JSON, its instants as ISO 8601."""
    return {
        name: iso_instant(text / MICROSECONDS) if name in _INSTANTS and isinstance(text, int) else text
        for name, text in flat_json(value).items()
    }


def _tick_text(one: "ScheduleStatus") -> str:
    if one.cron is None:
        return f"every {shown_setting(one.every_seconds or 0.0)}"
    return one.cron if one.timezone == "UTC" else f"{one.cron} {one.timezone}"


def _next(one: "ScheduleStatus", now: Instant) -> str:
    if one.next_tick is None:
        return "" if one.paused_at is not None else "never"
    if one.next_tick <= now:
        return "now"
    return f"{shown_ahead(seconds_between(now, one.next_tick))}, {_clock(one.next_tick, now)}"


def _clock(at: Instant | None, now: Instant) -> str:
    return "" if at is None else shown_clock(at / MICROSECONDS, now_seconds=now / MICROSECONDS)

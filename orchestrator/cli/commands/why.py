"""`towline why POOL | TASK`: explain a decision, or what happened to a task."""

from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Unpack

import click

from orchestrator.cli.commands.drain import drained_note, is_drained
from orchestrator.cli.commands.fleet import Json
from orchestrator.cli.live_fleet import shown_fleet
from orchestrator.cli.project_file import load_project
from orchestrator.cli.silent_ends import silent_ends
from orchestrator.cli.times import parse_instant
from orchestrator.clock import SystemMonotonicClock
from orchestrator.config.pools import PoolSpec
from orchestrator.scaling.replay import replayed
from orchestrator.settings_file import DEFAULT_FILE, state_of
from orchestrator.state.directory import StateDir
from orchestrator.state.templates import TemplateRecord
from queue_core.cli import exits
from queue_core.cli.failure import CommandError
from queue_core.cli.group import command
from queue_core.cli.options import target_options
from queue_core.cli.output import echo, print_info, print_json, shown_seconds
from queue_core.cli.target import TargetOptions, opened
from queue_core.cli.task_story import find_stories, story_lines, story_record
from queue_core.clock import SystemClock as QueueClock
from queue_core.config.messages import did_you_mean
from queue_core.config.units import format_bytes

MAX_READ: Final = 50_000
MAX_REPLAYS: Final = 10_000
_SEEN: Final = (
    ("tasks", (("ready", "ready"), ("in_flight", "in flight"), ("delayed", "delayed"), ("dead", "dead"))),
    ("workers", (("busy", "busy"), ("idle", "idle"), ("starting", "starting"), ("draining", "draining"))),
)


@command(
    "why",
    examples=(
        "towline why resize",
        "towline why resize --at 14:05",
        "towline why resize --last 20",
        "towline why resize --at 2h --full --json",
        "towline why _17",
        "towline why thumbs/cat-1 --task",
    ),
)
@click.argument("subject", metavar="POOL|TASK")
@click.option("--task", "is_task", is_flag=True, help="It is a task's name, even if a pool has the same name.")
@click.option(
    "--at", "then", metavar="TIME", help="Show the decision in force at 14:05, 2026-03-29T14:05, or 2h (ago)."
)
@click.option("--last", default=5, show_default=True, type=click.IntRange(1, 1000), help="Decisions to show.")
@click.option("--full", is_flag=True, help="Show every recorded input, and repeat the decision from them.")
@target_options
def why(
    subject: str,
    is_task: bool,  # noqa: FBT001
    then: str | None,
    last: int,
    full: bool,  # noqa: FBT001
    as_json: bool,  # noqa: FBT001
    **where: Unpack[TargetOptions],
) -> int:
    """Explain the size of a POOL, or what happened to a TASK.

    Of a pool: what was sampled, which rule decided, which task forced it, and which guards held it back; and whether
    its workers are forked, or why not. A decision is recorded when it changed the pool, or was held back in a new way;
    it holds until the next one.

    Of a task, by its name or as QUEUE/NAME: its state, each of its leases that ended, by which worker, how and why, and
    its reason if it is dead. A finished task is found as long as its queue's `history` goes back.
    """
    is_known = not is_task and _explain_pool(subject, then=then, last=last, full=full, as_json=as_json, where=where)
    if not is_known:
        _explain_task(subject, as_json=as_json, where=where)
    return exits.OK


def _explain_task(name: str, *, as_json: bool, where: TargetOptions) -> None:
    now = QueueClock().now()
    with opened(**where) as (queues, target):
        stories = find_stories(queues, name)
    if not stories:
        pools = _known_pools(where)
        raise CommandError(
            f"there is no pool and no task '{name}'{did_you_mean(name, pools)}",
            code=exits.NO_INPUT,
            where=target.shown,
            fix="`towline pools` lists the pools, `towline peek QUEUE` tasks; finished tasks are known for as long as "
            "the queue's `history` says",
        )
    if as_json:
        for story in stories:
            print_json(story_record(story))
        return
    for number, story in enumerate(stories):
        if number:
            echo()
        for line in story_lines(story, now=now, ends=silent_ends(story, where["file"])):
            echo(line)


def _known_pools(where: TargetOptions) -> list[str]:
    """Return the pools of the settings file and those of the last supervisor; none without a settings file."""
    path = where["file"] or Path(DEFAULT_FILE)
    if not path.is_file():
        return []
    project = load_project(path)
    known = list(project.pools)
    with suppress(CommandError):  # no supervisor has run here
        known += shown_fleet(state_of(project)).pools
    return known


def _explain_pool(pool: str, *, then: str | None, last: int, full: bool, as_json: bool, where: TargetOptions) -> bool:
    """Explain a pool's size; False when there is no such pool."""
    if where["url"] or where["store"] or pool not in _known_pools(where):
        return False
    project = load_project(where["file"])
    files = state_of(project)
    shown = shown_fleet(files)
    now = SystemMonotonicClock().wall_seconds()
    at = now if then is None else _instant(then, now=now)
    kept = [one for one in files.read_decisions(limit=MAX_READ) if one.get("pool") == pool and _at(one) <= at]
    current = shown.pools.get(pool, {}).get("decision") if then is None else next(iter(kept), None)
    found = kept[:last]
    chosen = current if then is not None and isinstance(current, dict) else next(iter(found), None)
    inputs = _inputs(files, pool, chosen) if full and chosen is not None else None
    template = files.read_templates().get(pool) if then is None else None
    if as_json:
        told = {"pool": pool, "drained": is_drained(files), "now": current, "decisions": found}
        told["template"] = template.to_json() if template is not None else None
        print_json(told | ({"inputs": inputs} if full else {}))
        return True
    if then is None and (note := drained_note(files)):
        echo(note)
    if isinstance(current, dict):
        if then is not None:
            echo(f"{_clock(_at(current))}, {shown_seconds(now - _at(current))} ago")
        _print(pool, current)
    if then is None and (start := _how_workers_start(project.pools.get(pool), template, now=now)):
        echo(f"  start: {start}")
    if full:
        _print_again(inputs, chosen)
    if found:
        echo()
        echo(f"last {len(found)} decisions, newest first")
    for one in found:
        ago = shown_seconds(now - _at(one)) + " ago"
        limits = one.get("limited_by")
        held = f" [{', '.join(map(str, limits))}]" if isinstance(limits, list) and limits else ""
        echo(f"  {ago:<12} {one.get('current')} -> {one.get('target')}  {one.get('rule')}: {one.get('why')}{held}")
    if not found and current is None:
        print_info("no decision yet" if then is None else f"no decision is on record before {_clock(at)}")
    return True


def _print(pool: str, decision: Json) -> None:
    echo(f"{pool}: {decision.get('current')} -> {decision.get('target')} workers, by rule `{decision.get('rule')}`")
    echo(f"  {decision.get('why')}")
    guards, limits = _list(decision, "limited_by"), _list(decision, "limits")
    for guard, limit in zip(guards, limits, strict=False):
        echo(f"  held back by {guard}: {limit}")
    if limits:
        echo(f"  without guards it would be {decision.get('would_be_without_guards')}")
    for note in _list(decision, "notes"):
        echo(f"  in force: {note}")
    for title, names in _SEEN:
        seen = ", ".join(f"{decision[name]} {word}" for name, word in names if name in decision)
        if seen:
            echo(f"  seen: {seen} {title}")
    learned = _learned(decision)
    if learned:
        echo(f"  learned: {learned}")


def _how_workers_start(spec: PoolSpec | None, template: TemplateRecord | None, *, now: float) -> str:
    """Return whether the pool's workers are forked, and why not; "" where that can't be, or is not known."""
    if spec is not None and spec.start == "exec" and spec.app is not None and spec.runtime_kind == "process":
        return "workers are not forked: start is exec"
    if template is None:
        return ""
    forks = f"; {template.forks} forked in {shown_seconds(max(0.0, now - template.since))}" if template.forks else ""
    memory = f", {format_bytes(template.memory_bytes)} that they share" if forks and template.memory_bytes else ""
    return f"{template.sentence}{forks}{memory}"


def _learned(decision: Json) -> str:
    """Return the learned figures behind a decision, as a sentence."""
    sentences = (
        ("service_seconds", "a task takes {:.3g} s"),
        ("startup_seconds", "a start {:.3g} s"),
        ("arrival_rate", "{:.3g} arrive a second"),
        ("usable_slo_seconds", "{:.3g} s"),
        ("slo_seconds", "of the slo of {:g} s can be planned with"),
        ("slack", "(slack {:.2f})"),
    )
    parts = [text.format(value) for name, text in sentences if isinstance(value := decision.get(name), int | float)]
    held = decision.get("held")
    if isinstance(held, dict):
        parts += [f"{level} is kept for {seconds:g} s when spare" for level, seconds in held.items()]
    return ", ".join(parts).replace(" s, of the slo", " s of the slo").replace(", (slack", " (slack")


def _inputs(files: StateDir, pool: str, decision: Json) -> object:
    """Return all inputs of the decision, if they are still recorded."""
    for one in files.read_replays(limit=MAX_REPLAYS):
        if one.get("pool") == pool and abs(_at(one) - _at(decision)) < 0.01:
            return one.get("inputs")
    return None


def _print_again(inputs: object, decision: Json | None) -> None:
    if inputs is None or decision is None:
        print_info("its inputs are no longer recorded")
        return
    try:
        again = replayed(inputs)
    except ValueError as error:
        print_info(f"its inputs can't be read; another version may have written them: {error}")
        return
    same = "the same" if again.target == decision.get("target") else f"not {decision.get('target')}"
    ago = shown_seconds(SystemMonotonicClock().wall_seconds() - _at(decision))
    outcome = f"{again.target} workers, {same} (--json shows them)"
    echo(f"  the decision of {ago} ago, repeated from its {_count(inputs)} inputs: {outcome}")


def _count(value: object) -> int:
    if isinstance(value, dict):
        return sum(map(_count, value.values()))
    return sum(map(_count, value)) if isinstance(value, list) else 1


def _instant(text: str, *, now: float) -> float:
    try:
        return parse_instant(text, now=now, side="last").at
    except ValueError as error:
        raise click.UsageError(f"--at {error}") from None


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _at(record: Json) -> float:
    at = record.get("at")
    return float(at) if isinstance(at, int | float) else 0.0


def _list(decision: Json, name: str) -> list[object]:
    value = decision.get(name)
    return value if isinstance(value, list) else []

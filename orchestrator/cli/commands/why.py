"""`towline why POOL | QUEUE | TASK`: explain a decision, a queue, or what happened to a task."""

from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Unpack

import click

from orchestrator.base.clock import SystemMonotonicClock
from orchestrator.base.json_fields import list_in, mapping_of, mappings_of
from orchestrator.cli.commands.fleet import Json
from orchestrator.cli.expiry_causes import expiry_causes
from orchestrator.cli.live_fleet import FleetReader, fleet_source, shown_fleet
from orchestrator.cli.project_file import load_project
from orchestrator.cli.store_leader import leader_of
from orchestrator.cli.supervisor_calls import NoSupervisorError, UnknownNameError, supervisor_at
from orchestrator.cli.supervisor_hosts import host_option
from orchestrator.cli.times import parse_instant
from orchestrator.config.pools import PoolSpec
from orchestrator.fleet.figures import describe_pause
from orchestrator.scaling.estimates import PRIOR_SERVICE_SECONDS
from orchestrator.scaling.replay import replayed
from orchestrator.settings_file import DEFAULT_FILE, state_of
from orchestrator.sources.pull_queue import as_reported, tags_of, unserved_in
from orchestrator.state.decisions import instant_in, pool_record
from orchestrator.state.templates import TemplateRecord, template_in
from queue_core.cli import exits
from queue_core.cli.failure import CommandError
from queue_core.cli.group import command
from queue_core.cli.options import target_options
from queue_core.cli.output import echo, print_info, print_json, print_wrapped
from queue_core.cli.target import Target, TargetOptions, find_target, opened, queue_meant
from queue_core.cli.task_story import WAITING, TaskStory, find_stories, story_lines, story_record
from queue_core.cli.unserved_tags import describe_if_unserved
from queue_core.client.http.folded_decisions import folded, times_in_words
from queue_core.client.queue import Queue, Queues
from queue_core.clock import SystemClock as QueueClock
from queue_core.config.celery_names import shown_queue
from queue_core.config.messages import did_you_mean
from queue_core.config.pool_tags import PoolTags, shown_tag
from queue_core.errors import InvalidQueueNameError, QueueError, UnknownQueueError
from queue_core.process.terminal import clean
from queue_core.process.wording import (
    counted,
    describe_held,
    shown_ago,
    shown_bytes,
    shown_clock,
    shown_rate,
    shown_seconds,
    shown_setting,
)
from queue_core.stats import QueueStats
from queue_core.task import UNTAGGED
from queue_core.unit.unit_of_work import blocking_limits
from queue_core.verbs import served_tags

_TAGS_COUNTED: Final = 1_000
_WORKERS_NAMED: Final = 5
_COUNTS: Final = (
    ("ready", "ready"),
    ("held", "held"),
    ("in_flight", "in flight"),
    ("delayed", "delayed"),
    ("dead", "dead"),
)
_SEEN: Final = (
    (
        "tasks",
        (
            ("ready", "ready"),
            ("held_back", "held"),
            ("in_flight", "in flight"),
            ("delayed", "delayed"),
            ("dead", "dead"),
        ),
    ),
    ("workers", (("busy", "busy"), ("idle", "idle"), ("starting", "starting"), ("draining", "draining"))),
)


@command(
    "why",
    examples=(
        "towline why resize",
        "towline why resize --at 14:05",
        "towline why resize --last 20",
        "towline why resize --at 2h --full --json",
        "towline why thumbs",
        "towline why _17",
        "towline why thumbs/cat-1 --task",
    ),
)
@click.argument("subject", metavar="POOL|QUEUE|TASK")
@click.option("--task", "is_task", is_flag=True, help="It is a task's name, even if a pool or a queue has it too.")
@click.option(
    "--at", "then", metavar="TIME", help="Show the decision in force at 14:05, 2026-03-29T14:05, or 2h (ago)."
)
@click.option("--last", default=5, show_default=True, type=click.IntRange(1, 1000), help="Decisions to show.")
@click.option("--full", is_flag=True, help="Show every recorded input, and repeat the decision from them.")
@host_option
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
    """Explain the size of a POOL, the state of a QUEUE, or what happened to a TASK.

    Of a pool: the sample, the rule that decided, the task that forced it, and the guards that limited it; and whether
    its workers are forked, or why not. A decision is recorded when it changes the pool or is limited in a new way; it
    holds until the next one.

    Of a queue: its tasks, its pools, and tags on which no pool works.

    Of both: a snapshot of the store that somebody has held open for a minute, and what ends it.

    Of a task, by its name or as QUEUE/NAME: its state, each of its leases that ended, by which worker, how and why, and
    its reason if it is dead. A finished task is found while its queue's `history` keeps it.

    --url asks a server elsewhere, and its supervisor about pools.
    """
    is_known = not is_task and _explain_pool(subject, then=then, last=last, full=full, as_json=as_json, where=where)
    if not is_known and not is_task:
        is_known = _explain_queue(subject, as_json=as_json, where=where)
    if not is_known:
        _explain_task(subject, as_json=as_json, where=where)
    return exits.OK


def _explain_task(name: str, *, as_json: bool, where: TargetOptions) -> None:
    now = QueueClock().now()
    with opened(**where) as (queues, target):
        stories = find_stories(queues, name)
        unserved = [_unserved(queues, story, where) for story in stories]
    if not stories:
        raise _unknown(name, target, where)
    if as_json:
        for story, sentence in zip(stories, unserved, strict=True):
            print_json(story_record(story) | ({"unserved": sentence} if sentence else {}))
        return
    for number, (story, sentence) in enumerate(zip(stories, unserved, strict=True)):
        if number:
            echo()
        for line in story_lines(story, now=now, ends=expiry_causes(story, where), unserved=sentence):
            echo(line)


def _unserved(queues: Queues, story: TaskStory, where: TargetOptions) -> str:
    """Return a sentence if the task waits and no pool works on its tag; else ""."""
    if story.task is None or story.task.state not in WAITING:
        return ""
    return describe_if_unserved(queues, story.queue, story.tag, tasks=1, where=where)


def _unknown(name: str, target: Target, where: TargetOptions) -> CommandError:
    pools = _pools_elsewhere(where) if where["store"] or where["url"] else _known_pools(where)
    leader = leader_of(**where)
    if leader is not None and pools is None and name in leader.supervisor.pools:
        return leader.error()
    if pools is None:
        fix = "a pool is explained by its supervisor: give the URL of its `towline up`, or -f with its settings file"
        message = f"there is no queue and no task '{name}'"
        return CommandError(message, code=exits.NO_INPUT, where=target.shown, fix=fix)
    perhaps = did_you_mean(name, [*pools, *_known_queues(where)])
    return CommandError(
        f"there is no pool, no queue and no task '{name}'{perhaps}",
        code=exits.NO_INPUT,
        where=target.shown,
        fix="`towline pools` lists the pools, `towline peek QUEUE` tasks; finished tasks are known for as long as "
        "the queue's `history` says",
    )


def _explain_queue(name: str, *, as_json: bool, where: TargetOptions) -> bool:
    """Explain a queue: its tasks, its pause, its pools, and tags on which none works. False: there is no such queue."""
    with opened(**where) as (queues, _):
        try:
            name = queue_meant(queues, name)
            pools = [PoolTags(pool.name, name, tags_of(pool)) for pool in _pools_of(where) if name in pool.queues]
            queue = queues.queue(name)
            stats = queue.stats()
            held = _held(queues, queue, stats)
            pools = as_reported(queues, [*pools, *_registered(queues, name, pools)])
            others = _unsupervised(queues, name)
            unserved = unserved_in(queues, pools) if pools else []
            degradations = queues.degradations()
        except (InvalidQueueNameError, UnknownQueueError):
            return False
    counts = {count: getattr(stats, count) for count in ("ready", "held", "delayed", "in_flight", "dead")}
    if as_json:
        told = {
            "queue": name,
            **counts,
            "room": stats.room,
            "limits": held,
            "paused": stats.paused,
            "pools": [pool.pool for pool in pools],
            "unsupervised": others,
        }
        print_json(told | {"unserved": [one.record() for one in unserved], "sentences": degradations})
        return True
    shown = [(counts[count], word) for count, word in _COUNTS if count != "held" or stats.held]
    *first, (number, word) = shown
    seen = "".join(f"{one:,} {what}, " for one, what in first)
    print_wrapped(f"{shown_queue(name)}: a queue, {seen}{counted(number, f'{word} task')}", hang=2)
    paused = [describe_pause(name)] if stats.paused else []
    limited = [held] if held else []
    for sentence in [*paused, *limited, *(one.sentence for one in unserved), *degradations]:
        print_wrapped(sentence, "  ! ")
    for pool in pools:
        print_wrapped(f"{pool.pool} works on {_described(pool)}: `towline why {pool.pool}`", "  pool ", hang=4)
    if others:
        named = ", ".join(others[:_WORKERS_NAMED]) + (", ..." if len(others) > _WORKERS_NAMED else "")
        print_wrapped(f"unsupervised {'worker' if len(others) == 1 else 'workers'} {named}: `towline workers`", "  ")
    if not pools and not others:
        print_wrapped("no pool works on this queue, and no worker is known to lease from it", "  ")
    elif not pools:
        print_wrapped("no pool works on this queue", "  ")
    return True


def _registered(queues: Queues, queue: str, known: list[PoolTags]) -> list[PoolTags]:
    """Return the pools of a queue that supervisors registered, beside those that are known from the settings."""
    names = {one.pool for one in known}
    with suppress(QueueError):  # the token may not list them
        registered = served_tags.registered_tags(queues.registrations(served_tags.KIND), queue)
        return [PoolTags(pool, queue, tags) for pool, tags in registered.items() if pool not in names]
    return []


def _unsupervised(queues: Queues, queue: str) -> list[str]:
    """Return the workers that lease from a queue though no supervisor started them, by name."""
    with suppress(QueueError):  # an older server
        return [one.worker for one in queues.present_workers() if queue in one.queues and not one.pool]
    return []


def _held(queues: Queues, queue: Queue, stats: QueueStats) -> str:
    """Return a sentence on what limits hold back: by which of them, of how many tags; "" for nothing."""
    held = stats.held + stats.ready - stats.leasable
    if not held:
        return ""
    limits = [one for spec in queues.queues() if spec.name == queue.name for one in blocking_limits(spec, stats)]
    tags = ""
    if stats.held:
        found = queue.tag_stats(limit=_TAGS_COUNTED)
        of = sum(1 for one in found if one.stats.held)
        tags = f" of {'more than ' if len(found) == _TAGS_COUNTED else ''}{counted(of, 'tag')}"
    return describe_held(leasable=stats.leasable, held=held, by=f"{', '.join(limits)}{tags}")


def _degradations(where: TargetOptions) -> list[str]:
    """Return what is wrong with the store of the pools; nothing where it does not answer, which is told beside it."""
    with suppress(CommandError, QueueError), opened(makes_queues=False, **where) as (queues, _):
        return queues.degradations()
    return []


def _described(pool: PoolTags) -> str:
    if pool.tags == UNTAGGED:
        return "its tasks without a tag"
    if not pool.tags.tags:
        return "all its tasks"
    return f"its tasks with the tag{'s' if len(pool.tags.tags) > 1 else ''} {', '.join(map(shown_tag, pool.tags.tags))}"


def _pools_of(where: TargetOptions) -> list[PoolSpec]:
    """Return the pools of the settings file; none without one."""
    path = where["file"] or Path(DEFAULT_FILE)
    return list(load_project(path).pools.values()) if path.is_file() else []


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


def _pools_elsewhere(where: TargetOptions) -> list[str] | None:
    """Return the pools of the supervisor at the URL; None: it has none."""
    try:
        return [*fleet_source(**where).published(deaths=0).pools]
    except CommandError:
        return None


def _known_queues(where: TargetOptions) -> list[str]:
    with suppress(CommandError, QueueError), opened(makes_queues=False, **where) as (queues, _):
        return [shown_queue(spec.name, label=spec.label) for spec in queues.queues()]
    return []


@dataclass(frozen=True, slots=True)
class ExplainedPool:
    """All that is known of a pool's size, at a time or now.

    `current` is the decision in force then, `record` the newest ones up to then; the rest is current only.
    """

    pool: str
    current: Json | None
    found: list[Json]
    inputs: object = None
    is_drained: bool = False
    sentences: list[str] = field(default_factory=list)
    template: TemplateRecord | None = None
    start: str = ""
    age: str = ""


def _explain_pool(pool: str, *, then: str | None, last: int, full: bool, as_json: bool, where: TargetOptions) -> bool:
    """Explain a pool's size; False when there is no such pool."""
    now = SystemMonotonicClock().wall_seconds()
    at = None if then is None else _instant(then, now=now)
    url = _supervisor_url(where)
    if url is None and where["store"]:
        return False
    if url is not None:
        explained = _pool_at(url, pool, at=at, last=last, full=full, where=where)
    else:
        explained = _pool_here(pool, at=at, last=last, full=full, where=where)
    if explained is None:
        return False
    if as_json:
        told = {"pool": pool, "drained": explained.is_drained, "now": explained.current, "decisions": explained.found}
        told |= {"sentences": explained.sentences}
        told["template"] = explained.template.to_json() if explained.template is not None else None
        print_json(told | ({"inputs": explained.inputs} if full else {}))
        return True
    _print_pool(explained, at=at, now=now, full=full)
    return True


def _supervisor_url(where: TargetOptions) -> str | None:
    """Return the URL of the server whose supervisor is asked; None: the settings file's state folder is read."""
    has_file = where["file"] is not None or Path(DEFAULT_FILE).is_file()
    if where["file"] is None and (where["url"] or not has_file):
        with suppress(CommandError):
            target = find_target(**where)
            if target.is_server:
                return target.url
    if where["store"] or not has_file or not state_of(load_project(where["file"])).is_supervised():
        leader = leader_of(**where)
        return leader.api.url if leader is not None and leader.api is not None else None
    return None


def _pool_here(pool: str, *, at: float | None, last: int, full: bool, where: TargetOptions) -> ExplainedPool | None:
    if pool not in _known_pools(where):
        return None
    project = load_project(where["file"])
    files = state_of(project)
    record = pool_record(files, pool, at=at, last=last, full=full)
    if at is not None:
        return ExplainedPool(pool, record.current, record.decisions, record.inputs, files.is_drained())
    with FleetReader(fleet_source(**where)) as reader:
        shown = reader.read()
    current, template = shown.pools.get(pool, {}).get("decision"), files.read_templates().get(pool)
    spec = project.pools.get(pool)
    settings: Json = {} if spec is None else {"start": spec.start, "app": spec.app, "runtime": spec.runtime_kind}
    return ExplainedPool(
        pool,
        current if isinstance(current, dict) else None,
        record.decisions,
        record.inputs,
        shown.is_drained,
        [*shown.sentences(pool), *_degradations(where)],
        template,
        _how_workers_start(settings, template),
        shown.age,
    )


def _pool_at(
    url: str, pool: str, *, at: float | None, last: int, full: bool, where: TargetOptions
) -> ExplainedPool | None:
    """Return what a supervisor elsewhere tells of a pool; None where there is none, or no such pool."""
    try:
        with supervisor_at(url, where["token_file"]) as supervisor:
            told = supervisor.get("pools", pool, "why", at=at, last=last, full=full)
    except (UnknownNameError, NoSupervisorError):
        return None
    current, found = told["now"], mappings_of(told["decisions"])
    record = ExplainedPool(
        pool, current if isinstance(current, dict) else None, found, told["inputs"], bool(told["drained"])
    )
    if at is not None:
        return record
    with FleetReader(fleet_source(**where)) as reader:
        shown = reader.read()
    template = template_in(told["template"])
    return replace(
        record,
        sentences=[*shown.sentences(pool), *_degradations(where)],
        template=template,
        start=_how_workers_start(mapping_of(told["settings"]), template),
        age=shown.age,
    )


def _print_pool(explained: ExplainedPool, *, at: float | None, now: float, full: bool) -> None:
    current, found = explained.current, explained.found
    if current is not None:
        if at is not None:
            print_wrapped(f"{_clock(instant_in(current))}, {shown_ago(now - instant_in(current))}", hang=2)
        _print(explained.pool, current, explained.sentences)
    else:
        for sentence in explained.sentences:
            print_wrapped(sentence, "! ")
    if explained.start:
        print_wrapped(explained.start, "  start: ", hang=4)
    if full:
        _print_again(explained.inputs, found[0] if found else None)
    if found:
        echo()
        echo(f"the last {counted(len(found), 'decision')}, newest first" if len(found) > 1 else "the last decision")
    for one in folded(found):
        limits = one.get("limited_by")
        held = f" [{', '.join(map(str, limits))}]" if isinstance(limits, list) and limits else ""
        size = f"{one.get('current')} -> {one.get('target')}"
        print_wrapped(
            f"{one.get('rule')}: {one.get('why')}{held}{times_in_words(one)}",
            f"  {shown_clock(instant_in(one), now_seconds=now)}  {clean(size):<9} ",
        )
    if not found and current is None:
        print_info("no decision yet" if at is None else f"no decision is on record before {_clock(at)}")
    if explained.age:
        print_info(explained.age)


def _print(pool: str, decision: Json, sentences: list[str]) -> None:
    """Print a decision: its reason first, then what a person has to know beside it, then what it was made from."""
    why = str(decision.get("why"))
    size = f"{decision.get('current')} -> {decision.get('target')}"
    noun = "worker" if decision.get("target") == 1 else "workers"
    print_wrapped(f"{pool}: {size} {noun}, by rule `{decision.get('rule')}`", hang=2)
    print_wrapped(why, "  ")
    for sentence in sentences:
        if sentence != f"{pool}: {why}":  # the reason itself
            print_wrapped(sentence, "  ! ")
    guards, limits = list_in(decision, "limited_by"), list_in(decision, "limits")
    for guard, limit in zip(guards, limits, strict=False):
        print_wrapped(f"limited by {guard}: {limit}", "  ", hang=4)
    wanted = decision.get("would_be_without_guards")
    if limits and isinstance(wanted, int) and wanted != decision.get("target"):
        print_wrapped(f"without that it would have {counted(wanted, 'worker')}", "  ", hang=4)
    for note in list_in(decision, "notes"):
        print_wrapped(str(note), "  in force: ", hang=4)
    for title, names in _SEEN:
        seen = ", ".join(
            f"{_figure(decision[name])} {word}"
            for name, word in names
            if name in decision and (name != "held_back" or decision[name])
        )
        if seen:
            is_one = decision.get(names[-1][0]) == 1  # the figure beside which the word is
            print_wrapped(f"{seen} {title.removesuffix('s') if is_one else title}", "  seen: ", hang=4)
    learned = _learned(decision)
    if learned:
        print_wrapped(learned, "  learned: ", hang=4)


def _figure(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _how_workers_start(settings: Json, template: TemplateRecord | None) -> str:
    """Return whether the pool's workers are forked, and why not; "" where that can't be, or is not known."""
    if settings.get("start") == "exec" and settings.get("app") and settings.get("runtime") == "process":
        return "workers are not forked: start is exec"
    if template is None:
        return ""
    lived = shown_seconds(max(0.0, SystemMonotonicClock().wall_seconds() - template.since))
    forks = f"; {template.forks:,} forked in {lived}" if template.forks else ""
    memory = f", {shown_bytes(template.memory_bytes)} that they share" if forks and template.memory_bytes else ""
    return f"{template.sentence}{forks}{memory}"


def _learned(decision: Json) -> str:
    """Return the learned figures behind a decision, as a sentence."""
    number = {name: float(value) for name, value in decision.items() if isinstance(value, int | float)}
    parts = []
    if "service_seconds" in number:
        takes = shown_seconds(number["service_seconds"])
        is_learned = number["service_seconds"] != PRIOR_SERVICE_SECONDS
        parts.append(f"a task takes {takes}" if is_learned else f"no task finished yet (assuming {takes} each)")
    if "startup_seconds" in number:
        parts.append(f"a start takes {shown_seconds(number['startup_seconds'])}")
    if "arrival_rate" in number:
        parts.append(f"{shown_rate(number['arrival_rate'])} tasks/s arriving")
    if "usable_slo_seconds" in number and "slo_seconds" in number:
        usable, slo = shown_seconds(number["usable_slo_seconds"]), shown_setting(number["slo_seconds"])
        slack = f" (safety factor {number['slack']:.2f})" if "slack" in number else ""
        parts.append(f"planning for {usable} of the {slo} SLO{slack}")
    held = decision.get("held")
    if isinstance(held, dict):
        for level, seconds in held.items():
            if isinstance(seconds, int | float):
                parts.append(
                    f"worker {str(level).removeprefix('level ')} is kept for {shown_seconds(seconds)} when idle"
                )
    return ", ".join(parts)


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
    ago = shown_ago(SystemMonotonicClock().wall_seconds() - instant_in(decision))
    outcome = f"{counted(again.target, 'worker')}, {same} (--json shows them)"
    print_wrapped(f"the decision of {ago}, repeated from its {_count(inputs):,} inputs: {outcome}", "  ", hang=4)


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

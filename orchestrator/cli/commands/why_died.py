"""`towline why-died WORKER`: how a worker died, which tasks it held, what became of them and what to do."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, TypeAlias, Unpack, cast
from urllib.parse import urlencode

import click

from orchestrator.base.clock import SystemMonotonicClock
from orchestrator.base.json_fields import list_in, mapping_of, mappings_of
from orchestrator.cli.death_advice import advise
from orchestrator.cli.project_file import load_project
from orchestrator.cli.supervisor_calls import SupervisorOptions, supervisor_at, supervisor_options, supervisor_url
from orchestrator.cli.supervisor_hosts import host_option
from orchestrator.cli.worker_lines import shown_lines
from orchestrator.config.pools import PoolSpec
from orchestrator.fleet.certificates import (
    AmbiguousWorkerError,
    UnknownDeathError,
    chosen_death,
    is_failure,
    worker_names,
)
from orchestrator.fleet.last_words import folded_stack, whole_line
from orchestrator.runtime import SpawnRequest
from orchestrator.settings_file import state_of
from orchestrator.state.directory import StateDir
from queue_core.attempts.secret_forms import masked_command
from queue_core.cli import exits
from queue_core.cli.failure import CommandError
from queue_core.cli.group import command
from queue_core.cli.output import echo, print_info, print_json, shown_instant, shown_seconds
from queue_core.cli.target import Target, opened
from queue_core.client.http.caller import HttpCaller, Retries
from queue_core.clock import Instant
from queue_core.clock import SystemClock as QueueClock
from queue_core.config.messages import did_you_mean
from queue_core.config.units import format_bytes
from queue_core.errors import QueueError
from queue_core.limits import MAX_PEEK_TASKS
from queue_core.process.wording import counted
from queue_core.server.schemas import task_out
from queue_core.task import StoredTask, TaskState

Json: TypeAlias = Mapping[str, object]

_MIB: Final = 1 << 20
_AGO_COLUMNS: Final = 12


@dataclass(frozen=True, slots=True)
class TasksNow:
    """The present state of the tasks that a dead worker held: those that still exist, and those ended since.

    `ended_by` names the worker that deleted a task, as far as the server remembers. `trouble` says why nothing is
    known.
    """

    at: Instant
    tasks: Mapping[tuple[str, str], StoredTask] = field(default_factory=dict)
    ended_by: Mapping[tuple[str, str], str] = field(default_factory=dict)
    trouble: str = ""


def headline(death: Json, *, now: float) -> str:
    """Return one line: worker, time, cause and how many tasks it held."""
    held = int(number(death, "held_total") or len(_held(death)))
    verb = "had held" if all(one.get("fate") in ("lease ended", "deleted") for one in _held(death)) else "holding"
    holding = f", {verb} {counted(held, 'task')}" if held else ""
    said = f"{_cause(death)}{holding}"
    return f"{_ago(death, now):<{_AGO_COLUMNS}} {death.get('worker')}  {said}"


def report_lines(death: Json, now: TasksNow, *, wall_seconds: float, by_hand: str = "") -> Iterator[str]:
    """Yield the whole death report, line by line; `by_hand` is the command that starts a worker of its pool."""
    lived = number(death, "lived_seconds")
    after = f" after {shown_seconds(lived)}" if lived is not None else ""
    ended = "died" if is_failure(death) else "ended"
    yield f"{death.get('worker')} of pool {death.get('pool')} {ended} {_ago(death, wall_seconds)}{after}"
    start = " (its start failed: it never held a task)" if death.get("failed_start") else ""
    yield f"  cause: {_cause(death)}{start}"
    memory = _memory(death)
    if memory:
        yield f"  memory: {memory}"
    yield from _held_task_lines(death, now)
    stack = _lines(death, "stack")
    if stack:
        yield "  where it was before its end, innermost call first:"
        yield from (f"    {line}" for line in folded_stack(stack))
    yield from _last_lines(death)
    dead = [one for one in _held(death) if _is_dead(one, now)]
    yield f"  next: {advise(death, dead=dead, by_hand=by_hand)}"


def fate(one: Json, now: TasksNow) -> str:
    """Describe what became of one held task: at the death, and since."""
    key = (str(one.get("queue")), str(one.get("task")))
    then = _then(one)
    if now.trouble:
        return then
    task = now.tasks.get(key)
    if task is None:
        by = now.ended_by.get(key)
        return f"{then}; gone since" + (f": done by {by}" if by else ": done, or deleted")
    since = _state(task, now.at)
    return since if since == f"dead now: {one.get('why')}" else f"{then}; {since}"


def number(record: Json, name: str) -> float | None:
    """Return a number of a record, or None."""
    value = record.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _held_task_lines(death: Json, now: TasksNow) -> Iterator[str]:
    held = _held(death)
    if not held:
        yield "  held: " + (
            "not known: the queue was unavailable, then and since" if death.get("held_unknown") else "nothing"
        )
        return
    total = int(number(death, "held_total") or len(held))
    yield f"  held: {counted(total, 'task')}" + (f", of which {len(held)} are on record" if total > len(held) else "")
    for one in held:
        tag = f" [{one['tag']}]" if one.get("tag") else ""
        seconds = number(one, "held_seconds")
        held_for = f" for {shown_seconds(seconds)}" if seconds is not None else ""
        attempt = f", attempt {one['lease_number']}" if one.get("lease_number") else ""
        yield f"    {one.get('queue')}/{one.get('task')}{tag}{held_for}{attempt}: {fate(one, now)}"
    if now.trouble:
        yield f"    what has become of them since is not known: {now.trouble}"


def _lines(death: Json, name: str) -> list[str]:
    lines = death.get(name)
    return [str(line) for line in lines] if isinstance(lines, list) else []


def _last_lines(death: Json) -> Iterator[str]:
    """Yield the end of its output: log entries as people read them."""
    stack = set(_lines(death, "stack"))
    lines = [line for line in _lines(death, "last_lines") if line not in stack and not line.startswith(_MODULES)]
    if lines:
        yield "  its last lines:"
        for line in lines:
            yield from (f"    {shown}" for shown in shown_lines(whole_line(line))[1])


def _then(one: Json) -> str:
    deaths = number(one, "deaths")
    times = f" (the {_ordinal(int(deaths))} death while it was held)" if deaths and deaths > 1 else ""
    match one.get("fate"):
        case "dead":
            return f"dead{': ' + str(one['why']) if one.get('why') else ', its leases are used up'}"
        case "held back":
            return f"suspect{times}, will run alone"
        case "deleted":
            return "deleted while it was running"
        case "lease ended":
            return "its lease ended before its worker did"
        case _:
            return f"given back{times}"


def _state(task: StoredTask, now: Instant) -> str:
    if task.state is TaskState.LEASED:
        return f"leased now by {task.worker or 'nobody'} (lease {task.leases})"
    if task.state is TaskState.DEAD:
        return f"dead now: {task.reason}" if task.reason else "dead now"
    if task.state is TaskState.DELAYED and task.eta > now:
        return f"waits until {shown_instant(task.eta)}"
    return "ready now"


def _is_dead(one: Json, now: TasksNow) -> bool:
    task = now.tasks.get((str(one.get("queue")), str(one.get("task"))))
    return task.state is TaskState.DEAD if task is not None else bool(now.trouble) and one.get("fate") == "dead"


def _memory(death: Json) -> str:
    peak, limit = number(death, "memory_peak_bytes"), number(death, "memory_limit_bytes")
    own = number(death, "memory_own_bytes")
    parts = [] if peak is None else [f"{format_bytes(round(peak / _MIB) * _MIB)} at its peak"]
    if parts and own is not None:
        parts.append(f"{format_bytes(round(own / _MIB) * _MIB)} of it its own and the rest shared with its template")
    if limit is not None:
        parts.append(f"limit {format_bytes(round(limit / _MIB) * _MIB)}")
    return ", ".join(parts)


def _cause(death: Json) -> str:
    """Return the cause and its detail, once where the one begins the other: `killed by ann`."""
    cause, detail = str(death.get("cause")), str(death.get("detail"))
    return detail if detail.startswith(f"{cause} by ") else f"{cause}: {detail}"


def _held(death: Json) -> Sequence[Json]:
    held = death.get("held")
    return [one for one in held if isinstance(one, dict)] if isinstance(held, list) else []


def _ago(death: Json, now: float) -> str:
    at = number(death, "at")
    return "some time ago" if at is None else f"{shown_seconds(max(0.0, now - at))} ago"


def _ordinal(count: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(count % 10, "th") if count % 100 not in {11, 12, 13} else "th"
    return f"{count}{ending}"


_MODULES: Final = "Extension modules: "
"""The beginning of the last line that a fault in native code leaves."""
MAX_READ: Final = 50_000
EVENTS: Final = 1000


@command(
    "why-died",
    examples=(
        "towline why-died",
        "towline why-died resize-7f3k2q",
        "towline why-died resize-7f --json",
        "towline why-died --last 50 --pool resize",
        "towline why-died --all",
    ),
)
@click.argument("worker", required=False)
@click.option("--last", default=10, show_default=True, type=click.IntRange(1, 1000), help="Deaths to list.")
@click.option("--pool", help="List only this pool's.")
@click.option("--all", "lists_all", is_flag=True, help="List workers that finished when asked or recycled, too.")
@host_option
@supervisor_options
def why_died(
    worker: str | None,
    last: int,
    pool: str | None,
    lists_all: bool,  # noqa: FBT001
    as_json: bool,  # noqa: FBT001
    **where: Unpack[SupervisorOptions],
) -> int:
    """Explain how WORKER died, what became of its tasks, and what to do; without WORKER, list the latest deaths.

    Workers that finished when asked (scaled down, replaced, drained) or recycled are listed with --all only.
    The beginning of a worker's name is enough. Exits with 66 when no such death is on record. --url asks a supervisor
    elsewhere.
    """
    url = supervisor_url(where["url"], where["file"])
    wall_seconds = SystemMonotonicClock().wall_seconds()
    if worker is None:
        found = _listed(pool, last, url, where, lists_all=lists_all)
        if as_json:
            print_json({"deaths": found})
            return exits.OK
        for one in found:
            echo(headline(one, now=wall_seconds), hang=_AGO_COLUMNS + 2)
        if not found:
            print_info("no deaths on record" if pool is None else f"no deaths of pool {pool} on record")
        return exits.OK
    death, by_hand = _certificate(worker, url, where)
    now = _tasks_now(death, url=url, where=where)
    if as_json:
        since = [task_out(task) for task in now.tasks.values()]
        done = [{"queue": queue, "task": task, "worker": by} for (queue, task), by in now.ended_by.items()]
        print_json({"death": death, "tasks_now": since, "done_by": done, "not_looked_up": now.trouble or None})
        return exits.OK
    for line in report_lines(death, now, wall_seconds=wall_seconds, by_hand=by_hand):
        echo(line)
    return exits.OK


def _listed(
    pool: str | None, last: int, url: str | None, where: SupervisorOptions, *, lists_all: bool
) -> Sequence[Json]:
    """Return the latest deaths, of a pool or of all; with `lists_all` also the ends that are no failure."""
    if url is not None:
        with supervisor_at(url, where["token_file"]) as supervisor:
            found = supervisor.get("deaths", limit=last, pool=pool, failures=None if lists_all else True)
            return mappings_of(found["deaths"])
    deaths = state_of(load_project(where["file"])).read_deaths(limit=MAX_READ)
    return [one for one in deaths if pool in (None, one.get("pool")) and (lists_all or is_failure(one))][:last]


def _certificate(worker: str, url: str | None, where: SupervisorOptions) -> tuple[Json, str]:
    """Return a worker's certificate, and the command that starts one of its pool by hand. Raises `CommandError`."""
    if url is not None:
        with supervisor_at(url, where["token_file"]) as supervisor:
            told = supervisor.get("deaths", worker)
        settings = mapping_of(told["settings"])
        command = [str(word) for word in list_in(settings, "command")]
        by_hand = f"towline work {settings['app']}" if settings.get("app") else shlex.join(command)
        return mapping_of(told["death"]), by_hand
    project = load_project(where["file"])
    files = state_of(project)
    death = _chosen(worker, files.read_deaths(limit=MAX_READ), files)
    return death, _manual_start(project.pools.get(str(death.get("pool"))))


def _manual_start(pool: PoolSpec | None) -> str:
    """Return the command that starts a worker of a pool; "" for a pool that is no longer in the settings."""
    if pool is None:
        return ""
    if pool.celery is not None:
        return shlex.join(masked_command(SpawnRequest(pool.name, pool).program("python3", app=())))
    return f"towline work {pool.app}" if pool.app is not None else shlex.join(masked_command(pool.command or ()))


def _chosen(worker: str, deaths: Sequence[Json], files: StateDir) -> Json:
    """Return the death of this worker, or of the only one whose name starts so. Raises `CommandError`."""
    try:
        return chosen_death(worker, deaths)
    except AmbiguousWorkerError as error:
        raise CommandError(str(error), code=exits.NO_INPUT, fix="give more of the name") from None
    except UnknownDeathError as error:
        if worker in worker_names(files.read_snapshot() or {}):
            fix = "`towline workers` shows what it does"
            raise CommandError(f"{worker} has not died", code=exits.NO_INPUT, fix=fix) from None
        known = dict.fromkeys(str(death.get("worker")) for death in deaths)
        raise CommandError(
            f"{error}{did_you_mean(worker, [*known])}", code=exits.NO_INPUT, fix="`towline why-died` lists the latest"
        ) from None


def _tasks_now(death: Json, *, url: str | None, where: SupervisorOptions) -> TasksNow:
    """Look up the tasks that the worker held in the queue."""
    at = QueueClock().now()
    wanted: dict[str, list[str]] = {}
    held = death.get("held")
    for one in held if isinstance(held, list) else ():
        wanted.setdefault(str(one.get("queue")), []).append(str(one.get("task")))
    if not wanted:
        return TasksNow(at)
    tasks: dict[tuple[str, str], StoredTask] = {}
    try:
        with opened(url=url, store=None, token_file=where["token_file"], file=where["file"]) as (queues, target):
            for queue, names in wanted.items():
                page = queues.queue(queue).peek(names=names[:MAX_PEEK_TASKS], limit=MAX_PEEK_TASKS)
                tasks |= {(queue, task.shown_name): task for task in page.tasks}
            missing = {(queue, name) for queue, names in wanted.items() for name in names} - tasks.keys()
            return TasksNow(at, tasks, _ended_by(missing, target) if missing and target.is_server else {})
    except (QueueError, CommandError) as error:
        return TasksNow(at, trouble=str(error))


def _ended_by(missing: set[tuple[str, str]], target: Target) -> Mapping[tuple[str, str], str]:
    """Return which worker deleted the tasks that are gone, as far as the server remembers events."""
    found: dict[tuple[str, str], str] = {}
    caller = HttpCaller(target.url, token=target.token, retries=Retries(tries=1), timeout_seconds=5.0)
    with suppress(QueueError):  # a worker's token may not read events: then nothing is known
        answer = caller.get(f"/v1/events?{urlencode({'limit': EVENTS})}")
        for event in cast("list[dict[str, object]]", answer["events"]):
            key = (str(event.get("queue")), str(event.get("task")))
            if event.get("event") == "task.deleted" and key in missing and event.get("worker"):
                found[key] = str(event["worker"])
    caller.close()
    return found

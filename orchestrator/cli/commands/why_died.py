"""`towline why-died WORKER`: how a worker ended, what it held, what became of that, and what to do."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, cast
from urllib.parse import urlencode

import click

from orchestrator.cli.death_report import Json, Now, headline, told
from orchestrator.cli.project_file import load_project
from orchestrator.clock import SystemMonotonicClock
from orchestrator.settings_file import state_of
from orchestrator.state.directory import StateDir
from queue_core.cli import exits
from queue_core.cli.failure import CommandError
from queue_core.cli.group import command
from queue_core.cli.options import file_option, json_option
from queue_core.cli.output import echo, print_info, print_json
from queue_core.cli.target import Target, opened
from queue_core.clock import SystemClock as QueueClock
from queue_core.config.messages import did_you_mean
from queue_core.errors import QueueError
from queue_core.http_api.caller import HttpCaller, Retries
from queue_core.limits import MAX_PEEK_TASKS
from queue_core.server.schemas import task_out
from queue_core.task import StoredTask

MAX_READ: Final = 50_000
MAX_SHOWN: Final = 20
EVENTS: Final = 1000


@command(
    "why-died",
    examples=(
        "towline why-died",
        "towline why-died resize-7f3k2q",
        "towline why-died resize-7f --json",
        "towline why-died --last 50 --pool resize",
    ),
)
@click.argument("worker", required=False)
@click.option("--last", default=10, show_default=True, type=click.IntRange(1, 1000), help="Deaths to list.")
@click.option("--pool", help="List only this pool's.")
@file_option
@json_option
def why_died(worker: str | None, last: int, pool: str | None, file: Path | None, as_json: bool) -> int:  # noqa: FBT001
    """How WORKER ended, what it held and what became of that, and what to do; without WORKER, the latest deaths.

    The beginning of a worker's name will do. Exits with 66 when no such death is on record.
    """
    files = state_of(load_project(file))
    deaths = files.read_deaths(limit=MAX_READ)
    wall_seconds = SystemMonotonicClock().wall_seconds()
    if worker is None:
        found = [one for one in deaths if pool in (None, one.get("pool"))][:last]
        if as_json:
            print_json({"deaths": found})
            return exits.OK
        for one in found:
            echo(headline(one, now=wall_seconds))
        if not found:
            print_info("no deaths on record" if pool is None else f"no deaths of pool {pool} on record")
        return exits.OK
    death = _chosen(worker, deaths, files)
    now = _looked_up(death, file=file)
    if as_json:
        since = [task_out(task) for task in now.tasks.values()]
        done = [{"queue": queue, "task": task, "worker": by} for (queue, task), by in now.ended_by.items()]
        print_json({"death": death, "tasks_now": since, "done_by": done, "not_looked_up": now.trouble or None})
        return exits.OK
    for line in told(death, now, wall_seconds=wall_seconds):
        echo(line)
    return exits.OK


def _chosen(worker: str, deaths: Sequence[Json], files: StateDir) -> Json:
    """The death of exactly this worker, or of the only one whose name begins so. Raises `CommandError`."""
    known: dict[str, Json] = {}
    for death in deaths:
        known.setdefault(str(death.get("worker")), death)
    if worker in known:
        return known[worker]
    alike = [name for name in known if name.startswith(worker)]
    if len(alike) == 1:
        return known[alike[0]]
    if alike:
        shown = ", ".join(alike[:MAX_SHOWN]) + (", ..." if len(alike) > MAX_SHOWN else "")
        raise CommandError(
            f"{len(alike)} dead workers' names begin with '{worker}': {shown}",
            code=exits.NO_INPUT,
            fix="give more of the name",
        )
    if worker in _living(files):
        raise CommandError(f"{worker} has not died", code=exits.NO_INPUT, fix="`towline workers` shows what it does")
    raise CommandError(
        f"no death of a worker '{worker}' is on record{did_you_mean(worker, [*known][:MAX_READ])}",
        code=exits.NO_INPUT,
        fix="`towline why-died` lists the latest",
    )


def _living(files: StateDir) -> set[str]:
    workers = (files.read_snapshot() or {}).get("workers")
    return {str(one.get("worker")) for one in workers if isinstance(one, dict)} if isinstance(workers, list) else set()


def _looked_up(death: Json, *, file: Path | None) -> Now:
    """What the queue knows now of the tasks that it held."""
    at = QueueClock().now()
    wanted: dict[str, list[str]] = {}
    held = death.get("held")
    for one in held if isinstance(held, list) else ():
        wanted.setdefault(str(one.get("queue")), []).append(str(one.get("task")))
    if not wanted:
        return Now(at)
    tasks: dict[tuple[str, str], StoredTask] = {}
    try:
        with opened(url=None, store=None, token_file=None, file=file) as (queues, target):
            for queue, names in wanted.items():
                page = queues.queue(queue).peek(names=names[:MAX_PEEK_TASKS], limit=MAX_PEEK_TASKS)
                tasks |= {(queue, task.shown_name): task for task in page.tasks}
            missing = {(queue, name) for queue, names in wanted.items() for name in names} - tasks.keys()
            return Now(at, tasks, _ended_by(missing, target) if missing and target.is_server else {})
    except (QueueError, CommandError) as error:
        return Now(at, trouble=str(error))


def _ended_by(missing: set[tuple[str, str]], target: Target) -> Mapping[tuple[str, str], str]:
    """Who did tasks that are gone, as far as the server's memory of events goes."""
    found: dict[tuple[str, str], str] = {}
    caller = HttpCaller(target.url, token=target.token, retries=Retries(tries=1), timeout_seconds=5.0)
    with suppress(QueueError):  # a worker's token may not ask for events: then that is not told
        answer = caller.get(f"/v1/events?{urlencode({'limit': EVENTS})}")
        for event in cast("list[dict[str, object]]", answer["events"]):
            key = (str(event.get("queue")), str(event.get("task")))
            if event.get("event") == "task.deleted" and key in missing and event.get("worker"):
                found[key] = str(event["worker"])
    caller.close()
    return found

"""`towline events`: print lifecycle events from the server's memory, and new ones as they happen.

Those of one task are also read from the store, which knows them after any restart.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Final, Unpack, cast
from urllib.parse import urlencode

import click

from queue_core.cli import exits
from queue_core.cli.failure import CommandError
from queue_core.cli.group import command
from queue_core.cli.options import target_options
from queue_core.cli.output import echo, print_info, print_json, shown_instant, shown_seconds
from queue_core.cli.target import Target, TargetOptions, find_target, opened, unknown_queue
from queue_core.cli.task_story import find_stories, merged_events, story_events
from queue_core.client.http.caller import HttpCaller, Retries
from queue_core.clock import Instant, SystemClock
from queue_core.errors import PermissionDeniedError
from queue_core.verbs.wire import Json

FOLLOW_SECONDS: Final = 0.25
PAGE: Final = 500
REMEMBERED: Final = 1000
"""Events that a server keeps in memory."""
_SHOWN_FIRST: Final = frozenset({"at", "event", "queue", "task", "id", "count", "reason"})
_WORDS: Final = {"lease_number": "lease", "waited_seconds": "waited", "held_seconds": "held"}
_INDENT: Final = len("12:04:31  ")
"""The indent of an event's further lines on a terminal."""
_EVENT_COLUMNS: Final = len("task.postponed")


@command(
    "events",
    examples=(
        "towline events",
        "towline events --follow --queue thumbs",
        "towline events --task cat-1",
        "towline events --json --limit 1000 | jq 'select(.event == \"task.died\")'",
    ),
)
@click.option("--follow", is_flag=True, help="Also print new events, until Ctrl-C.")
@click.option(
    "--limit", default=20, show_default=True, type=click.IntRange(0, 1000), help="Past events printed at most."
)
@click.option("--queue", "only_queue", help="Only events of this queue.")
@click.option("--task", "only_task", help="Only events of this task; also from the store's history.")
@target_options
def events(
    follow: bool,  # noqa: FBT001
    limit: int,
    only_queue: str | None,
    only_task: str | None,
    as_json: bool,  # noqa: FBT001
    **where: Unpack[TargetOptions],
) -> int:
    """Print recent lifecycle events, oldest first: added, leased, renewed, released, expired, deleted, died.

    The server keeps the last 1,000 in memory; `log: FILE` in the settings keeps them all. With `--task` there are also
    those that the store knows: the task's attempts, and its queue's `history`.
    """
    target = find_target(**where)
    if only_task is not None and not follow:
        _print_task(target, only_task, only_queue, limit=limit, as_json=as_json, where=where)
        return exits.OK
    if not target.is_server:
        raise CommandError(
            "events are in a server's memory, and no server answers",
            code=exits.UNAVAILABLE,
            where=f"{target.shown} (from {target.origin})",
            fix="start it with `towline up`; or read the file that `log:` of the settings names",
        )
    caller = _caller(target)
    try:
        _check_queue(caller, only_queue, target)
        is_empty = True
        for event in _events(caller, limit=limit, follow=follow):
            if only_queue in (None, event["queue"]) and only_task in (None, event.get("task")):
                is_empty = False
                _print(event, as_json=as_json)
        if is_empty and not as_json and limit:
            of = f" of queue {only_queue}" if only_queue else ""
            print_info(f"no events{of} in the server's memory, which begins at its start; `log:` keeps older ones")
    finally:
        caller.close()
    return exits.OK


def _print_task(
    target: Target, task: str, queue: str | None, *, limit: int, as_json: bool, where: TargetOptions
) -> None:
    """Print the last events of one task, of a server's memory and of the store."""
    with opened(makes_queues=False, **where) as (queues, _):
        if queue is not None and queue not in (known := [spec.name for spec in queues.queues()]):
            raise unknown_queue(queue, known, target)
        stored = [event for story in find_stories(queues, task, only_queue=queue) for event in story_events(story)]
    remembered: list[Json] = []
    if target.is_server:
        caller = _caller(target)
        try:
            remembered = [
                event
                for event in _events(caller, limit=REMEMBERED, follow=False)
                if event.get("task") == task.rpartition("/")[2] and queue in (None, event["queue"])
            ]
        finally:
            caller.close()
    found = merged_events(remembered, stored)
    for event in found[-limit:] if limit else ():
        _print(event, as_json=as_json)
    if not found and not as_json:
        print_info(f"no events of task {task}{f' in queue {queue}' if queue else ''} are known")


def _check_queue(caller: HttpCaller, name: str | None, target: Target) -> None:
    """Raise `CommandError` for a name that no queue has: it would have no events for ever."""
    if name is None:
        return
    with suppress(PermissionDeniedError):  # a token may read events and not list queues
        known = [str(queue["name"]) for queue in cast("list[Json]", caller.get("/v1/queues")["queues"])]
        if name not in known:
            raise unknown_queue(name, known, target)


def _caller(target: Target) -> HttpCaller:
    return HttpCaller(target.url, token=target.token, retries=Retries(timeouts=1), timeout_seconds=10.0)


def _events(caller: HttpCaller, *, limit: int, follow: bool) -> Iterator[Json]:
    pause = threading.Event()
    answer = caller.get(f"/v1/events?{urlencode({'limit': max(1, limit)})}")
    if limit:
        yield from cast("list[Json]", answer["events"])
    while follow:
        before = answer["cursor"]
        answer = caller.get(f"/v1/events?{urlencode({'limit': PAGE, 'after': before})}")
        if answer["missed"]:
            print_info(
                "some events were dropped before they could be read: set `log:` in the settings to keep them all"
            )
        yield from cast("list[Json]", answer["events"])
        if not answer["events"]:
            pause.wait(FOLLOW_SECONDS)


def _print(event: Json, *, as_json: bool) -> None:
    if as_json:
        print_json(event)
    else:
        echo(event_line(event, now=SystemClock().now()), hang=_INDENT)


def event_line(event: Mapping[str, object], *, now: Instant) -> str:
    """Return an event as a line for people: its time, name, task and details."""
    at, count = event.get("at"), event.get("count")
    task = f"/{event['task']}" if event.get("task") else ""
    details = [f"{count:,} tasks"] if isinstance(count, int) and count > 1 else []
    details += [
        f"{_WORDS.get(name, name.replace('_', ' '))} {_value(name, value)}"
        for name, value in event.items()
        if name not in _SHOWN_FIRST and value is not None
    ]
    details += [str(event["reason"])] if event.get("reason") else []
    clock = shown_instant(at if isinstance(at, int) else None, now=now)
    named = f"{event['event']!s:<{_EVENT_COLUMNS}}"
    return "  ".join(part for part in (clock, named, f"{event['queue']}{task}", ", ".join(details)) if part).rstrip()


def _value(name: str, value: object) -> str:
    return shown_seconds(value) if name.endswith("_seconds") and isinstance(value, int | float) else str(value)

"""`towline events`: print lifecycle events from the server's memory, and new ones as they happen."""

import threading
from collections.abc import Iterator
from typing import Final, Unpack, cast
from urllib.parse import urlencode

import click

from queue_core.cli import exits
from queue_core.cli.failure import CommandError
from queue_core.cli.group import command
from queue_core.cli.options import target_options
from queue_core.cli.output import echo, print_info, print_json, shown_instant, shown_seconds
from queue_core.cli.target import TargetOptions, find_target
from queue_core.http_api.caller import HttpCaller, Retries
from queue_core.http_api.values import Json

FOLLOW_SECONDS: Final = 0.25
PAGE: Final = 500


@command(
    "events",
    examples=(
        "towline events",
        "towline events --follow --queue thumbs",
        "towline events --json --limit 1000 | jq 'select(.event == \"task.died\")'",
    ),
)
@click.option("--follow", is_flag=True, help="Also print new events, until Ctrl-C.")
@click.option(
    "--limit", default=20, show_default=True, type=click.IntRange(0, 1000), help="Past events printed at most."
)
@click.option("--queue", "only_queue", help="Only events of this queue.")
@click.option("--task", "only_task", help="Only events of this task.")
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

    The server keeps the last 1,000 in memory; `log: FILE` in the settings keeps them all.
    """
    target = find_target(**where)
    if not target.is_server:
        raise CommandError(
            "events are in a server's memory, and no server answers",
            code=exits.UNAVAILABLE,
            where=f"{target.shown} (from {target.origin})",
            fix="start it with `towline up`; or read the file that `log:` of the settings names",
        )
    caller = HttpCaller(target.url, token=target.token, retries=Retries(timeouts=1), timeout_seconds=10.0)
    try:
        for event in _events(caller, limit=limit, follow=follow):
            if only_queue in (None, event["queue"]) and only_task in (None, event.get("task")):
                _print(event, as_json=as_json)
    finally:
        caller.close()
    return exits.OK


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
        return
    at = event.pop("at")
    parts = [shown_instant(at if isinstance(at, int) else None), f"{event.pop('event')!s:<15}", str(event.pop("queue"))]
    event.pop("id", None)
    if event.get("count") == 1:
        event.pop("count")
    for name, value in event.items():
        seconds = isinstance(value, float) and name.endswith("_seconds")
        parts.append(f"{name.removesuffix('_seconds')}={shown_seconds(cast('float', value)) if seconds else value}")
    echo("  ".join(parts))

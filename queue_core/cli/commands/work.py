"""`towline work`: run one worker, by hand or under any process manager."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import click

from queue_core.cli.failure import CommandError
from queue_core.cli.group import command
from queue_core.cli.options import DURATION, json_option, log_options, tag_filter, tag_options
from queue_core.cli.target import Target, find_target
from queue_core.cli.work_screen import WorkScreen
from queue_core.clock import SystemClock
from queue_core.process import logs
from queue_core.process.init_process import run_as_init
from queue_core.worker.main import run_worker
from queue_core.worker.settings import DEFAULT_URL, WorkerSettings


@command(
    "work",
    examples=(
        "towline work tasks:app",
        "towline work tasks:app --queue thumbs --tag resize --concurrency 4",
        "TOWLINE_URL=http://queue.example:7878 TOWLINE_TOKEN=... towline work tasks:app",
    ),
)
@click.argument("app", required=False)
@click.option("--queue", help="The queue to serve  [default: the only one the app has handlers for]")
@click.option("--concurrency", type=click.IntRange(1, 1000), help="Tasks worked on at a time  [default: 1]")
@click.option("--grace", type=DURATION, help="Time from SIGTERM until unfinished tasks are released  [default: 30s]")
@click.option("--url", help="Server or store  [default: as for every command]")
@click.option("--store", help="Open this store directly.")
@click.option("-f", "--file", type=click.Path(path_type=Path), help="Settings file.")
@tag_options
@log_options
@json_option
def work(
    app: str | None,
    queue: str | None,
    concurrency: int | None,
    grace: float | None,
    url: str | None,
    store: str | None,
    file: Path | None,
    tags: tuple[str, ...],
    untagged: bool,  # noqa: FBT001
    log_level: logs.Level,
    as_json: bool,  # noqa: FBT001
) -> int:
    """Lease tasks and run the handlers of APP (module:attribute) on them until SIGTERM.

    A supervisor configures it by TOWLINE_... variables; by hand, use the options. Exit code 75: the queue was
    unreachable for too long; 78: the app can't be imported; 79: a handler ran beyond its timeout and could not be
    ended; 80: a handler hung, or blocked the others' event loop; 81: one ended it. After these start another worker.
    """
    run_as_init()
    settings = WorkerSettings.from_environment(os.environ)
    settings = replace(
        settings,
        app=app or settings.app,
        queue=queue or settings.queue,
        concurrency=concurrency or settings.concurrency,
        grace_seconds=settings.grace_seconds if grace is None else grace,
    )
    if tags or untagged:
        settings = replace(settings, tags=tag_filter(tags, untagged=untagged))
    if url or store or file or not os.environ.get("TOWLINE_URL"):
        target = _target(url=url, store=store, file=file)
        settings = replace(settings, url=target.url, durability=target.durability)
    if not settings.app:
        raise click.UsageError("which app? give module:attribute, such as tasks:app, or TOWLINE_APP")
    is_for_people = sys.stderr.isatty() and not as_json
    screen = WorkScreen(settings, level=log_level, clock=SystemClock()) if is_for_people else None
    logs.configure(level=log_level, shape="json" if as_json else "auto", sink=screen.show if screen else None)
    return run_worker(settings)


def _target(*, url: str | None, store: str | None, file: Path | None) -> Target:
    """Return the target as for every command; by default the default server, which may start later."""
    try:
        return find_target(url=url, store=store, token_file=None, file=file)
    except CommandError:
        if url or store or file:
            raise
        return Target(DEFAULT_URL, "default")

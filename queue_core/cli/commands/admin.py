"""The commands of administrators: `peek`, `purge`, `redrive`, `pause` and `resume`."""

from collections.abc import Mapping, Sequence
from textwrap import shorten
from typing import Final, Unpack

import click

from queue_core.cli import exits
from queue_core.cli.group import command
from queue_core.cli.options import ANY_ID, SIZE, tag_filter, tag_options, target_options
from queue_core.cli.output import (
    columns,
    print_info,
    print_json,
    print_table,
    shown_payload,
)
from queue_core.cli.target import TargetOptions, opened_queue
from queue_core.cli.task_story import SHOWN_STATES, task_record
from queue_core.cli.verb_commands import command_of
from queue_core.client.queue import Queue
from queue_core.client.search_steps import MatchingChange
from queue_core.clock import Instant, SystemClock, seconds_between
from queue_core.process.wording import counted, shown_ahead, shown_seconds
from queue_core.task import ALL_STATES, StoredTask, TagFilter, TaskState
from queue_core.unit.queue_verbs import Pause, Redrive, Resume
from queue_core.verbs.criteria import LIVING, Search

STATES: Final[Mapping[str, TaskState]] = {word: state for state, word in SHOWN_STATES.items()}
REASON_CHARACTERS = 120
"""Characters shown of a reason in a table."""


@command(
    "peek",
    examples=(
        "towline peek thumbs",
        "towline peek thumbs --state dead --limit 20",
        "towline peek thumbs --tag resize --after 1200 --json",
    ),
)
@click.argument("queue")
@click.option(
    "--state", "states", multiple=True, type=click.Choice(list(STATES)), help="Only this state; may be repeated."
)
@click.option("--named", multiple=True, metavar="NAME", help="Only the tasks of these names.")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 1000), help="Tasks shown at most.")
@click.option("--after", default=0, type=ANY_ID, help="Start after this id: `next_after` of the page before.")
@click.option(
    "--payload", "payload_bytes", type=SIZE, default="1KiB", show_default=True, help="Size shown of each payload."
)
@tag_options
@target_options
def peek(
    queue: str,
    states: tuple[str, ...],
    named: tuple[str, ...],
    limit: int,
    after: int,
    payload_bytes: int,
    tags: tuple[str, ...],
    untagged: bool,  # noqa: FBT001
    as_json: bool,  # noqa: FBT001
    **where: Unpack[TargetOptions],
) -> int:
    """Show tasks of QUEUE without leasing them."""
    wanted = frozenset(STATES[name] for name in states) or ALL_STATES
    with opened_queue(queue, **where) as opened:
        page = opened.peek(
            tags=tag_filter(tags, untagged=untagged),
            states=wanted,
            names=named or None,
            after=after,
            limit=limit,
            payload_bytes=payload_bytes,
        )
    if as_json:
        print_json({"tasks": [task_record(task) for task in page.tasks], "next_after": page.next_after})
        return exits.OK
    print_tasks(page.tasks, empty=_no_tasks(queue, states, named, tags, untagged=untagged))
    if page.next_after is not None:
        print_info(f"more: --after {page.next_after}")
    return exits.OK


def print_tasks(tasks: Sequence[StoredTask], *, empty: str) -> None:
    """Print a table of tasks."""
    now = SystemClock().now()
    rows = [
        (
            task.id,
            task.shown_name,
            SHOWN_STATES[task.state],
            _time_text(task, now),
            task.tag,
            task.leases,
            _worker_or_reason(task),
            shown_payload(task.payload, characters=40),
        )
        for task in tasks
    ]
    heads = columns(
        *(">ID", "NAME", "STATE", "WHEN", "TAG", ">LEASES", "WORKER, REASON", "PAYLOAD"),
        least=("ID", "LEASES", "PAYLOAD", "TAG"),
        keeps=("NAME", "STATE"),
        folds=("WORKER, REASON",),
    )
    print_table(heads, rows, empty=empty)


@command(
    "purge",
    when_cut="stderr",
    examples=(
        "towline purge thumbs",
        "towline purge thumbs --tag resize --yes",
        "towline purge thumbs --dead --yes",
    ),
)
@click.argument("queue")
@click.option("--dead", is_flag=True, help="Delete the dead tasks, and only those.")
@click.option("--yes", is_flag=True, help="Skip the confirmation.")
@tag_options
@target_options
def purge(
    queue: str,
    dead: bool,  # noqa: FBT001
    yes: bool,  # noqa: FBT001
    tags: tuple[str, ...],
    untagged: bool,  # noqa: FBT001
    as_json: bool,  # noqa: FBT001
    **where: Unpack[TargetOptions],
) -> int:
    """Delete all tasks of QUEUE, leased ones too, but not the dead; with `--dead` only the dead."""
    wanted = tag_filter(tags, untagged=untagged)
    with opened_queue(queue, **where) as opened:
        stats = opened.stats(tags=wanted)
        count = stats.dead if dead else stats.pending
        if not yes:
            what = counted(count, "dead task" if dead else "task")
            click.confirm(f"Delete {what} of {queue}?", abort=True, err=True)
            deleted = _delete_counted(opened, wanted, dead=dead, as_of=stats.as_of)
        else:
            deleted = opened.purge(tags=wanted, dead="only" if dead else "keep")
    if as_json:
        print_json({"count": deleted})
    else:
        click.echo(f"{deleted:,} deleted")
    return exits.OK


def _delete_counted(queue: Queue, tags: TagFilter, *, dead: bool, as_of: Instant | None) -> int:
    """Delete the tasks that were counted at `as_of`, and leave what came while a person thought about it."""
    wanted = Search(tags, frozenset({TaskState.DEAD}) if dead else LIVING)
    return sum(step.changed for step in MatchingChange(queue, "delete", wanted).steps(dry_run=False, as_of=as_of))


redrive = command_of(
    Redrive,
    "redrive",
    examples=("towline redrive thumbs", "towline redrive thumbs --named cat-1", "towline redrive thumbs --tag resize"),
)
pause = command_of(
    Pause,
    "pause",
    examples=("towline pause thumbs",),
    record=lambda verb, _: {"queue": verb.queue, "paused": True},
)
resume = command_of(
    Resume,
    "resume",
    examples=("towline resume thumbs",),
    record=lambda verb, _: {"queue": verb.queue, "paused": False},
)


def _time_text(task: StoredTask, now: Instant) -> str:
    """Return since when a task is ready or dead, when a delayed one will be, or how long a lease still holds."""
    if task.state is TaskState.LEASED:
        return f"for {shown_seconds(max(0.0, seconds_between(now, task.eta)))} more"
    if task.state is TaskState.DELAYED:
        return shown_ahead(seconds_between(now, task.eta))
    since = task.ready_at if task.state is TaskState.READY else task.eta
    return f"for {shown_seconds(max(0.0, seconds_between(since, now)))}"


def _no_tasks(queue: str, states: Sequence[str], named: Sequence[str], tags: Sequence[str], *, untagged: bool) -> str:
    """Return the sentence of an empty answer, with all that was asked for."""
    of = [f"with the tag {' or '.join(tags)}"] if tags else ["without a tag"] if untagged else []
    of += [f"named {' or '.join(named)}"] if named else []
    return " ".join([f"no {' or '.join(states)}{' ' if states else ''}tasks in {queue}", *of])


def _worker_or_reason(task: StoredTask) -> str:
    """Return the worker that holds a task, why it is dead, or how its last attempt ended."""
    if task.state is TaskState.LEASED:
        done = "" if task.progress is None else f" {task.progress.fraction:.0%}"
        return f"{task.worker}{done}"
    reason = task.reason or (task.attempts[-1].text if task.attempts else "")
    text = " ".join(reason.split())
    return shorten(text, REASON_CHARACTERS, placeholder=" ...") if len(text) > REASON_CHARACTERS else text

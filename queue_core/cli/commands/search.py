"""`towline search`: find tasks by what they went through, and change all that match after they were counted."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, Final, Unpack

import click

from queue_core.cli import exits
from queue_core.cli.commands.admin import STATES, print_tasks
from queue_core.cli.group import command
from queue_core.cli.options import ANY_ID, DURATION, tag_filter, tag_options, target_options
from queue_core.cli.output import echo, print_info, print_json
from queue_core.cli.target import TargetOptions, opened_queue
from queue_core.cli.task_story import task_record
from queue_core.client.queue import Queue
from queue_core.client.search_steps import MAX_STEPS, MatchingChange
from queue_core.clock import Instant, SystemClock
from queue_core.clock import after as moved
from queue_core.process.wording import counted
from queue_core.task import ALL_STATES
from queue_core.verbs.criteria import Search
from queue_core.verbs.matching import CHANGES, Action, Given

PAYLOAD_BYTES: Final = 1024


@dataclass(frozen=True, slots=True)
class GivenChange:
    """The change that an option asks for; `value`: what the option says, True where it takes nothing."""

    action: Action
    value: Any

    @property
    def gives(self) -> Given:
        """See `MatchingAction`."""
        return CHANGES[self.action].gives


def change_options(function: Callable[..., int]) -> Callable[..., int]:
    """Add an option for each change of all that match; the function gets the one that is given as `change`."""

    @wraps(function)
    def with_change(**options: Any) -> int:
        values = {action: options.pop(action) for action in CHANGES}
        given = [GivenChange(one, value) for one, value in values.items() if value is not None and value is not False]
        if len(given) > 1:
            raise click.UsageError(f"{' and '.join(f'--{one.action}' for one in given)}: give one of them")
        return function(**options, change=given[0] if given else None)

    for action, about in reversed(list(CHANGES.items())):
        takes: dict[Given, dict[str, Any]] = {
            "": {"is_flag": True},
            "eta": {"type": DURATION, "metavar": "TIME"},
            "tag": {"metavar": "TAG"},
        }
        with_change = click.option(f"--{action}", help=about.help, **takes[about.gives])(with_change)
    return with_change


@command(
    "search",
    when_cut="stderr",
    examples=(
        "towline search thumbs --error ValueError",
        "towline search thumbs --state dead --error ValueError --redrive",
        "towline search thumbs --contains cat.jpg --added-before 2h",
        "towline search thumbs --worker resize-7f3k2q --release --yes",
        "towline search thumbs --state delayed --postpone 10m",
        "towline search thumbs --tag slwo --retag slow",
    ),
)
@click.argument("queue")
@click.option(
    "--state", "states", multiple=True, type=click.Choice(list(STATES)), help="Only this state; may be repeated."
)
@click.option("--leases", "min_leases", default=0, type=ANY_ID, help="Leased so many times or more.")
@click.option("--added-before", "older", type=DURATION, metavar="AGO", help="Added longer ago than this, such as 2h.")
@click.option("--added-after", "younger", type=DURATION, metavar="AGO", help="Added within this time.")
@click.option("--worker", default="", help="Held by this worker, now or in an earlier attempt.")
@click.option("--error", default="", help="The error of its last attempt, such as ValueError; or expired, timed_out.")
@click.option("--contains", default="", help="A text in the first 64 KiB of the payload.")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 1000), help="Tasks shown at most.")
@click.option("--after", default=0, type=ANY_ID, help="Continue behind this id.")
@change_options
@click.option("--dry-run", is_flag=True, help="Only count what would be changed.")
@click.option("--yes", is_flag=True, help="Change them without asking.")
@tag_options
@target_options
def search(
    queue: str,
    states: tuple[str, ...],
    min_leases: int,
    older: float | None,
    younger: float | None,
    worker: str,
    error: str,
    contains: str,
    limit: int,
    after: int,
    change: GivenChange | None,
    dry_run: bool,  # noqa: FBT001
    yes: bool,  # noqa: FBT001
    tags: tuple[str, ...],
    untagged: bool,  # noqa: FBT001
    as_json: bool,  # noqa: FBT001
    **where: Unpack[TargetOptions],
) -> int:
    """Find tasks of QUEUE by what they went through; --redrive, --release, --delete, --postpone, --retag change them.

    All that match are counted first, and changed once you say so, or with --yes, in steps of up to 1,000. A task that
    no longer matches when its turn comes is left alone. A search looks at tasks in the order of their ids, 10,000 a
    call, and says how far it is. Exit code 1: none was changed.
    """
    now = SystemClock().now()
    wanted = Search(
        tag_filter(tags, untagged=untagged),
        frozenset(STATES[name] for name in states) or ALL_STATES,
        min_leases,
        None if younger is None else _ago(now, younger),
        None if older is None else _ago(now, older),
        worker,
        error,
        contains,
    )
    with opened_queue(queue, **where) as opened:
        if change is None:
            return _find(opened, wanted, limit, after, as_json=as_json)
        eta = moved(now, float(change.value)) if change.gives == "eta" else None
        tag = str(change.value) if change.gives == "tag" else None
        steps = MatchingChange(opened, change.action, wanted, eta, tag or None)
        return _change(steps, dry_run=dry_run, is_agreed=yes, as_json=as_json)


def _ago(now: Instant, seconds: float) -> Instant:
    """Return an instant that is over for so long, not before the epoch."""
    return max(Instant(0), moved(now, -seconds))


def _find(queue: Queue, wanted: Search, limit: int, after: int, *, as_json: bool) -> int:
    scanned, place = 0, after
    for _ in range(MAX_STEPS):
        page = queue.search(wanted, after=place, limit=limit, payload_bytes=PAYLOAD_BYTES)
        scanned += page.scanned
        if page.tasks or page.next_after is None:
            break
        place = page.next_after
        _progress(f"searched {scanned:,} of {page.total:,}")
    if as_json:
        told = {"next_after": page.next_after, "scanned": scanned, "total": page.total}
        print_json({"tasks": [task_record(task) for task in page.tasks], **told})
        return exits.OK
    print_tasks(page.tasks, empty=f"no task of {queue.name} matches; {counted(scanned, 'task')} searched")
    if page.next_after is not None:
        print_info(f"searched {scanned:,} of {page.total:,}; more: --after {page.next_after}")
    return exits.OK


def _change(change: MatchingChange, *, dry_run: bool, is_agreed: bool, as_json: bool) -> int:
    matched = scanned = 0
    as_of, about = None, CHANGES[change.action]
    if dry_run or not is_agreed:
        for batch in change.steps(dry_run=True):
            as_of = batch.as_of if as_of is None else as_of
            matched, scanned = matched + batch.matched, scanned + batch.scanned
            if batch.next_after is not None:
                _progress(f"searched {scanned:,} of {batch.total:,}: {matched:,} match")
    if dry_run:
        if as_json:
            print_json({"matched": matched, "changed": 0})
        else:
            echo(f"{counted(matched, 'task')} of {change.queue.name} would be {about.done}")
        return exits.OK if matched else exits.NEGATIVE
    if not is_agreed and matched:
        question = f"{counted(matched, 'task')} of {change.queue.name} match: {change.action} them?"
        click.confirm(question, abort=True, err=True)
    total = matched
    matched = changed = 0
    for batch in change.steps(dry_run=False, as_of=as_of) if is_agreed or total else ():
        matched, changed = matched + batch.matched, changed + batch.changed
        if batch.next_after is not None:
            of = f" of {total:,}" if total else ""
            _progress(f"{changed:,}{of} {about.done}")
    if as_json:
        print_json({"matched": matched, "changed": changed})
    else:
        left = f"; {matched - changed:,} {about.left}" if matched > changed else ""
        echo(f"{counted(changed, 'task')} {about.done}{left}")
    return exits.OK if changed else exits.NEGATIVE


def _progress(text: str) -> None:
    """Say on a terminal how far it is; elsewhere nothing."""
    if sys.stderr.isatty():
        print_info(text)

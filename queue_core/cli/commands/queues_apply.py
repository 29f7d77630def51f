"""`towline queues apply`: queues as a queue.yaml or queue.xml says, what it changes shown first."""

import sys
from pathlib import Path
from typing import Unpack

import click

from queue_core.api import Queues
from queue_core.cli import exits
from queue_core.cli.failure import CommandError
from queue_core.cli.group import command
from queue_core.cli.options import target_options
from queue_core.cli.output import columns, print_json, print_table, say
from queue_core.cli.queue_files import load_queue_file_entries
from queue_core.cli.target import Where, opened
from queue_core.config.units import format_bytes
from queue_core.queue_files.entries import QueueFileEntries
from queue_core.queue_files.plan import QueueChange, QueueFilePlan, Setting, SettingEdit, plan_of


@command(
    "apply",
    when_cut="tell",
    examples=(
        "towline queues apply queue.yaml",
        "towline queues apply queue.yaml --dry-run",
        "towline queues apply WEB-INF/queue.xml --url http://queues:7878 --yes --json",
    ),
)
@click.argument("queue_file", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--dry-run", "dry", flag_value="dry", help="Only show what would change.")
@click.option("--yes", "consent", flag_value="given", help="Do not ask; a must where nobody can be asked.")
@target_options
def apply(
    queue_file: Path,
    dry: str | None,
    consent: str | None,
    as_json: bool,  # noqa: FBT001
    **where: Unpack[Where],
) -> int:
    """Make the queues what FILE, an App Engine queue.yaml or queue.xml, says.

    FILE is definitive: queues it lists are made or set anew, and go on if they were paused (unless it says
    resume_paused_queues: False); queues it does not list are paused, their tasks kept, except `default`. Of push
    queues the names are kept, and nothing is leased from them. Its total_storage_limit bounds the payloads of all
    tasks; without one the bound is lifted. A second run finds nothing to do.
    """
    entries = load_queue_file_entries(queue_file)
    with opened(**where) as (queues, target):
        plan = plan_of(entries, queues.queues(), storage_limit_bytes=queues.storage().limit_bytes)
        if not as_json:
            _tell(entries, plan)
        wanted = not plan.is_empty and not dry
        if wanted and not consent:
            _ask(_changed(plan), target.shown)
        if wanted and plan.storage is not None:
            queues.set_storage_limit(entries.total_storage_limit_bytes)
        for change in plan.changes if wanted else ():
            _make(change, queues)
    if as_json:
        print_json(_record(entries, plan, outcome="applied" if wanted else "left"))
    elif wanted:
        say(f"done: {_changed(plan)} changed")
    return exits.OK


def _ask(changed: str, shown: str) -> None:
    if not sys.stdin.isatty():
        told = f"{changed} of {shown} would change, and there is nobody to ask"
        raise CommandError(told, code=exits.USAGE, fix="give --yes to change them, or --dry-run only to look")
    click.confirm(f"Change {changed} of {shown}?", abort=True, err=True)


def _changed(plan: QueueFilePlan) -> str:
    count = _counted(len(plan.changes), "queue")
    if plan.storage is None:
        return count
    return f"{count} and the storage limit" if plan.changes else "the storage limit"


def _make(change: QueueChange, queues: Queues) -> None:
    if change.spec is not None:
        queues.put_queue(change.spec)
    if change.pausing is None:
        return
    queue = queues.queue(change.queue)
    if change.pausing == "pause":
        queue.pause()
    else:
        queue.resume()


def _tell(entries: QueueFileEntries, plan: QueueFilePlan) -> None:
    rows: list[tuple[object, ...]] = (
        [("(all)", "update", "total_storage_limit", *_sizes(plan.storage))] if plan.storage else []
    )
    rows += [
        (change.queue, change.kind, edit.setting, _shown(edit.before), _shown(edit.after))
        for change in plan.changes
        for edit in change.edits
    ]
    print_table(columns("QUEUE", "CHANGE", "SETTING", "FROM", "TO"), rows, empty="nothing to do")
    if entries.push_queues:
        count = _counted(len(entries.push_queues), "push queue")
        say(f"known by name only: {count}, as nothing here calls handlers: {', '.join(entries.push_queues)}")
    for spec in plan.moved:
        say(f"left alone: {spec.name} was moved to {spec.moved_to}; apply the file there")


def _record(entries: QueueFileEntries, plan: QueueFilePlan, *, outcome: str) -> dict[str, object]:
    return {
        "applied": outcome == "applied",
        "changes": [
            {
                "queue": change.queue,
                "change": change.kind,
                "settings": {edit.setting: {"from": edit.before, "to": edit.after} for edit in change.edits},
            }
            for change in plan.changes
        ],
        "push_queues": entries.push_queues,
        "moved": {spec.name: spec.moved_to for spec in plan.moved},
        "total_storage_limit_bytes": entries.total_storage_limit_bytes,
        "storage_limit": {"from": plan.storage.before, "to": plan.storage.after} if plan.storage else None,
    }


def _sizes(edit: SettingEdit) -> tuple[str | None, str | None]:
    before, after = (format_bytes(size) if isinstance(size, int) else None for size in (edit.before, edit.after))
    return before, after


def _shown(value: Setting) -> Setting:
    return (", ".join(value) or None) if isinstance(value, tuple) else value


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"

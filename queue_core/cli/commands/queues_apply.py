"""`towline queues apply`: set the queues as a queue.yaml or queue.xml says, after showing what changes."""

import sys
from pathlib import Path
from typing import Unpack

import click

from queue_core.cli import exits
from queue_core.cli.failure import CommandError
from queue_core.cli.group import command
from queue_core.cli.options import target_options
from queue_core.cli.output import columns, print_info, print_json, print_table
from queue_core.cli.target import TargetOptions, opened
from queue_core.client.queue import Queues
from queue_core.config.units import format_bytes
from queue_core.config.yaml_document import MAX_TEXT_BYTES, DocumentError
from queue_core.google.queue_files.entries import QueueFileEntries
from queue_core.google.queue_files.plan import QueueChange, QueueFilePlan, Setting, SettingEdit, plan_of
from queue_core.process.wording import counted


def load_queue_file_entries(path: Path) -> QueueFileEntries:
    """Return the entries of a queue.yaml or queue.xml. Raises `CommandError` with all errors in it."""
    if not path.is_file():
        message = f"no such file: {path}"
        raise CommandError(message, code=exits.NO_INPUT, where=str(path.parent.absolute()), fix="check the path")
    with path.open("rb") as file:
        data = file.read(MAX_TEXT_BYTES + 1)
    try:
        return _read(data, path)
    except DocumentError as error:
        count = len(error.lines)
        fix = f"fix {'it' if count == 1 else f'all {count}'}, then run this again; nothing was changed"
        raise CommandError(error.lines, code=exits.BAD_CONFIG, fix=fix) from None


def is_xml(path: Path, data: bytes) -> bool:
    """Return whether a queue file is XML: by its name, or else by its first character."""
    if path.suffix.lower() in {".xml", ".yaml", ".yml"}:
        return path.suffix.lower() == ".xml"
    return data.lstrip(b"\xef\xbb\xbf\xfe\xff\x00 \t\r\n").startswith(b"<")


def _read(data: bytes, path: Path) -> QueueFileEntries:
    if is_xml(path, data):
        from queue_core.google.queue_files.xml import read_queue_xml

        return read_queue_xml(data, name=str(path))
    from queue_core.google.queue_files.yaml import read_queue_yaml

    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        message = f"{path}:{line}:1: byte 0x{data[error.start]:02x} is not UTF-8: save the file as UTF-8"
        raise DocumentError((message,)) from None
    return read_queue_yaml(text, name=str(path))


@command(
    "apply",
    when_cut="stderr",
    examples=(
        "towline queues apply queue.yaml",
        "towline queues apply queue.yaml --dry-run",
        "towline queues apply WEB-INF/queue.xml --url http://queues:7878 --yes --json",
    ),
)
@click.argument("queue_file", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--dry-run", "dry", flag_value="dry", help="Only show what would change.")
@click.option(
    "--yes", "consent", flag_value="given", help="Skip the confirmation; needed where stdin is not a terminal."
)
@target_options
def apply(
    queue_file: Path,
    dry: str | None,
    consent: str | None,
    as_json: bool,  # noqa: FBT001
    **where: Unpack[TargetOptions],
) -> int:
    """Set the queues as FILE says, an App Engine queue.yaml or queue.xml.

    FILE is definitive: queues in it are created or updated, and resumed if they were paused (unless it says
    resume_paused_queues: False); queues not in it are paused and keep their tasks, except `default`. Push queues are
    only listed, and nothing is leased from them. Its total_storage_limit limits the payloads of all tasks; without
    one there is no limit. A second run finds nothing to do.
    """
    entries = load_queue_file_entries(queue_file)
    with opened(**where) as (queues, target):
        plan = plan_of(entries, queues.queues(), storage_limit_bytes=queues.storage().limit_bytes)
        if not as_json:
            _print_plan(entries, plan)
        wanted = not plan.is_empty and not dry
        if wanted and not consent:
            _confirm(_changed(plan), target.shown)
        if wanted and plan.storage is not None:
            queues.set_storage_limit(entries.total_storage_limit_bytes)
        for change in plan.changes if wanted else ():
            _apply_change(change, queues)
    if as_json:
        print_json(_record(entries, plan, outcome="applied" if wanted else "left"))
    elif wanted:
        print_info(f"done: {_changed(plan)} changed")
    return exits.OK


def _confirm(changed: str, shown: str) -> None:
    if not sys.stdin.isatty():
        message = f"{changed} of {shown} would change, and stdin is not a terminal to confirm it"
        raise CommandError(message, code=exits.USAGE, fix="give --yes to change them, or --dry-run to see what changes")
    click.confirm(f"Change {changed} of {shown}?", abort=True, err=True)


def _changed(plan: QueueFilePlan) -> str:
    count = counted(len(plan.changes), "queue")
    if plan.storage is None:
        return count
    return f"{count} and the storage limit" if plan.changes else "the storage limit"


def _apply_change(change: QueueChange, queues: Queues) -> None:
    if change.spec is not None:
        queues.put_queue(change.spec)
    if change.pausing is None:
        return
    queue = queues.queue(change.queue)
    if change.pausing == "pause":
        queue.pause()
    else:
        queue.resume()


def _print_plan(entries: QueueFileEntries, plan: QueueFilePlan) -> None:
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
        count = counted(len(entries.push_queues), "push queue")
        print_info(f"listed only: {count}, as Towline calls no handlers: {', '.join(entries.push_queues)}")
    for spec in plan.moved:
        print_info(f"skipped: {spec.name} was moved to {spec.moved_to}; apply the file there")


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

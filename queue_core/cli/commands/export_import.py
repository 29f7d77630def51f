"""`towline export` and `towline import`: write tasks to JSON lines, and read them back."""

from pathlib import Path

import click

from queue_core.cli import exits
from queue_core.cli.failure import CommandError
from queue_core.cli.group import command
from queue_core.cli.opened_store import opened_store, store_named, store_options
from queue_core.cli.output import print_info, print_json, progress
from queue_core.clock import SystemClock
from queue_core.errors import CutShortError
from queue_core.process.wording import counted
from queue_core.transfer.exporter import STDOUT, ExportResult
from queue_core.transfer.exporter import export as export_queues
from queue_core.transfer.importer import ImportResult, check_file, import_file

_FILE = click.Path(path_type=Path, dir_okay=False, allow_dash=True)


@command(
    "export",
    examples=(
        "towline export backup.jsonl.gz",
        "towline export thumbs.jsonl --queue thumbs --store sqlite:///towline.db",
        "towline export backup.jsonl.gz --resume",
        "towline export - | jq -c 'select(.state == \"dead\")'",
    ),
)
@click.argument("path", type=_FILE, metavar="FILE")
@click.option("--queue", "queues", multiple=True, metavar="QUEUE", help="Only this queue; may be repeated.")
@click.option("--resume", is_flag=True, help="Continue an interrupted export after the last complete line of FILE.")
@store_options
def export(
    path: Path,
    queues: tuple[str, ...],
    resume: bool,  # noqa: FBT001  click's flag
    store: str | None,
    file: Path | None,
    as_json: bool,  # noqa: FBT001
) -> int:
    """Write all tasks of a store to FILE, one JSON object per line. - is stdout; a name ending in .gz is compressed.

    It is a copy: servers and workers continue, and the tasks still run where they are; to run them elsewhere, use
    `towline migrate`. Each task is written as it is when it is read, with its name, tag, eta, lease and payload; the
    held names of deleted tasks are written too. Queues that were moved are left out unless they are named.
    """
    if path == STDOUT and (resume or as_json):
        raise click.UsageError("the export goes to stdout: --resume and --json need a file")
    url, durability, origin = store_named(store, file)
    with (
        opened_store(url, origin=origin, must="existing", durability=durability) as opened,
        progress("tasks", quiet=as_json) as bar,
    ):
        try:
            exported = export_queues(opened, path, queues, progress=bar, mode="resume" if resume else "new")
        except FileExistsError:
            message = f"{path} exists already"
            fix = "give --resume to complete an interrupted export, or name another file"
            raise CommandError(message, code=exits.CANT_CREATE, where=str(path.absolute()), fix=fix) from None
    _print_exported(exported, path, as_json=as_json)
    return exits.OK


def _print_exported(exported: ExportResult, path: Path, *, as_json: bool) -> None:
    queues = [spec.name for spec in exported.header.queues]
    if as_json:
        counts = {"tasks": exported.tasks, "names": exported.names, "was_whole": exported.was_whole}
        print_json({"file": str(path), "id": exported.header.id, "queues": queues, **counts})
        return
    was_whole = "; it was complete already" if exported.was_whole else ""
    print_info(f"{_amounts(exported.tasks, exported.names)} of {', '.join(queues)}{was_whole}")


@command(
    "import",
    when_cut="stderr",
    examples=(
        "towline import backup.jsonl.gz",
        "towline import backup.jsonl.gz --dry-run",
        "ssh old towline export - | towline import - --store sqlite:////srv/new.db",
    ),
)
@click.argument("path", type=_FILE, metavar="FILE")
@click.option("--dry-run", is_flag=True, help="Only check and count all lines; open no store.")
@store_options
def import_(
    path: Path,
    dry_run: bool,  # noqa: FBT001
    store: str | None,
    file: Path | None,
    as_json: bool,  # noqa: FBT001
) -> int:
    """Put the tasks of FILE, which `towline export` wrote, into a store; - is stdin.

    The whole file is checked first. If the import is interrupted, run the same command again to continue; after a
    complete import it does nothing (exit code 1). Missing queues are created with their settings, existing ones keep
    theirs. Tasks whose names are taken are left out; tasks that were in flight stay so until their leases would have
    ended. In a store without transactions over several calls (Redis), a queue is closed while it is filled.
    """
    with progress("lines", quiet=as_json) as bar:
        if dry_run:
            checked = check_file(
                path, now=SystemClock().now(), progress=lambda done, total: bar("checking", done, total)
            )
            counts = {"tasks": checked.tasks, "names": checked.names}
            queues = [spec.name for spec in checked.header.queues]
            if as_json:
                print_json({"file": str(path), "id": checked.header.id, "queues": queues, **counts, "dry_run": True})
            else:
                print_info(f"{_amounts(checked.tasks, checked.names)} of {', '.join(queues)}: no errors")
            return exits.OK
        url, durability, origin = store_named(store, file)
        with opened_store(url, origin=origin, must="existing or new", durability=durability) as opened:
            try:
                done = import_file(
                    opened,
                    path,
                    checking=lambda done, total: bar("checking", done, total),
                    importing=lambda done, total: bar("importing", done, total),
                )
            except CutShortError as error:
                fix = "import the complete file: tasks that are here already are not imported again"
                raise CommandError(str(error), code=exits.BAD_DATA, where=opened.url, fix=fix) from None
    _print_imported(done, path, as_json=as_json)
    return exits.NEGATIVE if done.was_done else exits.OK


def _print_imported(done: ImportResult, path: Path, *, as_json: bool) -> None:
    if as_json:
        counts = {"tasks": done.tasks, "refused": done.refused, "names": done.names}
        queues = {"queues": [spec.name for spec in done.header.queues], "created": list(done.created)}
        how = {"resumed_after_line": done.resumed_after, "was_done": done.was_done}
        print_json({"file": str(path), "id": done.header.id, **queues, **counts, **how})
        return
    if done.was_done:
        print_info(f"imported already: {_amounts(done.tasks, done.names)}; nothing was done")
        return
    resumed = f", resumed after line {done.resumed_after:,}" if done.resumed_after > 1 else ""
    print_info(f"{_amounts(done.tasks, done.names)} imported{resumed}")
    if done.refused:
        print_info(f"{counted(done.refused, 'task')} left out: the name is taken there")


def _amounts(tasks: int, names: int) -> str:
    return f"{counted(tasks, 'task')} and {counted(names, 'held name')}"

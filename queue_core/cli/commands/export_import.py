"""`towline export` and `towline import`: tasks as JSON lines."""

from pathlib import Path

import click

from queue_core.cli import exits
from queue_core.cli.failure import CommandError
from queue_core.cli.group import command
from queue_core.cli.opened_store import opened_store, store_named, store_options
from queue_core.cli.output import print_json, say
from queue_core.cli.progress import progress
from queue_core.clock import SystemClock
from queue_core.errors import CutShortError
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
@click.option("--queue", "queues", multiple=True, metavar="QUEUE", help="Only this queue; again for more.")
@click.option("--resume", is_flag=True, help="Go on after the last whole line of FILE, where it was cut short.")
@store_options
def export(
    path: Path,
    queues: tuple[str, ...],
    resume: bool,  # noqa: FBT001  click's flag
    store: str | None,
    file: Path | None,
    as_json: bool,  # noqa: FBT001
) -> int:
    """Write all tasks of a store to FILE, a JSON object a line. - is stdout; a name that ends in .gz is compressed.

    It is a copy: servers and workers go on, and the tasks still run where they are; to have them run elsewhere instead,
    use `towline migrate`. Each task is written as it stands when it is read. Tasks keep names, tags, etas, leases and
    payloads; the names of finished tasks that are still held come along. Queues that were moved away are left out
    unless they are named.
    """
    if path == STDOUT and (resume or as_json):
        raise click.UsageError("stdout is the export: --resume and --json need a file")
    url, durability, origin = store_named(store, file)
    with (
        opened_store(url, origin=origin, must="existing", durability=durability) as opened,
        progress("tasks", quiet=as_json) as bar,
    ):
        try:
            exported = export_queues(opened, path, queues, progress=bar, mode="resume" if resume else "new")
        except FileExistsError:
            told = f"{path} is there already"
            fix = "--resume completes an export that was cut short; else name another file"
            raise CommandError(told, code=exits.CANT_CREATE, where=str(path.absolute()), fix=fix) from None
    _tell_exported(exported, path, as_json=as_json)
    return exits.OK


def _tell_exported(exported: ExportResult, path: Path, *, as_json: bool) -> None:
    queues = [spec.name for spec in exported.header.queues]
    if as_json:
        counts = {"tasks": exported.tasks, "names": exported.names, "was_whole": exported.was_whole}
        print_json({"file": str(path), "id": exported.header.id, "queues": queues, **counts})
        return
    was_whole = "; it was whole already" if exported.was_whole else ""
    say(f"{exported.tasks:,} tasks and {exported.names:,} held names of {', '.join(queues)}{was_whole}")


@command(
    "import",
    when_cut="tell",
    examples=(
        "towline import backup.jsonl.gz",
        "towline import backup.jsonl.gz --dry-run",
        "ssh old towline export - | towline import - --store sqlite:////srv/new.db",
    ),
)
@click.argument("path", type=_FILE, metavar="FILE")
@click.option("--dry-run", is_flag=True, help="Check every line and count; open no store, write nothing.")
@store_options
def import_(
    path: Path,
    dry_run: bool,  # noqa: FBT001
    store: str | None,
    file: Path | None,
    as_json: bool,  # noqa: FBT001
) -> int:
    """Put the tasks of FILE, which `towline export` wrote, into a store; - is stdin.

    A file is checked from end to end before anything is done. Broken off at any point, the same command goes on where
    it was; run again once it is done, it does nothing (exit code 1). Queues that are not there are made as they were,
    others keep their settings. A task whose name is taken is left out; a task that was in flight stays so until its
    lease would have ended. In a store that keeps each step by itself (Redis), a queue is closed while it is filled.
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
                say(f"{checked.tasks:,} tasks and {checked.names:,} held names of {', '.join(queues)}: all is right")
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
                fix = "import the whole of it: what is here already is not done again"
                raise CommandError(str(error), code=exits.BAD_DATA, where=opened.url, fix=fix) from None
    _tell_imported(done, path, as_json=as_json)
    return exits.NEGATIVE if done.was_done else exits.OK


def _tell_imported(done: ImportResult, path: Path, *, as_json: bool) -> None:
    if as_json:
        counts = {"tasks": done.tasks, "refused": done.refused, "names": done.names}
        queues = {"queues": [spec.name for spec in done.header.queues], "created": list(done.created)}
        how = {"resumed_after_line": done.resumed_after, "was_done": done.was_done}
        print_json({"file": str(path), "id": done.header.id, **queues, **counts, **how})
        return
    if done.was_done:
        say(f"imported already: {done.tasks:,} tasks and {done.names:,} held names; nothing was done")
        return
    resumed = f", gone on with after line {done.resumed_after:,}" if done.resumed_after > 1 else ""
    say(f"{done.tasks:,} tasks and {done.names:,} held names imported{resumed}")
    if done.refused:
        say(f"{done.refused:,} tasks were left out: their names are taken there")

"""`towline backup`: copy an SQLite store that is in use."""

import shutil
from pathlib import Path
from typing import Final, Unpack, cast

import click

from queue_core.cli import exits
from queue_core.cli.failure import CommandError
from queue_core.cli.group import command
from queue_core.cli.opened_store import opened_store
from queue_core.cli.options import target_options
from queue_core.cli.output import print_info, print_json, progress
from queue_core.cli.target import Target, TargetOptions, find_target
from queue_core.client.http.caller import HttpCaller, Retries
from queue_core.errors import QueueError
from queue_core.process.wording import counted, shown_bytes
from queue_core.stores import check_can_back_up

TIMEOUT_SECONDS: Final = 3600.0
_FILE = click.Path(path_type=Path)


@command(
    "backup",
    examples=(
        "towline backup saved.db",
        "towline backup /backups/towline.db --overwrite --json",
        "towline backup saved.db --store sqlite:////srv/towline.db",
        "towline backup saved.db --url http://127.0.0.1:7878",
    ),
)
@click.argument("to", type=_FILE, metavar="FILE")
@click.option("--overwrite", is_flag=True, help="Replace an existing FILE, once the copy is complete.")
@target_options
def backup(
    to: Path,
    overwrite: bool,  # noqa: FBT001  click's flag
    as_json: bool,  # noqa: FBT001
    **where: Unpack[TargetOptions],
) -> int:
    """Copy an SQLite store to FILE while servers and workers run, and check the copy.

    The copy is a snapshot: queues, tasks, leases, names, statistics. FILE is a complete store: name it in `store:` to
    use it. Only its owner can read it.

    If a server is running, it makes the copy, even after its file was moved or removed. It puts the copy beside its
    store; from there it is moved to FILE, if that is on this host. For PostgreSQL and Redis use `pg_dump` and
    `redis-cli BGSAVE`.
    """
    target = find_target(**where)
    if to.is_dir():
        raise CommandError(f"{to} is a folder", code=exits.USAGE, fix=f"name a file in it, such as {to / 'saved.db'}")
    if to.exists() and not overwrite:
        raise _there_already(to)
    made = (
        _copy_by_server(target, to, overwrite=overwrite)
        if target.is_server
        else _copy_directly(target, to, overwrite, as_json)
    )
    if as_json:
        print_json(made)
    else:
        tasks, size = counted(cast("int", made["tasks"]), "task"), shown_bytes(cast("int", made["size_bytes"]))
        print_info(f"{made['file']}: {tasks}, {size}, checked")
        if made["file"] != str(to.resolve()):
            print_info("it is on the server's host: move it from there")
    return exits.OK


def _copy_directly(target: Target, to: Path, overwrite: bool, as_json: bool) -> dict[str, object]:  # noqa: FBT001
    check_can_back_up(target.url)
    from queue_core.stores.sqlite.backup import back_up
    from queue_core.stores.sqlite.store import SqliteStore

    with (
        opened_store(target.url, origin=target.origin, must="existing", durability=target.durability) as store,
        progress("pages", quiet=as_json) as bar,
    ):
        assert isinstance(store, SqliteStore), "its URL says so"
        try:
            made = back_up(store, to, overwrite=overwrite, progress=lambda done, pages: bar("copying", done, pages))
        except FileExistsError:
            raise _there_already(to) from None
    return {"file": str(made.file), "size_bytes": made.size_bytes, "tasks": made.tasks}


def _copy_by_server(target: Target, to: Path, *, overwrite: bool) -> dict[str, object]:
    """Have the server make the copy, and move it to `to` if it is on this host."""
    caller = HttpCaller(target.url, token=target.token, retries=Retries(), timeout_seconds=TIMEOUT_SECONDS)
    try:
        made = dict(caller.call("POST", "/v1/backup", {}, repeat="once"))
    except QueueError as error:
        raise CommandError(f"no copy: {error}", code=exits.UNAVAILABLE, where=target.shown) from error
    finally:
        caller.close()
    there = Path(str(made["file"]))
    try:
        if not there.is_file():
            return made
        if to.exists() and not overwrite:
            raise _there_already(to, found=there)
        shutil.move(there, to)
    except OSError as error:
        raise CommandError(
            f"the copy could not be moved to {to}: {error.strerror}", code=exits.CANT_CREATE, where=str(there)
        ) from error
    return {**made, "file": str(to.resolve())}


def _there_already(to: Path, *, found: Path | None = None) -> CommandError:
    where = "" if found is None else str(found)
    return CommandError(
        f"{to} exists already", code=exits.CANT_CREATE, where=where, fix="name another file, or give --overwrite"
    )

"""`towline vacuum`: shrink the file of an SQLite store to what it holds."""

from typing import Final, Unpack

from queue_core.cli import exits
from queue_core.cli.failure import CommandError
from queue_core.cli.group import command
from queue_core.cli.opened_store import opened_store
from queue_core.cli.options import target_options
from queue_core.cli.output import print_info, print_json
from queue_core.cli.target import Target, TargetOptions, find_target
from queue_core.client.http.caller import HttpCaller, Retries
from queue_core.errors import QueueError
from queue_core.process.wording import shown_bytes
from queue_core.stores import check_can_vacuum

TIMEOUT_SECONDS: Final = 3600.0


@command(
    "vacuum",
    examples=(
        "towline vacuum",
        "towline vacuum --store sqlite:////srv/towline.db",
        "towline vacuum --url http://127.0.0.1:7878 --json",
    ),
)
@target_options
def vacuum(as_json: bool, **where: Unpack[TargetOptions]) -> int:  # noqa: FBT001  click's flag
    """Shrink the file of an SQLite store: return the room of deleted tasks to the file system.

    New tasks reuse that space, so this is only needed when something else needs the disk; `towline doctor`
    reports how much it is. All changes wait meanwhile: about a second for 100 MiB of tasks that are left. The file
    system needs room for these once more.

    If a server is running, it does the work. PostgreSQL and Redis do it automatically.
    """
    target = find_target(**where)
    before, after = _vacuum_by_server(target) if target.is_server else _directly(target)
    if as_json:
        print_json({"size_bytes_before": before, "size_bytes": after})
    else:
        freed = shown_bytes(max(0, before - after))
        print_info(f"{shown_bytes(before)} before, {shown_bytes(after)} now: {freed} freed")
    return exits.OK


def _directly(target: Target) -> tuple[int, int]:
    check_can_vacuum(target.url)
    from queue_core.stores.sqlite.store import SqliteStore

    with opened_store(target.url, origin=target.origin, must="existing", durability=target.durability) as store:
        assert isinstance(store, SqliteStore), "its URL says so"
        return store.vacuum()


def _vacuum_by_server(target: Target) -> tuple[int, int]:
    caller = HttpCaller(target.url, token=target.token, retries=Retries(), timeout_seconds=TIMEOUT_SECONDS)
    try:
        made = caller.call("POST", "/v1/vacuum", {}, repeat="once")
    except QueueError as error:
        raise CommandError(f"not vacuumed: {error}", code=exits.UNAVAILABLE, where=target.shown) from error
    finally:
        caller.close()
    return int(str(made["size_bytes_before"])), int(str(made["size_bytes"]))

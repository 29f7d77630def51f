"""`towline queues storage`: what the payloads of all tasks may come to, and what they come to."""

from typing import Unpack

import click

from queue_core.cli import exits
from queue_core.cli.failure import CommandError
from queue_core.cli.group import command
from queue_core.cli.options import SIZE, target_options
from queue_core.cli.output import print_json, say
from queue_core.cli.target import Where, opened
from queue_core.config.units import format_bytes
from queue_core.http_api.values import flat_json
from queue_core.store import Storage


@command(
    "storage",
    when_cut="tell",
    examples=("towline queues storage", "towline queues storage --limit 10GiB", "towline queues storage --no-limit"),
)
@click.option("--limit", "limit_bytes", type=SIZE, metavar="SIZE", help="Refuse adds beyond it: 500MiB, or bytes.")
@click.option("--no-limit", "unlimited", flag_value="unlimited", help="Lift the limit, and count no longer.")
@target_options
def storage(limit_bytes: int | None, unlimited: str | None, as_json: bool, **where: Unpack[Where]) -> int:  # noqa: FBT001
    """Show how many bytes the payloads of all tasks come to, or limit them.

    Bytes are counted while there is a limit; setting the first one counts the tasks that are there.
    """
    if unlimited and limit_bytes is not None:
        raise CommandError("--limit and --no-limit: give one of them", code=exits.USAGE)
    with opened(**where) as (queues, _):
        if unlimited or limit_bytes is not None:
            queues.set_storage_limit(limit_bytes)
        found = queues.storage()
    if as_json:
        print_json(flat_json(found))
    else:
        say(_told(found))
    return exits.OK


def _told(found: Storage) -> str:
    if found.limit_bytes is None:
        return "no limit: nothing is counted"
    share = f", {found.used_bytes / found.limit_bytes:.1%}" if found.limit_bytes else ""
    return f"{found.used_bytes:,} bytes of {format_bytes(found.limit_bytes)}{share}"

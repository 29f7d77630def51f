"""`towline health`: for probes and scripts, whether a server answers and takes changes."""

from typing import Unpack

import click

from queue_core.cli import exits
from queue_core.cli.failure import CommandError
from queue_core.cli.group import command
from queue_core.cli.options import target_options
from queue_core.cli.output import print_json
from queue_core.cli.target import Where, find_target
from queue_core.clock import SystemClock
from queue_core.errors import QueueError
from queue_core.http_api.caller import Caller, Retries


@command("health", examples=("towline health", "towline health --url unix:///run/towline.sock --json"))
@target_options
def health(as_json: bool, **where: Unpack[Where]) -> int:  # noqa: FBT001
    """Ask a server whether it is ready: the store takes changes. Exit code 69 when it is not."""
    target = find_target(**where)
    if not target.is_server:
        raise CommandError(
            "no server answers", code=exits.UNAVAILABLE, where=target.origin, fix="start it with `towline up`"
        )
    clock = SystemClock()
    began = clock.monotonic()
    caller = Caller(target.url, token=target.token, retries=Retries(), timeout_seconds=5.0)
    try:
        caller.get("/readyz")
    except QueueError as error:
        raise CommandError(
            f"not ready: {error}", code=exits.UNAVAILABLE, where=target.shown, fix="`towline doctor` tells more"
        ) from None
    finally:
        caller.close()
    milliseconds = round((clock.monotonic() - began) * 1000, 1)
    if as_json:
        print_json({"status": "ok", "url": target.shown, "milliseconds": milliseconds})
    else:
        click.echo(f"ready: {target.shown} ({milliseconds} ms)")
    return exits.OK

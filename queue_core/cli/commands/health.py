"""`towline health`: for probes and scripts, whether a server answers and takes changes."""

from typing import Literal, Unpack

from queue_core.cli import exits
from queue_core.cli.failure import CommandError
from queue_core.cli.group import command
from queue_core.cli.options import target_options
from queue_core.cli.output import echo, print_json
from queue_core.cli.target import Target, Where, find_target
from queue_core.clock import SystemClock
from queue_core.errors import QueueError
from queue_core.http_api.caller import HttpCaller, Retries, read

TIMEOUT_SECONDS = 5.0
NOT_FOUND = 404


@command("health", examples=("towline health", "towline health --url unix:///run/towline.sock --json"))
@target_options
def health(as_json: bool, **where: Unpack[Where]) -> int:  # noqa: FBT001
    """Ask a server whether it is ready: the store takes changes. Exit code 69 when it is not."""
    told = {"status": "ok", **server_health(find_target(**where))}
    if as_json:
        print_json(told)
    else:
        echo(f"ready: {told['url']} ({told['milliseconds']} ms)")
    return exits.OK


def server_health(target: Target) -> dict[str, object]:
    """Where the server is, and how soon it answered. Raises `CommandError` when it is not ready."""
    if not target.is_server:
        raise CommandError(
            "no server answers", code=exits.UNAVAILABLE, where=target.origin, fix="start it with `towline up`"
        )
    clock = SystemClock()
    began = clock.monotonic()
    ask(target, "/readyz", what="the server")
    return {"url": target.shown, "milliseconds": round((clock.monotonic() - began) * 1000, 1)}


def ask(target: Target, path: str, *, what: str, missing: Literal["bad", "fine"] = "bad") -> dict[str, object] | None:
    """What a probe's path answers; None where there is no such path and that is fine.

    Raises `CommandError` when it is not well.
    """
    caller = HttpCaller(target.url, token=target.token, retries=Retries(timeouts=1), timeout_seconds=TIMEOUT_SECONDS)
    try:
        answer = caller.request("GET", path, None, repeat="safe")
        if missing == "fine" and answer.status == NOT_FOUND:
            return None
        return dict(read(answer))
    except QueueError as error:
        raise CommandError(
            f"not ready: {what}: {error}",
            code=exits.UNAVAILABLE,
            where=target.shown,
            fix="`towline doctor` tells more",
        ) from None
    finally:
        caller.close()

"""`towline health`: check for probes and scripts whether a server is ready."""

from typing import Literal, Unpack

from queue_core.cli import exits
from queue_core.cli.failure import CommandError
from queue_core.cli.group import command
from queue_core.cli.options import target_options
from queue_core.cli.output import echo, print_json
from queue_core.cli.target import Target, TargetOptions, find_server
from queue_core.client.http.caller import HttpCaller, Retries, read
from queue_core.clock import SystemClock
from queue_core.errors import QueueError

TIMEOUT_SECONDS = 5.0
NOT_FOUND = 404


@command("health", examples=("towline health", "towline health --url unix:///run/towline.sock --json"))
@target_options
def health(as_json: bool, **where: Unpack[TargetOptions]) -> int:  # noqa: FBT001
    """Check whether a server is ready: its store takes changes. Exit code 69 when it is not."""
    answer = {"status": "ok", **server_health(find_server(**where))}
    if as_json:
        print_json(answer)
    else:
        echo(f"ready: {answer['url']} ({answer['milliseconds']} ms)")
    return exits.OK


def server_health(target: Target) -> dict[str, object]:
    """Return the server's URL and response time. Raises `CommandError` when it is not ready."""
    if not target.is_server:
        raise CommandError(
            "no server answers", code=exits.UNAVAILABLE, where=target.origin, fix="start it with `towline up`"
        )
    clock = SystemClock()
    began = clock.monotonic()
    probe(target, "/readyz", what="the server")
    return {"url": target.shown, "milliseconds": round((clock.monotonic() - began) * 1000, 1)}


def probe(target: Target, path: str, *, what: str, missing: Literal["bad", "fine"] = "bad") -> dict[str, object] | None:
    """Return the answer at `path`; None for a missing path with `missing="fine"`.

    Raises `CommandError` when the server is not ready.
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
            fix="run `towline doctor`",
        ) from None
    finally:
        caller.close()

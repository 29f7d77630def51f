"""Commands that work only on the supervisor's host: what they say to a `--url`, which they can't follow."""

from collections.abc import Mapping
from typing import Final

import click

from queue_core.cli import exits
from queue_core.cli.failure import CommandError

_STATE: Final = "the supervisor's state folder"
_ON_THE_HOST: Final = "run it on that host, with -f and the settings file that `towline up` was started with"
_WITH_THE_STORE: Final = "give --store with the URL of the store that the server uses; the server may keep running"

HOST_COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "plan": (
        f"reads the settings file and {_STATE}",
        f"{_ON_THE_HOST}; `towline why POOL --url URL` tells what its supervisor decided",
    ),
    "backtest": ("reads the lifecycle log that the settings file names", _ON_THE_HOST),
    "doctor": (
        "checks the machine that it runs on",
        f"{_ON_THE_HOST}; `towline health --url URL` checks a server from afar",
    ),
    **dict.fromkeys(
        ("export", "import"), ("reads held names and leases, which a server does not give", _WITH_THE_STORE)
    ),
}
"""The reason why a command takes no `--url`, and what to do instead."""


def refuse_url(made: click.Command, name: str) -> None:
    """Have a command of `HOST_COMMANDS` say why it takes no `--url`, unless it takes one."""
    if name not in HOST_COMMANDS or any("--url" in parameter.opts for parameter in made.params):
        return
    why, fix = HOST_COMMANDS[name]

    def refuse(_context: click.Context, _parameter: click.Parameter, value: str | None) -> None:
        if value is not None:
            raise CommandError(f"`towline {name}` takes no --url: it {why}", code=exits.USAGE, fix=fix)

    made.params.append(
        click.Option(["--url"], hidden=True, expose_value=False, is_eager=True, callback=refuse, metavar="URL")
    )

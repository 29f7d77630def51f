"""`towline console`: pages over queues, pools, workers and tasks, apart from the server that they show."""

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Unpack

import click

from queue_core.cli import exits
from queue_core.cli.failure import CommandError
from queue_core.cli.group import command
from queue_core.cli.opened_store import opened_store
from queue_core.cli.options import target_options
from queue_core.cli.output import print_info
from queue_core.cli.serving import listen_failure, serve_options
from queue_core.cli.target import TargetOptions, find_target
from queue_core.errors import InvalidSettingError, ListenError
from queue_core.server.base.options import options_of

if TYPE_CHECKING:
    from queue_core.cli.standalone_console import ApiSource

DEFAULT_LISTEN: Final = "127.0.0.1:7880"


@command(
    "console",
    examples=(
        "towline console",
        "towline console --url https://queue.example:7878 --token-file token",
        "towline console --store sqlite:////var/lib/towline.db --writes",
    ),
)
@target_options
@click.option("--listen", default=DEFAULT_LISTEN, show_default=True, help="host:port, or unix:/path of a socket.")
@click.option("--writes", is_flag=True, help="Let people change things there, as far as their role allows.")
def console(
    listen: str,
    writes: bool,  # noqa: FBT001
    as_json: bool,  # noqa: FBT001
    **where: Unpack[TargetOptions],
) -> int:
    """Show queues, pools, workers and tasks in a browser, until SIGTERM or Ctrl-C.

    `towline up`, `serve` and `supervise` serve the same pages at /console/ of their own address. This command serves
    them apart: for a server that listens at a Unix socket or on another machine, or for a store without any server.

    Where the server has tokens, people log in with theirs. Given one, this command prints on a terminal a link that
    logs you in once, within 5 minutes. It only shows, unless you add --writes. `server.auth` of the settings file
    counts here too: a person whom the proxy names gets the token of server.tokens that has their role.
    """
    from queue_core.cli.settings_file import load_queue_file
    from queue_core.cli.standalone_console import Announced, StandaloneConsole
    from queue_core.config.listen import checked_listen
    from queue_core.console.call import PayloadRules
    from queue_core.server.console.proxy import role_login

    try:
        options = options_of(checked_listen(listen))
    except ValueError as error:
        raise CommandError(str(error), code=exits.USAGE, where="--listen") from None
    target = find_target(**where)

    rules, proxy = PayloadRules(), None
    if target.file is not None:
        settings, directory = load_queue_file(target.file)
        rules = PayloadRules(settings.console.viewers_see_payloads, settings.console.redact)
        if settings.server.auth is not None:
            served = serve_options(settings, directory)
            assert served.proxy is not None, "it is made of server.auth"
            proxy = role_login(served.proxy, served.tokens)
            options = replace(options, allowed_hosts=served.allowed_hosts)

    def announce(found: Announced) -> None:
        if as_json:
            click.echo(json.dumps({"console": found.address, "shows": target.shown}))
            return
        click.echo(f"the console of {target.shown} is at {found.address}", err=True)
        if found.login_address is not None and sys.stderr.isatty():
            click.echo(f"this link logs you in, once and within 5 minutes: {found.login_address}", err=True)
        if not writes:
            print_info("it only shows: --writes lets people change things, as far as their role allows")

    with _source(target.url, target.origin, is_server=target.is_server) as source:
        try:
            alone = StandaloneConsole(source, options, writes=writes, token=target.token, payloads=rules, proxy=proxy)
        except ListenError as error:
            raise listen_failure(error, options) from None
        try:
            asyncio.run(alone.run(announce))
        except InvalidSettingError as error:
            raise CommandError(str(error), code=exits.USAGE, where="--listen") from None
    return exits.OK


@contextmanager
def _source(url: str, origin: str, *, is_server: bool) -> Iterator["ApiSource"]:
    from queue_core.cli.standalone_console import OfServer, OfStore

    if is_server:
        try:
            yield OfServer(url)
        except InvalidSettingError as error:
            raise CommandError(str(error), code=exits.BAD_CONFIG, where=origin) from None
        return
    with opened_store(url, origin=origin, must="existing") as opened:
        yield OfStore(opened)

"""`towline serve`: run the queue server alone."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from queue_core.cli import exits
from queue_core.cli.failure import CommandError
from queue_core.cli.group import command
from queue_core.cli.options import file_argument, json_option, log_options, setting_options
from queue_core.cli.serving import (
    console_sentence,
    flag_overrides,
    lifecycle_log,
    listen_failure,
    prepared_store,
    serve_options,
)
from queue_core.cli.settings_file import settings_or_default
from queue_core.config.reloading import changed_settings, with_credentials_of
from queue_core.config.settings import Override, QueueFile
from queue_core.errors import ListenError
from queue_core.log import get_logger
from queue_core.process import logs
from queue_core.process.init_process import run_as_init
from queue_core.process.wording import counted
from queue_core.server.base.events import SERVER_RELOAD_REFUSED
from queue_core.server.server import ReloadedOptions
from queue_core.server.server import serve as run_server

SCHEDULES_LEFT: Final = "schedules.left"
"""The settings file has schedules, which a server without a supervisor does not run."""


@command(
    "serve",
    examples=(
        "towline serve",
        "towline serve --listen unix:/run/towline.sock",
        "towline serve --store sqlite:////var/lib/towline.db --durability relaxed",
    ),
)
@setting_options
@log_options
@file_argument
@json_option
def serve(
    store: str | None,
    durability: str | None,
    listen: str | None,
    lifecycle: str | None,
    log: str | None,
    log_level: logs.Level,
    file: Path | None,
    as_json: bool,  # noqa: FBT001
) -> int:
    """Serve the queues of a store over HTTP until SIGTERM or SIGINT.

    Supports systemd's readiness, watchdog and socket activation. As the first process of a container it reaps orphans.
    Exit code 78: the settings are wrong, and starting it again does not help.

    SIGHUP reads the settings again: tokens and certificates are replaced at once, everything else waits for the next
    start. It stops when its terminal hangs up.

    Without a settings file it serves sqlite:///towline.db at 127.0.0.1:7878, with a queue called `default`.
    """
    run_as_init()
    flags = flag_overrides(
        [
            (("store",), store),
            (("durability",), durability),
            (("server", "listen"), listen),
            (("lifecycle",), lifecycle),
            (("log",), log),
        ]
    )
    settings, directory = settings_or_default(file, flags=flags)
    logs.configure(level=log_level, shape="json" if as_json else "auto")
    if settings.schedules:
        said = "are added by a supervisor, not by this server: `towline up`, or `towline supervise` beside it"
        sentence = f"the tasks of {counted(len(settings.schedules), 'schedule')} {said}"
        get_logger().info(SCHEDULES_LEFT, sentence=sentence)
    with prepared_store(settings, directory) as opened, lifecycle_log(settings, directory) as lifecycle_file:
        options = serve_options(settings, directory)
        try:
            reload = _Reload(file, flags, settings)
            run_server(opened, options, log=lifecycle_file, started=_print_url, reload=reload)
        except ListenError as error:
            raise listen_failure(error, options) from None
    return exits.OK


class _Reload:
    """Reads the settings again at SIGHUP, and says what can't be used."""

    def __init__(self, file: Path | None, flags: tuple[Override, ...], started_with: QueueFile) -> None:
        self._file = file
        self._flags = flags
        self._in_force = started_with

    def __call__(self) -> ReloadedOptions | None:
        """Return the options; None where the settings can't be used."""
        mistakes: Sequence[str]
        try:
            settings, directory = settings_or_default(self._file, flags=self._flags)
            options = serve_options(settings, directory)
        except CommandError as error:
            mistakes = [str(line) for line in error.lines]
        except OSError as error:
            mistakes = [f"{error.filename}: {error.strerror}"]
        else:
            self._in_force = with_credentials_of(self._in_force, settings)
            return ReloadedOptions(options, changed_settings(self._in_force, settings))
        get_logger().error(SERVER_RELOAD_REFUSED, mistakes=mistakes)
        return None


def _print_url(url: str) -> None:
    told = console_sentence(url)
    click.echo(f"serving at {url} ({told[0].lower()}{told[1:-1]})", err=True)

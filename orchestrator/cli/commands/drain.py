"""`towline drain` and `towline undrain`: keep a host free of workers during maintenance."""

import time
from pathlib import Path
from typing import Final

import click

from orchestrator.cli.project_file import load_project
from orchestrator.clock import SystemMonotonicClock
from orchestrator.config.overrides import NOT_DRAINED, HostOverride
from orchestrator.settings_file import state_of
from orchestrator.state.directory import StateDir
from queue_core.cli import exits
from queue_core.cli.failure import CommandError
from queue_core.cli.group import command
from queue_core.cli.options import DURATION, file_option, json_option
from queue_core.cli.output import print_info, print_json
from queue_core.process.wording import counted

POLL_SECONDS: Final = 0.2


@command(
    "drain", when_cut="stderr", examples=("towline drain", "towline drain --wait 10m && sudo reboot", "towline undrain")
)
@click.option("--wait", "seconds", type=DURATION, help="Wait until no worker is left, at most this long.")
@click.option("--undo", is_flag=True, help="The same as `towline undrain`.")
@file_option
@json_option
def drain(seconds: float | None, undo: bool, file: Path | None, as_json: bool) -> int:  # noqa: FBT001
    """Let every worker of this supervisor finish and exit, and start none until `towline undrain`.

    Leased tasks are finished within their pool's grace, or released. The supervisor gives up its leadership, so that
    one on another host takes over; without another one tasks wait. A drain survives restarts of the supervisor and of
    the host. With --wait, exit code 75: some workers are still running.
    """
    if undo:
        if seconds is not None:
            raise click.UsageError("--wait does not go with --undo")
        return _set_drained(NOT_DRAINED, file=file, as_json=as_json)
    return _set_drained(
        HostOverride(round(SystemMonotonicClock().wall_seconds(), 3)), file=file, as_json=as_json, seconds=seconds
    )


@command("undrain", when_cut="stderr", examples=("towline undrain",))
@file_option
@json_option
def undrain(file: Path | None, as_json: bool) -> int:  # noqa: FBT001
    """Let this supervisor start workers again after `towline drain`."""
    return _set_drained(NOT_DRAINED, file=file, as_json=as_json)


def _set_drained(override: HostOverride, *, file: Path | None, as_json: bool, seconds: float | None = None) -> int:
    files = state_of(load_project(file))
    try:
        if not (override.drained_at and files.is_drained()):  # a second drain keeps the time of the first
            files.write_host_override(override)
    except OSError as error:
        raise CommandError(f"can't write: {error.strerror}", code=exits.CANT_CREATE, where=str(files.path)) from error
    left = _wait(files, seconds=seconds) if seconds is not None else _workers(files)
    is_late = seconds is not None and left > 0
    if as_json:
        drained = override.drained_at is not None
        print_json({"drained": drained, "alive": files.is_supervised(), "workers": left})
        return exits.TRY_AGAIN if is_late else exits.OK
    if override.drained_at is None:
        click.echo("this host has workers again, as its pools need them")
    else:
        click.echo(
            f"this host is drained: {counted(left, 'worker')} left"
            if left
            else "this host is drained: no worker is left"
        )
    if not files.is_supervised():
        print_info("no supervisor is alive: the next one will apply it")
    return exits.TRY_AGAIN if is_late else exits.OK


def _wait(files: StateDir, *, seconds: float) -> int:
    clock = SystemMonotonicClock()
    until = clock.monotonic() + seconds
    while True:
        left = _workers(files)
        is_heeded = (files.read_snapshot() or {}).get("phase") in {"draining", "stopped"} or not files.is_supervised()
        if (is_heeded and not left) or clock.monotonic() >= until:
            return left
        time.sleep(POLL_SECONDS)


def _workers(files: StateDir) -> int:
    workers = (files.read_snapshot() or {}).get("workers")
    return len(workers) if isinstance(workers, list) else 0

"""`towline drain` and `towline undrain`: keep a host free of workers during maintenance."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, Unpack

import click

from orchestrator.cli.project_file import load_project
from orchestrator.cli.supervisor_calls import (
    SupervisorCalls,
    SupervisorOptions,
    supervisor_at,
    supervisor_options,
    supervisor_url,
)
from orchestrator.cli.supervisor_hosts import host_option
from orchestrator.clock import SystemMonotonicClock
from orchestrator.config.overrides import NOT_DRAINED, HostOverride
from orchestrator.json_fields import count_in
from orchestrator.settings_file import state_of
from orchestrator.state.directory import StateDir
from queue_core.cli import exits
from queue_core.cli.failure import CommandError
from queue_core.cli.group import command
from queue_core.cli.options import DURATION
from queue_core.cli.output import echo, print_info, print_json
from queue_core.process.wording import counted

POLL_SECONDS: Final = 0.2
THIS_HOST: Final = "this"
"""The name that every supervisor's host has for itself (see `http_api.operator_calls`)."""


@command(
    "drain",
    when_cut="stderr",
    examples=("towline drain", "towline drain --wait 10m && sudo reboot", "towline drain --url http://a:7878"),
)
@click.option("--wait", "seconds", type=DURATION, help="Wait until no worker is left, at most this long.")
@click.option("--undo", is_flag=True, help="The same as `towline undrain`.")
@host_option
@supervisor_options
def drain(
    seconds: float | None,
    undo: bool,  # noqa: FBT001
    as_json: bool,  # noqa: FBT001
    **where: Unpack[SupervisorOptions],
) -> int:
    """Let every worker of this supervisor finish and exit, and start none until `towline undrain`.

    Leased tasks are finished within their pool's grace, or released. The supervisor gives up its leadership, so that
    one on another host takes over; without another one tasks wait. A drain survives restarts of the supervisor and of
    the host. With --wait, exit code 75: some workers are still running. --url drains the host of a supervisor
    elsewhere.
    """
    if undo:
        if seconds is not None:
            raise click.UsageError("--wait does not go with --undo")
        return _drained("undrain", where, as_json=as_json)
    return _drained("drain", where, as_json=as_json, seconds=seconds)


@command("undrain", when_cut="stderr", examples=("towline undrain",))
@host_option
@supervisor_options
def undrain(as_json: bool, **where: Unpack[SupervisorOptions]) -> int:  # noqa: FBT001
    """Let this supervisor start workers again after `towline drain`; --url: a supervisor elsewhere."""
    return _drained("undrain", where, as_json=as_json)


@dataclass(frozen=True, slots=True)
class DrainState:
    """A host's drain and the workers that are left; `host` is empty for this one."""

    is_drained: bool
    is_alive: bool
    phase: str
    workers: int
    host: str = ""

    @property
    def is_heeded(self) -> bool:
        """Return whether no worker is started any more."""
        return self.phase in {"draining", "stopped"} or not self.is_alive


def _drained(
    verb: Literal["drain", "undrain"], where: SupervisorOptions, *, as_json: bool, seconds: float | None = None
) -> int:
    url = supervisor_url(where["url"], where["file"])
    if url is None:
        files = state_of(load_project(where["file"]))
        _set_drained(verb, files)
        found = _wait(lambda: _state_here(files), seconds=seconds)
    else:
        with supervisor_at(url, where["token_file"]) as supervisor:
            host = str(supervisor.post("hosts", THIS_HOST, verb, body={})["host"])
            found = _wait(lambda: _state_at(supervisor, host), seconds=seconds)
    is_late = seconds is not None and found.workers > 0
    if as_json:
        told = {"drained": found.is_drained, "alive": found.is_alive, "workers": found.workers}
        print_json(told | ({"host": found.host} if found.host else {}))
        return exits.TRY_AGAIN if is_late else exits.OK
    host = found.host or "this host"
    if not found.is_drained:
        echo(f"{host} has workers again, as its pools need them")
    else:
        left = f"{counted(found.workers, 'worker')} left" if found.workers else "no worker is left"
        echo(f"{host} is drained: {left}")
    if not found.is_alive:
        print_info("no supervisor is alive: the next one will apply it")
    return exits.TRY_AGAIN if is_late else exits.OK


def _set_drained(verb: Literal["drain", "undrain"], files: StateDir) -> None:
    override = NOT_DRAINED
    if verb == "drain":
        override = HostOverride(round(SystemMonotonicClock().wall_seconds(), 3))
    try:
        if not (override.drained_at and files.is_drained()):  # a second drain keeps the time of the first
            files.write_host_override(override)
    except OSError as error:
        raise CommandError(f"can't write: {error.strerror}", code=exits.CANT_CREATE, where=str(files.path)) from error


def _wait(read: Callable[[], DrainState], *, seconds: float | None) -> DrainState:
    """Return the state of now, or once no worker is left, at most so many seconds later."""
    clock = SystemMonotonicClock()
    until = clock.monotonic() + (seconds or 0.0)
    while True:
        found = read()
        if seconds is None or (found.is_heeded and not found.workers) or clock.monotonic() >= until:
            return found
        time.sleep(POLL_SECONDS)


def _state_here(files: StateDir) -> DrainState:
    snapshot = files.read_snapshot() or {}
    workers = snapshot.get("workers")
    left = len(workers) if isinstance(workers, list) else 0
    return DrainState(files.is_drained(), files.is_supervised(), str(snapshot.get("phase")), left)


def _state_at(supervisor: SupervisorCalls, host: str) -> DrainState:
    told = supervisor.get("hosts", host)
    return DrainState(
        bool(told["drained"]), bool(told["alive"]), str(told["phase"]), count_in(told, "workers"), host=host
    )

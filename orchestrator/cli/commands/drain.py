"""`towline drain`, `undrain`, `kill` and `replace`: let workers go, of a host, one, or all that a pool has now."""

import getpass
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, Unpack

import click

from orchestrator.base.clock import SystemMonotonicClock
from orchestrator.base.json_fields import count_in, mappings_of, text_in
from orchestrator.cli.commands.overrides import moment, pool_in
from orchestrator.cli.project_file import load_project
from orchestrator.cli.supervisor_calls import (
    SupervisorCalls,
    SupervisorOptions,
    supervisor_at,
    supervisor_options,
    supervisor_url,
)
from orchestrator.cli.supervisor_hosts import host_option
from orchestrator.config.overrides import NOT_DRAINED, HostOverride
from orchestrator.config.worker_requests import WorkerRequests, WorkerVerb, pool_sentence, worker_sentence
from orchestrator.fleet.workers import EXTERNAL
from orchestrator.settings_file import state_of
from orchestrator.state.directory import StateDir
from queue_core.cli import exits
from queue_core.cli.failure import CommandError
from queue_core.cli.group import command
from queue_core.cli.options import DURATION
from queue_core.cli.output import echo, print_info, print_json
from queue_core.config.messages import did_you_mean
from queue_core.process.terminal import clean
from queue_core.process.wording import counted

POLL_SECONDS: Final = 0.2
THIS_HOST: Final = "this"
"""The name that every supervisor's host has for itself (see `http_api.operator_calls`)."""


@command(
    "drain",
    when_cut="stderr",
    examples=(
        "towline drain",
        "towline drain --wait 10m && sudo reboot",
        "towline drain resize-7f3k2q --wait 5m",
        "towline drain --url http://a:7878",
    ),
)
@click.argument("worker", required=False)
@click.option(
    "--wait", "seconds", type=DURATION, help="Wait until no worker is left, or not this one; at most so long."
)
@click.option("--undo", is_flag=True, help="Like `towline undrain`.")
@host_option
@supervisor_options
def drain(
    worker: str | None,
    seconds: float | None,
    undo: bool,  # noqa: FBT001
    as_json: bool,  # noqa: FBT001
    **where: Unpack[SupervisorOptions],
) -> int:
    """Let every worker of this supervisor finish and exit, and start none until `towline undrain`; or only WORKER.

    A single WORKER takes no other task, finishes what it holds, however long that takes, and ends; another starts
    where its pool needs one.

    Without WORKER, leased tasks are finished within their pool's grace, or released. The supervisor gives up its
    leadership, so that one on another host takes over; without another one tasks wait. A drain survives restarts of
    the supervisor and of the host. With --wait, exit code 75: some workers are still running. --url means a supervisor
    elsewhere.
    """
    if undo:
        if seconds is not None:
            raise click.UsageError("--wait does not go with --undo")
        if worker is not None:
            raise click.UsageError("--undo does not go with a WORKER: a drain of one is final")
        return _drained("undrain", where, as_json=as_json)
    if worker is not None:
        return _ordered(worker, "drain", where, as_json=as_json, seconds=seconds)
    return _drained("drain", where, as_json=as_json, seconds=seconds)


@command("undrain", when_cut="stderr", examples=("towline undrain",))
@host_option
@supervisor_options
def undrain(as_json: bool, **where: Unpack[SupervisorOptions]) -> int:  # noqa: FBT001
    """Let this supervisor start workers again after `towline drain`; --url: a supervisor elsewhere."""
    return _drained("undrain", where, as_json=as_json)


@command(
    "kill",
    when_cut="stderr",
    examples=("towline kill resize-7f3k2q", "towline kill resize-7f3k2q --url http://a:7878"),
)
@click.argument("worker")
@click.option("--wait", "seconds", type=DURATION, help="Wait until it is gone, at most this long.")
@host_option
@supervisor_options
def kill(
    worker: str,
    seconds: float | None,
    as_json: bool,  # noqa: FBT001
    **where: Unpack[SupervisorOptions],
) -> int:
    """End WORKER now, with SIGKILL: its tasks run again at once, and their leases do not count.

    For a worker that hangs; `towline drain WORKER` lets one finish. Its certificate names the caller (`towline
    why-died`). With --url it is a worker of a supervisor elsewhere, and needs a token of role admin.
    """
    return _ordered(worker, "kill", where, as_json=as_json, seconds=seconds)


@command(
    "replace", when_cut="stderr", examples=("towline replace resize", "towline replace resize --url http://a:7878")
)
@click.argument("pool")
@host_option
@supervisor_options
def replace(pool: str, as_json: bool, **where: Unpack[SupervisorOptions]) -> int:  # noqa: FBT001
    """Replace all workers that POOL has now, a quarter at a time, new before old, as a reload with changed files does.

    A busy worker finishes what it holds first. For what a reload does not see: a library that was installed anew, a
    model file, a connection that went bad.
    """
    url = supervisor_url(where["url"], where["file"])
    if url is not None:
        with supervisor_at(url, where["token_file"]) as supervisor:
            told = supervisor.post("pools", pool, "replace", body={})
        count, is_alive, sentence = count_in(told, "workers"), bool(told["alive"]), str(told["sentence"])
    else:
        project = load_project(where["file"])
        spec, files = pool_in(project, pool), state_of(project)
        if spec.runtime_kind == "external":
            raise _NotOursError(f"the workers of pool {pool} are started by another system", fix="replace them there")
        count = sum(1 for one in _workers_in(files) if one.get("pool") == pool)
        _request(files, lambda before: before.with_replaced(pool, by=_user(), now=moment()))
        is_alive, sentence = files.is_supervised(), pool_sentence(count)
    if as_json:
        print_json({"pool": pool, "alive": is_alive, "workers": count})
        return exits.OK
    echo(f"{pool}: {sentence}")
    _say_if_not_alive(is_alive=is_alive)
    return exits.OK


class _NotOursError(CommandError):
    """The worker is another system's."""

    def __init__(self, message: str, *, fix: str) -> None:
        super().__init__(message, code=exits.BAD_DATA, fix=fix)


def _ordered(worker: str, verb: WorkerVerb, where: SupervisorOptions, *, as_json: bool, seconds: float | None) -> int:
    """Give an order about a worker and print what becomes of it; wait for its end if that was asked for."""
    url = supervisor_url(where["url"], where["file"])
    if url is None:
        files = state_of(load_project(where["file"]))
        told = _order_here(files, worker, verb)
        is_gone = _wait_until(lambda: _is_gone_here(files, worker), seconds=seconds)
    else:
        with supervisor_at(url, where["token_file"]) as supervisor:
            answer = supervisor.post("workers", worker, verb, body={})
            told = {name: answer[name] for name in ("worker", "pool", "order", "alive", "holds", "sentence")}
            is_gone = _wait_until(lambda: _is_gone_at(supervisor, worker), seconds=seconds)
    is_late = seconds is not None and not is_gone
    sentence = told.pop("sentence")
    if as_json:
        print_json(told | ({} if seconds is None else {"gone": is_gone}))
        return exits.TRY_AGAIN if is_late else exits.OK
    echo(f"{worker}: {sentence}")
    if seconds is not None:
        echo(f"{worker} is gone" if is_gone else f"{worker} is still there")
    _say_if_not_alive(is_alive=told["alive"] is True)
    return exits.TRY_AGAIN if is_late else exits.OK


def _order_here(files: StateDir, worker: str, verb: WorkerVerb) -> dict[str, object]:
    """Write an order about a worker of this host's supervisor. Raises `CommandError`."""
    known = {text_in(one, "worker"): one for one in _workers_in(files)}
    found = known.get(worker)
    if found is None:
        fix = "`towline workers` lists them; `towline why-died` tells of those that have ended"
        message = f"there is no worker '{worker}'{did_you_mean(worker, known)}"
        raise CommandError(message, code=exits.NO_INPUT, where=str(files.path), fix=fix)
    if text_in(found, "ref").startswith(EXTERNAL):
        raise _NotOursError(f"worker {worker} was started by another system", fix=f"{verb} it there")
    _request(files, lambda before: before.with_worker(worker, verb, by=_user(), now=moment()))
    holds, pool = count_in(found, "holding"), text_in(found, "pool")
    told = {"worker": worker, "pool": pool, "order": verb, "alive": files.is_supervised(), "holds": holds}
    return told | {"sentence": worker_sentence(holds, verb)}


def _request(files: StateDir, change: Callable[[WorkerRequests], WorkerRequests]) -> None:
    try:
        files.change_worker_requests(change)
    except OSError as error:
        raise CommandError(f"can't write: {error.strerror}", code=exits.CANT_CREATE, where=str(files.path)) from error


def _user() -> str:
    """Return the name of the user who runs this command, for the log and for certificates."""
    try:
        return clean(getpass.getuser())
    except (KeyError, OSError):  # a user without a name, as in a container
        return "an operator on its host"


def _workers_in(files: StateDir) -> list[dict[str, object]]:
    return mappings_of((files.read_snapshot() or {}).get("workers"))


def _is_gone_here(files: StateDir, worker: str) -> bool:
    return all(one.get("worker") != worker for one in _workers_in(files))


def _is_gone_at(supervisor: SupervisorCalls, worker: str) -> bool:
    return all(one.get("worker") != worker for one in mappings_of(supervisor.get("workers").get("workers")))


def _say_if_not_alive(*, is_alive: bool) -> None:
    if not is_alive:
        print_info("no supervisor is running: the next one will apply it")


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
    _say_if_not_alive(is_alive=found.is_alive)
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
    found: list[DrainState] = []

    def is_over() -> bool:
        found[:] = [read()]
        return found[0].is_heeded and not found[0].workers

    _wait_until(is_over, seconds=seconds)
    return found[0]


def _wait_until(is_over: Callable[[], bool], *, seconds: float | None) -> bool:
    """Return whether it is over now, or within so many seconds."""
    clock = SystemMonotonicClock()
    until = clock.monotonic() + (seconds or 0.0)
    while not (done := is_over()):
        if seconds is None or clock.monotonic() >= until:
            break
        time.sleep(POLL_SECONDS)
    return done


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

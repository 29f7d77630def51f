"""`towline scale`, `pause` and `resume`: override the settings of a pool; the latter two also act on queues.

Overrides are kept in the supervisor's state directory: a running supervisor applies them within a second, another one
when it starts.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Unpack

import click

from orchestrator.base.clock import SystemMonotonicClock
from orchestrator.base.json_fields import list_in
from orchestrator.cli.project_file import load_project
from orchestrator.cli.supervisor_calls import SupervisorOptions, supervisor_at, supervisor_options, supervisor_url
from orchestrator.cli.supervisor_hosts import host_option
from orchestrator.cli.times import TypedInstant
from orchestrator.config.model import MAX_WORKERS
from orchestrator.config.overrides import (
    MAX_SCALE_SECONDS,
    Moment,
    Overrides,
    Paused,
    describe_overrides,
    with_finish,
    with_pause,
    with_size,
)
from orchestrator.config.pools import PoolSpec, bounds_of
from orchestrator.runtimes.procfs import boot
from orchestrator.settings_file import Project, state_of
from queue_core.cli import exits
from queue_core.cli.commands import admin
from queue_core.cli.failure import CommandError
from queue_core.cli.group import Command, command
from queue_core.cli.options import DURATION, target_options
from queue_core.cli.output import echo, print_info, print_json
from queue_core.cli.target import TargetOptions
from queue_core.config.messages import did_you_mean

_NEGATIVE: Final = re.compile(r"-[0-9]+(?:\.[0-9]+)?")


class ScaleCommand(Command):
    """Takes a negative number for an argument, so that it is refused as a number and not as an unknown option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Move negative numbers that are no option's value behind a `--`."""
        before = ["", *args]
        places = [at for at, word in enumerate(args) if _NEGATIVE.fullmatch(word) and not before[at].startswith("-")]
        if places and "--" not in args:
            others = [word for at, word in enumerate(args) if at not in places]
            args = [*others, "--", *(args[at] for at in places)]
        return super().parse_args(ctx, args)


@command(
    "scale",
    cls=ScaleCommand,
    when_cut="stderr",
    examples=(
        "towline scale resize 5 --for 30m",
        "towline scale resize 0 --for 2h",
        "towline scale resize 40 --force --for 30m",
        "towline scale resize --reset",
    ),
)
@click.argument("pool")
@click.argument("workers", required=False)
@click.option("--for", "seconds", type=DURATION, default="1h", show_default=True, help="How long it lasts.")
@click.option("--force", is_flag=True, help="Allow more workers than the pool's max.")
@click.option("--reset", is_flag=True, help="Return to the settings now: drop the size and --finish-by set by hand.")
@host_option
@supervisor_options
def scale(
    pool: str,
    workers: str | None,
    seconds: float,
    force: bool,  # noqa: FBT001  click's flags
    reset: bool,  # noqa: FBT001
    as_json: bool,  # noqa: FBT001
    **where: Unpack[SupervisorOptions],
) -> int:
    """Give POOL exactly this many WORKERS for a while.

    This takes precedence over min and schedule of the settings file, and with --force over max. Guards may still hold
    it back: the host's memory and CPU, failing starts. Surplus busy workers finish their tasks first. It survives a
    restart. Exit code 65: it is more than the pool's max. With --url it is a pool of a supervisor elsewhere.
    """
    if reset == (workers is not None):
        raise click.UsageError("give either a number of workers or --reset")
    if not 0 < seconds <= MAX_SCALE_SECONDS:
        raise click.UsageError(f"--for must be more than 0 s and at most 30d: {seconds:g} s")
    url = supervisor_url(where["url"], where["file"])
    if url is not None:
        size = None if workers is None else _pool_size(workers, pool)
        body = {"workers": size, "seconds": seconds, "force": force}
        return _changed_at(url, pool, "scale", body, token_file=where["token_file"], as_json=as_json)
    project = load_project(where["file"])
    spec = pool_in(project, pool)
    size, now = None if workers is None else _size(workers, spec, force=force), moment()
    return _changed(project, spec, lambda before: with_size(before, size, seconds=seconds, now=now), as_json=as_json)


@command(
    "pause",
    when_cut="stderr",
    examples=("towline pause thumbs", "towline pause --pool resize", "towline pause --pool resize --changes up"),
)
@click.argument("queue", required=False)
@click.option("--pool", help="Leave this pool at its size, instead of pausing a queue.")
@click.option("--changes", type=click.Choice(["both", "up", "down"]), help="The changes of the pool's size to pause.")
@host_option
@target_options
def pause(
    queue: str | None,
    pool: str | None,
    changes: Paused | None,
    as_json: bool,  # noqa: FBT001
    **where: Unpack[TargetOptions],
) -> int:
    """Grant no more leases on QUEUE; adds and deletes continue. With --pool: leave a pool at its size.

    With --pool, --url names a supervisor elsewhere.
    """
    _either(queue, pool, changes)
    if pool is None:
        return _run_queue_command(admin.pause, queue, as_json=as_json, where=where)
    paused = changes or "both"
    if (url := _supervisor(where)) is not None:
        body = {"changes": paused}
        return _changed_at(url, pool, "pause", body, token_file=where["token_file"], as_json=as_json)
    return change_overrides(pool, lambda before: with_pause(before, paused), file=where["file"], as_json=as_json)


@command("resume", when_cut="stderr", examples=("towline resume thumbs", "towline resume --pool resize"))
@click.argument("queue", required=False)
@click.option("--pool", help="Let this pool change its size again, instead of resuming a queue.")
@host_option
@target_options
def resume(queue: str | None, pool: str | None, as_json: bool, **where: Unpack[TargetOptions]) -> int:  # noqa: FBT001
    """Grant leases on QUEUE again. With --pool: let a pool change its size again.

    With --pool, --url names a supervisor elsewhere.
    """
    _either(queue, pool, None)
    if pool is None:
        return _run_queue_command(admin.resume, queue, as_json=as_json, where=where)
    if (url := _supervisor(where)) is not None:
        return _changed_at(url, pool, "resume", {}, token_file=where["token_file"], as_json=as_json)
    return change_overrides(pool, lambda before: with_pause(before, "no"), file=where["file"], as_json=as_json)


def finish_by(pool: str, instant: TypedInstant | None, *, where: TargetOptions, as_json: bool) -> int:
    """Require that a pool's backlog is finished by `instant`; None cancels that."""
    now, offset = moment(), 0 if instant is None else instant.utc_offset_seconds
    at = None if instant is None else instant.at
    if (url := _supervisor(where)) is not None:
        body = {"at": at, "utc_offset_seconds": offset}
        return _changed_at(url, pool, "finish-by", body, token_file=where["token_file"], as_json=as_json)

    def change(before: Overrides) -> Overrides:
        return with_finish(before, at, utc_offset_seconds=offset, now=now)

    return change_overrides(pool, change, file=where["file"], as_json=as_json)


def change_overrides(pool: str, change: Callable[[Overrides], Overrides], *, file: Path | None, as_json: bool) -> int:
    """Change the overrides of a pool and print those in force. Raises `CommandError`."""
    project = load_project(file)
    return _changed(project, pool_in(project, pool), change, as_json=as_json)


def _supervisor(where: TargetOptions) -> str | None:
    """Return the URL of the supervisor whose pool is meant; None: that of the settings file, on this host."""
    if where["store"] is not None:
        raise click.UsageError("--store does not go with a pool: its supervisor is named by --url, or by -f")
    return supervisor_url(where["url"], where["file"])


def _changed_at(
    url: str, pool: str, verb: str, body: Mapping[str, object], *, token_file: Path | None, as_json: bool
) -> int:
    """Change the overrides of a pool elsewhere and print those in force."""
    with supervisor_at(url, token_file) as supervisor:
        told = supervisor.post("pools", pool, verb, body=body)
    if as_json:
        print_json({"pool": told["pool"], "alive": told["alive"], "orders": told["orders"]})
    else:
        echo(f"{pool}: {'; '.join(map(str, list_in(told, 'sentences'))) or 'as its settings say'}")
    return exits.OK


def pool_in(project: Project, name: str) -> PoolSpec:
    """Return a pool of the settings file. Raises `CommandError` where there is none of this name."""
    if name not in project.pools:
        meant = did_you_mean(name, project.pools)
        known = ", ".join(project.pools) or "none"
        raise CommandError(
            f"there is no pool '{name}'{meant}",
            code=exits.NO_INPUT,
            where=str(project.directory),
            fix=f"the settings file has these: {known}",
        )
    return project.pools[name]


def _pool_size(text: str, pool: str, most: int = MAX_WORKERS) -> int:
    """Return the number in a text. Raises `CommandError` for one that no pool can have."""
    example = f"for example `towline scale {pool} {most if most < MAX_WORKERS else 4}`"
    try:
        size = int(text)
    except ValueError:
        size = -1
    if size < 0:
        of = f", the max of {pool}" if most < MAX_WORKERS else ""
        message = f"'{text}' is no number of workers: it must be a whole number from 0 to {most:,}{of}"
        raise CommandError(message, code=exits.USAGE, fix=example)
    if size > MAX_WORKERS:
        message = f"{size:,} workers are more than any pool may have: at most {MAX_WORKERS:,}"
        raise CommandError(message, code=exits.BAD_DATA, fix=example)
    return size


def _size(text: str, spec: PoolSpec, *, force: bool) -> int:
    """Return the size that was asked for. Raises `CommandError` for one that the pool can't or may not have."""
    _, most = bounds_of(spec)
    size = _pool_size(text, spec.name, most)
    if size > most and not force:
        raise CommandError(
            f"{size:,} workers are more than max {most:,} of pool {spec.name}",
            code=exits.BAD_DATA,
            fix=f"give at most {most:,}, raise pools.{spec.name}.workers.max, or add --force",
        )
    return size


def _changed(project: Project, spec: PoolSpec, change: Callable[[Overrides], Overrides], *, as_json: bool) -> int:
    pool, files, now = spec.name, state_of(project), moment()
    try:
        in_force = files.change_overrides(pool, lambda before: change(before.in_force(now)))
    except OSError as error:
        raise CommandError(f"can't write: {error.strerror}", code=exits.CANT_CREATE, where=str(files.path)) from error
    if as_json:
        print_json({"pool": pool, "alive": files.is_supervised(), "orders": in_force.to_json()})
        return exits.OK
    click.echo(f"{pool}: {'; '.join(describe_overrides(in_force, now)) or 'as its settings say'}")
    if not files.is_supervised():
        print_info("no supervisor is running: the next one will apply it, if it hasn't expired")
    return exits.OK


def moment() -> Moment:
    """Return the present time on this host."""
    clock = SystemMonotonicClock()
    return Moment(clock.wall_seconds(), clock.monotonic(), boot())


def _either(queue: str | None, pool: str | None, changes: str | None) -> None:
    if (queue is None) == (pool is None):
        raise click.UsageError("give either a QUEUE or --pool")
    if changes is not None and pool is None:
        raise click.UsageError("--changes goes with --pool")


def _run_queue_command(made: click.Command, queue: str | None, *, as_json: bool, where: TargetOptions) -> int:
    code = click.get_current_context().invoke(made, queue=queue, as_json=as_json, **where)
    return int(code) if isinstance(code, int) else exits.OK

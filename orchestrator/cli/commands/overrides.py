"""What people ask of pools beside the settings file: `scale`; `pause` and `resume`, which queues have as well.

Orders lie in the supervisor's folder: one that lives heeds them within a second, another one when it starts.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final, Unpack

import click

from orchestrator.cli.project_file import load_project
from orchestrator.cli.times import Typed
from orchestrator.clock import SystemMonotonicClock
from orchestrator.config.model import MAX_WORKERS
from orchestrator.config.overrides import (
    Expiry,
    FinishOverride,
    Moment,
    Overrides,
    Paused,
    ScaleOverride,
    describe_overrides,
)
from orchestrator.runtimes.procfs import boot
from orchestrator.settings_file import state_of
from queue_core.cli import exits
from queue_core.cli.commands import admin
from queue_core.cli.failure import CommandError
from queue_core.cli.group import command
from queue_core.cli.options import DURATION, file_option, json_option, target_options
from queue_core.cli.output import print_info, print_json
from queue_core.cli.target import TargetOptions
from queue_core.config.messages import did_you_mean

MAX_SECONDS: Final = 30 * 86_400.0


@command(
    "scale",
    when_cut="stderr",
    examples=("towline scale resize 5 --for 30m", "towline scale resize 0 --for 2h", "towline scale resize --reset"),
)
@click.argument("pool")
@click.argument("workers", required=False, type=click.IntRange(0, MAX_WORKERS))
@click.option("--for", "seconds", type=DURATION, default="1h", show_default=True, help="How long; then it is over.")
@click.option("--reset", is_flag=True, help="As the settings say again, now: no size and no --finish-by by hand.")
@file_option
@json_option
def scale(pool: str, workers: int | None, seconds: float, reset: bool, file: Path | None, as_json: bool) -> int:  # noqa: FBT001
    """Give POOL so many WORKERS for a while, no fewer and no more.

    It goes before min, max and schedule of the settings file. Guards may still hold it back: the host's memory and CPU,
    starts that fail. Busy workers that are too many finish what they hold first. It survives a restart.
    """
    if reset == (workers is not None):
        raise click.UsageError("give either a number of workers or --reset")
    if not 0 < seconds <= MAX_SECONDS:
        raise click.UsageError(f"--for must be more than 0 s and at most 30d: {seconds:g} s")
    now = moment()

    def change(orders: Overrides) -> Overrides:
        if workers is None:
            return Overrides(paused=orders.paused)
        return Overrides(ScaleOverride(workers, Expiry.after(seconds, now)), orders.paused, orders.finish_by)

    return order(pool, change, file=file, as_json=as_json)


@command(
    "pause",
    when_cut="stderr",
    examples=("towline pause thumbs", "towline pause --pool resize", "towline pause --pool resize --changes up"),
)
@click.argument("queue", required=False)
@click.option("--pool", help="Instead of a queue: leave this pool at its size.")
@click.option("--changes", type=click.Choice(["both", "up", "down"]), help="Which changes of the pool's size.")
@target_options
def pause(
    queue: str | None,
    pool: str | None,
    changes: Paused | None,
    as_json: bool,  # noqa: FBT001
    **where: Unpack[TargetOptions],
) -> int:
    """Grant no more leases on QUEUE; adds and deletes go on, and nothing is lost. Or: leave a pool at its size."""
    _either(queue, pool, changes)
    if pool is None:
        return _of_queue(admin.pause, queue, as_json=as_json, where=where)
    return order(
        pool,
        lambda orders: Overrides(orders.scale, changes or "both", orders.finish_by),
        file=where["file"],
        as_json=as_json,
    )


@command("resume", when_cut="stderr", examples=("towline resume thumbs", "towline resume --pool resize"))
@click.argument("queue", required=False)
@click.option("--pool", help="Instead of a queue: let this pool change its size again.")
@target_options
def resume(queue: str | None, pool: str | None, as_json: bool, **where: Unpack[TargetOptions]) -> int:  # noqa: FBT001
    """Grant leases on QUEUE again. Or: let a pool change its size again."""
    _either(queue, pool, None)
    if pool is None:
        return _of_queue(admin.resume, queue, as_json=as_json, where=where)
    return order(
        pool, lambda orders: Overrides(orders.scale, "no", orders.finish_by), file=where["file"], as_json=as_json
    )


def finish_by(pool: str, instant: Typed | None, *, file: Path | None, as_json: bool) -> int:
    """Ask that what waits for the pool is done by then; None: no longer."""
    now = moment()

    def change(orders: Overrides) -> Overrides:
        if instant is None:
            return Overrides(orders.scale, orders.paused)
        until = Expiry.after(instant.at - now.wall_seconds, now)
        return Overrides(orders.scale, orders.paused, FinishOverride(until, instant.utc_offset_seconds))

    return order(pool, change, file=file, as_json=as_json)


def order(pool: str, change: Callable[[Overrides], Overrides], *, file: Path | None, as_json: bool) -> int:
    """Change what is asked of a pool, and say what that is now. Raises `CommandError`."""
    project = load_project(file)
    if pool not in project.pools:
        meant = did_you_mean(pool, project.pools)
        raise CommandError(f"there is no pool '{pool}'{meant}", code=exits.NO_INPUT, fix="`towline pools` lists them")
    files, now = state_of(project), moment()
    try:
        orders = files.change_overrides(pool, lambda before: change(before.in_force(now)))
    except OSError as error:
        raise CommandError(f"can't write: {error.strerror}", code=exits.CANT_CREATE, where=str(files.path)) from error
    if as_json:
        print_json({"pool": pool, "alive": files.is_supervised(), "orders": orders.to_json()})
        return exits.OK
    click.echo(f"{pool}: {'; '.join(describe_overrides(orders, now)) or 'as its settings say'}")
    if not files.is_supervised():
        print_info("no supervisor is alive: the next one heeds it, while it lasts")
    return exits.OK


def moment() -> Moment:
    """Now, on this host."""
    clock = SystemMonotonicClock()
    return Moment(clock.wall_seconds(), clock.monotonic(), boot())


def _either(queue: str | None, pool: str | None, changes: str | None) -> None:
    if (queue is None) == (pool is None):
        raise click.UsageError("give either a QUEUE or --pool")
    if changes is not None and pool is None:
        raise click.UsageError("--changes goes with --pool")


def _of_queue(made: click.Command, queue: str | None, *, as_json: bool, where: TargetOptions) -> int:
    code = click.get_current_context().invoke(made, queue=queue, as_json=as_json, **where)
    return int(code) if isinstance(code, int) else exits.OK

"""The commands of a worker, run by hand: `lease`, `renew`, `release` and `delete`."""

from collections.abc import Sequence
from typing import Final, Literal, Unpack

import click

from queue_core.cli import exits
from queue_core.cli.group import command
from queue_core.cli.options import DURATION, tag_filter, tag_options, target_options
from queue_core.cli.output import (
    columns,
    payload_fields,
    print_info,
    print_json,
    print_table,
    shown_instant,
    shown_payload,
    shown_seconds,
)
from queue_core.cli.target import TargetOptions, opened_queue
from queue_core.clock import seconds_between
from queue_core.limits import MAX_TASKS_PER_LEASE, MAX_TOKENS_PER_CALL, MAX_WAIT_SECONDS
from queue_core.rare_fields import rare_json
from queue_core.task import Lease

DEFAULT_WORKER: Final = "cli"
"""The worker that leases by hand are granted to, unless another is named."""


@command(
    "lease",
    when_cut="stderr",
    examples=(
        "towline lease thumbs",
        "towline lease thumbs --count 10 --tag resize --for 5m --json",
        "towline lease thumbs --wait 30s || echo nothing to do",
    ),
)
@click.argument("queue")
@click.option(
    "--count",
    "-n",
    default=1,
    show_default=True,
    type=click.IntRange(1, MAX_TASKS_PER_LEASE),
    help="Tasks leased at most.",
)
@click.option("--for", "seconds", type=DURATION, help="Length of the lease  [default: the queue's]")
@click.option("--wait", type=DURATION, default=0.0, help=f"Wait for a task, at most {MAX_WAIT_SECONDS:.0f} s.")
@click.option("--group", is_flag=True, help="Only tasks with the tag of the oldest task.")
@click.option("--worker", default=DEFAULT_WORKER, show_default=True, help="The worker that the leases are granted to.")
@tag_options
@target_options
def lease(
    queue: str,
    count: int,
    seconds: float | None,
    wait: float,
    group: bool,  # noqa: FBT001
    worker: str,
    tags: tuple[str, ...],
    untagged: bool,  # noqa: FBT001
    as_json: bool,  # noqa: FBT001
    **where: Unpack[TargetOptions],
) -> int:
    """Lease tasks of QUEUE and print them with their tokens.

    `renew`, `release` and `delete` need the tokens. Exit code 1 when there was nothing to lease.
    """
    wanted = tag_filter(tags, untagged=untagged, grouped=group)
    with opened_queue(queue, **where) as opened:
        leases = opened.lease(count, seconds=seconds, tags=wanted, worker=worker, wait_seconds=wait)
    if as_json:
        for one in leases:
            print_json(lease_record(one))
    else:
        _print_leases(leases)
    return exits.OK if leases else exits.NEGATIVE


@command(
    "renew",
    when_cut="stderr",
    examples=("towline renew thumbs 12.1700000000000000 --for 10m",),
)
@click.argument("queue")
@click.argument("tokens", nargs=-1, required=True)
@click.option("--for", "seconds", type=DURATION, help="New length from now  [default: the queue's]")
@target_options
def renew(
    queue: str,
    tokens: tuple[str, ...],
    seconds: float | None,
    as_json: bool,  # noqa: FBT001
    **where: Unpack[TargetOptions],
) -> int:
    """Extend leases, given by their TOKENS, to a time from now."""
    with opened_queue(queue, **where) as opened:
        for some in chunks(tokens):
            for one in opened.renew(some, seconds=seconds):
                if as_json:
                    print_json({"token": one.token, "name": one.name, "expires_at": one.expires_at})
                else:
                    click.echo(f"{one.name}  ends {shown_instant(one.expires_at)}")
    return exits.OK


@command(
    "release",
    when_cut="stderr",
    examples=(
        "towline release thumbs 12.1700000000000000",
        "towline release thumbs 12.1700000000000000 --delay 5m",
        "towline release thumbs 12.1700000000000000 --error 'the disk is full'",
        "towline release thumbs 12.1700000000000000 --dead 'no such image'",
    ),
)
@click.argument("queue")
@click.argument("tokens", nargs=-1, required=True)
@click.option("--delay", type=DURATION, help="Time until the next lease  [default: the queue's back-off]")
@click.option("--uncounted", is_flag=True, help="Do not count the lease against the task's maximum.")
@click.option("--dead", "reason", default="", metavar="REASON", help="Make the tasks dead at once.")
@click.option("--error", metavar="TEXT", help="The error, as it is kept among the tasks' attempts. No payloads.")
@target_options
def release(
    queue: str,
    tokens: tuple[str, ...],
    delay: float | None,
    uncounted: bool,  # noqa: FBT001
    reason: str,
    error: str | None,
    as_json: bool,  # noqa: FBT001
    **where: Unpack[TargetOptions],
) -> int:
    """Give back leases, given by their TOKENS: their tasks may be leased again."""
    charge: Literal["counted", "uncounted"] = "uncounted" if uncounted else "counted"
    with opened_queue(queue, **where) as opened:
        for some in chunks(tokens):
            for one in opened.release(some, delay_seconds=delay, charge=charge, dead_reason=reason, error=error):
                if as_json:
                    print_json({"name": one.name, "died": one.died, "held_seconds": one.held_seconds})
                else:
                    click.echo(f"{one.name}  {'dead' if one.died else 'released'}")
    return exits.OK


@command(
    "delete",
    when_cut="stderr",
    examples=(
        "towline delete thumbs 12.1700000000000000",
        "towline delete thumbs --named cat-1 --named cat-2",
    ),
)
@click.argument("queue")
@click.argument("tokens", nargs=-1)
@click.option("--named", multiple=True, metavar="NAME", help="Delete by name instead, leased or not.")
@target_options
def delete(
    queue: str,
    tokens: tuple[str, ...],
    named: tuple[str, ...],
    as_json: bool,  # noqa: FBT001
    **where: Unpack[TargetOptions],
) -> int:
    """Delete finished tasks of QUEUE by the TOKENS of their leases, or any tasks by `--named`.

    A token works only while its lease is current. By name, a task is deleted even if a worker has it leased.
    """
    if bool(tokens) == bool(named):
        raise click.UsageError("give tokens, or --named, one of the two")
    deleted = 0
    with opened_queue(queue, **where) as opened:
        for some in chunks(tokens or named):  # the results of each are printed before the next, which may fail
            if tokens:
                opened.delete(some)
            outcomes = ["deleted"] * len(some) if tokens else opened.delete_by_name(some)
            for what, outcome in zip(some, outcomes, strict=True):
                deleted += outcome == "deleted"
                if as_json:
                    print_json({"token" if tokens else "name": what, "status": outcome})
                else:
                    click.echo(f"{what}  {outcome}")
    return exits.OK if deleted else exits.NEGATIVE


def chunks(values: Sequence[str]) -> list[list[str]]:
    """Split `values` into lists that one call may take."""
    return [list(values[at : at + MAX_TOKENS_PER_CALL]) for at in range(0, len(values), MAX_TOKENS_PER_CALL)]


def lease_record(one: Lease) -> dict[str, object]:
    """Return a lease as JSON; see `payload_fields`."""
    return {
        "queue": one.queue,
        "name": one.name,
        "tag": one.tag,
        "token": one.token,
        "worker": one.worker,
        "lease_number": one.lease_number,
        "leased_at": one.leased_at,
        "expires_at": one.expires_at,
        "waited_seconds": one.waited_seconds,
        **rare_json(one),
        **payload_fields(one.payload),
    }


def _print_leases(leases: Sequence[Lease]) -> None:
    rows = [
        (
            one.token,
            one.name,
            one.tag,
            one.lease_number,
            shown_seconds(one.waited_seconds),
            shown_seconds(seconds_between(one.leased_at, one.expires_at)),
            shown_payload(one.payload),
        )
        for one in leases
    ]
    print_table(columns("TOKEN", "NAME", "TAG", ">LEASE", ">WAITED", ">FOR", "PAYLOAD"), rows, empty="nothing to lease")
    if rows:
        print_info(f"finish with `towline delete {leases[0].queue} TOKEN`, give back with `towline release`")

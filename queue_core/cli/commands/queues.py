"""Queues at a glance: `queues` and `stats`."""

from typing import Unpack

import click

from queue_core.cli import exits
from queue_core.cli.catalog import LOOK
from queue_core.cli.group import CommandEntry, CommandWithMore, command
from queue_core.cli.options import tag_filter, tag_options, target_options
from queue_core.cli.output import columns, echo, print_json, print_table, shown_seconds
from queue_core.cli.target import Where, opened, opened_queue
from queue_core.config.units import format_seconds
from queue_core.http_api.values import flat_json
from queue_core.stats import QueueStats, TagStats
from queue_core.task import QueueSpec
from queue_core.validation import FILLED_FROM

PAGE = 1000


@command(
    "queues",
    examples=("towline queues", "towline queues --json", "towline queues apply queue.yaml --dry-run"),
    cls=CommandWithMore,
    entries={
        "apply": CommandEntry(
            "queue_core.cli.commands.queues_apply", LOOK, "make them what a queue.yaml or queue.xml says"
        ),
        "storage": CommandEntry(
            "queue_core.cli.commands.queues_storage", LOOK, "what all payloads come to, and a limit of it"
        ),
    },
)
@target_options
@click.pass_context
def queues(ctx: click.Context, as_json: bool, **where: Unpack[Where]) -> int:  # noqa: FBT001
    """List all queues: how they are set, and what waits in them."""
    if ctx.invoked_subcommand is not None:
        return exits.OK
    with opened(**where) as (found, _):
        specs = found.queues()
        counts = [found.queue(spec.name).stats() for spec in specs]
    if as_json:
        print_json([flat_json(spec) | {"stats": flat_json(count)} for spec, count in zip(specs, counts, strict=True)])
        return exits.OK
    rows = [
        (
            spec.name,
            count.ready,
            count.delayed,
            count.in_flight,
            count.dead,
            shown_seconds(_oldest_seconds(count)) if count.ready else "",
            format_seconds(spec.lease_seconds),
            spec.max_leases,
            _closed(spec),
        )
        for spec, count in zip(specs, counts, strict=True)
    ]
    heads = columns("QUEUE", ">READY", ">DELAYED", ">IN-FLIGHT", ">DEAD", ">OLDEST", ">LEASE", ">MAX LEASES", "")
    print_table(heads, rows, empty="no queues: set some under `queues:` in towline.yaml")
    return exits.OK


@command(
    "stats",
    examples=("towline stats thumbs", "towline stats thumbs --tag resize", "towline stats thumbs --tags --json"),
)
@click.argument("queue")
@click.option("--tags", "by_tag", is_flag=True, help="Counts of every tag, a line each.")
@tag_options
@target_options
def stats(
    queue: str,
    by_tag: bool,  # noqa: FBT001
    tags: tuple[str, ...],
    untagged: bool,  # noqa: FBT001
    as_json: bool,  # noqa: FBT001
    **where: Unpack[Where],
) -> int:
    """Counts of QUEUE now, and totals since it was made. Costs the same at any size."""
    wanted = tag_filter(tags, untagged=untagged)
    with opened_queue(queue, **where) as found:
        if by_tag:
            return _print_tags(_all_tags(found.tag_stats), as_json=as_json)
        counts = found.stats(tags=wanted)
    oldest = _oldest_seconds(counts)
    if as_json:
        print_json(flat_json(counts) | {"oldest_ready_seconds": oldest})
        return exits.OK
    for name, value in {
        "ready": f"{counts.ready:,}{f', the oldest for {shown_seconds(oldest)}' if counts.ready else ''}",
        "delayed": f"{counts.delayed:,}",
        "in-flight": f"{counts.in_flight:,}",
        "dead": f"{counts.dead:,}",
        "": "",
        "added": f"{counts.added_total:,} ever",
        "leased": f"{counts.leased_total:,}",
        "deleted": f"{counts.deleted_total:,}",
        "released": f"{counts.released_total:,}",
        "expired": f"{counts.expired_total:,}",
        "died": f"{counts.died_total:,}",
    }.items():
        echo(f"{name:<10} {value}".rstrip())
    if counts.paused:
        echo("no leases are granted: it is paused or was moved; `towline queues` tells")
    return exits.OK


def _oldest_seconds(counts: QueueStats) -> float:
    """How long the oldest ready task has waited, by the clock of whoever counted."""
    return 0.0 if counts.as_of is None else counts.oldest_ready_seconds(counts.as_of)


def _closed(spec: QueueSpec) -> str:
    """Why no lease is granted, if none is."""
    if spec.moved_to:
        return spec.moved_to if spec.moved_to.startswith(FILLED_FROM) else f"moved to {spec.moved_to}"
    if spec.mode == "push":
        return "push"
    return "paused" if spec.paused else ""


def _all_tags(page_of: object) -> list[TagStats]:
    found: list[TagStats] = []
    after: str | None = None
    while True:
        page: list[TagStats] = page_of(after=after, limit=PAGE)  # type: ignore[operator]
        found += page
        if len(page) < PAGE:
            return found
        after = page[-1].tag


def _print_tags(found: list[TagStats], *, as_json: bool) -> int:
    if as_json:
        print_json([{"tag": one.tag} | flat_json(one.stats) for one in found])
        return exits.OK
    rows = [(one.tag or "(untagged)", *_counts(one.stats)) for one in found]
    heads = columns("TAG", ">READY", ">DELAYED", ">IN-FLIGHT", ">DEAD", ">ADDED", ">DELETED")
    print_table(heads, rows, empty="no tasks, no tags")
    return exits.OK


def _counts(counts: QueueStats) -> tuple[int, ...]:
    return (counts.ready, counts.delayed, counts.in_flight, counts.dead, counts.added_total, counts.deleted_total)

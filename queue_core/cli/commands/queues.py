"""`towline queues` and `towline stats`: settings and counts of queues."""

from typing import Unpack

import click

from queue_core.cli import exits
from queue_core.cli.failure import CommandError
from queue_core.cli.group import INSPECT, CommandEntry, CommandWithSubcommands, command
from queue_core.cli.options import SIZE, tag_filter, tag_options, target_options
from queue_core.cli.output import columns, echo, print_info, print_json, print_table, shown_seconds
from queue_core.cli.target import TargetOptions, opened, opened_queue
from queue_core.config.celery_names import shown_queue
from queue_core.config.units import format_bytes
from queue_core.limits import MAX_ETA_SECONDS, MAX_PAYLOAD_BYTES
from queue_core.process.wording import shown_setting
from queue_core.stats import QueueStats, TagStats
from queue_core.task import QueueSpec
from queue_core.verbs import Storage
from queue_core.verbs.validation import FILLED_FROM
from queue_core.verbs.wire import flat_json, queue_json

PAGE = 1000


@command(
    "queues",
    examples=("towline queues", "towline queues --json", "towline queues apply queue.yaml --dry-run"),
    cls=CommandWithSubcommands,
    entries={
        "apply": CommandEntry(
            "queue_core.cli.commands.queues_apply", INSPECT, "set them as a queue.yaml or queue.xml says"
        ),
        "storage": CommandEntry("queue_core.cli.commands.queues", INSPECT, "show or limit the bytes of all payloads"),
    },
)
@target_options
@click.pass_context
def queues(ctx: click.Context, as_json: bool, **where: Unpack[TargetOptions]) -> int:  # noqa: FBT001
    """List all queues: their settings and counts."""
    if ctx.invoked_subcommand is not None:
        return exits.OK
    with opened(**where) as (found, _):
        specs = found.queues()
        counts = [found.queue(spec.name).stats() for spec in specs]
    if as_json:
        print_json(
            [
                queue_json(spec) | {"label": shown_queue(spec.name, label=spec.label), "stats": flat_json(count)}
                for spec, count in zip(specs, counts, strict=True)
            ]
        )
        return exits.OK
    held = any(count.held for count in counts)
    large = any(spec.max_payload_bytes > MAX_PAYLOAD_BYTES for spec in specs)
    far = any(spec.max_eta_seconds > MAX_ETA_SECONDS for spec in specs)
    own_limits = [*([">MAX PAYLOAD"] if large else []), *([">MAX ETA"] if far else [])]
    rows = [
        (
            shown_queue(spec.name, label=spec.label),
            count.ready,
            *((count.held,) if held else ()),
            count.delayed,
            count.in_flight,
            count.dead,
            shown_seconds(_oldest_seconds(count)) if count.ready else "",
            shown_setting(spec.lease_seconds),
            spec.max_leases,
            *((format_bytes(spec.max_payload_bytes),) if large else ()),
            *((f"{spec.max_eta_seconds / 86_400:g} days",) if far else ()),
            _closed(spec),
        )
        for spec, count in zip(specs, counts, strict=True)
    ]
    heads = columns(
        *(
            "QUEUE",
            ">READY",
            *_held_header(held),
            ">DELAYED",
            ">IN-FLIGHT",
            ">DEAD",
            ">OLDEST",
            ">LEASE",
            ">MAX LEASES",
            *own_limits,
            "STATE",
        ),
        least=(
            *[title.removeprefix(">") for title in reversed(own_limits)],
            "MAX LEASES",
            "LEASE",
            "DELAYED",
            "OLDEST",
        ),
        keeps=("READY", "STATE"),
        folds=("STATE",),
        cuts=("QUEUE",),
    )
    print_table(heads, rows, empty="no queues: set some under `queues:` in towline.yaml")
    return exits.OK


@command(
    "stats",
    examples=("towline stats thumbs", "towline stats thumbs --tag resize", "towline stats thumbs --tags --json"),
)
@click.argument("queue")
@click.option("--tags", "by_tag", is_flag=True, help="Counts of each tag, one per line.")
@tag_options
@target_options
def stats(
    queue: str,
    by_tag: bool,  # noqa: FBT001
    tags: tuple[str, ...],
    untagged: bool,  # noqa: FBT001
    as_json: bool,  # noqa: FBT001
    **where: Unpack[TargetOptions],
) -> int:
    """Show the counts of QUEUE, and totals since it was created. Takes the same time at any size."""
    wanted = tag_filter(tags, untagged=untagged)
    with opened_queue(queue, **where) as found:
        if by_tag:
            return _print_tags(queue, _all_tags(found.tag_stats), as_json=as_json)
        counts = found.stats(tags=wanted)
    oldest = _oldest_seconds(counts)
    if as_json:
        print_json(flat_json(counts) | {"oldest_ready_seconds": oldest})
        return exits.OK
    oldest_one = f", the oldest for {shown_seconds(oldest)}" if counts.ready else ""
    room = f"; limits of the queue let {counts.leasable:,} be leased now" if counts.room is not None else ""
    held = {"held": f"{counts.held:,} by limits of their tags"} if counts.held else {}
    for name, value in {
        "ready": f"{counts.ready:,}{oldest_one}{room}",
        **held,
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
        echo("no leases are granted: it is paused or was moved; see `towline queues`")
    return exits.OK


def _oldest_seconds(counts: QueueStats) -> float:
    """Return how long the oldest ready task has waited, by the clock of the server or store."""
    return 0.0 if counts.as_of is None else counts.oldest_ready_seconds(counts.as_of)


def _closed(spec: QueueSpec) -> str:
    """Return why no leases are granted, or ""."""
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


def _print_tags(queue: str, found: list[TagStats], *, as_json: bool) -> int:
    if as_json:
        print_json([{"tag": one.tag} | flat_json(one.stats) for one in found])
        return exits.OK
    held = any(one.stats.held for one in found)
    rows = [(one.tag or "(untagged)", *_counts(one.stats, held=held)) for one in found]
    heads = columns(
        *("TAG", ">READY", *_held_header(held), ">DELAYED", ">IN-FLIGHT", ">DEAD", ">ADDED", ">DELETED"),
        least=("DELETED", "ADDED", "DELAYED"),
        keeps=("READY",),
    )
    print_table(heads, rows, empty=f"no tags in {queue}: it has had no tasks")
    return exits.OK


def _held_header(held: bool) -> tuple[str, ...]:  # noqa: FBT001
    """Return the head of the column of held tasks, which tables have where there are any."""
    return (">HELD",) if held else ()


def _counts(counts: QueueStats, *, held: bool) -> tuple[int, ...]:
    return (
        counts.ready,
        *((counts.held,) if held else ()),
        counts.delayed,
        counts.in_flight,
        counts.dead,
        counts.added_total,
        counts.deleted_total,
    )


@command(
    "storage",
    when_cut="stderr",
    examples=("towline queues storage", "towline queues storage --limit 10GiB", "towline queues storage --no-limit"),
)
@click.option("--limit", "limit_bytes", type=SIZE, metavar="SIZE", help="Refuse adds beyond it: 500MiB, or bytes.")
@click.option(
    "--no-limit", "unlimited", flag_value="unlimited", help="Remove the limit; payloads are then no longer counted."
)
@target_options
def storage(limit_bytes: int | None, unlimited: str | None, as_json: bool, **where: Unpack[TargetOptions]) -> int:  # noqa: FBT001
    """Show the bytes of all payloads and their limit, or change the limit.

    Bytes are counted only while there is a limit; setting the first one counts all existing tasks.
    """
    if unlimited and limit_bytes is not None:
        raise CommandError("--limit and --no-limit: give one of them", code=exits.USAGE)
    with opened(**where) as (queues, _):
        if unlimited or limit_bytes is not None:
            queues.set_storage_limit(limit_bytes)
        found = queues.storage()
    if as_json:
        print_json(flat_json(found))
    else:
        print_info(_describe(found))
    return exits.OK


def _describe(found: Storage) -> str:
    if found.limit_bytes is None:
        return "no limit: payloads are not counted"
    share = f", {found.used_bytes / found.limit_bytes:.1%}" if found.limit_bytes else ""
    return f"{found.used_bytes:,} bytes of {format_bytes(found.limit_bytes)}{share}"

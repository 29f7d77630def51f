"""`towline add`: add tasks from arguments, a file or stdin."""

import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Final, Unpack

import click

from queue_core.api import Queue
from queue_core.cli import exits
from queue_core.cli.cut_output import was_cut
from queue_core.cli.failure import CommandError, failure_of
from queue_core.cli.group import command
from queue_core.cli.options import DURATION, target_options
from queue_core.cli.output import print_info, print_json
from queue_core.cli.target import TargetOptions, opened_queue
from queue_core.cli.unserved_tags import warn_of_unserved
from queue_core.errors import QueueError
from queue_core.limits import MAX_PAYLOAD_BYTES, MAX_TASKS_PER_ADD
from queue_core.task import NewTask
from queue_core.verbs import Added

MAX_BATCH_BYTES: Final = 8 << 20
"""Payload bytes of one call; a batch that would be larger ends before `MAX_TASKS_PER_ADD`."""


@command(
    "add",
    when_cut="count",
    examples=(
        "towline add thumbs 'cat.jpg' --tag resize",
        "towline add thumbs a.jpg b.jpg c.jpg --delay 10m",
        "towline add thumbs --from cat.json --name cat-1",
        "towline add thumbs cat.jpg --header request-id=r-7 --header content-type=image/png",
        "find . -name '*.jpg' | towline add thumbs --lines --tag resize",
    ),
)
@click.argument("queue")
@click.argument("payloads", nargs=-1)
@click.option(
    "--from",
    "source",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    help="Payload file; - is stdin.",
)
@click.option("--lines", is_flag=True, help="Each line of stdin, or of --from, is one task.")
@click.option("--tag", help="Tag of the tasks.")
@click.option("--name", help="Name of the task; adding it a second time changes nothing.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="Header of the tasks; repeatable.")
@click.option("--delay", type=DURATION, help="Time from now until the tasks may be leased.")
@target_options
def add(
    queue: str,
    payloads: tuple[str, ...],
    source: Path | None,
    lines: bool,  # noqa: FBT001  click's flag
    tag: str | None,
    name: str | None,
    headers: tuple[str, ...],
    delay: float | None,
    as_json: bool,  # noqa: FBT001
    **where: Unpack[TargetOptions],
) -> int:
    """Add tasks to QUEUE: one for each PAYLOAD; without any, stdin is the payload.

    The tasks are durable when the command returns. Prints the name of each; exit code 1 if all names were taken. Says
    on stderr if no pool of the settings file works on their tag, or on tasks without one.
    """
    if payloads and (source or lines):
        raise click.UsageError("give payloads as arguments, or --from or --lines, not both")
    if name is not None and (lines or len(payloads) > 1):
        raise click.UsageError("--name goes with one task")
    carried = _headers(headers)
    found = _read(payloads, source, lines=lines)
    tasks = (NewTask(payload, name=name, tag=tag, delay_seconds=delay, headers=carried) for payload in found)
    with opened_queue(queue, **where) as opened:
        counts = _add_all(opened, tasks, as_json=as_json)
    warn_of_unserved(queue, tag, tasks=counts["added"], where=where)
    if not counts["added"] and any(counts.values()):
        print_info("nothing added: every name was taken already")
        return exits.NEGATIVE
    if (lines and not as_json) or was_cut():
        print_info(f"{counts['added']} added")
    return exits.OK


def _headers(pairs: Sequence[str]) -> dict[str, str] | None:
    """Return the headers that these pairs of a name and a value mean; None for none."""
    headers: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise click.UsageError(f"--header {pair}: write NAME=VALUE, such as request-id=r-7")
        if name in headers:
            raise click.UsageError(f"--header {name} is given twice: a task has one value of each header")
        headers[name] = value
    return headers or None


def _add_all(queue: Queue, tasks: Iterator[NewTask], *, as_json: bool) -> dict[str, int]:
    counts = {"added": 0, "exists": 0, "tombstoned": 0}
    try:
        for batch in _batches(tasks):
            for added in queue.add(batch):
                counts[added.status] += 1
                _print(added, as_json=as_json)
    except (QueueError, CommandError, OSError) as error:
        failure = failure_of(error)
        handled = sum(counts.values())
        if failure is None or not handled:
            raise
        # To run the same command again would add those tasks twice.
        fix = f"the first {handled:,} tasks are added: fix it, then add the others"
        raise CommandError(failure.lines, code=failure.code, where=failure.where, fix=fix) from error
    return counts


def _print(added: Added, *, as_json: bool) -> None:
    if as_json:
        print_json({"name": added.name, "status": added.status})
    elif added.status == "added":
        click.echo(added.name)
    else:
        print_info(
            f"{added.name}: {'exists already' if added.status == 'exists' else 'was done before'}; nothing changed"
        )


def _batches(tasks: Iterator[NewTask]) -> Iterator[list[NewTask]]:
    batch: list[NewTask] = []
    size = 0
    for task in tasks:
        if batch and (len(batch) == MAX_TASKS_PER_ADD or size + len(task.payload) > MAX_BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(task)
        size += len(task.payload)
    if batch:
        yield batch


def _read(payloads: Sequence[str], source: Path | None, *, lines: bool) -> Iterator[bytes]:
    if payloads:
        return (payload.encode("utf-8", "surrogateescape") for payload in payloads)
    if source is None and sys.stdin.isatty():
        raise click.UsageError("no payload: give one as an argument, --from a file, or pipe it in")
    return _read_file(source, lines=lines)


def _read_file(source: Path | None, *, lines: bool) -> Iterator[bytes]:
    if source is None or str(source) == "-":
        yield from _split(sys.stdin.buffer, lines=lines)
        return
    with source.open("rb") as file:
        yield from _split(file, lines=lines)


def _split(file: BinaryIO, *, lines: bool) -> Iterator[bytes]:
    if not lines:
        yield file.read(MAX_PAYLOAD_BYTES + 1)
        return
    number = 0
    while found := list(islice(iter(lambda: file.readline(MAX_PAYLOAD_BYTES + 2), b""), 1000)):
        for line in found:
            number += 1
            payload = line.rstrip(b"\r\n")
            if len(payload) > MAX_PAYLOAD_BYTES:
                message = f"line {number} is longer than {MAX_PAYLOAD_BYTES} bytes (1 MiB), the limit of a payload"
                fix = "earlier lines may be added already: shorten it, then add it and the lines after it"
                raise CommandError(message, code=exits.BAD_DATA, fix=fix)
            if payload:
                yield payload

"""`towline add`: add tasks from arguments, a file or stdin."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import BinaryIO, Final, Unpack

import click

from queue_core.cli import exits
from queue_core.cli.cut_output import was_cut
from queue_core.cli.failure import CommandError, failure_of
from queue_core.cli.group import command
from queue_core.cli.options import DURATION, target_options
from queue_core.cli.output import ProgressBar, print_info, print_json, progress
from queue_core.cli.target import TargetOptions, opened_beside
from queue_core.cli.unserved_tags import warn_of_unserved
from queue_core.client.queue import Queue
from queue_core.errors import QueueError, TaskTooLargeError
from queue_core.limits import LARGEST_PAYLOAD_BYTES, MAX_PAYLOAD_BYTES, MAX_PRIORITY, MAX_TASKS_PER_ADD
from queue_core.process.wording import counted
from queue_core.task import NewTask
from queue_core.verbs import Added

MAX_BATCH_BYTES: Final = 8 << 20
"""Payload bytes of one call; a batch that would be larger ends before `MAX_TASKS_PER_ADD`."""


@dataclass(frozen=True, slots=True)
class GivenPayload:
    """A payload, and the line of a file that it is; 0 for one that is no line."""

    payload: bytes
    line: int = 0


@dataclass(slots=True)
class AddReport:
    """The outcome so far: how many tasks with each outcome, and the last line of the file that is done."""

    counts: dict[str, int] = field(default_factory=lambda: {"added": 0, "exists": 0, "tombstoned": 0})
    last_line: int = 0
    asked: int = 0
    """Tasks of a call that has not returned."""

    @property
    def handled(self) -> int:
        """Tasks that the queue answered for."""
        return sum(self.counts.values())

    @property
    def way_on(self) -> str:
        """The next step after a failure: the same command again would add those tasks twice."""
        if not self.handled:
            return "nothing is added yet: fix it, then run this again"
        if self.last_line:
            begin = self.last_line + 1
            done = f"{counted(self.handled, 'task')}, lines 1 to {self.last_line:,}, {_are(self.handled)} added"
            return f"{done}: fix it, then add the others: tail -n +{begin} FILE | towline add ... --lines"
        return f"the first {counted(self.handled, 'task')} {_are(self.handled)} added: fix it, then add the others"


@command(
    "add",
    when_cut="count",
    examples=(
        "towline add thumbs 'cat.jpg' --tag resize",
        "towline add thumbs a.jpg b.jpg c.jpg --delay 10m",
        "towline add thumbs --from cat.json --name cat-1",
        "towline add thumbs cat.jpg --header request-id=r-7 --header content-type=image/png",
        "towline add thumbs cat.jpg --priority 9",
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
@click.option("--lines", is_flag=True, help="Each line of stdin, or of --from, is one task; empty ones are left out.")
@click.option("--names", is_flag=True, help="With --lines: print the name of each task.")
@click.option("--tag", help="Tag of the tasks.")
@click.option("--name", help="Name of the task; adding it a second time changes nothing.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="Header of the tasks; repeatable.")
@click.option(
    "--priority",
    type=click.IntRange(0, MAX_PRIORITY),
    default=0,
    help=f"0 to {MAX_PRIORITY}: a higher one is leased before all lower.",
)
@click.option("--delay", type=DURATION, help="Time from now until the tasks may be leased.")
@target_options
def add(
    queue: str,
    payloads: tuple[str, ...],
    source: Path | None,
    lines: bool,  # noqa: FBT001  click's flags
    names: bool,  # noqa: FBT001
    tag: str | None,
    name: str | None,
    headers: tuple[str, ...],
    priority: int,
    delay: float | None,
    as_json: bool,  # noqa: FBT001
    **where: Unpack[TargetOptions],
) -> int:
    """Add tasks to QUEUE: one for each PAYLOAD; without any, stdin is the payload.

    The tasks are durable when the command returns. Prints the name of each, with --lines only their count, on stderr.
    Exit code 1 if all names were taken. Says on stderr if no pool works on their tag, or on tasks without one: by the
    settings file, and by what the workers of running supervisors lease.
    """
    if payloads and (source or lines):
        raise click.UsageError("give payloads as arguments, or --from or --lines, not both")
    if name is not None and (lines or len(payloads) > 1):
        raise click.UsageError("--name goes with one task")
    if names and not lines:
        raise click.UsageError("--names goes with --lines: without it every name is printed")
    carried = _headers(headers)
    found = _read(payloads, source, lines=lines)
    tasks = (
        (
            given.line,
            NewTask(given.payload, name=name, tag=tag, delay_seconds=delay, headers=carried, priority=priority),
        )
        for given in found
    )
    shows_names = names or not lines
    with opened_beside(queue, **where) as (queues, opened):
        with progress("tasks", quiet=as_json or names or not lines) as bar:
            report = _add_all(opened, tasks, bar=bar, as_json=as_json, shows_names=shows_names)
        warn_of_unserved(queues, opened.name, tag, tasks=report.counts["added"], where=where)
    if report.handled and not report.counts["added"]:
        print_info("nothing added: every name was taken already")
        return exits.NEGATIVE
    if lines and not report.handled:
        print_info(f"no lines in {source or 'stdin'}: nothing was added to {queue}")
    elif (lines and not as_json) or was_cut():
        print_info(f"{counted(report.counts['added'], 'task')} added to {queue}")
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


def _add_all(
    queue: Queue, tasks: Iterator[tuple[int, NewTask]], *, bar: ProgressBar, as_json: bool, shows_names: bool
) -> AddReport:
    """Add all tasks, in batches. A failure says what was added before it."""
    report = AddReport()
    try:
        for batch in _batches(tasks):
            report.asked = len(batch)
            try:
                answer = queue.add([task for _, task in batch])
            except TaskTooLargeError as error:
                if not batch[0][0]:
                    raise
                report.asked = 0
                raise BadLineError(batch[0][0], error.most) from error
            for added in answer:
                report.counts[added.status] += 1
            report.last_line, report.asked = batch[-1][0], 0
            for added in answer:
                if as_json or shows_names or added.status != "added":
                    _print(added, as_json=as_json)
            bar("adding", report.handled, 0)
    except (QueueError, CommandError, OSError) as error:
        failure = failure_of(error)
        if failure is None or not (report.handled or isinstance(error, BadLineError)):
            raise
        raise CommandError(failure.lines, code=failure.code, where=failure.where, fix=report.way_on) from error
    except KeyboardInterrupt:
        if report.handled or report.asked:
            done = f", lines 1 to {report.last_line:,}" if report.last_line else ""
            rest = f"; whether the next {report.asked:,} are is not known" if report.asked else ""
            print_info(f"interrupted: {counted(report.handled, 'task')} {_are(report.handled)} added{done}{rest}")
        raise
    return report


def _print(added: Added, *, as_json: bool) -> None:
    if as_json:
        print_json({"name": added.name, "status": added.status})
    elif added.status == "added":
        click.echo(added.name)
    else:
        gone = "was added before, and is done, deleted or purged"
        print_info(f"{added.name}: {'exists already' if added.status == 'exists' else gone}; nothing changed")


def _batches(tasks: Iterator[tuple[int, NewTask]]) -> Iterator[list[tuple[int, NewTask]]]:
    """Yield the tasks in batches. A task that can't be read ends them, after what came before it."""
    batch: list[tuple[int, NewTask]] = []
    size = 0
    failure: CommandError | OSError | None = None
    while True:
        try:
            line, task = next(tasks)
        except StopIteration:
            break
        except (CommandError, OSError) as error:
            failure = error
            break
        # One that not every queue takes goes alone, so that it is known which was refused, and those before are added.
        is_large = len(task.payload) > MAX_PAYLOAD_BYTES
        if batch and (is_large or len(batch) == MAX_TASKS_PER_ADD or size + len(task.payload) > MAX_BATCH_BYTES):
            yield batch
            batch, size = [], 0
        if is_large:
            yield [(line, task)]
            continue
        batch.append((line, task))
        size += len(task.payload)
    if batch:
        yield batch
    if failure is not None:
        raise failure


def _read(payloads: Sequence[str], source: Path | None, *, lines: bool) -> Iterator[GivenPayload]:
    if payloads:
        return (GivenPayload(payload.encode("utf-8", "surrogateescape")) for payload in payloads)
    if source is None and sys.stdin.isatty():
        raise click.UsageError("no payload: give one as an argument, --from a file, or pipe it in")
    return _read_file(source, lines=lines)


def _read_file(source: Path | None, *, lines: bool) -> Iterator[GivenPayload]:
    if source is None or str(source) == "-":
        yield from _split(sys.stdin.buffer, lines=lines)
        return
    with source.open("rb") as file:
        yield from _split(file, lines=lines)


def _split(file: BinaryIO, *, lines: bool) -> Iterator[GivenPayload]:
    if not lines:
        yield GivenPayload(file.read(LARGEST_PAYLOAD_BYTES + 1))
        return
    for number in count(1):
        line = file.readline(LARGEST_PAYLOAD_BYTES + 2)
        if not line:
            return
        payload = line.rstrip(b"\r\n")
        if len(payload) > LARGEST_PAYLOAD_BYTES:
            raise BadLineError(number, LARGEST_PAYLOAD_BYTES)
        if payload:
            yield GivenPayload(payload, number)


class BadLineError(CommandError):
    """A line is too long to be a payload."""

    def __init__(self, number: int, most: int) -> None:
        what = "the largest payload there is" if most == LARGEST_PAYLOAD_BYTES else "max_payload of its queue"
        message = f"line {number:,} is longer than {most:,} bytes ({most / (1 << 20):g} MiB), {what}"
        super().__init__(message, code=exits.BAD_DATA)


def _are(number: int) -> str:
    return "is" if number == 1 else "are"

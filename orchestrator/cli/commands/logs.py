"""`towline logs`: what workers write to standard output and error, of a pool, a worker or a task."""

import json
import os
import sys
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, Protocol, Unpack, cast
from urllib.parse import urlencode

import click

from orchestrator.base.clock import SystemMonotonicClock
from orchestrator.base.errors import NoOutputError
from orchestrator.cli.project_file import load_project
from orchestrator.cli.supervisor_hosts import host_option
from orchestrator.cli.worker_lines import LinePrinter
from orchestrator.config.pools import PoolSpec
from orchestrator.runtimes.worker_output import OutputPosition, entry_in
from orchestrator.settings_file import DEFAULT_FILE, state_of
from orchestrator.supervisor.output import MAX_LINES, FleetOutput, OutputBatch, OutputFollower, WorkerLine
from queue_core.cli import exits
from queue_core.cli.credentials import bearer_token
from queue_core.cli.failure import CommandError
from queue_core.cli.group import command
from queue_core.cli.options import DURATION, target_options
from queue_core.cli.output import print_info, wants_colour
from queue_core.cli.target import TargetOptions, opened
from queue_core.cli.task_story import find_stories
from queue_core.client.http.caller import HttpCaller, Retries, read
from queue_core.client.http.transport import HttpResponse
from queue_core.clock import MICROSECONDS, Instant
from queue_core.config.store_urls import masked
from queue_core.errors import QueueError
from queue_core.task import TaskState

FOLLOW_SECONDS: Final = 0.25
"""Pause between two looks at files while nothing new comes."""
CALL_SECONDS: Final = 1.0
"""The same for calls."""
WINDOW_SECONDS: Final = 2.0
"""Pause between two looks at which worker holds a task that is followed."""
CLOCK_SLACK_SECONDS: Final = 1.0
"""By how much the clocks of a worker and of the queue may differ."""
PATH: Final = "/v1/logs"
NOT_FOUND: Final = 404
UNKNOWN_WORKER: Final = ":unknown-worker"


class OutputReader(Protocol):
    """Workers' output, of this host or of a supervisor that is called. Raises `CommandError` for an unknown name."""

    def last(self, name: str | None, *, lines: int, since: float | None) -> OutputBatch:
        """Return the last lines of a pool, a worker, or of all."""

    def follow(self, name: str | None) -> None:
        """Begin to follow: behind what `last` returned for the same name."""

    def new(self) -> OutputBatch:
        """Return what is new since the last call."""

    @property
    def pause_seconds(self) -> float:
        """The pause between two looks while nothing new comes."""

    def close(self) -> None:
        """Close connections."""


class LocalReader:
    """The output of a state directory."""

    pause_seconds = FOLLOW_SECONDS

    def __init__(self, output: FleetOutput) -> None:
        self._output = output
        self._positions: dict[str, OutputPosition] | None = None
        self._follower: OutputFollower | None = None

    def last(self, name: str | None, *, lines: int, since: float | None) -> OutputBatch:
        """See `OutputReader.last`."""
        batch, self._positions = self._output.last(self._chosen(name), lines=lines, since=since)
        return batch

    def follow(self, name: str | None) -> None:
        """See `OutputReader.follow`."""
        chosen = self._chosen(name)
        pools = set(chosen.values())
        only = chosen if name is not None and name not in pools else None

        def choose() -> Mapping[str, str]:
            workers = self._output.workers()
            if name is None:
                return workers
            return only or {worker: pool for worker, pool in workers.items() if pool in pools}

        self._follower = OutputFollower(self._output, choose, positions=self._positions)

    def new(self) -> OutputBatch:
        """See `OutputReader.new`."""
        assert self._follower is not None
        return self._follower.new()

    def close(self) -> None:
        """See `OutputReader.close`."""

    def _chosen(self, name: str | None) -> Mapping[str, str]:
        try:
            return self._output.chosen(name)
        except NoOutputError as error:
            raise CommandError(str(error), code=exits.NO_INPUT, fix=error.fix) from None


class RemoteReader:
    """The output that a supervisor's HTTP API shows."""

    pause_seconds = CALL_SECONDS

    def __init__(self, url: str, *, token: str | None) -> None:
        self._caller = HttpCaller(url, token=token, retries=Retries(timeouts=1), timeout_seconds=10.0)
        self._name: str | None = None
        self._cursor = ""

    def last(self, name: str | None, *, lines: int, since: float | None) -> OutputBatch:
        """See `OutputReader.last`."""
        query = {"name": name, "lines": lines, "since": since}
        batch, self._cursor = self._get({key: value for key, value in query.items() if value is not None})
        return batch

    def follow(self, name: str | None) -> None:
        """See `OutputReader.follow`."""
        self._name = name
        if not self._cursor:
            _, self._cursor = self._get({"lines": 0} | ({} if name is None else {"name": name}))

    def new(self) -> OutputBatch:
        """See `OutputReader.new`."""
        query = {"after": self._cursor} | ({} if self._name is None else {"name": self._name})
        batch, self._cursor = self._get(query)
        return batch

    def close(self) -> None:
        """See `OutputReader.close`."""
        self._caller.close()

    def _get(self, query: Mapping[str, object]) -> tuple[OutputBatch, str]:
        found = self._caller.request("GET", f"{PATH}?{urlencode(query)}", None, repeat="safe")
        if found.status == NOT_FOUND:
            raise self._missing(found)
        answer = read(found)
        lines = [
            WorkerLine(
                str(one["pool"]),
                str(one["worker"]),
                str(one["line"]),
                cast("float | None", one["at"]),
                bool(one["has_time"]),
            )
            for one in cast("list[dict[str, object]]", answer["lines"])
        ]
        return OutputBatch(lines, cast("dict[str, int]", answer["skipped"])), str(answer["cursor"])

    def _missing(self, found: HttpResponse) -> CommandError:
        try:
            problem = json.loads(found.body)
        except ValueError:  # no server of ours
            problem = None
        if isinstance(problem, dict) and str(problem.get("type")).endswith(UNKNOWN_WORKER):
            return CommandError(str(problem.get("detail")), code=exits.NO_INPUT)
        return CommandError(
            "no supervisor serves here, or it is an older one: there is no output of workers",
            code=exits.UNAVAILABLE,
            where=masked(self._caller.url),
            fix="give the URL of `towline up`, or of supervisor.listen; or run this on the supervisor's host",
        )


@dataclass(frozen=True, slots=True)
class HeldBy:
    """A time in which a worker held a task, in seconds since the epoch; `ended` is infinite while it does."""

    worker: str
    began: float
    ended: float


class TaskLines:
    """Chooses the lines of one task: entries that name it, and plain lines from while its worker may have held it."""

    def __init__(self, task: str, held: Sequence[HeldBy], names: Collection[str] = ()) -> None:
        """`names`: of the tasks that `task` means, where it is an id of Celery's, or has its queue before it."""
        self.task = task
        self.held = held
        self.names = {task, *names}

    def of(self, batch: OutputBatch) -> OutputBatch:
        """Return the task's lines of a batch that was written earlier.

        A plain line was written between the last entry with a time before it and the first one after it.
        """
        bounds: dict[int, tuple[float, float]] = {}
        latest: dict[str, float] = {}
        for index, line in enumerate(batch.lines):
            if line.has_time and line.at is not None:
                latest[line.worker] = line.at
            bounds[index] = (latest.get(line.worker, float("-inf")), float("inf"))
        soonest: dict[str, float] = {}
        for index in range(len(batch.lines) - 1, -1, -1):
            line = batch.lines[index]
            bounds[index] = (bounds[index][0], soonest.get(line.worker, float("inf")))
            if line.has_time and line.at is not None:
                soonest[line.worker] = line.at
        kept = [line for index, line in enumerate(batch.lines) if self._is_of(line, *bounds[index])]
        return OutputBatch(kept, batch.skipped)

    def of_new(self, batch: OutputBatch, *, now: float) -> OutputBatch:
        """Return the task's lines of a batch that was written just now."""
        return OutputBatch([line for line in batch.lines if self._is_of(line, now, now)], batch.skipped)

    def _is_of(self, line: WorkerLine, earliest: float, latest: float) -> bool:
        entry = entry_in(line.text)
        if entry is not None:
            return entry.get("task") in self.names
        return any(
            one.worker == line.worker
            and one.began - CLOCK_SLACK_SECONDS <= latest
            and earliest <= one.ended + CLOCK_SLACK_SECONDS
            for one in self.held
        )


@command(
    "logs",
    examples=(
        "towline logs",
        "towline logs resize --follow",
        "towline logs resize-7f3k2q --lines 1000",
        "towline logs --task cat-17 --since 1h",
        "towline logs resize --json --since 10m | jq -r .line",
        "towline logs --url http://queue.example:7878 --follow",
    ),
)
@click.argument("name", required=False, metavar="[POOL | WORKER]")
@click.option("--task", help="Only the lines of this task, by its name or id.")
@click.option("--follow", is_flag=True, help="Also print new lines, until Ctrl-C.")
@click.option(
    "--lines", default=100, show_default=True, type=click.IntRange(0, MAX_LINES), help="Past lines printed at most."
)
@click.option("--since", type=DURATION, metavar="DURATION", help="Only lines of the last 10m, 2h, ...")
@host_option
@target_options
def logs(
    name: str | None,
    task: str | None,
    follow: bool,  # noqa: FBT001
    lines: int,
    since: float | None,
    as_json: bool,  # noqa: FBT001
    **where: Unpack[TargetOptions],
) -> int:
    """Print what workers write to standard output and error, newest last: of all, a pool, a worker or a task.

    Also of workers that ended recently. The beginning of a worker's name is enough. Log entries in JSON are printed for
    people, with tracebacks in full; --json gives each line as it was written: {at?, pool, worker, line}.

    --task prints the log entries that name the task, and the plain lines that its worker may have written while it held
    the task. --follow continues when workers are replaced, and when their logs are rotated. Without --url the state
    directory of this host is read; of a pool of Pods its cluster is, as long as a Pod is there. Exit code 66: there is
    no such pool or worker.
    """
    reader = _reader(name, where)
    now = SystemMonotonicClock().wall_seconds
    printer = LinePrinter(as_json=as_json, colours=wants_colour(), is_one_worker=name is not None, pool=name)
    try:
        chosen = TaskLines(task, *_held(task, where)) if task is not None else None
        from_second = None if since is None else now() - since
        batch = reader.last(name, lines=lines if chosen is None else MAX_LINES, since=from_second)
        if chosen is not None:
            batch = chosen.of(batch)
        shown = batch.lines[-lines:] if lines else ()
        printer.show(OutputBatch(shown, batch.skipped))
        if not shown and not follow and not as_json:
            print_info("no lines" if task is None else f"no lines of task {task}")
        if follow:
            reader.follow(name)
            _follow(reader, printer, chosen, where)
    finally:
        reader.close()
    return exits.OK


def _follow(reader: OutputReader, printer: LinePrinter, chosen: TaskLines | None, where: TargetOptions) -> None:
    """Print new lines until the process is interrupted."""
    pause = threading.Event()
    clock = SystemMonotonicClock()
    looked_at = clock.monotonic()
    while True:
        if chosen is not None and clock.monotonic() - looked_at >= WINDOW_SECONDS:
            looked_at = clock.monotonic()
            chosen.held, names = _held(chosen.task, where)
            chosen.names |= names
        batch = reader.new()
        if chosen is not None:
            batch = chosen.of_new(batch, now=clock.wall_seconds())
        printer.show(batch)
        if batch.lines:
            sys.stdout.flush()
        else:
            pause.wait(reader.pause_seconds)


def _is_of_pods(name: str | None, pools: Sequence[PoolSpec], *, others: Literal["yes", "no"]) -> bool:
    """Return whether the output of Pods is asked for: a pool's, a worker's, or all where there are no others."""
    if name is None:
        return bool(pools) and others == "no"
    return any(name == pool.name or name.startswith(f"{pool.name}-") for pool in pools)


def _reader(name: str | None, where: TargetOptions) -> OutputReader:
    url = where["url"] or (os.environ.get("TOWLINE_URL") if not _has_file(where["file"]) else None)
    if url is None:
        project = load_project(where["file"])
        pools = [pool for pool in project.pools.values() if pool.runtime.kubernetes is not None]
        if _is_of_pods(name, pools, others="yes" if len(project.pools) > len(pools) else "no"):
            from orchestrator.cli.pod_logs import PodReader

            return PodReader(pools, environment=os.environ)
        return LocalReader(FleetOutput(state_of(project)))
    return RemoteReader(url, token=bearer_token(where["token_file"]))


def _has_file(file: Path | None) -> bool:
    return file is not None or Path(DEFAULT_FILE).is_file()


def _held(task: str, where: TargetOptions) -> tuple[list[HeldBy], set[str]]:
    """Return when which workers held a task, as far as the queues tell, and its names; a note if they tell nothing."""
    held: list[HeldBy] = []
    names: set[str] = set()
    try:
        with opened(makes_queues=False, **where) as (queues, _):
            for story in find_stories(queues, task):
                names.add(story.name)
                held += [_held_by(one.worker, one.began_at, one.ended_at) for one in story.leases]
                if story.task is not None and story.task.state is TaskState.LEASED:
                    now = _held_by(story.task.worker, story.task.leased_at, story.task.eta)
                    held.append(replace(now, ended=float("inf")))
    except (QueueError, CommandError) as error:
        print_info(f"only entries that name the task are shown, as its leases are not known: {error}")
    return held, names


def _held_by(worker: str, began_at: Instant, ended_at: Instant) -> HeldBy:
    return HeldBy(worker, began_at / MICROSECONDS, ended_at / MICROSECONDS)

"""Read the queue's own lifecycle log as a workload: when each task became leasable, and how long it was held."""

import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Final

from orchestrator.simulation.workload import NEVER_SUCCEEDS, Workload, WorkloadError, workload_of
from queue_core import events

_MICROSECONDS: Final = 1e6
_TASK_EVENTS: Final = frozenset(
    {
        events.TASK_ADDED,
        events.TASK_LEASED,
        events.TASK_DELETED,
        events.TASK_DIED,
        events.LEASE_RELEASED,
        events.LEASE_EXPIRED,
    }
)


@dataclass(frozen=True, slots=True)
class RecordedTasks:
    """The tasks of a log.

    `waits` are the seconds before each task's last lease; `begins_at` is the epoch second at which the workload's time
    begins (None: unknown); `unfinished` tasks were not over at the log's end, and take as long as others did;
    `left_out` tasks are older than the newest that were requested.
    """

    workload: Workload
    waits: tuple[float, ...] = ()
    begins_at: float | None = None
    unfinished: int = 0
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class LogFilter:
    """A filter on tasks: of `queue` (None: the log must have only one), with one of `tags`, or untagged."""

    queue: str | None = None
    tags: frozenset[str] | None = None
    untagged: bool = False

    def takes(self, event: Mapping[str, object]) -> bool:
        """Return whether an event belongs to one of these tasks."""
        if self.queue is not None and event.get("queue") != self.queue:
            return False
        tag = event.get("tag")
        return tag is None if self.untagged else self.tags is None or tag in self.tags


EVERYTHING: Final = LogFilter()


@dataclass(slots=True)
class _Task:
    """A task while the log is read; instants are epoch seconds."""

    added_at: float
    ready_at: float
    is_leased: bool = False
    tag: str | None = None
    failures: int = 0
    held_seconds: float | None = None
    waited_seconds: float = 0.0


@dataclass(slots=True)
class _Reading:
    """The tasks read so far."""

    present: dict[tuple[str, str], _Task] = field(default_factory=dict)
    past: list[_Task] = field(default_factory=list)

    def take(self, event: dict[str, object]) -> None:
        """Read one event of a task; a deletion without a lease is ignored."""
        kind, at = event["event"], _seconds(event.get("at")) / _MICROSECONDS
        key = (str(event.get("queue")), str(event.get("task")))
        if kind == events.TASK_ADDED:
            self.present[key] = _Task(at, at, tag=_tag(event))
            return
        task = self.present.get(key)
        if task is None:
            if kind == events.TASK_DELETED and "held_seconds" not in event:
                return
            task = self.present[key] = _Task(at, at, tag=_tag(event))  # it was there before the log begins
        waited, held = _seconds(event.get("waited_seconds")), _seconds(event.get("held_seconds"))
        if not task.is_leased:
            # The log has no eta, only how long the task waited after it.
            leased_at = at if kind == events.TASK_LEASED else at - held
            task.ready_at, task.is_leased = max(task.added_at, leased_at - waited), True
        if kind == events.TASK_LEASED:
            return
        task.waited_seconds = waited
        task.held_seconds = held if "held_seconds" in event else task.held_seconds
        if kind in {events.LEASE_RELEASED, events.LEASE_EXPIRED}:
            task.failures += 1
            return
        if kind == events.TASK_DIED:
            task.failures = NEVER_SUCCEEDS
        del self.present[key]
        if task.held_seconds is not None:  # else it was deleted by name, without a worker
            self.past.append(task)


def read_lifecycle(
    lines: Iterable[str],
    *,
    name: str,
    rng: Random,
    wanted: LogFilter = EVERYTHING,
    since: float = -math.inf,
) -> RecordedTasks:
    """Read the tasks of a lifecycle log, one JSON object per line, as `lifecycle: task` writes it.

    Args:
        lines: those of one log, or of several in order.
        name: the log's, for errors.
        wanted: the tasks to read.
        since: leave out tasks that were leasable before this epoch second.

    Raises `WorkloadError`.
    """
    reading, queues = _Reading(), set()
    for event in _events(lines, name):
        if wanted.takes(event):
            queues.add(event.get("queue"))
            reading.take(event)
    if len(queues) > 1:
        what = f"the log has {len(queues)} queues: {', '.join(sorted(map(str, queues)))[:200]}"
        raise WorkloadError(what, where=name, fix="choose one with --queue")
    return _recorded(reading, name=name, rng=rng, since=since)


def read_lifecycles(
    lines: Iterable[str], *, name: str, rng: Random, wanted: Mapping[str, LogFilter], since: float, newest: int
) -> Mapping[str, RecordedTasks]:
    """Read the tasks of several pools in one pass through a log; pools without a finished task are left out.

    Args:
        lines: as in `read_lifecycle`, like `name` and `since`.
        wanted: each pool's tasks, by the pool's name; each filter names a queue.
        newest: the most tasks of each pool, the newest ones.

    Raises `WorkloadError`.
    """
    readings = {pool: _Reading() for pool in wanted}
    by_queue: dict[object, list[tuple[LogFilter, _Reading]]] = {}
    for pool, one in wanted.items():
        by_queue.setdefault(one.queue, []).append((one, readings[pool]))
    for event in _events(lines, name):
        for one, reading in by_queue.get(event.get("queue"), ()):
            if one.takes(event):
                reading.take(event)
    return {
        pool: _recorded(reading, name=pool, rng=rng, since=since, newest=newest)
        for pool, reading in readings.items()
        if any(task.ready_at >= since for task in reading.past)
    }


def _recorded(reading: _Reading, *, name: str, rng: Random, since: float, newest: int | None = None) -> RecordedTasks:
    ready = sorted(task.ready_at for task in (*reading.past, *reading.present.values()) if task.ready_at >= since)
    left_out = 0 if newest is None else max(0, len(ready) - newest)
    since = ready[left_out] if left_out else since
    past = [task for task in reading.past if task.ready_at >= since]
    rest = [task for task in reading.present.values() if task.ready_at >= since]
    if not past:
        what = "no task in it came and went" if since == -math.inf else "no task in it came and went in that time"
        raise WorkloadError(what, where=name, fix="record for longer, or look at another queue, tag or time")
    durations = [task.held_seconds or 0.0 for task in past]
    for task in rest:
        task.held_seconds = rng.choice(durations)
    everything = past + rest
    begins_at = min(task.ready_at for task in everything)
    workload = workload_of(
        name,
        [(task.ready_at - begins_at, task.held_seconds or 0.0) for task in everything],
        added_at=[task.added_at - begins_at for task in everything],
        failures=[task.failures for task in everything],
        tags=[task.tag for task in everything],
    )
    waits = tuple(sorted(task.waited_seconds for task in past))
    return RecordedTasks(workload, waits, begins_at, len(rest), left_out)


def _events(lines: Iterable[str], name: str) -> Iterator[dict[str, object]]:
    number = 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            event = json.loads(line)
        except ValueError:
            event = None
        if not isinstance(event, dict) or "event" not in event:
            if not line.endswith("\n"):
                return  # the last line, cut by a crash
            what = f"not an event of a lifecycle log: {line.strip()[:60]!r}"
            raise WorkloadError(what, where=f"{name}:{number}", fix="give a log that `log:` of the settings file names")
        if event["event"] not in _TASK_EVENTS:
            continue
        if "task" not in event:
            what = "the log has calls, not tasks (lifecycle: batch)"
            raise WorkloadError(what, where=name, fix="write `lifecycle: task` in the settings file, and record again")
        yield event
    if not number:
        raise WorkloadError("the log is empty", where=name, fix="let some tasks be done first")


def _tag(event: Mapping[str, object]) -> str | None:
    tag = event.get("tag")
    return tag if isinstance(tag, str) else None


def _seconds(value: object) -> float:
    return float(value) if isinstance(value, int | float) and abs(value) <= sys.float_info.max else 0.0

"""What the reference store tells of one queue, for the verbs that only look."""

from collections.abc import Sequence
from dataclasses import replace

from queue_core.clock import Instant
from queue_core.stats import LiveLease, TagStats, WaitingTask, spread
from queue_core.store import HeldName, Page
from queue_core.stores.memory_queue import MemoryQueue
from queue_core.task import UNTAGGED, TagFilter, TaskState

HEAD = 1000  # etas of the ready queue that are read for `waiting`

_MOVED_BY_TIME = (TaskState.DELAYED, TaskState.LEASED)


def peek(
    held: MemoryQueue,
    tags: TagFilter,
    states: frozenset[TaskState],
    *,
    names: Sequence[str] | None,
    after: int,
    limit: int,
    payload_bytes: int,
    now: Instant,
) -> Page:
    """See `Transaction.peek`."""
    shown = [
        replace(task, payload=task.payload[:payload_bytes])
        for task in held.settled(now=now)
        if task.id > after
        and task.state in states
        and tags.accepts(task.tag)
        and (names is None or task.shown_name in names)
    ]
    shown.sort(key=lambda task: task.id)
    return Page(tuple(shown[:limit]), shown[limit - 1].id if len(shown) > limit else None)


def tag_stats(held: MemoryQueue, *, after: str | None, limit: int, now: Instant) -> list[TagStats]:
    """See `Transaction.tag_stats`."""
    tags = sorted({tag for tag in held.totals if tag is not None and (after is None or tag > after)})
    listed: list[str | None] = [None] if after is None and None in held.totals else []
    return [
        TagStats(tag, held.stats(UNTAGGED if tag is None else TagFilter.of(tag), now=now))
        for tag in (*listed, *tags)[:limit]
    ]


def waiting(held: MemoryQueue, tags: TagFilter, *, now: Instant) -> tuple[WaitingTask, ...]:
    """See `Transaction.waiting`."""
    held.settle(now=now)
    etas = [task.eta for task in held.ready(tags)]
    return spread(etas[:HEAD], ready=len(etas), newest=etas[-1]) if etas else ()


def upcoming(held: MemoryQueue, tags: TagFilter, *, until: Instant, limit: int, now: Instant) -> list[Instant]:
    """See `Transaction.upcoming`."""
    delayed = [task for task in held.tasks.values() if task.state is TaskState.DELAYED and now < task.eta <= until]
    delayed.sort(key=lambda task: (task.eta, task.id))
    return [task.eta for task in delayed[:limit] if not task.leases and tags.accepts(task.tag)]


def live_leases(held: MemoryQueue, *, limit: int, now: Instant) -> list[LiveLease]:
    """See `Transaction.live_leases`."""
    leased = [task for task in held.tasks.values() if task.state is TaskState.LEASED and task.eta > now]
    leased.sort(key=lambda task: (task.eta, task.id))
    return [
        LiveLease(task.shown_name, task.tag, task.worker, task.leases, task.leased_at, task.eta, task.ready_at)
        for task in leased[:limit]
    ]


def next_eta(held: MemoryQueue) -> Instant | None:
    """See `Transaction.next_eta`."""
    if held.spec.moved_to:
        return None
    return min((task.eta for task in held.tasks.values() if task.state in _MOVED_BY_TIME), default=None)


def held_names(held: MemoryQueue, *, after: str | None, limit: int, now: Instant) -> list[HeldName]:
    """See `Transaction.held_names`."""
    names = sorted(name for name, until in held.tombstones.items() if until > now and (after is None or name > after))
    return [HeldName(name, held.tombstones[name]) for name in names[:limit]]

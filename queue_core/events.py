"""The lifecycle log's events, one per change of a task. A record, never the source of state."""

from collections.abc import Sequence
from typing import Literal, Protocol

from queue_core.clock import Instant
from queue_core.fast_values import value

TASK_ADDED = "task.added"
TASK_LEASED = "task.leased"
TASK_DELETED = "task.deleted"
TASK_DIED = "task.died"
TASK_REDRIVEN = "task.redriven"
TASK_POSTPONED = "task.postponed"
LEASE_RENEWED = "lease.renewed"
LEASE_RELEASED = "lease.released"
LEASE_EXPIRED = "lease.expired"
QUEUE_PURGED = "queue.purged"
QUEUE_PAUSED = "queue.paused"
QUEUE_RESUMED = "queue.resumed"
QUEUE_CREATED = "queue.created"
WORKER_RETIRED = "worker.retired"

LOG_LINES_LOST = "log.lines_lost"
LOG_RECOVERED = "log.recovered"

Lifecycle = Literal["task", "batch", "off"]
"""`task`: an event per task. `batch`: one per verb call, with a count. `off`: none."""


@value
class QueueEvent:
    """One change. Fields that don't apply are None. A lease is identified by its number, never by its token."""

    event: str
    at: Instant
    queue: str
    task: str | None = None
    tag: str | None = None
    worker: str | None = None
    lease_number: int | None = None
    waited_seconds: float | None = None
    held_seconds: float | None = None
    count: int = 1
    reason: str | None = None


class EventLog(Protocol):
    """A log that receives events once their changes are durable."""

    lifecycle: Lifecycle

    def record(self, events: Sequence[QueueEvent]) -> None:
        """Write these events in order. Must not raise for a full disk: it may cost log lines, never a task."""


class NullLog:
    """A log that discards all events."""

    lifecycle: Lifecycle = "off"

    def record(self, events: Sequence[QueueEvent]) -> None:
        """Discard the events."""

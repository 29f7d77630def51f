"""The lifecycle log's events, one per change of a task. A record, never the source of state."""

from collections.abc import Sequence
from typing import Literal, Protocol

from queue_core.clock import Instant
from queue_core.fast_values import value

TASK_ADDED = "task.added"
"""A task was added; an add of a name that is taken is no event."""
TASK_LEASED = "task.leased"
"""A worker was granted a lease of a task, `waited_seconds` after its eta."""
TASK_DELETED = "task.deleted"
"""A task was deleted: its work is done, `held_seconds` after the lease began; a `reason` says who else did it."""
TASK_DIED = "task.died"
"""A task became dead: it used up its leases, or its handler gave it up; `reason` says which."""
TASK_REDRIVEN = "task.redriven"
"""A dead task was made ready again."""
TASK_POSTPONED = "task.postponed"
"""The eta of a task that waits was moved."""
TASK_RETAGGED = "task.retagged"
"""The tag of a task that nobody has leased was changed; `tag` is the new one."""
LEASE_RENEWED = "lease.renewed"
"""The end of a lease was moved."""
LEASE_RELEASED = "lease.released"
"""A lease was given back before its end; `reason` says why."""
LEASE_EXPIRED = "lease.expired"
"""A lease ended without a renewal: its task is leasable again."""
QUEUE_PURGED = "queue.purged"
"""Tasks of a queue or of a tag were deleted, `count` of them."""
QUEUE_PAUSED = "queue.paused"
"""A queue grants no more leases."""
QUEUE_RESUMED = "queue.resumed"
"""A queue grants leases again."""
QUEUE_CREATED = "queue.created"
"""A queue was created."""
WORKER_RETIRED = "worker.retired"
"""A worker was fenced: it is granted no more leases."""

LOG_LINES_LOST = "log.lines_lost"
"""Lines of the lifecycle log could not be written: its disk is full, or its folder is gone."""
LOG_RECOVERED = "log.recovered"
"""The lifecycle log is written again; `lost` counts the lines in between."""

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

"""The queue's values: what is added, what is leased, and how a queue is set. Frozen; change them with `replace`."""

import re
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal

from queue_core.clock import NEVER, Instant
from queue_core.errors import InvalidTokenError
from queue_core.limits import MAX_LEASE_SECONDS, NAME_RETENTION_SECONDS

_TOKEN = re.compile(r"([0-9]{1,18})\.([0-9]{1,18})")


class TaskState(IntEnum):
    """Where a task stands. READY may be leased; the next two become READY at their eta, with nobody's help.

    What is stored may lag behind the clock: a DELAYED or LEASED task whose eta has passed *is* leasable,
    and every verb and statistic settles it so before looking (`semantics.settle`).
    """

    READY = 0
    DELAYED = 1
    LEASED = 2
    DEAD = 3


@dataclass(frozen=True, slots=True)
class NewTask:
    """What a producer adds. At most one of `eta` and `delay_seconds`; neither means now. `queue` None: the same one.

    `max_leases`: the task's own bound, instead of the queue's; None: the queue's.
    """

    payload: bytes = b""
    name: str | None = None
    tag: str | None = None
    eta: Instant | None = None
    delay_seconds: float | None = None
    queue: str | None = None
    max_leases: int | None = None


@dataclass(frozen=True, slots=True)
class StoredTask:
    """A task as the store has it.

    `eta` is the earliest instant of the next lease: a lease moves it to its own end. `leases` counts the leases
    charged so far. `leased_at` is the instant of the last grant, and, since it never repeats for a task, the fence
    its token is made of (0: never leased). `ready_at` is the eta it had before the lease it is under.
    `spent` holds ends, still ahead, of leases that were cut short: no later lease may end at one of them.
    `max_leases`: see `NewTask`.
    """

    id: int
    queue: str
    payload: bytes
    eta: Instant
    added_at: Instant
    name: str | None = None
    tag: str | None = None
    state: TaskState = TaskState.READY
    leases: int = 0
    leased_at: Instant = NEVER
    ready_at: Instant = NEVER
    worker: str = ""
    reason: str = ""
    spent: tuple[Instant, ...] = ()
    max_leases: int | None = None

    @property
    def token(self) -> str:
        """Names the task's present (or last) lease."""
        return token_of(self.id, self.leased_at)

    @property
    def shown_name(self) -> str:
        """The name it was given, or the one the queue chose."""
        return self.name if self.name is not None else chosen_name(self.id)


@dataclass(frozen=True, slots=True)
class Lease:
    """One worker's right to one task until `expires_at`. `lease_number` is 1 for the first charged lease."""

    queue: str
    name: str
    tag: str | None
    payload: bytes
    token: str
    worker: str
    lease_number: int
    leased_at: Instant
    expires_at: Instant
    ready_at: Instant
    added_at: Instant

    @property
    def waited_seconds(self) -> float:
        """From its eta to this lease."""
        return max(0.0, (self.leased_at - self.ready_at) / 1_000_000)


@dataclass(frozen=True, slots=True)
class TagFilter:
    """Which tasks a lease may take, in five forms: any, one tag, several tags, untagged, or one group.

    `oldest` means the tag of the oldest leasable task (among `tags` when given, else among all, untagged
    being a group of its own); the whole batch then has that one tag.
    """

    kind: Literal["any", "tags", "untagged", "oldest"] = "any"
    tags: tuple[str, ...] = ()

    @classmethod
    def of(cls, *tags: str) -> "TagFilter":
        """Only tasks with one of these tags; at least one."""
        if not tags:
            raise ValueError("TagFilter.of() needs a tag; use ANY for all tasks, UNTAGGED for those without")
        return cls("tags", tuple(dict.fromkeys(tags)))

    @classmethod
    def oldest(cls, *tags: str) -> "TagFilter":
        """A batch of one tag: that of the oldest leasable task."""
        return cls("oldest", tuple(dict.fromkeys(tags)))

    def accepts(self, tag: str | None) -> bool:
        """Whether a task of this tag may be among those leased."""
        if self.kind == "untagged":
            return tag is None
        return not self.tags or tag in self.tags


ANY = TagFilter()
UNTAGGED = TagFilter("untagged")


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """How a queue is set.

    Args:
        lease_seconds: length of a lease when the caller names none.
        max_lease_seconds: the longest a lease may become by renewals; 7 days: each renewal is bounded alone.
        max_leases: charged leases after which a task that is not deleted becomes dead; None: no bound.
        retry_min_seconds, retry_max_seconds: delay after the first failed lease, doubling up to the second.
        on_exhausted: what becomes of a task at `max_leases`: kept as dead, or deleted (App Engine).
        name_retention_seconds: how long a deleted task's given name still refuses a second add.
        lease_calls_per_second: lease calls that the front doors of App Engine and Cloud Tasks grant; None: no bound.
        user_emails: who may list, get, lease, delete and update tasks through a front door that knows its callers.
        writer_emails: who may insert tasks there. Both empty: whoever has a token.
        mode: `push` for a queue that App Engine's queue.yaml has as a push queue: known by name, never leased from.
        moved_to: where the queue lives now, when it was moved to another store; "" while it lives here.

    The store only keeps `lease_calls_per_second`, the emails and the mode; the front doors act on them.
    """

    name: str
    lease_seconds: float = 60.0
    max_lease_seconds: float = MAX_LEASE_SECONDS
    max_leases: int | None = None
    retry_min_seconds: float = 1.0
    retry_max_seconds: float = 300.0
    on_exhausted: Literal["dead", "delete"] = "dead"
    name_retention_seconds: float = NAME_RETENTION_SECONDS
    lease_calls_per_second: int | None = None
    user_emails: tuple[str, ...] = ()
    writer_emails: tuple[str, ...] = ()
    mode: Literal["pull", "push"] = "pull"
    paused: bool = field(default=False, compare=False)
    moved_to: str = field(default="", compare=False)

    @property
    def is_closed(self) -> bool:
        """Whether no lease is granted at all: it is paused, or was moved."""
        return self.paused or bool(self.moved_to)


def token_of(task_id: int, leased_at: Instant) -> str:
    """The token of the lease granted at `leased_at`."""
    return f"{task_id}.{leased_at}"


def parse_token(token: str) -> tuple[int, Instant]:
    """Task id and instant of the grant. Raises `InvalidTokenError` for a text that is no token."""
    match = _TOKEN.fullmatch(token)
    if match is None:
        raise InvalidTokenError(f"not a lease token: {token[:60]!r}; give the `token` of a lease unchanged")
    return int(match[1]), Instant(int(match[2]))


def chosen_name(task_id: int) -> str:
    """The name of a task that was added without one."""
    return f"_{task_id}"


def lease_of(task: StoredTask) -> Lease:
    """The lease a LEASED task is under."""
    return Lease(
        task.queue,
        task.shown_name,
        task.tag,
        task.payload,
        task.token,
        task.worker,
        task.leases,
        task.leased_at,
        task.eta,
        task.ready_at,
        task.added_at,
    )

"""What the verbs of a store take and answer: frozen values, for every store alike."""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Literal, TypeAlias

from queue_core import semantics
from queue_core.clock import Instant
from queue_core.errand import errand_of
from queue_core.errors import OutcomeUnknownError
from queue_core.stats import FinishedLease
from queue_core.task import Lease, NewTask, StoredTask, TagFilter

_THEN = attrgetter("then")

Unit: TypeAlias = Literal["transaction", "verb"]
"""What is committed together: see `Store.begin`."""


Busy: TypeAlias = Literal["keep", "finish"]
"""What is done to a worker that is to retire while it holds a lease: see `Transaction.retire_worker`."""


@dataclass(frozen=True, slots=True)
class Added:
    """The outcome of one add. `exists`, `tombstoned`: the name is taken, nothing was changed, the add is idempotent."""

    name: str
    status: Literal["added", "exists", "tombstoned"]
    ready: bool = False


@dataclass(frozen=True, slots=True)
class Room:
    """Room for leased tasks in one answer, in bytes: a task that does not fit is not leased at all.

    Args:
        total_bytes: for all tasks together.
        each_bytes: for each task, besides its payload, its tag and the name it was given.
        least: this many tasks are leased whatever their size, so that no task is too large to be leased.
    """

    total_bytes: int
    each_bytes: int = 0
    least: int = 1

    def fitting(self, sizes: Sequence[int]) -> int:
        """How many tasks of these sizes, from the first, there is room for: see `semantics.fitting`."""
        return semantics.fitting(sizes, total_bytes=self.total_bytes, each_bytes=self.each_bytes, least=self.least)

    def after(self, sizes: Sequence[int]) -> "Room":
        """The room that is left after tasks of these sizes."""
        taken = sum(sizes) + len(sizes) * self.each_bytes
        return Room(max(0, self.total_bytes - taken), self.each_bytes, max(0, self.least - len(sizes)))


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """What a lease asks for: up to `count` tasks of `tags`, held by `worker` ("" is nobody).

    `seconds` None: the queue's own `lease_seconds`. `room` None: tasks of any size together.
    """

    count: int
    seconds: float | None
    tags: TagFilter
    worker: str
    room: Room | None = None


@dataclass(frozen=True, slots=True)
class Granted:
    """Leases granted, leases found expired on the way, and whether due tasks are left to settle.

    When `unsettled` is true and `leases` is empty, ask again at once: a bounded number is settled per call.
    `refused`: the worker was retired, so an exchange granted it nothing.
    """

    leases: Sequence[Lease]
    expired: tuple[FinishedLease, ...] = ()
    unsettled: bool = False
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Renewal:
    """Ask for a lease to end `seconds` from now; None: the queue's own `lease_seconds`."""

    token: str
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Renewed:
    """A lease and its new end."""

    token: str
    name: str
    tag: str | None
    worker: str
    lease_number: int
    expires_at: Instant


@dataclass(frozen=True, slots=True)
class Release:
    """Give a lease back. `delay_seconds` None: the queue's back-off, lessened by `jitter` in [0, 1)."""

    token: str
    delay_seconds: float | None = None
    charge: Literal["counted", "uncounted"] = "counted"
    dead_reason: str = ""
    jitter: float = 0.0


@dataclass(frozen=True, slots=True)
class Deletion:
    """End a lease by deleting its task and, in the same step, add `then` (all or nothing).

    A `then` task names its queue, or goes to the same one.
    """

    token: str
    then: tuple[NewTask, ...] = ()


def handed_over(deletions: Sequence[Deletion]) -> list[tuple[NewTask, ...]]:
    """What is to be added in place of what is deleted, of those that hand anything over; hardly ever any do."""
    return list(filter(None, map(_THEN, deletions)))


def unit_of_lease(worker: str) -> Unit:
    """How a lease or an exchange for a worker is committed: one that is on an errand takes several verbs."""
    return "verb" if errand_of(worker) is None else "transaction"


@dataclass(frozen=True, slots=True)
class Deleted:
    """A deletion that took effect, and what became of its `then`."""

    finished: FinishedLease
    then: tuple[Added, ...] = ()


@dataclass(frozen=True, slots=True)
class HeldName:
    """The given name of a deleted task, which refuses a second add until then."""

    name: str
    until: Instant


CallVerb: TypeAlias = Literal["add", "lease", "exchange", "delete", "other"]
"""The verbs of a client's call that a store may remember by itself: without a `then`, and for no errand."""


@dataclass(frozen=True, slots=True)
class ClientCall:
    """One call of a client's session, which has one under way at a time and numbers them upwards.

    `is_repeat`: whether it may have been sent before, so that its answer is to be looked for. `age_seconds`: it was
    first sent no longer ago.
    """

    session: str
    number: int
    is_repeat: bool = False
    age_seconds: int = 60

    def answer_in(self, last: tuple[int, bytes] | None) -> bytes | None:
        """Return the answer to this call, if `last`, the last call of its session and its answer, is this one.

        Raises `OutcomeUnknownError` when it is a later one.
        """
        if last is None or last[0] < self.number:
            return None
        if last[0] > self.number:
            raise OutcomeUnknownError(
                f"call {self.number} of its session comes after call {last[0]} was answered: whether it took effect is "
                "not known; look before repeating"
            )
        return last[1]


@dataclass(frozen=True, slots=True)
class Page:
    """Some tasks of a queue in id order, and where the next page begins (None: no more)."""

    tasks: tuple[StoredTask, ...]
    next_after: int | None = None


@dataclass(frozen=True, slots=True)
class Storage:
    """What the payloads of all tasks of a store may come to, and what they come to; both in bytes.

    `limit_bytes` None: no limit; then nothing is counted, and `used_bytes` is 0.
    """

    limit_bytes: int | None = None
    used_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Check:
    """What `Store.check` found: every line of `problems` is a broken promise; none is a healthy store."""

    problems: tuple[str, ...]
    tasks: int

"""The operations of a program, calls and time, as values that name tasks without knowing the answers."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

PLAIN, BOUNDED, UNKNOWN = "plain", "bounded", "nowhere"
RETRY_LIMIT = 2
"""Leases that queue BOUNDED grants of a task."""


@dataclass(frozen=True, slots=True)
class Given:
    """A task by a name that the program chose."""

    name: bytes


@dataclass(frozen=True, slots=True)
class Picked:
    """A leased task of those the queue has, or ever had, by its relative place from 0 to 1."""

    among: Literal["leased", "live", "ever"]
    place: float


Which: TypeAlias = Given | Picked


@dataclass(frozen=True, slots=True)
class Eta:
    """An eta in microseconds from now, or from the epoch."""

    base: Literal["now", "epoch"]
    microseconds: int


@dataclass(frozen=True, slots=True)
class RetryParameters:
    """A task's own retry parameters."""

    limit: int | None = None
    age_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class NewOne:
    """One request of an add. `queue` None: that of the operation."""

    name: Which | None
    tag: bytes | None
    eta: Eta
    body: bytes | None = b""
    mode: Literal["pull", "push"] = "pull"
    retry: RetryParameters | None = None
    queue: str | None = None


@dataclass(frozen=True, slots=True)
class Add:
    queue: str
    tasks: tuple[NewOne, ...]


@dataclass(frozen=True, slots=True)
class LeaseCall:
    queue: str
    seconds: float
    count: int
    by_tag: bool
    tag: bytes | None


@dataclass(frozen=True, slots=True)
class Modify:
    """`eta`: the task's own, an earlier one, another task's, or a microsecond beside its own."""

    queue: str
    task: Which
    eta: Literal["own", "stale", "foreign", "beside"]
    seconds: float


@dataclass(frozen=True, slots=True)
class Delete:
    queue: str
    tasks: tuple[Which, ...]


@dataclass(frozen=True, slots=True)
class Purge:
    queue: str


@dataclass(frozen=True, slots=True)
class Pause:
    queue: str
    paused: bool


@dataclass(frozen=True, slots=True)
class Stats:
    queues: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pass:
    """Time passes."""

    microseconds: int


@dataclass(frozen=True, slots=True)
class PassTo:
    """Time passes to so many microseconds beside the queue's next eta, if there is one."""

    queue: str
    beside: int


Call: TypeAlias = Add | LeaseCall | Modify | Delete | Purge | Pause | Stats
Step: TypeAlias = Call | Pass | PassTo
Program: TypeAlias = tuple[Step, ...]

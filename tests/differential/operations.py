"""What a program is made of: calls and the passing of time, as values that name tasks without knowing the answers."""

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
    """One of the tasks under lease, of those that the queue has, or of all that it ever had: its place from 0 to 1."""

    among: Literal["leased", "live", "ever"]
    place: float


Which: TypeAlias = Given | Picked


@dataclass(frozen=True, slots=True)
class Eta:
    """An eta: so many microseconds from now, or from the epoch."""

    base: Literal["now", "epoch"]
    microseconds: int


@dataclass(frozen=True, slots=True)
class RetryParameters:
    """A task's own retry parameters."""

    limit: int | None = None
    age_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class NewOne:
    """One request of an add. `queue` None: that of the step."""

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
    """`eta`: the one the task has, one that it had, that of another task, or one a microsecond beside its own."""

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
    """Time passes to so many microseconds beside the next eta of the queue; not at all if there is none."""

    queue: str
    beside: int


Call: TypeAlias = Add | LeaseCall | Modify | Delete | Purge | Pause | Stats
Step: TypeAlias = Call | Pass | PassTo
Program: TypeAlias = tuple[Step, ...]

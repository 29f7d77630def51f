"""What was observed of one pool's work, and when. Values only: whoever fills them in is a source."""

from dataclasses import field
from typing import Literal

from orchestrator.clock import Monotonic
from orchestrator.values import value

Outcome = Literal["deleted", "released", "expired", "died"]


@value
class Waiting:
    """One position of the ready queue, in lease order: the `position`-th task (from 1) has waited this long.

    A task to come has a negative age: it becomes leasable in so many seconds.
    """

    position: int
    age_seconds: float


@value
class RunningLease:
    """A lease that is held now. `at_a_time` counts the pool's leases when it began, itself included (0: not known)."""

    worker: str
    held_seconds: float
    waited_seconds: float
    lease_number: int
    at_a_time: int = 0
    tag: str | None = None


@value
class LeaseSample:
    """A lease that ended since the sample before this one.

    `ended_seconds_ago` counts back from the sample's instant; `waited_seconds` is from the task's eta to the lease;
    `at_a_time` counts the pool's leases when this one began, itself included (0: not known).
    """

    worker: str
    held_seconds: float
    waited_seconds: float
    outcome: Outcome
    lease_number: int
    ended_seconds_ago: float
    at_a_time: int = 0
    tag: str | None = None


@value
class PresentWorker:
    """A worker that a server of the queue has heard of lately.

    `silent_seconds` is 0 while it asks; `waits`: its calls wait for work; `hung_up`: it ended its last call early.
    """

    worker: str
    silent_seconds: float
    waits: bool = False
    hung_up: bool = False


@value
class QueueSample:
    """One look at the work of one pool (its queue, restricted to its tags).

    `arrivals` counts tasks that became leasable since the sample before; `waiting` holds up to 8 positions of
    the ready queue, from the oldest to `ready` itself when anything waits; `first_seen_seconds_ago` tells,
    per worker, how long ago it first asked for a lease (absent: it has not yet). `heard` tells of each worker that was
    asked about when it last asked for a lease (absent: nobody can tell). `upcoming` tells of delayed tasks that were
    never leased and become leasable soon: so many (`position`), the last few of them from then on.
    """

    at: Monotonic
    ready: int
    delayed: int
    in_flight: int
    dead: int
    paused: bool = False
    arrivals: int = 0
    waiting: tuple[Waiting, ...] = ()
    running: tuple[RunningLease, ...] = ()
    finished: tuple[LeaseSample, ...] = ()
    first_seen_seconds_ago: dict[str, float] = field(default_factory=dict)
    presence: dict[str, PresentWorker] = field(default_factory=dict)
    upcoming: tuple[Waiting, ...] = ()

    @property
    def oldest_seconds(self) -> float:
        """How long the oldest ready task has waited; 0 when there is none."""
        return max((waiting.age_seconds for waiting in self.waiting), default=0.0)

"""Samples of one pool's work: counts, waits and leases at an instant. Values only; a `WorkSource` fills them in."""

from collections.abc import Sequence
from dataclasses import field
from typing import Literal

from orchestrator.base.clock import Monotonic
from orchestrator.base.values import ServedTags, value
from queue_core.process.wording import describe_held

Outcome = Literal["deleted", "released", "expired", "died"]
Ages = Literal["exact", "about", "at least"]
"""How the waits of a sample are known: as the queue tells them, estimated, or no more than a lower bound of them."""


@value
class Waiting:
    """One position of the ready queue: in lease order the `position`-th task (from 1) has waited `age_seconds`.

    A delayed task has a negative age: it becomes leasable in that many seconds.
    """

    position: int
    age_seconds: float


def with_ticks(upcoming: Sequence[Waiting], ticks: Sequence[float]) -> tuple[Waiting, ...]:
    """Return the upcoming tasks of a sample together with those of schedules, which are not added yet.

    `upcoming` are in order; `ticks` are the seconds until each is added, in order.
    """
    merged: list[Waiting] = []
    left, before = list(ticks), 0
    for task in upcoming:
        while left and left[0] < -task.age_seconds:
            merged.append(Waiting((merged[-1].position if merged else 0) + 1, -left.pop(0)))
            before += 1
        merged.append(Waiting(task.position + before, task.age_seconds))
    last = merged[-1].position if merged else 0
    return (*merged, *(Waiting(last + place, -seconds) for place, seconds in enumerate(left, start=1)))


@value
class RunningLease:
    """A lease that is held now. `at_a_time` counts the pool's leases when it began, itself included (0: unknown)."""

    worker: str
    held_seconds: float
    waited_seconds: float
    lease_number: int
    at_a_time: int = 0
    tag: str | None = None


@value
class LeaseSample:
    """A lease that ended since the previous sample.

    `ended_seconds_ago` counts back from the sample's instant; `waited_seconds` is from the task's eta to the lease;
    `at_a_time` counts the pool's leases when this one began, itself included (0: unknown). `by_time`: it
    expired, or its worker gave it back at its end while its handler ran on.
    """

    worker: str
    held_seconds: float
    waited_seconds: float
    outcome: Outcome
    lease_number: int
    ended_seconds_ago: float
    at_a_time: int = 0
    tag: str | None = None
    by_time: bool = False

    @property
    def has_lapsed(self) -> bool:
        """True where nobody ended it: also of a lease with which its task died."""
        return self.by_time or self.outcome == "expired"


@value
class PresentWorker:
    """A worker that recently called a server of the queue.

    `silent_seconds` is 0 during a lease call; `waits`: its lease calls wait for work; `hung_up`: it ended its last call
    early; `tags`: those that its calls lease (see `ServedTags`; None: unknown).
    """

    worker: str
    silent_seconds: float
    waits: bool = False
    hung_up: bool = False
    tags: ServedTags | None = None


@value
class UnservedTag:
    """A tag of waiting tasks that no pool works on; None: tasks without one.

    `tasks` counts those that are ready or delayed; `leases` counts the leases of that tag so far, by whoever leases it;
    `sentence` says so, with the tag that may be meant; `served` that a pool works on it now, `gone` that none waits.
    """

    queue: str
    tag: str | None
    tasks: int
    leases: int
    sentence: str
    served: str = ""
    gone: str = ""

    def relief(self, *, by_pool: bool) -> str:
        """Return the sentence for the end of it: a pool works on the tag now, or no task waits."""
        return self.served if by_pool else self.gone

    def record(self) -> dict[str, object]:
        """Return it as JSON values."""
        return {"queue": self.queue, "tag": self.tag, "tasks": self.tasks, "sentence": self.sentence}


@value
class QueueSample:
    """The work of one pool at an instant: its queue, restricted to its tags.

    `arrivals` counts tasks that became leasable since the previous sample; `waiting` has up to 8 positions of the ready
    queue, from the oldest to `ready` itself; `first_seen_seconds_ago` says per worker how long ago its first lease call
    was (absent: none yet); `presence` says per worker when it last called for a lease (absent: unknown). `upcoming` has
    delayed tasks that were never leased and become leasable soon, as cumulative counts (`position`) over time.
    `cursor` is the place of the next finished lease. `ready` tasks can be leased now; `held` are
    those that limits of the queue or of their tags keep from it, by the settings that `held_by` names, and waits count
    from when a task could be leased. `held_by_rate`: time alone will let more of them be leased. `ages`: how the waits
    are known; a source whose messages carry no time estimates them.
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
    cursor: int = 0
    held: int = 0
    held_by: str = ""
    held_by_rate: bool = False
    ages: Ages = "exact"

    def describe_held(self) -> str:
        """Return a sentence on what limits hold back."""
        return describe_held(leasable=self.ready, held=self.held, by=self.held_by)

    @property
    def oldest_seconds(self) -> float:
        """The wait of the oldest ready task; 0 when there is none."""
        return max((waiting.age_seconds for waiting in self.waiting), default=0.0)

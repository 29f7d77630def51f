"""The inputs of a simulation: the tasks, and the world in which the workers run. Values only."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from orchestrator.base.errors import OrchestratorError
from orchestrator.capacity.allocation import PRIOR_FORK_SECONDS
from orchestrator.simulation.limits import NO_LIMITS, QueueLimits

SHORTEST_SERVICE_SECONDS: Final = 0.001
NEVER_SUCCEEDS: Final = -1
MONDAY: Final = 4 * 86_400.0
"""A Monday's midnight, UTC, in seconds since the epoch."""
_QUICKEST_START: Final = 0.7  # share of the mean that every start takes


@dataclass(frozen=True, slots=True)
class Workload:
    """Tasks in the order in which they become leasable; each sequence has one entry per task.

    Args:
        name: for display.
        ready_at: seconds from the start, never falling.
        service_seconds: how long a task takes if it runs alone.
        added_at: when a task was added, for tasks with an eta; left out: when it became leasable.
        failures: leases that fail before one succeeds, `NEVER_SUCCEEDS` if none does; left out: none fails.
        tags: the tag of each task, for limits per tag; left out: none has one.
    """

    name: str
    ready_at: Sequence[float]
    service_seconds: Sequence[float]
    added_at: Sequence[float] | None = None
    failures: Sequence[int] | None = None
    tags: Sequence[str | None] | None = None

    def __post_init__(self) -> None:
        counts = {len(self.ready_at), len(self.service_seconds)}
        counts |= {len(given) for given in (self.added_at, self.failures, self.tags) if given is not None}
        if len(counts) > 1:
            raise ValueError(f"the sequences of a workload must have one length: {sorted(counts)}")

    @property
    def tasks(self) -> int:
        """The number of tasks."""
        return len(self.ready_at)

    @property
    def work_seconds(self) -> float:
        """The worker-seconds of work, each task done once."""
        return math.fsum(self.service_seconds)

    @property
    def mean_service_seconds(self) -> float:
        """The mean service time of a task; 0 without tasks."""
        return self.work_seconds / self.tasks if self.tasks else 0.0

    @property
    def last_at(self) -> float:
        """The time at which the last task becomes leasable; 0 without tasks."""
        return self.ready_at[-1] if self.tasks else 0.0


def workload_of(
    name: str,
    tasks: Sequence[tuple[float, float]],
    *,
    added_at: Sequence[float] | None = None,
    failures: Sequence[int] | None = None,
    tags: Sequence[str | None] | None = None,
) -> Workload:
    """Make a workload from pairs of ready and service seconds in any order; the other sequences have the same order."""
    order = sorted(range(len(tasks)), key=lambda index: tasks[index][0])
    return Workload(
        name,
        [tasks[index][0] for index in order],
        [max(SHORTEST_SERVICE_SECONDS, tasks[index][1]) for index in order],
        None if added_at is None else [added_at[index] for index in order],
        None if failures is None else [failures[index] for index in order],
        None if tags is None or not any(tags) else [tags[index] for index in order],
    )


@dataclass(frozen=True, slots=True)
class SimulatedWorld:
    """The simulated world besides the arrivals.

    Args:
        startup_seconds: mean time from a spawn to the first lease call: at least 0.7 of it, the rest random
            (exponential). With `startup_samples` each start takes one of those instead.
        fork_seconds: mean time of a start once one has succeeded, as where workers are forked; None: as the first.
        start_cpu_seconds: CPU time of one start; left out: the shortest start. Concurrent starts take no less than the
            cores need for all of them.
        max_leases: the most leases of one task; then it is dead.
        retry_min_seconds: how long a task waits after its first failed lease; doubled by each further one, up to
            `retry_max_seconds`.
        contention: s and k of Gunther's law: with n leases at a time each takes 1 + s (n - 1) + k n (n - 1) times as
            long.
        failing: two instants between which every lease that ends fails.
        no_start_until: workers that start before this instant die at their start.
        cores: the cores of the host that the workers share; they bound how many start at a time.
        begins_at: the epoch second of time 0, for settings with a time of day; a Monday's midnight by default.
        limits: of the queue and of its tags.
    """

    startup_seconds: float = 2.0
    startup_samples: tuple[float, ...] = ()
    fork_seconds: float | None = None
    start_cpu_seconds: float | None = None
    max_leases: int = 5
    retry_min_seconds: float = 10.0
    retry_max_seconds: float = math.inf
    contention: tuple[float, float] = (0.0, 0.0)
    failing: tuple[float, float] | None = None
    no_start_until: float = 0.0
    cores: int = 2
    begins_at: float = MONDAY
    limits: QueueLimits = NO_LIMITS

    def start_seconds(self, rng: Random, *, at_a_time: int = 1, forked: bool = False) -> float:
        """Return how long one of `at_a_time` concurrent starts takes."""
        if forked and self.fork_seconds is not None:
            alone = self.fork_seconds * (_QUICKEST_START + (1.0 - _QUICKEST_START) * rng.expovariate(1.0))
            return max(alone, PRIOR_FORK_SECONDS * at_a_time / self.cores)
        if self.startup_samples:
            alone = rng.choice(self.startup_samples)
        else:
            alone = self.startup_seconds * (_QUICKEST_START + (1.0 - _QUICKEST_START) * rng.expovariate(1.0))
        return max(alone, self.computed_start_seconds * at_a_time / self.cores)

    @property
    def computed_start_seconds(self) -> float:
        """The CPU time of one start."""
        if self.start_cpu_seconds is not None:
            return self.start_cpu_seconds
        return min(self.startup_samples, default=_QUICKEST_START * self.startup_seconds)

    def held_seconds(self, service_seconds: float, *, at_a_time: int) -> float:
        """Return how long a lease lasts that begins as one of `at_a_time`."""
        s, k = self.contention
        if not (s or k):
            return service_seconds
        return service_seconds * (1.0 + s * (at_a_time - 1) + k * at_a_time * (at_a_time - 1))

    def retry_seconds(self, leases: int) -> float:
        """Return how long a task waits after its `leases`-th failed lease."""
        return min(self.retry_max_seconds, self.retry_min_seconds * 2.0 ** (leases - 1))

    @property
    def mean_startup_seconds(self) -> float:
        """The mean time of one start; where workers are forked, of one that is."""
        if self.fork_seconds is not None:
            return self.fork_seconds
        samples = self.startup_samples
        return math.fsum(samples) / len(samples) if samples else self.startup_seconds


class WorkloadError(OrchestratorError):
    """Arrivals can't be used. `where` is a file with its line, or a shape; `fix` says what to do about it."""

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        super().__init__(what)
        self.where = where
        self.fix = fix


@dataclass(frozen=True, slots=True)
class ServiceTimes:
    """Lognormal service times for tasks without recorded ones. `spread` is the deviation over the mean: 1 is usual."""

    mean_seconds: float
    spread: float = 1.0

    def drawn(self, count: int, rng: Random) -> list[float]:
        """Return `count` random service times."""
        if not self.spread:
            return [self.mean_seconds] * count
        variance = math.log(1.0 + self.spread**2)
        deviation = math.sqrt(variance)
        middle = math.log(self.mean_seconds) - variance / 2.0
        return [rng.lognormvariate(middle, deviation) for _ in range(count)]

"""What one decision looks at, and what a rule answers: the policy's state, the pool counted once, a wish. Pure."""

from dataclasses import replace
from typing import Final

from orchestrator.clock import Monotonic
from orchestrator.config import PoolSpec
from orchestrator.contention import Contention
from orchestrator.deadline import Crew, Pace
from orchestrator.decision import Rule
from orchestrator.estimate import Estimates
from orchestrator.finishing import Course
from orchestrator.fleet import Worker
from orchestrator.guards import Facts
from orchestrator.levels import Backlogs
from orchestrator.metrics import Waiting
from orchestrator.overload import Overload
from orchestrator.paper import PaperNeed
from orchestrator.recurrence import Recurrence
from orchestrator.reserve import NOBODY_WARM, Reserve, Warm
from orchestrator.value import value

_LONG_AGO: Final = Monotonic(float("-inf"))


@value
class PolicyState:
    """What the policy carries from one decision to the next; a new pool begins with `PolicyState()`.

    `grown_at[n - 1]` is when a decision last asked for the n-th worker.
    """

    estimates: Estimates = Estimates()
    reserve: Reserve = Reserve()
    paper: PaperNeed = PaperNeed()
    contention: Contention = Contention()
    backlogs: Backlogs = Backlogs()
    sampled_at: Monotonic | None = None
    grown_at: tuple[Monotonic, ...] = ()
    overload: Overload = Overload()
    recurrence: Recurrence = Recurrence()

    def grown(self, *, current: int, target: int, now: Monotonic) -> "PolicyState":
        """After a decision that asked for so many workers, of which some were there."""
        if target <= current:
            return self
        below = (*self.grown_at[:current], *(_LONG_AGO,) * (current - len(self.grown_at)))
        return replace(self, grown_at=(*below, *(now,) * (target - current), *self.grown_at[target:]))

    def to_json(self) -> dict[str, object]:
        """What is worth keeping across a restart, as plain values: the estimates."""
        return self.estimates.to_json()

    @staticmethod
    def from_json(data: object) -> "PolicyState":
        """The state that `to_json` kept. Raises `ValueError` when `data` is anything else."""
        return PolicyState(estimates=Estimates.from_json(data))


@value
class Scene:
    """Everything one decision looks at, counted once. `upcoming`: tasks that are known, or expected, to come."""

    facts: Facts
    state: PolicyState
    crew: Crew
    pace: Pace
    idle: tuple[Worker, ...]
    busy: int
    course: Course | None = None
    warm: Warm = NOBODY_WARM
    upcoming: tuple[Waiting, ...] = ()

    @property
    def tasks(self) -> int:
        """Tasks that wait or run, without those of workers that finish and go."""
        sample, fleet = self.facts.sample, self.facts.fleet
        leaving = 0
        if len(fleet.workers) > len(self.facts.alive):
            leaving = sum(w.leases for w in fleet.workers.values()) - sum(w.leases for w in self.facts.alive)
        return sample.ready + max(0, sample.in_flight - leaving)

    @property
    def oldest_seconds(self) -> float:
        """How long the task has waited that waits longest; 0 when none does."""
        sample = self.facts.sample
        return sample.waiting[0].age_seconds + (self.facts.now - sample.at) if sample.waiting else 0.0


@value
class Wish:
    """What a rule asks for."""

    target: int
    rule: Rule
    why: str


def restart_seconds(estimates: Estimates, spec: PoolSpec) -> float:
    """What letting a worker go costs, in worker-seconds, if it is wanted again."""
    return estimates.startup.mean_seconds + spec.churn

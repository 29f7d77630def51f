"""A pool's state in the supervisor: its settings, workers, last sample, last decision and counters."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

import structlog

from orchestrator import events
from orchestrator.clock import Monotonic
from orchestrator.config.pools import PoolSpec
from orchestrator.fleet.exits import Cause
from orchestrator.fleet.quarantine import Suspect
from orchestrator.fleet.responsiveness import WorkWatch
from orchestrator.fleet.workers import Fleet
from orchestrator.log_once import LogOnce
from orchestrator.samples import Outcome, QueueSample
from orchestrator.scaling.decision import NOTHING_SPECIAL, Conditions, Decision, Rule
from orchestrator.scaling.learning import PolicyState
from orchestrator.scaling.lease_waits import NONE, Waits, waits_of
from orchestrator.scaling.upcoming import lead_seconds

log = structlog.get_logger()

LEAVING_GRACE_SECONDS: Final = 30.0
"""Grace of the workers of a pool that is in no settings, as of an adopted worker's."""

ASLEEP_SECONDS: Final = 10.0
"""Turn interval of a pool without work and workers; a task, an override or a reload wakes it earlier."""

AT_ONCE: Final = Monotonic(float("-inf"))

Direction = Literal["up", "down", "hold"]


@dataclass(frozen=True, slots=True)
class Outage:
    """An unavailable runtime: why, how often in a row, and when to try it again."""

    why: str
    times: int
    retry_at: Monotonic


@dataclass(frozen=True, slots=True)
class WorkerFailure:
    """A worker that failed, or a start that was refused: when, and why."""

    at: Monotonic
    why: str


@dataclass(slots=True)
class PoolCounters:
    """A pool's counters since its supervisor started; written by one thread, copied for others.

    `late_leases` counts first leases that have ended and had begun later than the slo; `waits` covers all that began.
    """

    starts: int = 0
    failed_starts: int = 0
    late_leases: int = 0
    deaths: dict[Cause, int] = field(default_factory=dict)
    decisions: dict[tuple[Rule, Direction], int] = field(default_factory=dict)
    leases: dict[Outcome, int] = field(default_factory=dict)
    waits: Waits = NONE

    def died(self, cause: Cause, *, failed_start: bool) -> None:
        """Count a worker's end."""
        self.deaths[cause] = self.deaths.get(cause, 0) + 1
        self.failed_starts += failed_start

    def decided(self, decision: Decision) -> None:
        """Count a decision."""
        direction: Direction = "hold"
        if decision.target != decision.current:
            direction = "up" if decision.target > decision.current else "down"
        key = (decision.rule, direction)
        self.decisions[key] = self.decisions.get(key, 0) + 1

    def sampled(self, sample: QueueSample, *, since: Monotonic | None, slo_seconds: float) -> None:
        """Count a sample's leases; the sample before it was taken at `since` (None: this is the first)."""
        for lease in sample.finished:
            self.leases[lease.outcome] = self.leases.get(lease.outcome, 0) + 1
            self.late_leases += lease.lease_number == 1 and lease.waited_seconds > slo_seconds
        if since is not None:
            waits = waits_of(sample, elapsed_seconds=sample.at - since, slo_seconds=slo_seconds)
            self.waits = self.waits.after(waits, at=sample.at)

    def copy(self) -> "PoolCounters":
        """Return a copy of the counters."""
        counts = self.starts, self.failed_starts, self.late_leases
        return PoolCounters(*counts, {**self.deaths}, {**self.decisions}, {**self.leases}, self.waits)


@dataclass(slots=True)
class Pool:
    """A pool at this instant; `spec` is None once it has left the settings and its workers are leaving.

    `effective` is the spec with the bounds of the last decision, `conditions` that decision's other conditions.
    `outage` is set while its runtime is unavailable; `last_failure` is its last failed worker or start.
    `suspected` are suspected tasks that wait for a solo worker; `solo_workers` maps a solo worker's name to its task.
    """

    name: str
    spec: PoolSpec | None
    fleet: Fleet
    state: PolicyState = field(default_factory=PolicyState)
    sample: QueueSample | None = None
    watch: WorkWatch | None = None
    decision: Decision | None = None
    effective: PoolSpec | None = None
    conditions: Conditions = NOTHING_SPECIAL
    due_at: Monotonic = AT_ONCE
    is_stale: bool = False
    grace_seconds: float = LEAVING_GRACE_SECONDS
    told: tuple[object, ...] = ()
    outage: Outage | None = None
    last_failure: WorkerFailure | None = None
    suspects: tuple[Suspect, ...] = ()
    errands: dict[str, Suspect] = field(default_factory=dict)
    tally: PoolCounters = field(default_factory=PoolCounters)
    trouble: LogOnce = field(default_factory=LogOnce)

    def ahead_seconds(self, spec: PoolSpec) -> float:
        """Return how far ahead to look for delayed tasks, so that a pool that sleeps still starts workers in time."""
        return lead_seconds(self.state.estimates, spec, self.conditions) + ASLEEP_SECONDS

    @property
    def is_asleep(self) -> bool:
        """Whether it has and wants no worker, so that only an arrival can change that (see `ArrivalWatch`)."""
        spec, sample, decision = self.spec, self.sample, self.decision
        if spec is None or sample is None or decision is None or self.is_stale or self.fleet.workers:
            return False
        if self.suspects or sample.ready or sample.upcoming or sample.in_flight or decision.target or decision.limits:
            return False
        expected = self.state.recurrence.next(now=sample.at, turn_seconds=spec.turn_seconds)
        if expected and -expected[0].age_seconds <= self.ahead_seconds(spec):
            return False
        return not (spec.workers.min or spec.schedule or spec.finish_by or self.conditions.bounds_by)


def state_of(name: str, learned: Mapping[str, object]) -> PolicyState:
    """Return the pool's stored policy state; a new one, with a warning, when that can't be read."""
    if name not in learned:
        return PolicyState()
    try:
        return PolicyState.from_json(learned[name])
    except ValueError as error:
        log.warning(events.STATE_DISCARDED, pool=name, error=str(error))
        return PolicyState()

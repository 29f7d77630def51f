"""One pool as its supervisor has it: its settings, its workers, what was seen, decided and counted."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

import structlog

from orchestrator import events
from orchestrator.clock import Monotonic
from orchestrator.config.pools import PoolSpec
from orchestrator.fleet.exits import Cause
from orchestrator.fleet.quarantine import IsolatedTask
from orchestrator.fleet.responsiveness import WorkWatch
from orchestrator.fleet.workers import Fleet
from orchestrator.log_once import LogOnce
from orchestrator.samples import Outcome, QueueSample
from orchestrator.scaling.decision import DEFAULT_CONDITIONS, Conditions, Decision, Rule
from orchestrator.scaling.learning import PolicyState
from orchestrator.scaling.lease_waits import NO_WAITS, Waits, waits_of
from orchestrator.scaling.upcoming import lead_seconds

log = structlog.get_logger()

LEAVING_GRACE_SECONDS: Final = 30.0
"""How long the workers of a pool nobody knows any more may take to finish."""

ASLEEP_SECONDS: Final = 10.0
"""Between two looks at a pool with nothing to do and nobody to do it; a task, an order or a reload ends its sleep."""

AT_ONCE: Final = Monotonic(float("-inf"))

Direction = Literal["up", "down", "hold"]


@dataclass(frozen=True, slots=True)
class Outage:
    """A runtime that could not be asked, or was not ready: why, how often in a row, and when it is asked again."""

    why: str
    times: int
    retry_at: Monotonic


@dataclass(frozen=True, slots=True)
class WorkerFailure:
    """A worker that went wrong, or a start that could not be begun: when, and in words."""

    at: Monotonic
    why: str


@dataclass(slots=True)
class PoolCounters:
    """What happened to one pool since its supervisor began to count; changed by one thread, shown to others as a copy.

    `late_leases` are first leases that ended and had begun later than the slo; `waits` are of all that began.
    """

    starts: int = 0
    failed_starts: int = 0
    late_leases: int = 0
    deaths: dict[Cause, int] = field(default_factory=dict)
    decisions: dict[tuple[Rule, Direction], int] = field(default_factory=dict)
    leases: dict[Outcome, int] = field(default_factory=dict)
    waits: Waits = NO_WAITS

    def died(self, cause: Cause, *, failed_start: bool) -> None:
        """A worker ended."""
        self.deaths[cause] = self.deaths.get(cause, 0) + 1
        self.failed_starts += failed_start

    def decided(self, decision: Decision) -> None:
        """A decision was made."""
        direction: Direction = "hold"
        if decision.target != decision.current:
            direction = "up" if decision.target > decision.current else "down"
        key = (decision.rule, direction)
        self.decisions[key] = self.decisions.get(key, 0) + 1

    def sampled(self, sample: QueueSample, *, since: Monotonic | None, slo_seconds: float) -> None:
        """Leases began and ended; the sample before this one was made at `since` (None: this is the first)."""
        for lease in sample.finished:
            self.leases[lease.outcome] = self.leases.get(lease.outcome, 0) + 1
            self.late_leases += lease.lease_number == 1 and lease.waited_seconds > slo_seconds
        if since is not None:
            waits = waits_of(sample, elapsed_seconds=sample.at - since, slo_seconds=slo_seconds)
            self.waits = self.waits.after(waits, at=sample.at)

    def copy(self) -> "PoolCounters":
        """The counts as they are now."""
        counts = self.starts, self.failed_starts, self.late_leases
        return PoolCounters(*counts, {**self.deaths}, {**self.decisions}, {**self.leases}, self.waits)


@dataclass(slots=True)
class Pool:
    """One pool as it is now; `spec` None: it is no longer in the settings, and its workers leave.

    `effective` is the spec with the bounds of the moment and `conditions` what else there was, at the last decision.
    `outage` is what kept its last worker from being started, when that was not its own fault; `last_failure` is the
    last thing that was.
    `suspects` wait for a worker of their own, and `errands` have one, by its name.
    """

    name: str
    spec: PoolSpec | None
    fleet: Fleet
    state: PolicyState = field(default_factory=PolicyState)
    sample: QueueSample | None = None
    watch: WorkWatch | None = None
    decision: Decision | None = None
    effective: PoolSpec | None = None
    conditions: Conditions = DEFAULT_CONDITIONS
    due_at: Monotonic = AT_ONCE
    is_stale: bool = False
    grace_seconds: float = LEAVING_GRACE_SECONDS
    told: tuple[object, ...] = ()
    outage: Outage | None = None
    last_failure: WorkerFailure | None = None
    suspects: tuple[IsolatedTask, ...] = ()
    errands: dict[str, IsolatedTask] = field(default_factory=dict)
    tally: PoolCounters = field(default_factory=PoolCounters)
    trouble: LogOnce = field(default_factory=LogOnce)

    def ahead_seconds(self, spec: PoolSpec) -> float:
        """How far ahead tasks to come must be known: so that none is met unprepared after a sleep."""
        return lead_seconds(self.state.estimates, spec, self.conditions) + ASLEEP_SECONDS

    @property
    def is_asleep(self) -> bool:
        """Whether it has no worker and wants none: only what wakes it can change that (see `ArrivalWatch`)."""
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
    """What was kept of the pool; a new state, with a warning, where that can't be read."""
    if name not in learned:
        return PolicyState()
    try:
        return PolicyState.from_json(learned[name])
    except ValueError as error:
        log.warning(events.STATE_DISCARDED, pool=name, error=str(error))
        return PolicyState()

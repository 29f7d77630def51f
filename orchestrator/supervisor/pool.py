"""A pool's state in the supervisor: settings, workers, last sample and decision, counters, and its problem. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from orchestrator.base.clock import Monotonic
from orchestrator.base.samples import Outcome, QueueSample
from orchestrator.base.values import ServedTags, value
from orchestrator.config.pools import PoolSpec
from orchestrator.config.stop_plan import StopStep
from orchestrator.fleet.exits import Cause
from orchestrator.fleet.figures import describe_pause
from orchestrator.fleet.placement import describe_waits
from orchestrator.fleet.quarantine import IsolatedTask
from orchestrator.fleet.responsiveness import WorkWatch
from orchestrator.fleet.served_tags import merged_tags, narrowed
from orchestrator.fleet.trend import Trend
from orchestrator.fleet.workers import Fleet
from orchestrator.scaling.decision import DEFAULT_CONDITIONS, Conditions, Decision, Rule
from orchestrator.scaling.learning import PolicyState
from orchestrator.scaling.lease_waits import NO_WAITS, Waits, waits_of
from orchestrator.scaling.upcoming import lead_seconds
from orchestrator.supervisor.episodes import Severity, TroubleEpisode
from orchestrator.supervisor.log_once import LogOnce
from queue_core.process.wording import counted, shown_ago, shown_seconds, shown_setting

LEAVING_GRACE_SECONDS: Final = 30.0
"""Grace of the workers of a pool that is in no settings, as of an adopted worker's."""

ASLEEP_SECONDS: Final = 10.0
"""Turn interval of a pool without work and workers; a task, an override or a reload wakes it earlier."""

AT_ONCE: Final = Monotonic(float("-inf"))

Direction = Literal["up", "down", "hold"]

ConcernKind = Literal["late", "at_max", "held_back", "no_starts", "misconfigured"]
"""`late`: the oldest ready task is older than the slo. `at_max`: the pool wants more workers than `max`. `held_back`:
it wants more than another bound allows (budget, the host's capacity, an operator's pause, ...). `no_starts`: its last
start failed, or its runtime is unavailable. `misconfigured`: its application can't be imported, or lacks a handler."""

KINDS: Final[tuple[ConcernKind, ...]] = get_args(ConcernKind)
HOLDING_BACK: Final = frozenset({"budget", "host_headroom", "failing_work", "contention", "paused", "queue_paused"})
"""The guards of `held_back`; those of a single step pass by themselves."""
RECENT_FAILURE_SECONDS: Final = 600.0
"""A worker's failure is named as a cause of lateness for this long after it happened."""


@dataclass(frozen=True, slots=True)
class Outage:
    """An unavailable runtime: why, how often in a row, and when to try it again; or (`is_quota`) a used-up quota."""

    why: str
    times: int
    retry_at: Monotonic
    is_quota: bool = False


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
    waits: Waits = NO_WAITS

    def count_death(self, cause: Cause, *, failed_start: bool) -> None:
        """Count a worker's end."""
        self.deaths[cause] = self.deaths.get(cause, 0) + 1
        self.failed_starts += failed_start

    def count_decision(self, decision: Decision) -> None:
        """Count a decision."""
        direction: Direction = "hold"
        if decision.target != decision.current:
            direction = "up" if decision.target > decision.current else "down"
        key = (decision.rule, direction)
        self.decisions[key] = self.decisions.get(key, 0) + 1

    def count_sample(self, sample: QueueSample, *, since: Monotonic | None, slo_seconds: float) -> None:
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
    `episode` is that of its tasks' lateness or of a bound that denies it workers.
    `grace_seconds` and `leaving_stops` are those of the settings that it has left.
    While its queue can't be sampled it `is_stale`, and `stale_why` says why.
    `imported_tags` are those that its application handles, `leased_tags` those that calls of its workers lease; None
    where unknown.
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
    conditions: Conditions = DEFAULT_CONDITIONS
    due_at: Monotonic = AT_ONCE
    is_stale: bool = False
    stale_why: str = ""
    grace_seconds: float = LEAVING_GRACE_SECONDS
    leaving_stops: tuple[StopStep, ...] = ()
    last_logged: tuple[object, ...] = ()
    last_decided: tuple[tuple[object, ...], Monotonic] = ((), AT_ONCE)
    outage: Outage | None = None
    last_failure: WorkerFailure | None = None
    application_failure: str = ""
    imported_tags: ServedTags | None = None
    leased_tags: ServedTags | None = None
    episode: TroubleEpisode | None = None
    suspected: tuple[IsolatedTask, ...] = ()
    solo_workers: dict[str, IsolatedTask] = field(default_factory=dict)
    counters: PoolCounters = field(default_factory=PoolCounters)
    trend: Trend = ()
    turn_errors: LogOnce = field(default_factory=LogOnce)
    _narrowed: tuple[PoolSpec, ServedTags | None, PoolSpec] | None = None

    @property
    def works_on(self) -> PoolSpec | None:
        """The settings, limited to the tags that its workers lease as far as that is known: its work (ADR 26)."""
        if self.spec is None:
            return None
        served = merged_tags((self.imported_tags, self.leased_tags))
        if self._narrowed is None or self._narrowed[0] is not self.spec or self._narrowed[1] != served:
            self._narrowed = (self.spec, served, narrowed(self.spec, served))
        return self._narrowed[2]

    def record_leases(self) -> None:
        """Take in what its workers lease, as the last sample shows it; what was known stays where none is heard."""
        present = self.sample.presence.values() if self.sample is not None else ()
        heard = merged_tags([one.tags for one in present if one.worker in self.fleet.workers])
        if heard is not None:
            self.leased_tags = heard

    @property
    def further_stops(self) -> tuple[StopStep, ...]:
        """The signals for a worker that was asked to finish and did not within its grace, before it is killed."""
        return self.leaving_stops if self.spec is None else self.spec.further_stops

    def ahead_seconds(self, spec: PoolSpec) -> float:
        """Return how far ahead to look for delayed tasks, so that a pool that sleeps still starts workers in time."""
        return lead_seconds(self.state.estimates, spec, self.conditions) + ASLEEP_SECONDS

    @property
    def is_asleep(self) -> bool:
        """Return whether it has and wants no worker, so that only an arrival can change that (see `ArrivalWatch`)."""
        spec, sample, decision = self.spec, self.sample, self.decision
        if spec is None or sample is None or decision is None or self.is_stale or self.fleet.workers:
            return False
        if self.suspected or sample.ready or sample.held or sample.upcoming or sample.in_flight:
            return False
        if decision.target or decision.limits:
            return False
        expected = self.state.recurrence.next(now=sample.at, turn_seconds=spec.turn_seconds)
        if expected and -expected[0].age_seconds <= self.ahead_seconds(spec):
            return False
        return not (spec.workers.min or spec.schedule or spec.finish_by or self.conditions.bounds_by)


@value
class Concern:
    """A pool's problem: its kinds, and what a person has to know of it as sentences: which task, how long, and why."""

    kinds: tuple[ConcernKind, ...]
    why: str

    def record(self) -> dict[str, object]:
        """Return the concern as JSON values."""
        return {"kinds": list(self.kinds), "why": self.why}


def concern_of(pool: Pool) -> Concern | None:
    """Return the pool's problem as of its last sample and decision; None without one."""
    spec, sample, decision = pool.effective or pool.spec, pool.sample, pool.decision
    unusable = f"its application can't be used: {pool.application_failure}" if pool.application_failure else ""
    if spec is None or sample is None or decision is None:
        return Concern(("misconfigured",), unusable) if unusable else None
    failures = pool.fleet.failed_starts(spec)
    outage = pool.outage.why if pool.outage is not None and decision.unguarded > decision.current else ""
    wrong: dict[ConcernKind, bool] = {
        "late": sample.oldest_seconds > spec.slo,
        "at_max": "max" in decision.limited_by,
        "held_back": bool(decision.trouble) and not HOLDING_BACK.isdisjoint(decision.limited_by),
        "no_starts": bool(failures or outage),
        "misconfigured": bool(unusable),
    }
    kinds = tuple([kind for kind in KINDS if wrong[kind]])
    if not kinds:
        return None
    named = [unusable] if unusable and "misconfigured" not in decision.limited_by else []
    causes = [
        *named,
        *_causes(sample, decision, spec=spec),
        *_start_problems(decision, failures=failures, outage=outage),
    ]
    failure = pool.last_failure
    if failure is not None and (failures or (wrong["late"] and sample.at - failure.at <= RECENT_FAILURE_SECONDS)):
        # A start may have failed since the sample.
        causes.append(f"last failure, {shown_ago(max(0.0, sample.at - failure.at))}: {failure.why}")
    return Concern(kinds, "; ".join(causes))


def states_of(pool: Pool) -> tuple[str, ...]:
    """Return the states that somebody or something has put the pool into, one sentence each, with the way out of it."""
    spec = pool.effective or pool.spec
    if spec is None:
        return ()
    states = [f"it can't be sampled, so its size holds: {pool.stale_why}"] if pool.is_stale else []
    is_paused = pool.sample is not None and pool.sample.paused
    states += [describe_pause(queue) for queue in spec.queues] if is_paused else []
    if pool.decision is not None:
        states += [note for note in pool.decision.notes if note in pool.conditions.notes]
    nodes = pool.state.estimates.nodes
    states += describe_waits(
        [worker.place for worker in pool.fleet.workers.values()],
        wanted=max(0, pool.decision.unguarded - pool.decision.current) if pool.decision is not None else 0,
        usual_seconds=nodes.usual_seconds,
        long_seconds=nodes.long_seconds,
        slo_seconds=spec.slo,
    )
    held = len(pool.suspected) + len(pool.solo_workers)
    if held:
        were = "was" if held == 1 else "were"
        states.append(
            f"{counted(held, 'task')} {were} held by workers that died, and now "
            f"{'runs' if held == 1 else 'run'} alone, in a worker of {'its' if held == 1 else 'their'} own"
        )
    return tuple(states)


def severity_of(pool: Pool) -> Severity:
    """Return how severe the pool's trouble is, as of its last sample and decision."""
    decision = pool.decision
    if decision is None or not decision.trouble:
        return "none"
    if not decision.is_late:
        return "bounded"
    return "growing" if decision.target > decision.current else "late"


def _causes(sample: QueueSample, decision: Decision, *, spec: PoolSpec) -> Iterator[str]:
    if decision.trouble:
        yield decision.trouble
        return
    if sample.oldest_seconds > spec.slo:  # an older sample than the decision's, or one of a pool that is draining
        yield (
            f"a task has waited for {shown_seconds(sample.oldest_seconds)}, longer than its SLO of "
            f"{shown_setting(spec.slo)}, with {counted(decision.current, 'worker')}"
        )
    for limit in decision.limits:
        yield limit.why


def _start_problems(decision: Decision, *, failures: int, outage: str) -> Iterator[str]:
    """Yield the problems with starts that no guard has named."""
    if failures and {"crash_loop", "misconfigured"}.isdisjoint(decision.limited_by):
        yield "the last start failed" if failures == 1 else f"the last {failures} starts failed"
    if outage and "runtime_unavailable" not in decision.limited_by:
        yield outage

"""The context of one decision: the facts, the pool counted once; and the proposal that a rule makes. Pure."""

from dataclasses import replace
from typing import Final

from orchestrator.base.clock import Monotonic
from orchestrator.base.samples import QueueSample, Waiting
from orchestrator.base.values import value
from orchestrator.config.pools import PoolSpec
from orchestrator.fleet.workers import Fleet, Worker, least_recently_used
from orchestrator.scaling.deadline import Pace, ServingCapacity, capacity_of, pace_of
from orchestrator.scaling.decision import DEFAULT_CONDITIONS, Conditions, Rule
from orchestrator.scaling.finish_by import FinishForecast, forecast_finish
from orchestrator.scaling.learning import PolicyState
from orchestrator.scaling.reserve import NOBODY_WARM, WarmWorkers
from queue_core.process.wording import counted, shown_seconds, shown_setting

STALE_TURNS: Final = 3.0
"""Turns after which a sample is too old to decide by."""


@value
class Facts:
    """The facts about a pool: everything that a guard may use.

    `alive` are the workers that count towards the pool's size; `state` is the policy's after the sample.
    """

    sample: QueueSample
    fleet: Fleet
    alive: tuple[Worker, ...]
    spec: PoolSpec
    conditions: Conditions
    now: Monotonic
    state: PolicyState = PolicyState()

    @property
    def is_stale(self) -> bool:
        """True if the sample is too old to decide by."""
        return self.now - self.sample.at > STALE_TURNS * self.spec.turn_seconds

    @property
    def current(self) -> int:
        return len(self.alive)

    @property
    def starting(self) -> int:
        return len([w for w in self.alive if w.state == "starting"])


@value
class DecisionContext:
    """Everything that one decision uses, computed once. `upcoming`: delayed tasks, or those of an expected burst."""

    facts: Facts
    capacity: ServingCapacity
    pace: Pace
    idle: tuple[Worker, ...]
    busy: int
    forecast: FinishForecast | None = None
    warm: WarmWorkers = NOBODY_WARM
    upcoming: tuple[Waiting, ...] = ()

    @property
    def tasks(self) -> int:
        """The number of tasks that wait or run, without those of workers that are leaving."""
        sample, fleet = self.facts.sample, self.facts.fleet
        leaving = 0
        if len(fleet.workers) > len(self.facts.alive):
            leaving = sum(w.leases for w in fleet.workers.values()) - sum(w.leases for w in self.facts.alive)
        return sample.ready + max(0, sample.in_flight - leaving)

    @property
    def oldest_seconds(self) -> float:
        """The longest wait of a ready task; 0 when there is none."""
        sample = self.facts.sample
        return sample.waiting[0].age_seconds + (self.facts.now - sample.at) if sample.waiting else 0.0

    @property
    def late(self) -> int:
        """The number of ready tasks that are known to wait longer than the slo."""
        grown, slo_seconds = self.facts.now - self.facts.sample.at, self.pace.slo_seconds
        if self.oldest_seconds <= slo_seconds:
            return 0
        return max(w.position for w in self.facts.sample.waiting if w.age_seconds + grown > slo_seconds)

    def describe_late(self) -> str:
        """Describe the late tasks, of which there are some: "1 task has waited 29 s past its SLO of 5 s"."""
        late, slo_seconds, ages = self.late, self.pace.slo_seconds, self.facts.sample.ages
        beyond, slo = shown_seconds(self.oldest_seconds - slo_seconds), shown_setting(slo_seconds)
        known = "" if ages == "exact" else f"{ages} "
        source = "" if ages == "exact" else " (estimated: the messages carry no time)"
        if late == 1:
            return f"1 task has waited {known}{beyond} past its SLO of {slo}{source}"
        most = "up to " if ages == "exact" else known
        return f"{counted(late, 'task')} have waited {most}{beyond} past their SLO of {slo}{source}"

    def describe_workers(self) -> str:
        """Describe what the pool's workers are doing: "all 2 workers are busy"."""
        current, starting = self.facts.current, len(self.capacity.ready_in_seconds)
        states = [(self.busy, "busy"), (len(self.idle), "idle"), (starting, "starting")]
        known = [(count, state) for count, state in states if count > 0]
        if not known:
            return "no worker is running"
        if len(known) == 1:
            return f"the only worker is {known[0][1]}" if current == 1 else f"all {current:,} workers are {known[0][1]}"
        parts = [f"{count:,} {'is' if count == 1 else 'are'} {state}" for count, state in known]
        return f"of {current:,} workers {', '.join(parts[:-1])} and {parts[-1]}"


@value
class Proposal:
    """The target that a rule proposes, and why."""

    target: int
    rule: Rule
    why: str


def context_of(
    sample: QueueSample,
    *,
    fleet: Fleet,
    spec: PoolSpec,
    state: PolicyState,
    now: Monotonic,
    conditions: Conditions = DEFAULT_CONDITIONS,
) -> DecisionContext:
    """Gather everything that a decision at `now` is made from.

    Args:
        sample: the newest sample of the pool's work; its waits have grown until now.
        fleet: the pool's workers after `observe` with that sample.
        spec: the pool's settings, with the bounds of the moment.
        state: the policy's state after that sample (see `learning.learn`).
        now: no earlier than the sample.
        conditions: other influences, such as pauses and the host's capacity.
    """
    alive, estimates = fleet.alive, state.estimates
    pace = pace_of(estimates, spec)
    capacity = capacity_of(
        alive, [lease.held_seconds for lease in sample.running], estimates=estimates, spec=spec, now=now
    )
    if conditions.helpers:
        capacity = replace(capacity, helpers=conditions.helpers)
    idle = least_recently_used(alive)
    facts = Facts(sample, fleet, alive, spec, conditions, now, state)
    warm = state.reserve.warm(
        erlang_workers=state.erlang.workers,
        tasks=sample.ready + sample.in_flight,
        in_flight=sample.in_flight,
        rate=estimates.arrival_rate,
        capacity=capacity,
        pace=pace,
    )
    upcoming = sample.upcoming
    if not pace.is_start_in_time:
        upcoming = upcoming or state.recurrence.next(now=sample.at, turn_seconds=pace.turn_seconds)
    return DecisionContext(
        facts,
        capacity,
        pace,
        tuple(idle),
        len(alive) - len(idle) - len(capacity.ready_in_seconds),
        _finish_forecast(facts, capacity=capacity, pace=pace),
        warm,
        upcoming,
    )


def _finish_forecast(facts: Facts, *, capacity: ServingCapacity, pace: Pace) -> FinishForecast | None:
    finish_by = facts.conditions.finish_by
    if finish_by is None or not facts.sample.ready:
        return None
    return forecast_finish(
        finish_by,
        facts.sample.ready,
        capacity=capacity,
        startup_seconds=pace.startup_seconds,
        current=facts.current,
        most=facts.spec.workers.max,
    )

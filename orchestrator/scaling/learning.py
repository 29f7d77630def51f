"""Learn from a new sample of a pool: the next state of its policy, from which `policy.decide` decides. Pure."""

import math
from dataclasses import replace
from typing import Final

from orchestrator.base.clock import Monotonic
from orchestrator.base.samples import QueueSample
from orchestrator.base.values import value
from orchestrator.config.pools import PoolSpec
from orchestrator.fleet.workers import Fleet
from orchestrator.scaling.contention import Contention
from orchestrator.scaling.deadline import Pace, ServingCapacity, capacity_of, pace_of
from orchestrator.scaling.decision import Decision
from orchestrator.scaling.erlang import ErlangNeed, slots_needed
from orchestrator.scaling.estimates import Estimates, activity, peak_leases
from orchestrator.scaling.overload import Overload
from orchestrator.scaling.recurrence import Recurrence
from orchestrator.scaling.reserve import Reserve

_MIN_ELAPSED_SECONDS: Final = 0.001
_LONG_AGO: Final = Monotonic(float("-inf"))
_NEGLIGIBLE: Final = 1e-6


@value
class CounterfactualBacklogs:
    """The counterfactual backlogs: what each smaller fleet would have left by now. They show the fleet the slo needed.

    A worker that was used was not necessarily needed: without it the task might have waited for another, within its slo
    (ADR 6). On the recorded suite this saves 6 % against counting every used worker as needed.

    A backlog is work waiting and under way, in slot-seconds: `real` is the queue's, `of_fleets[k - 1]` what k workers
    would have left. Fleets larger than are listed would have left no less than the real one.
    """

    real: float = 0.0
    of_fleets: tuple[float, ...] = ()

    def after(
        self,
        real: float,
        *,
        done: float,
        elapsed_seconds: float,
        fleet: int,
        slots_per_worker: int,
        wait_seconds: float,
        most: int,
    ) -> tuple["CounterfactualBacklogs", int]:
        """Return the backlogs after a turn, and the size of the fleet that was needed in it, in workers.

        The model is fluid: work is divisible, and every slot has an equal share of it.

        Args:
            real: slot-seconds of work waiting and under way now.
            done: slot-seconds of work done since the previous sample.
            elapsed_seconds: since then.
            fleet: the number of workers; the backlog of a larger fleet is unknown and taken to be the real one.
            wait_seconds: the longest wait that is in time; a fleet whose tasks would wait longer needs one worker more,
                and its backlog is cut to that wait.
            most: the largest fleet allowed.
        """
        brought = real - self.real + done
        known = self.of_fleets + (self.real,) * (fleet - len(self.of_fleets))
        backlogs: list[float] = []
        needed = 1 if real > _NEGLIGIBLE or brought > _NEGLIGIBLE else 0
        slots = 0
        for before in known[:fleet]:
            slots += slots_per_worker
            backlog = before + brought - slots * elapsed_seconds
            if backlog < real:
                backlog = real
            longest = slots * wait_seconds
            if backlog > longest:
                needed = len(backlogs) + 2
                backlog = longest
            backlogs.append(backlog)
        if wait_seconds > 0 and real > slots * wait_seconds:
            needed = math.ceil(real / (slots_per_worker * wait_seconds) - _NEGLIGIBLE)
        while backlogs and backlogs[-1] <= real + _NEGLIGIBLE:
            backlogs.pop()
        if needed > most:
            needed = most
        return CounterfactualBacklogs(real, tuple(backlogs)), needed


@value
class PolicyState:
    """The state that the policy carries from one decision to the next; a new pool begins with `PolicyState()`.

    `grown_at[n - 1]` is when a decision last raised the target to n.
    """

    estimates: Estimates = Estimates()
    reserve: Reserve = Reserve()
    erlang: ErlangNeed = ErlangNeed()
    contention: Contention = Contention()
    backlogs: CounterfactualBacklogs = CounterfactualBacklogs()
    sampled_at: Monotonic | None = None
    grown_at: tuple[Monotonic, ...] = ()
    overload: Overload = Overload()
    recurrence: Recurrence = Recurrence()

    def after(self, decision: Decision) -> "PolicyState":
        """Return the state after a decision that was made from it."""
        current, target = decision.current, decision.target
        if target <= current:
            return self
        below = (*self.grown_at[:current], *(_LONG_AGO,) * (current - len(self.grown_at)))
        return replace(self, grown_at=(*below, *(decision.at,) * (target - current), *self.grown_at[target:]))

    def to_json(self) -> dict[str, object]:
        """Return the part that survives a restart, as plain values: the estimates."""
        return self.estimates.to_json()

    @staticmethod
    def from_json(data: object) -> "PolicyState":
        """Read what `to_json` returned. Raises `ValueError` for anything else."""
        return PolicyState(estimates=Estimates.from_json(data))


def learn(state: PolicyState, sample: QueueSample, *, fleet: Fleet, spec: PoolSpec, now: Monotonic) -> PolicyState:
    """Return the policy's state after `sample`; unchanged if the sample is not newer than the last one.

    Args:
        state: the state before.
        sample: the newest sample of the pool's work.
        fleet: the pool's workers after `observe` with that sample.
        spec: the pool's settings, with the bounds of the moment.
        now: no earlier than the sample.
    """
    if state.sampled_at is not None and sample.at <= state.sampled_at:
        return state
    known, alive, at = state.estimates, fleet.alive, sample.at
    if known.forks != fleet.forks:
        known = replace(known, forks=fleet.forks)
    turn_seconds = known.turn_seconds(spec)
    elapsed = turn_seconds if state.sampled_at is None else at - state.sampled_at
    if elapsed < _MIN_ELAPSED_SECONDS:
        elapsed = _MIN_ELAPSED_SECONDS
    summary = activity(sample, elapsed_seconds=elapsed, slo_seconds=spec.slo)
    wait = known.usable_slo_seconds(spec)
    backlogs, needed = state.backlogs.after(
        known.service.mean_seconds(summary.running_seconds) * (sample.ready + sample.in_flight),
        done=summary.done_seconds,
        elapsed_seconds=elapsed,
        fleet=len(alive),
        slots_per_worker=spec.concurrency,
        wait_seconds=wait,
        most=spec.workers.max,
    )
    if known.startup.planned_seconds + turn_seconds > wait:
        needed = math.ceil(peak_leases(sample, elapsed_seconds=elapsed) / spec.concurrency)
    estimates = known.after(
        sample,
        summary,
        started=fleet.started,
        forks=fleet.forks,
        size=len(alive),
        unplaced=sum(1 for w in alive if w.place.is_unplaced),
        needed=needed,
        elapsed_seconds=elapsed,
        spec=spec,
    )
    pace = pace_of(estimates, spec)
    capacity = capacity_of(alive, summary.running_seconds, estimates=estimates, spec=spec, now=now)
    recurrence = state.recurrence
    if not pace.is_start_in_time:
        recurrence = recurrence.after(sample.arrivals, at=at, turn_seconds=turn_seconds)
    return PolicyState(
        estimates,
        state.reserve.after(
            sample.arrivals,
            at=at,
            busy_seconds=summary.done_seconds,
            elapsed_seconds=elapsed,
            capacity=capacity,
            pace=pace,
        ),
        state.erlang.after(
            _erlang_workers(estimates, capacity=capacity, pace=pace, spec=spec),
            at=at,
            window_seconds=estimates.restart_seconds(spec),
        ),
        state.contention.after(sample, spec, startup_seconds=estimates.startup.planned_seconds),
        backlogs,
        at,
        state.grown_at,
        state.overload.after(sample.finished, at=at),
        recurrence,
    )


def _erlang_workers(estimates: Estimates, *, capacity: ServingCapacity, pace: Pace, spec: PoolSpec) -> int:
    slots = slots_needed(
        rate=estimates.arrival_rate,
        service_seconds=capacity.service_seconds,
        wait_seconds=pace.usable_slo_seconds,
        eps=spec.eps,
        limit=spec.workers.max * capacity.slots_per_worker,
    )
    return math.ceil(slots / capacity.slots_per_worker)

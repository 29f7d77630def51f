"""Size a simulated pool: with the pool's own policy, plan and guards, as the supervisor runs them. Pure."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from typing import Final, Protocol

from orchestrator.base.clock import Monotonic
from orchestrator.base.samples import LeaseSample, QueueSample, RunningLease, Waiting
from orchestrator.capacity.allocation import (
    MEASURED_SECONDS,
    MOST_AT_A_TIME,
    PRIOR_FORK_SECONDS,
    Allocation,
    CapacityDemand,
    HostCapacity,
    WorkerUsage,
    allocate,
)
from orchestrator.config.budget import full_budget
from orchestrator.config.pools import PoolSpec
from orchestrator.config.schedule import Bounds, bounds_at, next_daily
from orchestrator.fleet.observation import observe
from orchestrator.fleet.workers import Fleet, draining, exited, finishing, joined, killed
from orchestrator.scaling.context import context_of
from orchestrator.scaling.decision import DEFAULT_CONDITIONS, Conditions, Decision, FinishBy
from orchestrator.scaling.guards import turn_seconds_after
from orchestrator.scaling.learning import PolicyState, learn
from orchestrator.scaling.plan import Plan, plan_actions
from orchestrator.scaling.policy import decide
from orchestrator.scaling.upcoming import lead_seconds
from orchestrator.simulation.pool import SimulatedPool, SimulationEvents
from orchestrator.simulation.workload import MONDAY


class SimulatedConditions:
    """The conditions of one pool over virtual time; time 0 is the epoch second `begins_at`."""

    def __init__(self, spec: PoolSpec, *, cores: int, start_seconds: float | None, begins_at: float) -> None:
        self._spec = spec
        self._effective = spec
        self._begins_at = begins_at
        self._conditions = Conditions(cores=cores, start_seconds=start_seconds)
        self._bounds = Bounds(spec.workers.min, spec.workers.max, until=-1.0)
        self._budget = None if spec.budget is None else full_budget(spec.budget)
        self._spent_at = 0.0
        self._finish_at, self._offset = 0.0, 0

    @property
    def conditions(self) -> Conditions:
        """The conditions at the last call of `at`."""
        return self._conditions

    @property
    def are_plain(self) -> bool:
        """True if the conditions never change."""
        return not self._spec.schedule and self._spec.finish_by is None

    def at(self, now: float, *, workers: int) -> tuple[PoolSpec, Conditions]:
        """Return the pool with its bounds at `now`, and the other conditions; `workers` were there until now."""
        spec, wall = self._spec, self._begins_at + now
        if spec.schedule and wall >= self._bounds.until:
            self._bounds = bounds_at(spec.workers, spec.schedule, now=wall)
            self._effective = spec.bounded(self._bounds.min, self._bounds.max)
            self._conditions = replace(self._conditions, bounds_by=self._bounds.by)
        if self._budget is not None and spec.budget is not None:
            elapsed, self._spent_at = now - self._spent_at, now
            self._budget = self._budget.after(workers, elapsed_seconds=elapsed, hours_per_day=spec.budget)
            if self._budget.state != self._conditions.budget:
                self._conditions = replace(self._conditions, budget=self._budget.state)
        if spec.finish_by is not None:
            if wall >= self._finish_at:
                self._finish_at, self._offset = next_daily(spec.finish_by, now=wall)
            finish_by = FinishBy(self._finish_at - wall, self._finish_at, self._offset)
            self._conditions = replace(self._conditions, finish_by=finish_by)
        return self._effective, self._conditions


POSITIONS: Final = 8
"""The most positions of the ready queue in a sample, as in the queue."""
MAX_SAMPLED_LEASES: Final = 2_000
"""The most leases in a sample, as in the queue."""
SPANS_AHEAD: Final = 64
"""The spans into which a sample divides the time ahead, as the queue does."""
_ENDLESS: Final = HostCapacity(math.inf, math.inf, math.inf, math.inf)


class Scaler(Protocol):
    """A way to size a pool.

    `turn_seconds`: the time between two turns. `wakes`: a turn is taken at once when a task finds a pool without
    workers, or a worker ends by itself. `recent_first`: a task goes to the free worker used last, else to a random one.
    `ahead_seconds`: how long before they become leasable it sees tasks.
    """

    @property
    def name(self) -> str: ...
    @property
    def turn_seconds(self) -> float: ...
    @property
    def wakes(self) -> bool: ...
    @property
    def recent_first(self) -> bool: ...
    @property
    def ahead_seconds(self) -> float: ...

    def turn(self, pool: SimulatedPool) -> int:
        """Size the pool now; return 1 if it grew, -1 if it shrank, else 0."""

    def is_settled(self, pool: SimulatedPool) -> bool:
        """Return whether turns would change nothing until the next event."""


class PolicyScaler:
    """A Towline pool: the real decisions over samples of the simulated queue."""

    wakes: Final = True
    recent_first: Final = True

    def __init__(
        self,
        spec: PoolSpec,
        *,
        cores: int,
        start_seconds: float | None = None,
        begins_at: float = MONDAY,
        name: str = "",
        state: PolicyState | None = None,
    ) -> None:
        """Args:
        cores: of the simulated host (see `guards.spawn_parallelism`).
        start_seconds: the CPU time of one start on it.
        begins_at: the epoch second at which simulated time begins, for settings with a time of day.
        name: for display; the pool's by default.
        state: the policy's state at the start; that of a new pool by default.
        """
        self.name = name or spec.name
        self.decision: Decision | None = None
        self._spec = spec
        self._digest = spec.digest()
        self._hours = SimulatedConditions(spec, cores=cores, start_seconds=start_seconds, begins_at=begins_at)
        self._conditions = DEFAULT_CONDITIONS
        self._state = state or PolicyState()
        self._cores = cores
        self._measured_seconds = 0.0 if state is None else MEASURED_SECONDS
        self._busy: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())
        self._looked_at = Monotonic(0.0)
        self._fleet = Fleet(spec.name)
        self._unseen: set[str] = set()

    @property
    def ahead_seconds(self) -> float:
        """See `Scaler`."""
        return lead_seconds(self._state.estimates, self._spec, self._hours.conditions)

    @property
    def turn_seconds(self) -> float:
        """See `Scaler`: as in the supervisor, turns are shorter while growth waits for starts."""
        return turn_seconds_after(self.decision, self._conditions, self._spec)

    def turn(self, pool: SimulatedPool) -> int:
        """See `Scaler.turn`."""
        now = Monotonic(pool.now)
        recent = pool.take_events()
        for gone in recent.gone:
            self._fleet, _ = exited(self._fleet, gone, now=now)
            self._unseen.discard(gone.worker)
        sample = self._sample(pool, recent, now)
        self._fleet = observe(self._fleet, sample)
        if self._fleet.forks != pool.forks:
            self._fleet = replace(self._fleet, forks=pool.forks)
        spec, conditions = self._hours.at(pool.now, workers=len(self._fleet.workers))
        if pool.forks:
            conditions = replace(conditions, start_seconds=PRIOR_FORK_SECONDS)
        if self._measured_seconds < MEASURED_SECONDS:
            conditions = replace(conditions, allocation=self._allocation(sample, least=spec.workers.min))
        self._conditions = conditions
        learned = learn(self._state, sample, fleet=self._fleet, spec=spec, now=now)
        decision = decide(
            context_of(sample, fleet=self._fleet, spec=spec, state=learned, now=now, conditions=conditions)
        )
        self.decision, self._state = decision, learned.after(decision)
        todo = plan_actions(decision, fleet=self._fleet, spec=spec, now=now, conditions=conditions)
        return 0 if todo.is_empty else self._act(pool, todo, now)

    def _allocation(self, sample: QueueSample, *, least: int) -> Allocation | None:
        """Return the allocation of an endless host until busy workers were measured for a second; then None.

        A supervisor measures before it samples, and counts workers that were busy at both previous samples.
        """
        seen, busy = self._busy, frozenset([lease.worker for lease in sample.running])
        self._measured_seconds += (sample.at - self._looked_at) * len(seen[0] & seen[1])
        self._busy, self._looked_at = (seen[1], busy), sample.at
        if self._measured_seconds >= MEASURED_SECONDS:
            return None
        alive = len(self._fleet.alive)
        demand = CapacityDemand(
            self.name, alive, alive + MOST_AT_A_TIME, WorkerUsage(), untried=max(self._cores, least)
        )
        return allocate(_ENDLESS, [demand])[self.name]

    def is_settled(self, pool: SimulatedPool) -> bool:
        """See `Scaler.is_settled`."""
        if (
            pool.leases
            or pool.ready
            or (pool.limits is not None and pool.limits.held)
            or pool.starting
            or pool.leaving
            or pool.next_visible_at(self.ahead_seconds) <= pool.now
        ):
            return False
        changes_by_itself = not self._hours.are_plain or (
            bool(pool.workers) and (self._spec.recycle.age is not None or self._spec.budget is not None)
        )
        return not changes_by_itself and len(pool.workers) <= self._spec.workers.min and self._is_decided(pool)

    def _is_decided(self, pool: SimulatedPool) -> bool:
        decision = self.decision
        return decision is not None and not decision.limits and decision.target == len(pool.workers)

    def _act(self, pool: SimulatedPool, todo: Plan, now: Monotonic) -> int:
        for leave in todo.kill:
            self._fleet = killed(self._fleet, leave.worker, now=now)
            pool.kill(leave.worker)
        for leave in todo.retire:
            if not pool.workers[leave.worker].leases:  # the queue would not fence it otherwise
                self._leave(pool, leave.worker, now)
        for leave in todo.finish:
            self._leave(pool, leave.worker, now)
        for spawn, worker in zip(todo.spawn, pool.spawn(len(todo.spawn)), strict=True):
            self._unseen.add(worker)
            self._fleet = joined(
                self._fleet,
                worker=worker,
                ref=worker,
                spec_digest=self._digest,
                spawned_at=now,
                replaces=spawn.replaces,
                is_forked=pool.workers[worker].is_forked,
            )
        return 1 if todo.spawn else -1

    def _leave(self, pool: SimulatedPool, worker: str, now: Monotonic) -> None:
        if pool.workers[worker].leases:
            self._fleet = finishing(self._fleet, worker, now=now)
        else:
            self._fleet = draining(self._fleet, worker, grace_seconds=self._spec.grace, now=now)
        pool.leave(worker)

    def _sample(self, pool: SimulatedPool, recent: SimulationEvents, now: Monotonic) -> QueueSample:
        at, ready, held = pool.now, pool.leasable, pool.leases.values()
        positions = _positions(ready)
        waiting = tuple(map(Waiting, positions, pool.waited_seconds(positions)))
        running = [
            RunningLease(lease.worker.name, at - lease.began_at, lease.waited_seconds, lease.number, lease.at_a_time)
            for lease in islice(held, MAX_SAMPLED_LEASES)
        ]
        finished = [
            LeaseSample(
                lease.worker.name,
                lease.ended_at - lease.began_at,
                lease.waited_seconds,
                lease.outcome,
                lease.number,
                at - lease.ended_at,
                lease.at_a_time,
            )
            for lease in recent.finished
        ]
        sample = QueueSample(
            now,
            ready,
            pool.delayed,
            len(held),
            pool.dead,
            False,  # noqa: FBT003  paused; keyword arguments would take three times as long
            recent.arrivals,
            waiting,
            tuple(running),
            tuple(finished),
            self._first_seen(pool),
            {},
            self._upcoming(pool) if pool.delayed else (),
        )
        limits = pool.limits
        if limits is None:
            return sample
        held_back = limits.held + len(pool.ready) - ready
        held_by = limits.by if held_back else ""
        return replace(sample, held=held_back, held_by=held_by, held_by_rate=limits.have_rate)

    def _upcoming(self, pool: SimulatedPool) -> tuple[Waiting, ...]:
        """Return the first task of each span of the time ahead in which any becomes leasable, as the queue does."""
        width = self.ahead_seconds / SPANS_AHEAD
        firsts: dict[int, Waiting] = {}
        for position, due_in in enumerate(pool.upcoming_seconds(self.ahead_seconds), start=1):
            span = int(due_in / width)
            firsts[span] = Waiting(position, firsts[span].age_seconds if span in firsts else -due_in)
        return tuple(firsts.values())

    def _first_seen(self, pool: SimulatedPool) -> dict[str, float]:
        """Return the time since the start of each worker that started since the last sample."""
        if not self._unseen:
            return {}
        up = {name: at for name in self._unseen if (at := pool.workers[name].up_at) is not None}
        self._unseen.difference_update(up)
        return {name: pool.now - at for name, at in up.items()}


@lru_cache(maxsize=1_000)
def _positions(ready: int) -> Sequence[int]:
    """Return the positions to sample: all of a short ready queue, else evenly spaced ones with the first and last."""
    if ready <= POSITIONS:
        return range(1, ready + 1)
    return [1 + (ready - 1) * point // (POSITIONS - 1) for point in range(POSITIONS)]

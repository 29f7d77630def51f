"""Workers for tasks that become leasable before a worker started then could be up: started ahead. Pure.

They are delayed tasks that the queue knows, or a burst that is expected (see `recurrence`).

Where a start fits into the slo, it is time enough to start once the tasks are ready. Elsewhere a worker is started so
that it is up when they become leasable, and not before: what it idles is paid for.
"""

import math
from dataclasses import replace
from typing import Final

from orchestrator.config.pools import PoolSpec
from orchestrator.scaling.context import DecisionContext, Proposal
from orchestrator.scaling.deadline import Need, ServingCapacity
from orchestrator.scaling.decision import Conditions
from orchestrator.scaling.estimates import Estimates

UNKNOWN_START_SECONDS: Final = 15.0
"""What a start is taken for until one was seen: too early costs idle seconds, once in a pool's life."""
MOST_ROUNDS_SECONDS: Final = 60.0
"""How much earlier than a start the first of many begin at most: what is further off is told less exactly."""
_ROUNDING: Final = 1e-9
_NOTHING: Final = Need()


def start_seconds(estimates: Estimates) -> float:
    """What is allowed for a start."""
    startup = estimates.startup
    return startup.planned_seconds if startup.count else max(startup.planned_seconds, UNKNOWN_START_SECONDS)


def lead_seconds(estimates: Estimates, spec: PoolSpec, conditions: Conditions) -> float:
    """How far ahead tasks to come may matter: until as many workers as there may be have started; and a turn."""
    return _lead_seconds(spec.workers.max, start_seconds(estimates), spec=spec, conditions=conditions)


def _lead_seconds(workers: int, startup_seconds: float, *, spec: PoolSpec, conditions: Conditions) -> float:
    """How long before they are wanted so many workers begin to be started: they start a few at a time."""
    rounds = 1 if _starts_elsewhere(spec) else math.ceil(workers / conditions.starts_at_a_time(spec))
    return startup_seconds + min(max(0, rounds - 1) * startup_seconds, MOST_ROUNDS_SECONDS) + spec.turn_seconds


def _starts_elsewhere(spec: PoolSpec) -> bool:
    return spec.spawn_parallelism is None and spec.runtime_kind == "external"


def prepare(context: DecisionContext) -> Proposal | None:
    """Ask for workers for tasks to come; None where none is needed yet."""
    need = _need(context, context.capacity)
    if not need.workers:
        return None
    sample = context.facts.sample
    why = (
        f"{need.position} become leasable within {max(0.0, -need.age_seconds):.1f} s, and a start takes"
        f" {start_seconds(context.facts.state.estimates):.1f} s, too long for the slo; "
        f"of these and {sample.ready} ready {need.can_start:.0f} can begin in time; {need.workers} more needed"
    )
    return Proposal(context.facts.current + need.workers, "deadline", why)


def fewest(context: DecisionContext) -> int:
    """The smallest size down to which idle workers may be let go without being wanted again for tasks to come."""
    current, spare = context.facts.current, 0
    if not context.upcoming:
        return 0
    too_many = len(context.idle) + 1
    while too_many - spare > 1:
        middle = (spare + too_many) // 2
        left = max(0, context.capacity.idle_slots - middle * context.capacity.slots_per_worker)
        if _need(context, replace(context.capacity, idle_slots=left)).workers:
            too_many = middle
        else:
            spare = middle
    return current - spare


def _need(context: DecisionContext, capacity: ServingCapacity) -> Need:
    """The most workers that any of the tasks to come asks for now."""
    facts, pace, estimates = context.facts, context.pace, context.facts.state.estimates
    sample, spec, need = facts.sample, facts.spec, _NOTHING
    startup_seconds, usable_seconds = start_seconds(estimates), pace.usable_slo_seconds
    if sample.paused or startup_seconds + pace.turn_seconds <= usable_seconds:
        return need
    is_known = capacity.is_known
    horizon_seconds = lead_seconds(estimates, spec, facts.conditions)
    grown = facts.now - sample.at
    position, can_start = sample.ready, 0.0
    for task in context.upcoming:
        due_in = max(0.0, -task.age_seconds - grown)
        if due_in > horizon_seconds:
            break
        before, position = position, sample.ready + task.position
        if position <= can_start:
            continue  # as many can begin before those are due
        within = due_in + usable_seconds
        can_start = _can_start(capacity, before, due_in, within, is_known=is_known)
        missing = position - can_start
        if missing <= _ROUNDING:
            continue
        left = within - max(startup_seconds, due_in)
        workers = math.ceil(
            missing / (capacity.slots_per_worker * _each(capacity, left, is_known=is_known)) - _ROUNDING
        )
        starting = len(capacity.ready_in_seconds) + workers
        lead = _lead_seconds(starting, startup_seconds, spec=spec, conditions=facts.conditions)
        if due_in <= lead and workers > need.workers:
            need = Need(workers, task.position, -due_in, within, can_start)
    return need


def _can_start(capacity: ServingCapacity, before: int, due_in: float, within: float, *, is_known: bool) -> float:
    """Leases that may begin until tasks due then are late, with `before` tasks that are leasable earlier.

    Nobody works ahead: a slot that has nothing to do until then begins one task then, and what it can do after it.
    """
    if not is_known:
        return capacity.free_slots(within)
    up, spare = capacity.slots_up(due_in), capacity.can_start(due_in) - before
    if spare <= 0.0:
        return capacity.can_start(within)
    free = min(up, spare)
    in_time = free * _each(capacity, within - due_in, is_known=True)
    return (
        before + in_time + (up - free) * (within - due_in) / capacity.service_seconds + capacity.slots_up(within) - up
    )


def _each(capacity: ServingCapacity, seconds: float, *, is_known: bool) -> float:
    """Leases that a slot may begin within so many seconds, the first of them at once."""
    if not is_known or seconds <= 0.0:
        return 1.0  # as far as is known a task may last for ever
    return 1.0 + seconds / capacity.service_seconds

"""Start workers ahead of upcoming tasks: delayed tasks of the queue, or an expected burst (see `recurrence`). Pure.

If a start fits into the slo, workers are started once the tasks are ready. Otherwise they are started so that they are
up when the tasks become leasable, but not earlier, as idle time costs.
"""

import math
from dataclasses import replace
from typing import Final

from orchestrator.config.pools import PoolSpec
from orchestrator.scaling.context import DecisionContext, Proposal
from orchestrator.scaling.deadline import Need, ServingCapacity
from orchestrator.scaling.decision import Conditions
from orchestrator.scaling.estimates import Estimates
from queue_core.process.wording import counted

UNKNOWN_START_SECONDS: Final = 15.0
"""The assumed start until one was measured. High, as starting too early costs idle seconds only once per pool."""
MOST_ROUNDS_SECONDS: Final = 60.0
"""The most time by which the first of many starts is moved ahead; tasks further off are known less exactly."""
_ROUNDING: Final = 1e-9
_NOTHING: Final = Need()


def start_seconds(estimates: Estimates) -> float:
    """Return the time allowed for a start."""
    startup = estimates.startup
    is_known = startup.count or estimates.forks  # a fork takes about as long in any application
    return startup.planned_seconds if is_known else max(startup.planned_seconds, UNKNOWN_START_SECONDS)


def lead_seconds(estimates: Estimates, spec: PoolSpec, conditions: Conditions) -> float:
    """Return how far ahead upcoming tasks matter: the time to start the largest fleet, plus a turn."""
    return _lead_seconds(spec.workers.max, start_seconds(estimates), spec=spec, conditions=conditions)


def _lead_seconds(workers: int, startup_seconds: float, *, spec: PoolSpec, conditions: Conditions) -> float:
    """Return how long before they are needed this many workers must begin to start; they start a few at a time."""
    rounds = 1 if _starts_elsewhere(spec) else math.ceil(workers / conditions.starts_at_a_time(spec))
    return startup_seconds + min(max(0, rounds - 1) * startup_seconds, MOST_ROUNDS_SECONDS) + spec.turn_seconds


def _starts_elsewhere(spec: PoolSpec) -> bool:
    return spec.spawn_parallelism is None and spec.runtime.is_elsewhere


def prepare(context: DecisionContext) -> Proposal | None:
    """Propose workers for upcoming tasks; None if none is needed yet."""
    need = _need(context, context.capacity)
    if not need.workers:
        return None
    sample = context.facts.sample
    tasks = f"{counted(need.position, 'task')} {'is' if need.position == 1 else 'are'} due within"
    why = (
        f"starting {counted(need.workers, 'more worker')} ahead: {tasks} {max(0.0, -need.age_seconds):,.1f} s, and a "
        f"start takes {start_seconds(context.facts.state.estimates):,.1f} s, too long for the SLO; "
        f"of these and {sample.ready:,} waiting, {need.can_start:,.0f} can start in time"
    )
    return Proposal(context.facts.current + need.workers, "deadline", why)


def fewest(context: DecisionContext) -> int:
    """Return the size down to which idle workers may be let go without being needed again for upcoming tasks."""
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
    """Return the largest need of any of the upcoming tasks."""
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
            continue  # as many can begin before these are due
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
    """Return how many leases may begin before tasks due then are late, with `before` tasks leasable earlier.

    No worker can work ahead: a slot that idles until then begins one task at that time, and more after it.
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
    """Return how many leases a slot may begin within so many seconds, the first of them at once."""
    if not is_known or seconds <= 0.0:
        return 1.0  # until a lease has ended, a task might last for ever
    return 1.0 + seconds / capacity.service_seconds

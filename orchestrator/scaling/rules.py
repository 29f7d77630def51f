"""The rules that propose a size: more workers (`grow`), or fewer idle ones (`shrink`). Pure.

More: deadlines, late tasks, saturation, finish_by, a warm reserve, upcoming tasks, an empty pool, the lower bound.
Fewer: each idle worker after a time learned at its level, or once a smaller fleet is enough.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Final

from orchestrator.base.clock import Monotonic
from orchestrator.base.samples import Waiting
from orchestrator.fleet.workers import Worker
from orchestrator.scaling.context import DecisionContext, Proposal
from orchestrator.scaling.deadline import Need, workers_needed
from orchestrator.scaling.finish_by import FinishForecast
from orchestrator.scaling.upcoming import fewest, prepare
from queue_core.process.wording import counted, shown_rate, shown_seconds

NOTHING_TO_CHANGE: Final = "nothing to change"
_DAY_SECONDS: Final = 86_400.0
_LEAST_SHOWN_SECONDS: Final = 0.1
_COMING: Final = 0.5  # share of the tasks expected within the slo that count as work
_SATURATED: Final = 0.5  # share of the largest fleet's capacity from which a pool is saturated


def grow(context: DecisionContext) -> Proposal | None:
    """Return the proposal with the highest target; None if no rule proposes anything."""
    facts = context.facts
    current, sample = len(facts.alive), facts.sample
    need = _deadline(context)
    proposals = [Proposal(current + need.workers, "deadline", _why_deadline(context, need))] if need.workers else []
    if sample.ready and not sample.paused and facts.spec.workers.max:
        proposals += [one for one in (_late(context), _saturated(context)) if one is not None]
    if context.forecast is not None:
        proposals.append(_finish_proposal(context, context.forecast))
    if context.warm.kept and not _is_barred(context):
        proposals.append(_warm(context))
    if context.upcoming and not _is_barred(context) and (proposal := prepare(context)) is not None:
        proposals.append(proposal)
    if current == 0 and sample.ready > context.capacity.taken_elsewhere:
        proposals.append(Proposal(1, "wake", f"{counted(sample.ready, 'task')} waiting, no worker running"))
    low, by = facts.spec.workers.min, facts.conditions.bounds_by
    if low > current:
        proposals.append(Proposal(low, "min", f"at least min {low}" + (f" ({by})" if by else "")))
    return max(proposals, key=attrgetter("target")) if proposals else None


def _deadline(context: DecisionContext) -> Need:
    sample = context.facts.sample
    waiting: Sequence[Waiting] = sample.waiting
    grown = context.facts.now - sample.at
    if grown > 0.0:
        waiting = [Waiting(w.position, w.age_seconds + grown) for w in waiting]
    if sample.held and sample.ready:
        # They wait behind ready ones too; the guard `rate_limited` bounds what is asked for them.
        waiting = [*waiting, Waiting(sample.ready + sample.held, 0.0)]
    return workers_needed(waiting, capacity=context.capacity, pace=context.pace)


def _why_deadline(context: DecisionContext, need: Need) -> str:
    sample, workers = context.facts.sample, context.facts.current
    ready = sample.ready
    when = f"within {shown_seconds(need.within_seconds)}" if need.within_seconds > 0.0 else "now"
    if need.position > ready:
        what = f"all {ready + sample.held:,} waiting tasks, those under limits included,"
    elif not workers and not context.capacity.helpers:
        what = f"the first {need.position:,}" if need.position < ready else "it" if ready == 1 else "all"
        waiting, more = counted(ready, "task"), counted(need.workers, "worker")
        return f"{waiting} waiting, no worker running: {what} must start {when}, {more} needed"
    elif need.position < ready:
        what = (
            f"the first {need.position:,} of {ready:,} waiting tasks" if need.position > 1 else f"1 of {ready:,} tasks"
        )
    else:
        what = counted(ready, "task")
    can_start = f"{need.can_start:,.0f} can start by then"
    return f"{what} must start {when}; {context.describe_workers()}, {can_start}: {need.workers:,} more needed"


def _finish_proposal(context: DecisionContext, forecast: FinishForecast) -> Proposal:
    return Proposal(
        context.facts.current + forecast.workers,
        "finish_by",
        describe_forecast(context, forecast) if forecast.workers else "",
    )


def describe_forecast(context: DecisionContext, forecast: FinishForecast) -> str:
    """Describe whether the waiting work will be done by the instant it must be done by."""
    finish_by = context.facts.conditions.finish_by
    if finish_by is None:
        return ""
    done_in, ready = forecast.done_in_seconds, context.facts.sample.ready
    by = finish_by.clock()
    waits = f"{counted(ready, 'task')} {'waits' if ready == 1 else 'wait'}"
    if not forecast.is_in_time:
        # Beyond a day the time of day is misleading.
        days = done_in / _DAY_SECONDS
        later = done_in - finish_by.within_seconds
        when = f"{finish_by.clock(later)} at the earliest" if days < 1 else f"more than {min(days, 999):.0f} d"
        return f"{waits}, and can't be done by {by} with max {context.facts.spec.workers.max}: {when}"
    enough = needed(forecast.workers, "more") if forecast.workers else "no more workers are needed"
    return f"{waits} to be done by {by}: {enough} for that"


def _late(context: DecisionContext) -> Proposal | None:
    """Propose a slot for each task that waits or runs, while a task waits longer than the slo."""
    if context.oldest_seconds <= context.pace.slo_seconds:
        return None
    target = _slot_each(context)
    slots = f"a slot for each task takes {counted(target, 'worker')}"
    why = f"{context.describe_late()}: {context.describe_workers()}, and {slots}"
    return Proposal(target, "late", why)


def _saturated(context: DecisionContext) -> Proposal | None:
    """Propose a slot for each task when the work is near the pool's max: then starts can't be put off.

    That is when the tasks that wait, plus half of those expected within the slo, are more than half of what the largest
    fleet does in that time.
    """
    facts, slo_seconds = context.facts, context.pace.slo_seconds
    spec, rate = facts.spec, facts.state.estimates.arrival_rate
    most = spec.workers.max * spec.concurrency * slo_seconds / context.capacity.service_seconds
    tasks = facts.sample.ready + _COMING * rate * slo_seconds
    if tasks <= _SATURATED * most:
        return None
    target = _slot_each(context)
    size = f"the maximum of {spec.workers.max:,}" if target >= spec.workers.max else f"{target:,}"
    why = f"heavy load: {facts.sample.ready:,} waiting, {shown_rate(rate)}/s arriving: scaling to {size}"
    return Proposal(target, "saturated", why)


def _slot_each(context: DecisionContext) -> int:
    """Return the workers that give every task that waits or runs a slot, less those of helper pools."""
    return math.ceil(context.tasks / context.facts.spec.concurrency) - context.capacity.workers_elsewhere


def _unplaced(context: DecisionContext) -> Proposal | None:
    """Propose to give up starts that wait for a node, beyond one for each task that waits: they lose nothing."""
    facts = context.facts
    unplaced = sum(1 for w in facts.alive if w.place.is_unplaced)
    if not unplaced:
        return None
    kept = math.ceil(facts.sample.ready / facts.spec.concurrency)
    low = max(facts.spec.workers.min, context.warm.kept, fewest(context))
    spare = min(unplaced - kept, facts.current - low)
    if spare <= 0:
        return None
    wait = f"{counted(spare, 'worker')} {'waits' if spare == 1 else 'wait'} for a node, and no task"
    return Proposal(facts.current - spare, "idle", f"{wait} for {'it' if spare == 1 else 'them'}")


def _is_barred(context: DecisionContext) -> bool:
    """Return whether limits hold tasks back until leases end: time alone makes none of them ready."""
    return bool(context.facts.sample.held) and not context.facts.sample.held_by_rate


def _barred(context: DecisionContext, *, level: int, low: int, below: int) -> Proposal | None:
    """Propose to let workers go that were idle, or not needed, for a turn: there is nothing for them until a lease
    ends, and its worker leases what that makes ready."""
    facts = context.facts
    top = level
    for worker in context.idle:
        spare_at = min(worker.since, _spare_at(context, worker, level=top, below=below))
        if top <= low or facts.now - spare_at < context.pace.turn_seconds:
            break
        top -= 1
    going = level - top
    if not going:
        return None
    idle = "stopping 1 idle worker" if going == 1 else f"stopping {going:,} idle workers"
    return Proposal(facts.current - going, "rate_limited", f"{idle}: {facts.sample.describe_held()}")


def _spare_at(context: DecisionContext, worker: Worker, *, level: int, below: int) -> Monotonic:
    """Return since when the fleet has not needed this level; a worker that a decision has just added is not spare."""
    state = context.facts.state
    needed_at = state.estimates.gaps.needed_at(level + below)
    spare_at = worker.since if needed_at is None else needed_at
    return max(spare_at, state.grown_at[level - 1]) if level <= len(state.grown_at) else spare_at


def _warm(context: DecisionContext) -> Proposal:
    kept = f"keeping {counted(context.warm.kept, 'worker')} warm"
    why = f"{kept}: a start takes {context.pace.startup_seconds:,.1f} s, too long for the SLO"
    return Proposal(context.warm.kept - context.capacity.workers_elsewhere, "warm", why)


def _why_idle(context: DecisionContext, level: int, target: int, spare_seconds: float, hold_seconds: float) -> str:
    sample = context.facts.sample
    if target == 0:
        is_empty = not (sample.ready or sample.held or sample.delayed or sample.in_flight)
        return f"{'queue empty' if is_empty else 'no task to start'}: stopping the last worker"
    limit = f" (limit {shown_seconds(hold_seconds)})" if hold_seconds >= _LEAST_SHOWN_SECONDS else ""
    return f"worker {level:,} not needed for {shown_seconds(spare_seconds)}{limit}: stopping it"


def needed(workers: int, more: str = "") -> str:
    """Return "2 more workers are needed"."""
    noun = f"{more} worker" if more else "worker"
    return f"{counted(workers, noun)} {'is' if workers == 1 else 'are'} needed"


def shrink(context: DecisionContext) -> tuple[Proposal, Mapping[int, float]]:
    """Propose to let idle workers go, the least recently used first; also return the hold of each level considered.

    A worker's level counts only workers that have started.
    """
    facts = context.facts
    sample, spec, now = facts.sample, facts.spec, facts.now
    proposal = Proposal(facts.current, "hold", NOTHING_TO_CHANGE)
    if (spare := _unplaced(context)) is not None:
        return spare, {}
    if sample.ready and not sample.paused:
        ready = "the waiting task" if sample.ready == 1 else f"the {sample.ready:,} waiting tasks"
        return replace(proposal, why=f"{NOTHING_TO_CHANGE}: {ready} can start in time"), {}
    if not context.idle:
        return proposal, {}
    state = facts.state
    restart = state.estimates.restart_seconds(spec)
    # The pool's first worker is number `below + 1` of all pools' workers.
    below = context.capacity.workers_below if context.capacity.helpers else 0
    starting = len(context.capacity.ready_in_seconds)
    level = facts.current - starting
    low = max(spec.workers.min - starting, context.warm.kept - below, context.busy, fewest(context) - starting)
    held: dict[int, float] = {}
    if _is_barred(context):
        low = max(spec.workers.min - starting, context.busy)
        return _barred(context, level=level, low=low, below=below) or proposal, held
    for worker in context.idle:
        if level <= low:
            break
        spare_seconds = now - _spare_at(context, worker, level=level, below=below)
        hold = held[level] = state.estimates.gaps.hold_seconds(level + below, restart_seconds=restart)
        if spare_seconds >= hold:
            target = level - 1 + starting
            proposal = Proposal(target, "idle", _why_idle(context, level, target, spare_seconds, hold))
        elif level - 1 + below >= max(1, state.erlang.workers) and context.pace.is_start_in_time:
            enough = max(1, state.erlang.workers)
            target = level - 1 + starting
            has = f"{counted(enough, 'worker')} {'has' if enough == 1 else 'have'} been enough"
            why = f"{has} to meet the SLO for {shown_seconds(restart)}: stopping {facts.current - target:,}"
            proposal = Proposal(target, "paper", why)
        else:
            break
        level -= 1
    return proposal, held

"""Decide how many workers a pool should have, and why. Pure: no clock, no I/O, no log (ADR 3).

Up: the fewest workers with which every waiting task is leased before its deadline. Down: idle workers only, each after
a time learned at its level of the fleet, or once a smaller fleet meets the slo by the Erlang C estimate for a while.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from orchestrator.scaling.context import DecisionContext, Proposal
from orchestrator.scaling.decision import Decision, GuardName, Inputs, Limit, Rule
from orchestrator.scaling.guards import guarded, limit_of_max, limit_of_pause
from orchestrator.scaling.rules import describe_forecast, grow, shrink
from queue_core.process.wording import counted

_NAMED: Final = 3
_BOUNDS: Final[Mapping[GuardName, Rule]] = {
    "max": "at_max",
    "misconfigured": "misconfigured",
    "crash_loop": "crash_loop",
    "runtime_unavailable": "runtime_unavailable",
    "quota": "quota",
    "max_pending": "max_pending",
    "failing_work": "failing_work",
    "contention": "contention",
    "queue_paused": "queue_paused",
    "rate_limited": "rate_limited",
    "host_headroom": "host_headroom",
    "budget": "budget",
    "max_step_up": "max_step_up",
    "spawn_parallelism": "spawn_parallelism",
    "paused": "paused",
    "stale_sample": "stale_sample",
}
"""The guards that may keep a pool from growing, each with the rule that names it while a task is late."""
_PASSING: Final = frozenset({"max_step_up", "spawn_parallelism", "stale_sample", "rate_limited"})
"""Guards of a single step, which the next turns take, and limits that somebody wants: no trouble as long as no task is
late."""


def decide(context: DecisionContext) -> Decision:
    """Return how many workers the pool should have now, with the reason; the same context gives the same decision."""
    facts = context.facts
    proposal, current = grow(context), len(facts.alive)
    held: Mapping[int, float] = {}
    if proposal is None or proposal.target <= current:
        proposal, held = shrink(context)
    fallback = facts.spec.fallback
    if fallback != "hold" and max(current, proposal.target) < fallback and facts.is_stale:
        proposal = Proposal(fallback, "fallback", f"no sample of the queue for {facts.now - facts.sample.at:.0f} s")
    target, limits = guarded(proposal.target, facts)
    trouble = ""
    if context.late:
        unguarded = proposal.target
        trouble, limits = _lateness(context, unguarded, target=target, limits=limits)
        if target <= current:
            proposal = replace(_limiting_rule(proposal, limits), target=unguarded, why=trouble)
    elif limits and proposal.target > max(target, current):
        trouble = _denied(proposal.target, limits)
    return Decision(
        facts.spec.name,
        facts.now,
        current,
        target,
        proposal.rule,
        proposal.why,
        _inputs(context),
        proposal.target,
        limits,
        held,
        _notes(context, proposal),
        trouble,
        context.late > 0,
    )


def _lateness(
    context: DecisionContext, wanted: int, *, target: int, limits: tuple[Limit, ...]
) -> tuple[str, tuple[Limit, ...]]:
    """Return a sentence on the late tasks and their causes; and the limits, with the one that applies to a pool that
    asks for no worker, as it has all it may."""
    facts = context.facts
    if target <= facts.current and not any(limit.guard in _BOUNDS for limit in limits):
        if facts.sample.paused:
            limits = (*limits, limit_of_pause(facts))
        elif target >= wanted and facts.current >= facts.spec.workers.max:
            limits = (*limits, limit_of_max(facts))
    causes = [context.describe_workers()]
    if target > facts.current:
        more = target - facts.current
        causes.append(f"{more:,} {'starts' if more == 1 else 'start'} now")
    bounds = [limit.why for limit in limits if limit.guard in _BOUNDS]
    if target < wanted and target > facts.current:
        bounds = [f"{counted(wanted, 'worker')} {'is' if wanted == 1 else 'are'} wanted", *bounds]
    if not bounds and target <= facts.current and context.idle:
        causes.append("an idle one is to lease it at once")
    return f"{context.describe_late()}: {_listed([*causes, *bounds])}", limits


def _limiting_rule(proposal: Proposal, limits: Sequence[Limit]) -> Proposal:
    """Return the proposal by the rule that names the bound which keeps the pool from growing, if one does."""
    bounds = [rule for limit in limits if (rule := _BOUNDS.get(limit.guard)) is not None]
    return replace(proposal, rule=bounds[-1]) if bounds else proposal


def _denied(wanted: int, limits: Sequence[Limit]) -> str:
    """Return a sentence on the workers that a lasting bound denies; "" where the next turns start them."""
    bounds = [limit.why for limit in limits if limit.guard in _BOUNDS and limit.guard not in _PASSING]
    if not bounds:
        return ""
    return _listed([f"{counted(wanted, 'worker')} {'is' if wanted == 1 else 'are'} wanted", *bounds])


def _listed(parts: Sequence[str]) -> str:
    """Join parts of a sentence: "a, b and c"."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _notes(context: DecisionContext, proposal: Proposal) -> tuple[str, ...]:
    """Return notes on what applies besides the rule that decided."""
    notes = context.facts.conditions.notes
    hung = context.facts.fleet.unresponsive if len(context.facts.fleet.workers) > len(context.facts.alive) else ()
    if hung:
        names = ", ".join(w.worker for w in hung[:_NAMED]) + (", ..." if len(hung) > _NAMED else "")
        notes = (*notes, f"{len(hung)} unresponsive and no capacity: {names}")
    if context.facts.sample.held:
        notes = (*notes, context.facts.sample.describe_held())
    if context.warm.description:
        notes = (*notes, context.warm.description)
    trial = context.facts.state.contention.trial
    if trial is not None and context.facts.spec.contention == "watch":
        notes = (*notes, f"contention: {trial.comparison}")
    notes = (*notes, *[words for helper in context.capacity.helpers if (words := helper.description)])
    if context.forecast is None or (proposal.rule == "finish_by" and context.forecast.workers):
        return notes
    return (*notes, describe_forecast(context, context.forecast))


def _inputs(context: DecisionContext) -> Inputs:
    facts, pace = context.facts, context.pace
    sample, fleet, estimates = facts.sample, facts.fleet, facts.state.estimates
    starting = len(context.capacity.ready_in_seconds)
    draining = len(fleet.leaving) if len(fleet.workers) > len(facts.alive) else 0
    return Inputs(
        sample.ready,
        sample.delayed,
        sample.in_flight,
        sample.dead,
        context.busy,
        len(context.idle),
        starting,
        draining,
        context.capacity.service_seconds,
        pace.startup_seconds,
        estimates.arrival_rate,
        estimates.slack,
        pace.slo_seconds,
        pace.usable_slo_seconds,
        max(0.0, facts.now - sample.at),
        estimates.forks,
        sample.held,
    )

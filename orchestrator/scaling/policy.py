"""Decide how many workers a pool should have, and why. Pure: no clock, no I/O, no log (ADR 3).

Up: the fewest workers with which every waiting task is leased before its deadline. Down: idle workers only, each after
a time learned at its level of the fleet, or once a smaller fleet meets the slo by the Erlang C estimate for a while.
"""

from collections.abc import Mapping
from typing import Final

from orchestrator.scaling.context import DecisionContext, Proposal
from orchestrator.scaling.decision import Decision, Inputs
from orchestrator.scaling.guards import guarded
from orchestrator.scaling.rules import describe_forecast, grow, shrink

_NAMED: Final = 3


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
    )


def _notes(context: DecisionContext, proposal: Proposal) -> tuple[str, ...]:
    """Return notes on what applies besides the rule that decided."""
    notes = context.facts.conditions.notes
    hung = context.facts.fleet.unresponsive if len(context.facts.fleet.workers) > len(context.facts.alive) else ()
    if hung:
        names = ", ".join(w.worker for w in hung[:_NAMED]) + (", ..." if len(hung) > _NAMED else "")
        notes = (*notes, f"{len(hung)} unresponsive and no capacity: {names}")
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
    )

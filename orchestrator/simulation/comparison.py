"""Compare a pool with a worker per task on the same tasks, in one sentence. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from orchestrator.simulation.results import RunResult
from orchestrator.simulation.rules import RuleScaler, rule_settings
from orchestrator.simulation.scaler import PolicyScaler
from orchestrator.simulation.study import PoolCandidate, simulate
from orchestrator.simulation.workload import SimulatedWorld, Workload

RULE: Final = "one-per-task"
SAME_COST: Final = 0.02
SAME_LATE: Final = 0.005
SAME_WAIT: Final = 0.1
"""Differences below which costs, late shares and waits beyond the slo count as equal, as starts are random."""


@dataclass(frozen=True, slots=True)
class Figures:
    """The mean figures of several runs; waits are in slos."""

    worker_seconds: float
    late_share: float
    p99_over_slo: float
    worst_over_slo: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """The figures of a pool and of the rule "a worker per task" on the same tasks."""

    pool: Figures
    rule: Figures

    @property
    def is_worse(self) -> bool:
        """True if the pool is worse: the rule is cheaper and no later, or less late and no dearer."""
        is_cheaper = self._cost < -SAME_COST
        is_no_dearer = self._cost <= SAME_COST
        return (is_cheaper and not _is_later(self.rule, self.pool)) or (
            is_no_dearer and _is_later(self.pool, self.rule) and not _is_later(self.rule, self.pool)
        )

    def sentence(self) -> str:
        """Return what the rule would have done, to be put after "a worker per task would have"."""
        cost = "cost about as much"
        if abs(self._cost) > SAME_COST:
            cost = f"cost {abs(self._cost):.0%} {'less' if self._cost < 0 else 'more'}"
        lateness = "no later"
        if _is_later(self.rule, self.pool):
            lateness = "later"
        elif _is_later(self.pool, self.rule):
            lateness = "less late"
        rule, pool = self.rule, self.pool
        return (
            f"{cost} and been {lateness} "
            f"(p99 {shown_slos(rule.p99_over_slo)} slo against {shown_slos(pool.p99_over_slo)}, "
            f"worst {shown_slos(rule.worst_over_slo)} against {shown_slos(pool.worst_over_slo)}, "
            f"{rule.late_share:.1%} late against {pool.late_share:.1%})"
        )

    @property
    def _cost(self) -> float:
        """The extra cost of the rule, as a share of the pool's."""
        return self.rule.worker_seconds / self.pool.worker_seconds - 1.0 if self.pool.worker_seconds else 0.0


def against_rule(
    workload: Workload, world: SimulatedWorld, candidate: PoolCandidate, *, seeds: Sequence[int]
) -> Comparison:
    """Run a pool and a worker per task within the pool's bounds; each figure is the mean over the seeds."""
    spec = candidate.spec
    slots, bounds = spec.concurrency, spec.workers
    settings = rule_settings(workload, slo_seconds=spec.slo, least=bounds.min, most=bounds.max, slots=slots)
    scalers = (
        lambda: PolicyScaler(spec, cores=world.cores, begins_at=world.begins_at, state=candidate.state),
        lambda: RuleScaler(RULE, settings),
    )
    pool, rule = (
        _figures([simulate(workload, world, made(), slo_seconds=spec.slo, slots=slots, seed=seed) for seed in seeds])
        for made in scalers
    )
    return Comparison(pool, rule)


def _figures(runs: Sequence[RunResult]) -> Figures:
    def mean(numbers: Sequence[float]) -> float:
        return math.fsum(numbers) / len(numbers)

    return Figures(
        mean([run.worker_seconds for run in runs]),
        mean([run.late_share for run in runs]),
        mean([run.p99_over_slo for run in runs]),
        mean([run.worst_over_slo for run in runs]),
    )


def shown_slos(wait: float) -> str:
    """Format a wait in slos."""
    return f"{wait:.2g}" if wait < 10.0 else f"{wait:,.0f}"


def _is_later(one: Figures, other: Figures) -> bool:
    """Return whether `one` has clearly more late tasks than `other`, or later ones; waits within the slo are equal."""
    if one.late_share > other.late_share + SAME_LATE:
        return True
    pairs = ((one.p99_over_slo, other.p99_over_slo), (one.worst_over_slo, other.worst_over_slo))
    return any(max(1.0, mine) > (1.0 + SAME_WAIT) * max(1.0, theirs) for mine, theirs in pairs)

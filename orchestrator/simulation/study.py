"""One workload through several pools and rules, each against hindsight. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from orchestrator.config import PoolSpec
from orchestrator.learning import PolicyState
from orchestrator.simulation.hindsight import Hindsight, hindsight
from orchestrator.simulation.results import Result
from orchestrator.simulation.rules import RuleScaler, told_of
from orchestrator.simulation.run import simulate
from orchestrator.simulation.scaler import PolicyScaler, Scaler
from orchestrator.simulation.workload import Workload, World

Progress = Callable[[str, float], None]
"""Told the name of what runs, and which share of its time is over."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pool to try, under a name for people; `state` is what was learned before."""

    name: str
    spec: PoolSpec
    state: PolicyState | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One run; `hindsight` is the yardstick at its slo, None where a worker holds several tasks at a time."""

    name: str
    is_towline: bool
    result: Result
    hindsight: Hindsight | None

    @property
    def cost_ratio(self) -> float | None:
        """Its worker-seconds over those of hindsight."""
        if self.hindsight is None or not self.hindsight.worker_seconds:
            return None
        return self.result.worker_seconds / self.hindsight.worker_seconds


def study(
    workload: Workload,
    world: World,
    candidates: Sequence[Candidate],
    *,
    rules: Sequence[str] = (),
    seed: int = 1,
    progress: Progress | None = None,
) -> list[Row]:
    """Every candidate, then every rule at each slo among them, within the bounds of the first candidate with it."""
    yardsticks = {
        slo: hindsight(workload, slo_seconds=slo, startup_seconds=world.mean_startup_seconds)
        for slo in dict.fromkeys(candidate.spec.slo for candidate in candidates)
    }

    def row(scaler: Scaler, spec: PoolSpec, *, is_towline: bool) -> Row:
        told = None if progress is None else lambda share: progress(scaler.name, share)
        slots = spec.concurrency
        result = simulate(workload, world, scaler, slo_seconds=spec.slo, slots=slots, seed=seed, progress=told)
        return Row(scaler.name, is_towline, result, yardsticks[spec.slo] if slots == 1 else None)

    def scaler(one: Candidate) -> Scaler:
        return PolicyScaler(
            one.spec,
            cores=world.cores,
            start_seconds=world.computed_start_seconds,
            begins_at=world.begins_at,
            name=one.name,
            state=one.state,
        )

    rows = [row(scaler(one), one.spec, is_towline=True) for one in candidates]
    for slo in yardsticks:
        spec = next(one.spec for one in candidates if one.spec.slo == slo)
        bounds = spec.workers
        told = told_of(workload, slo_seconds=slo, least=bounds.min, most=bounds.max, slots=spec.concurrency)
        rows += [row(RuleScaler(name, told), spec, is_towline=False) for name in rules]
    return rows

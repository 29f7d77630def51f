"""Find what an operator should know about a pool and why: it is late, at its max, or can't start workers. Pure."""

from collections.abc import Iterator
from typing import Final, Literal, get_args

from orchestrator.config.pools import PoolSpec
from orchestrator.samples import QueueSample
from orchestrator.scaling.decision import Decision
from orchestrator.supervisor.pool import Pool
from orchestrator.values import value

ConcernKind = Literal["late", "at_max", "no_starts"]
"""`late`: the oldest ready task is older than the slo. `at_max`: the pool wants more workers than `max`.
`no_starts`: its last start failed, or its runtime is unavailable.
"""

KINDS: Final[tuple[ConcernKind, ...]] = get_args(ConcernKind)
RECENT_SECONDS: Final = 600.0
"""A worker's failure is named as a cause of lateness for this long after it happened."""


@value
class Concern:
    """A pool's problem: its kinds, and the causes as one sentence."""

    kinds: tuple[ConcernKind, ...]
    why: str

    def record(self) -> dict[str, object]:
        """Return the concern as JSON values."""
        return {"kinds": list(self.kinds), "why": self.why}


def concern_of(pool: Pool) -> Concern | None:
    """Return the pool's problem as of its last sample and decision; None without one."""
    spec, sample, decision = pool.effective or pool.spec, pool.sample, pool.decision
    if spec is None or sample is None or decision is None:
        return None
    failures = pool.fleet.failed_starts(spec)
    outage = pool.outage.why if pool.outage is not None and decision.unguarded > decision.current else ""
    wrong: dict[ConcernKind, bool] = {
        "late": sample.oldest_seconds > spec.slo,
        "at_max": "max" in decision.limited_by,
        "no_starts": bool(failures or outage),
    }
    kinds = tuple([kind for kind in KINDS if wrong[kind]])
    if not kinds:
        return None
    causes = [*_causes(sample, decision, spec=spec), *_of_starts(decision, failures=failures, outage=outage)]
    failure = pool.last_failure
    if failure is not None and (failures or (wrong["late"] and sample.at - failure.at <= RECENT_SECONDS)):
        causes.append(f"last failure: {failure.why}")
    return Concern(kinds, "; ".join(causes))


def _causes(sample: QueueSample, decision: Decision, *, spec: PoolSpec) -> Iterator[str]:
    is_late = sample.oldest_seconds > spec.slo
    if is_late:
        yield f"a task has waited for {sample.oldest_seconds:.0f} s, the slo is {spec.slo:g} s"
    if sample.paused and "queue_paused" not in decision.limited_by:
        yield "the queue is paused"
    for limit in decision.limits:
        yield f"held back by {limit.guard}: {limit.why}"
    if decision.unguarded > decision.current:
        yield f"workers: {decision.current} of {decision.unguarded} wanted"
    elif is_late:
        yield f"workers: {decision.current}, by rule {decision.rule}: {decision.why}"


def _of_starts(decision: Decision, *, failures: int, outage: str) -> Iterator[str]:
    """Yield the problems with starts that no guard has named."""
    if failures and "crash_loop" not in decision.limited_by:
        yield "the last start failed" if failures == 1 else f"the last {failures} starts failed"
    if outage and "runtime_unavailable" not in decision.limited_by:
        yield outage

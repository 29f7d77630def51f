"""One turn of a pool's policy: learn from a sample, then decide."""

from orchestrator.clock import Monotonic
from orchestrator.config.pools import PoolSpec
from orchestrator.fleet.workers import Fleet
from orchestrator.samples import QueueSample
from orchestrator.scaling.context import context_of
from orchestrator.scaling.decision import DEFAULT_CONDITIONS, Conditions, Decision
from orchestrator.scaling.learning import PolicyState, learn
from orchestrator.scaling.policy import decide


def learn_and_decide(
    sample: QueueSample,
    *,
    fleet: Fleet,
    spec: PoolSpec,
    state: PolicyState,
    now: Monotonic,
    conditions: Conditions = DEFAULT_CONDITIONS,
) -> tuple[Decision, PolicyState]:
    """Return the decision and the state that remembers it, as a turn of a supervisor makes them."""
    learned = learn(state, sample, fleet=fleet, spec=spec, now=now)
    decision = decide(context_of(sample, fleet=fleet, spec=spec, state=learned, now=now, conditions=conditions))
    return decision, learned.after(decision)

"""One turn of a pool's policy: learn from a sample, then decide."""

from orchestrator.clock import Monotonic
from orchestrator.config import PoolSpec
from orchestrator.decision import NOTHING_SPECIAL, Conditions, Decision
from orchestrator.fleet import Fleet
from orchestrator.learning import PolicyState, learn
from orchestrator.metrics import QueueSample
from orchestrator.policy import decide
from orchestrator.scene import context_of


def learn_and_decide(
    sample: QueueSample,
    *,
    fleet: Fleet,
    spec: PoolSpec,
    state: PolicyState,
    now: Monotonic,
    conditions: Conditions = NOTHING_SPECIAL,
) -> tuple[Decision, PolicyState]:
    """Return the decision and the state that remembers it, as a turn of a supervisor makes them."""
    learned = learn(state, sample, fleet=fleet, spec=spec, now=now)
    decision = decide(context_of(sample, fleet=fleet, spec=spec, state=learned, now=now, conditions=conditions))
    return decision, learned.after(decision)

"""How many workers a pool should have, and why. Pure: no clock, no I/O, no log."""

from dataclasses import dataclass

from orchestrator.clock import Monotonic
from orchestrator.config import PoolSpec
from orchestrator.decision import Conditions, Decision
from orchestrator.fleet import Fleet
from orchestrator.metrics import QueueSample


@dataclass(frozen=True, slots=True)
class PolicyState:
    """What the policy carries from one decision to the next; a new pool begins with `PolicyState()`."""

    def to_json(self) -> dict[str, object]:
        """What is worth keeping across a restart, as plain values."""
        raise NotImplementedError

    @staticmethod
    def from_json(data: object) -> "PolicyState":
        """The state that `to_json` kept. Raises `ValueError` when `data` is anything else."""
        raise NotImplementedError


def decide(
    sample: QueueSample,
    *,
    fleet: Fleet,
    spec: PoolSpec,
    state: PolicyState,
    now: Monotonic,
    conditions: Conditions = Conditions(),  # noqa: B008  a frozen value
) -> tuple[Decision, PolicyState]:
    """Decide from a sample and the fleet that has observed it."""
    raise NotImplementedError

"""What a simulated pool is made of: its workers, their leases, and what happened since somebody asked."""

import math
from dataclasses import dataclass
from typing import Final

from orchestrator.clock import Monotonic
from orchestrator.samples import Outcome

NEVER: Final = math.inf


@dataclass(slots=True)
class SimulatedWorker:
    """One simulated worker. `up_at` is its first lease call; `used_at` the end of its last lease, if any."""

    name: str
    born_at: float
    used_at: float
    up_at: float | None = None
    is_leaving: bool = False
    leases: int = 0


@dataclass(slots=True)
class SimulatedLease:
    """A lease, held until `ended_at`. `at_a_time` counts the pool's leases when it began, itself included."""

    worker: SimulatedWorker
    task: int
    began_at: float
    waited_seconds: float
    number: int
    at_a_time: int
    ended_at: float = NEVER
    outcome: Outcome = "deleted"


@dataclass(frozen=True, slots=True)
class SimulatedExit:
    """A worker's end, as a runtime tells it (see `exits.Ended`)."""

    worker: str
    at: Monotonic
    code: int | None = 0
    signal: int | None = None
    out_of_memory: bool = False
    memory_limit_bytes: int | None = None
    memory_peak_bytes: int | None = None
    reason: str = ""
    is_stopped: bool = False


@dataclass(slots=True)
class SimulationEvents:
    """What happened since it was taken last."""

    arrivals: int
    finished: list[SimulatedLease]
    gone: list[SimulatedExit]

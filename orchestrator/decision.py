"""The record of one decision: how many workers a pool should have, by which rule, and from which numbers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from orchestrator.clock import Monotonic

Rule = Literal["deadline", "wake", "warm", "min", "hold", "idle", "paper"]
"""What set the target: a task's deadline, an empty pool with work, an slo shorter than a start, the lower bound,
nothing (hold), a worker idle for longer than pays, a smaller fleet that does on paper."""

Paused = Literal["no", "both", "up", "down"]
"""Which changes of size an operator has stopped."""

GuardName = Literal[
    "crash_loop", "max_step_up", "spawn_parallelism", "min", "max", "paused", "queue_paused", "stale_sample"
]


@dataclass(frozen=True, slots=True)
class Conditions:
    """What bears on a decision but is neither work, nor fleet, nor setting; `cores` are the host's."""

    paused: Paused = "no"
    cores: int = 2


NOTHING_SPECIAL: Final = Conditions()
"""Nothing paused, on a small host."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A guard that changed the target, and why in a few words."""

    guard: GuardName
    why: str


@dataclass(frozen=True, slots=True)
class Inputs:
    """The numbers a decision was made from.

    `busy`, `idle`, `starting` and `draining` count workers; rates are arrivals per second; `slack` is the share
    of the slo that is planned with and `usable_slo_seconds` what it leaves after one turn.
    """

    ready: int
    delayed: int
    in_flight: int
    dead: int
    busy: int
    idle: int
    starting: int
    draining: int
    service_seconds: float
    startup_seconds: float
    fast_rate: float
    slow_rate: float
    slack: float
    slo_seconds: float
    usable_slo_seconds: float
    sample_age_seconds: float


@dataclass(frozen=True, slots=True)
class Decision:
    """How many workers a pool should have now.

    `current` counts the workers that are neither draining nor about to be replaced; `unguarded` is the target
    before any guard spoke; `held` tells the hold of the level that an idle worker stands at, in seconds.
    """

    pool: str
    at: Monotonic
    current: int
    target: int
    rule: Rule
    why: str
    inputs: Inputs
    unguarded: int
    limits: tuple[Limit, ...] = ()
    held: Mapping[int, float] = field(default_factory=dict)

    @property
    def limited_by(self) -> tuple[GuardName, ...]:
        """The guards that changed the target, in the order in which they spoke."""
        return tuple(limit.guard for limit in self.limits)

    def record(self) -> dict[str, object]:
        """The decision as plain values, fit for a log line or JSON."""
        record: dict[str, object] = {
            "pool": self.pool,
            "current": self.current,
            "target": self.target,
            "rule": self.rule,
            "why": self.why,
            "limited_by": list(self.limited_by),
            "limits": [limit.why for limit in self.limits],
            "would_be_without_guards": self.unguarded,
            "held": {f"level {level}": round(seconds, 3) for level, seconds in self.held.items()},
        }
        for name in Inputs.__slots__:
            value = getattr(self.inputs, name)
            record[name] = round(value, 4) if isinstance(value, float) else value
        return record

"""The record of one decision: how many workers a pool should have, by which rule, and from which numbers."""

import math
from collections.abc import Mapping
from dataclasses import field, fields
from typing import Final, Literal

from orchestrator.capacity.allocation import MOST_AT_A_TIME, Allocation
from orchestrator.clock import Monotonic
from orchestrator.config.budget import Left
from orchestrator.config.overrides import Paused
from orchestrator.config.pools import PoolSpec
from orchestrator.scaling.deadline import HelperPool
from orchestrator.values import value

__all__ = ["DEFAULT_CONDITIONS", "Conditions", "Decision", "FinishBy", "GuardName", "Inputs", "Limit", "Paused", "Rule"]

Rule = Literal["deadline", "late", "saturated", "finish_by", "wake", "warm", "min", "fallback", "hold", "idle", "paper"]
"""What set the target: a task's deadline, tasks that are late, work that is much of what the largest fleet does, an
instant by which all is to be done, an empty pool with work, an slo shorter than a start, the lower bound, a queue that
can't be looked at, nothing (hold), a worker idle for longer than pays, a smaller fleet that does on paper."""

SPAWNS_PER_CORE: Final = 2
STARTED_WITHIN_SECONDS: Final = 1.0
"""As many starts at a time as the cores carry within this."""
_STARTED_WITHIN_SLO: Final = 0.2
"""The same as a share of the slo: starts that compete are slow, and learned as such they call for a warm reserve."""
_LEAST_START_SECONDS: Final = 0.01  # CPU time is told in hundredths of a second

_DAY_SECONDS: Final = 86_400
_ROUNDING: Final = 1e-6

GuardName = Literal[
    "crash_loop",
    "runtime_unavailable",
    "failing_work",
    "contention",
    "host_headroom",
    "budget",
    "max_step_up",
    "spawn_parallelism",
    "min",
    "max",
    "paused",
    "queue_paused",
    "stale_sample",
    "min_billing",
]


@value
class FinishBy:
    """An instant by which what waits is to be done: how far off it is, and what people call it.

    `at` is in seconds since the epoch; `utc_offset_seconds` is of the clock that people read there.
    """

    within_seconds: float
    at: float
    utc_offset_seconds: int = 0

    def clock(self, later_seconds: float = 0.0) -> str:
        """The instant, or one so much later, as HH:MM of that clock; a begun minute counts."""
        minutes = math.ceil((self.at + later_seconds + self.utc_offset_seconds) % _DAY_SECONDS / 60 - _ROUNDING)
        return f"{minutes // 60 % 24:02d}:{minutes % 60:02d}"


@value
class Conditions:
    """What bears on a decision but is neither work, nor fleet, nor setting.

    `cores` are the host's; `start_seconds` is the CPU time of one start, once that is known; `room` is what the host
    has left for this pool (None: not measured); `bounds_by` says who set the pool's bounds, where its settings'
    `workers` did not; `notes` are told with the decision; `runtime_trouble` is what keeps workers from being started,
    when that is not the pool's own fault; `helpers` are the other pools that take tasks of this one.
    """

    paused: Paused = "no"
    cores: int = 2
    start_seconds: float | None = None
    allocation: Allocation | None = None
    budget: Left = "left"
    bounds_by: str = ""
    finish_by: FinishBy | None = None
    notes: tuple[str, ...] = ()
    runtime_trouble: str = ""
    helpers: tuple[HelperPool, ...] = ()

    def starts_at_a_time(self, spec: PoolSpec) -> int:
        """How many workers may be starting at a time: two per core, or as many more as the cores start in a second."""
        if spec.spawn_parallelism is not None:
            return spec.spawn_parallelism
        least = SPAWNS_PER_CORE * self.cores
        if self.start_seconds is None:
            return least
        within = min(STARTED_WITHIN_SECONDS, _STARTED_WITHIN_SLO * spec.slo)
        return max(
            least, math.floor(min(MOST_AT_A_TIME, self.cores * within / max(self.start_seconds, _LEAST_START_SECONDS)))
        )


DEFAULT_CONDITIONS: Final = Conditions()
"""Nothing paused, on a small host."""


@value
class Limit:
    """A guard that changed the target, and why in a few words."""

    guard: GuardName
    why: str


@value
class Inputs:
    """The numbers a decision was made from.

    `busy`, `idle`, `starting` and `draining` count workers; `arrival_rate` is per second; `slack` is the share
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
    arrival_rate: float
    slack: float
    slo_seconds: float
    usable_slo_seconds: float
    sample_age_seconds: float


_INPUTS: Final = tuple(known.name for known in fields(Inputs))


@value
class Decision:
    """How many workers a pool should have now.

    `current` counts the workers that are neither draining nor about to be replaced; `unguarded` is the target
    before any guard spoke; `held` tells the hold of the level that an idle worker stands at, in seconds; `notes` say
    what else is in force.
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
    notes: tuple[str, ...] = ()

    @property
    def limited_by(self) -> tuple[GuardName, ...]:
        """The guards that changed the target, in the order in which they spoke."""
        return tuple([limit.guard for limit in self.limits])

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
            "notes": list(self.notes),
            "held": {f"level {level}": round(seconds, 3) for level, seconds in self.held.items()},
        }
        for name in _INPUTS:
            number = getattr(self.inputs, name)
            record[name] = round(number, 4) if isinstance(number, float) else number
        return record

"""The record of one decision: how many workers a pool should have, by which rule and from which numbers."""

import math
from collections.abc import Mapping
from dataclasses import field, fields
from typing import Final, Literal

from orchestrator.base.clock import Monotonic
from orchestrator.base.values import value
from orchestrator.capacity.allocation import MOST_AT_A_TIME, PRIOR_FORK_SECONDS, Allocation
from orchestrator.config.budget import Left
from orchestrator.config.overrides import Paused
from orchestrator.config.pools import PoolSpec
from orchestrator.scaling.deadline import HelperPool

__all__ = ["DEFAULT_CONDITIONS", "Conditions", "Decision", "FinishBy", "GuardName", "Inputs", "Limit", "Paused", "Rule"]

Rule = Literal[
    "deadline",
    "late",
    "saturated",
    "finish_by",
    "wake",
    "warm",
    "min",
    "fallback",
    "hold",
    "idle",
    "paper",
    "at_max",
    "misconfigured",
    "crash_loop",
    "runtime_unavailable",
    "quota",
    "max_pending",
    "failing_work",
    "contention",
    "queue_paused",
    "rate_limited",
    "host_headroom",
    "budget",
    "max_step_up",
    "spawn_parallelism",
    "paused",
    "stale_sample",
]
"""The rule that set the target.

`deadline`: a task's deadline; `late`: tasks that are late; `saturated`: work near what the largest fleet can do;
`finish_by`: an instant by which all work must be done; `wake`: an empty pool with work; `warm`: an slo shorter than a
start; `min`: the lower bound; `fallback`: no recent sample; `hold`: no change; `idle`: a worker idle for longer than it
pays; `paper`: a smaller fleet that meets the slo by the Erlang C estimate; `rate_limited`: an idle worker could lease
nothing, as limits of the queue or of its tags hold back all that waits.

A task waits longer than the slo, and no worker is added: `at_max`, as the pool has as many as `max`, or the name of the
guard that held it back (see `GuardName`).
"""

SPAWNS_PER_CORE: Final = 2
"""Workers per core that may start at a time in any case."""
STARTED_WITHIN_SECONDS: Final = 1.0
"""More workers may start at a time if the cores can start them all within this."""
_STARTED_WITHIN_SLO: Final = 0.2
"""The same as a share of the slo: competing starts are slow, and slow starts are learned and call for a reserve."""
_LEAST_START_SECONDS: Final = PRIOR_FORK_SECONDS  # CPU time is measured in hundredths of a second, so it may be 0

_DAY_SECONDS: Final = 86_400
_ROUNDING: Final = 1e-6

GuardName = Literal[
    "misconfigured",
    "crash_loop",
    "runtime_unavailable",
    "quota",
    "max_pending",
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
    "rate_limited",
    "stale_sample",
    "min_billing",
]


@value
class FinishBy:
    """An instant by which waiting work must be done.

    `within_seconds` is the time left, `at` is in seconds since the epoch, `utc_offset_seconds` is its local clock's.
    """

    within_seconds: float
    at: float
    utc_offset_seconds: int = 0

    def clock(self, later_seconds: float = 0.0) -> str:
        """Return the instant, or one `later_seconds` after it, as local HH:MM, rounded up to a minute."""
        minutes = math.ceil((self.at + later_seconds + self.utc_offset_seconds) % _DAY_SECONDS / 60 - _ROUNDING)
        return f"{minutes // 60 % 24:02d}:{minutes % 60:02d}"


@value
class Conditions:
    """The influences on a decision other than the work, the fleet and the settings.

    `cores` are the host's; `start_seconds` is the CPU time of the next start, once known; `allocation` is the pool's
    part of the host's free capacity (None: not measured); `bounds_by` says what set the pool's bounds, if not its
    settings' `workers`; `notes` are recorded with the decision; `runtime_trouble` is why the runtime can't start
    workers; `quota` is what its cluster says of a quota that is used up; `application_failure` is why no worker can use
    the pool's application; `helpers` are the other pools that take tasks of this one.
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
    quota: str = ""
    application_failure: str = ""
    helpers: tuple[HelperPool, ...] = ()

    def starts_at_a_time(self, spec: PoolSpec) -> int:
        """Return how many workers may start at a time: two per core, or as many as the cores start in a second."""
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
"""The conditions when nothing special applies: nothing paused, a small host."""


@value
class Limit:
    """A guard that changed the target, and why."""

    guard: GuardName
    why: str


@value
class Inputs:
    """The numbers a decision was made from.

    `held_back` counts tasks that limits keep from being leased, which `ready` does not. `busy`, `idle`, `starting` and
    `draining` count workers; `arrival_rate` is per second; `slack` is the share of the slo that is planned with, and
    `usable_slo_seconds` is that share less one turn; `forks`: the next worker is forked.
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
    forks: bool = False
    held_back: int = 0


_INPUTS: Final = tuple(known.name for known in fields(Inputs))


@value
class Decision:
    """The decision on how many workers a pool should have now.

    `current` counts the workers that are neither leaving nor about to be replaced; `unguarded` is the target before any
    guard changed it; `held` has, by the number of an idle worker in the fleet, the seconds that it is worth keeping;
    `notes` say what else applies. `trouble` is a sentence on tasks that wait longer than the slo, or on workers that a
    bound denies; "" when there are none. `is_late`: a task waits longer than the slo.
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
    trouble: str = ""
    is_late: bool = False

    @property
    def limited_by(self) -> tuple[GuardName, ...]:
        """The guards that changed the target, in order."""
        return tuple([limit.guard for limit in self.limits])

    def record(self) -> dict[str, object]:
        """Return the decision as plain values, for a log line or JSON."""
        record: dict[str, object] = {
            "pool": self.pool,
            "current": self.current,
            "target": self.target,
            "rule": self.rule,
            "why": self.why,
            "trouble": self.trouble,
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

"""What may hold a decision back, each by name and in a fixed order. Pure.

A guard sees a target and the facts, and gives another target with its reason, or None. New guards join `GUARDS`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from orchestrator.clock import Monotonic
from orchestrator.config import PoolSpec
from orchestrator.decision import Conditions, Limit
from orchestrator.fleet import Fleet, Worker
from orchestrator.metrics import QueueSample

STALE_TURNS: Final = 3.0
_SPAWNS_PER_CORE: Final = 2


@dataclass(frozen=True, slots=True)
class Facts:
    """All that a guard may look at; `alive` are the workers that count towards the pool's size."""

    sample: QueueSample
    fleet: Fleet
    alive: tuple[Worker, ...]
    spec: PoolSpec
    conditions: Conditions
    now: Monotonic

    @property
    def current(self) -> int:
        return len(self.alive)

    @property
    def starting(self) -> int:
        return sum(1 for w in self.alive if w.state == "starting")


Guard = Callable[[int, Facts], tuple[int, Limit] | None]


def crash_loop(target: int, facts: Facts) -> tuple[int, Limit] | None:
    """After starts that failed, wait 2, 4, 8 ... 60 s; then probe with one worker until it proves itself."""
    failures = facts.fleet.failed_starts(facts.spec)
    if not failures or target <= facts.current:
        return None
    crash = facts.fleet.crash
    said = "1 start failed" if failures == 1 else f"{failures} starts failed in a row"
    if facts.now < crash.retry_at:
        wait_seconds = crash.retry_at - facts.now
        return facts.current, Limit("crash_loop", f"{said}: the next in {wait_seconds:.1f} s")
    if any(w.spawned_at >= crash.failed_at and w.spec_digest == crash.spec_digest for w in facts.alive):
        return facts.current, Limit("crash_loop", f"{said}: a probe is under way")
    if target == facts.current + 1:
        return None
    return facts.current + 1, Limit("crash_loop", f"{said}: probing with one worker")


def max_step_up(target: int, facts: Facts) -> tuple[int, Limit] | None:
    """At most so many workers more by one decision."""
    step = facts.spec.max_step_up
    if step is None or target <= facts.current + step:
        return None
    return facts.current + step, Limit("max_step_up", f"max_step_up {step}")


def spawn_parallelism(target: int, facts: Facts) -> tuple[int, Limit] | None:
    """At most so many workers starting at a time: starts that compete for the cores are all late."""
    at_a_time = facts.spec.spawn_parallelism or _SPAWNS_PER_CORE * facts.conditions.cores
    room = max(0, at_a_time - facts.starting)
    if target <= facts.current + room:
        return None
    return facts.current + room, Limit("spawn_parallelism", f"{at_a_time} starting at a time")


def bounds(target: int, facts: Facts) -> tuple[int, Limit] | None:
    """Never above max; never shrink below min. Growth up to min is the policy's wish, which other guards may slow."""
    low, high = facts.spec.workers.min, facts.spec.workers.max
    if target > high:
        return high, Limit("max", f"max {high}")
    if target < min(low, facts.current):
        return min(low, facts.current), Limit("min", f"min {low}")
    return None


def queue_paused(target: int, facts: Facts) -> tuple[int, Limit] | None:
    """A paused queue grants no lease: more workers would only wait."""
    if not facts.sample.paused or target <= max(facts.current, facts.spec.workers.min):
        return None
    return max(facts.current, facts.spec.workers.min), Limit("queue_paused", "the queue is paused")


def paused(target: int, facts: Facts) -> tuple[int, Limit] | None:
    """An operator has stopped changes of size: all, upwards, or downwards."""
    stopped = facts.conditions.paused
    up = target > facts.current and stopped in {"both", "up"}
    down = target < facts.current and stopped in {"both", "down"}
    if not (up or down):
        return None
    return facts.current, Limit("paused", f"changes {'up' if up else 'down'} are paused")


def stale_sample(target: int, facts: Facts) -> tuple[int, Limit] | None:
    """Without a sample of the last three turns nothing is known: hold."""
    age_seconds = facts.now - facts.sample.at
    if target == facts.current or age_seconds <= STALE_TURNS * facts.spec.turn_seconds:
        return None
    return facts.current, Limit("stale_sample", f"the last sample is {age_seconds:.0f} s old")


GUARDS: Final[tuple[Guard, ...]] = (
    crash_loop,
    queue_paused,
    max_step_up,
    spawn_parallelism,
    bounds,
    paused,
    stale_sample,
)


def guarded(target: int, facts: Facts) -> tuple[int, tuple[Limit, ...]]:
    """The target after every guard has spoken, and those that changed it."""
    limits: list[Limit] = []
    for guard in GUARDS:
        answer = guard(target, facts)
        if answer is not None:
            target, limit = answer
            limits.append(limit)
    return target, tuple(limits)

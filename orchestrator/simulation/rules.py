"""Other systems' scaling rules, from their public documentation, for comparison. Pure.

Like its original, each rule sees only counts and returns a size. If its documentation tells an operator to work out the
mean service time, it gets the true one.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from orchestrator.simulation.pool import NEVER, SimulatedPool
from orchestrator.simulation.workload import Workload

Removal = Literal["idle", "drain", "kill"]
"""How workers are removed: only idle ones (`idle`), busy ones after their lease (`drain`), any (`kill`)."""

_ROUNDING: Final = 1e-6


@dataclass(frozen=True, slots=True)
class RuleObservation:
    """The counts that a rule may use; `workers` excludes leaving ones and includes `starting` ones."""

    at: float
    ready: int
    in_flight: int
    workers: int
    starting: int
    arrivals: int


@dataclass(frozen=True, slots=True)
class RuleSettings:
    """The settings that an operator would give a rule."""

    slo_seconds: float
    least: int
    most: int
    mean_service_seconds: float
    mean_load: float
    slots: int = 1


class ScalingRule(Protocol):
    """A rule that returns a size for the observed counts every `turn_seconds`."""

    turn_seconds: float
    removal: Removal
    grace_seconds: float

    def size(self, counts: RuleObservation) -> int: ...


@dataclass(slots=True)
class Fixed:
    """A fixed size: for the mean load at 60 % utilisation."""

    settings: RuleSettings
    turn_seconds: float = 60.0
    removal: Removal = "idle"
    grace_seconds: float = NEVER

    def size(self, counts: RuleObservation) -> int:  # noqa: ARG002  the size is fixed
        """See `ScalingRule.size`."""
        return max(1, math.ceil(self.settings.mean_load / (0.6 * self.settings.slots)))


@dataclass(slots=True)
class OnePerTask:
    """One worker for each task that waits or runs; idle ones go at the next turn, 5 s later at most."""

    settings: RuleSettings
    turn_seconds: float = 5.0
    removal: Removal = "idle"
    grace_seconds: float = NEVER

    def size(self, counts: RuleObservation) -> int:
        """See `ScalingRule.size`."""
        return math.ceil((counts.ready + counts.in_flight) / self.settings.slots)


@dataclass(slots=True)
class HorizontalPodAutoscaler:
    """KEDA with the autoscaler of Kubernetes and their defaults: five tasks, waiting or running, per worker.

    KEDA decides between none and one, by its polling interval and cooldown. Above, the autoscaler decides every 15 s:
    tasks by target, rounded up, with a tolerance of 10 %; up by at most 4 or to double per 15 s; down to the highest
    size wanted within the stabilisation window. Any pod may be removed, and is killed after 30 s.
    """

    settings: RuleSettings
    turn_seconds: float = 15.0
    removal: Removal = "kill"
    grace_seconds: float = 30.0
    target: float = 5.0
    poll_seconds: float = 30.0
    cooldown_seconds: float = 300.0
    window_seconds: float = 300.0
    wanted: deque[tuple[float, int]] = field(default_factory=deque)
    added: deque[tuple[float, int]] = field(default_factory=deque)
    polled_at: float = -NEVER
    active_at: float = NEVER

    def size(self, counts: RuleObservation) -> int:
        """See `ScalingRule.size`."""
        tasks = counts.ready + counts.in_flight
        if counts.at >= self.polled_at + self.poll_seconds - _ROUNDING:
            self.polled_at = counts.at
            if tasks:
                self.active_at = counts.at
                if not counts.workers:
                    self.wanted.clear()
                    self.added.clear()
                    return max(1, self.settings.least)
            elif counts.workers and not self.settings.least and counts.at - self.active_at > self.cooldown_seconds:
                self.wanted.clear()
                return 0
        return self._clamped_target(tasks, counts) if counts.workers else 0

    def _clamped_target(self, tasks: int, counts: RuleObservation) -> int:
        wanted = counts.workers
        if abs(tasks / (self.target * counts.workers) - 1.0) > 0.1:
            wanted = math.ceil(tasks / self.target)
        wanted = min(self.settings.most, max(1, self.settings.least, wanted))
        self.wanted.append((counts.at, wanted))
        while self.wanted[0][0] < counts.at - self.window_seconds:
            self.wanted.popleft()
        if wanted <= counts.workers:
            return min(counts.workers, max(size for _, size in self.wanted))
        while self.added and self.added[0][0] <= counts.at - 15.0:
            self.added.popleft()
        before = counts.workers - sum(count for _, count in self.added)
        wanted = min(wanted, max(before + 4, 2 * before))
        if wanted > counts.workers:
            self.added.append((counts.at, wanted - counts.workers))
        return wanted


def tuned_autoscaler(settings: RuleSettings) -> HorizontalPodAutoscaler:
    """Return the same, tuned with the mean service time: its target is what a worker does in half the slo.

    It decides every 5 s, has a window and a cooldown of a minute, and pods may finish their tasks.
    """
    target = max(1.0, settings.slots * (1.0 + 0.5 * settings.slo_seconds / settings.mean_service_seconds))
    return HorizontalPodAutoscaler(
        settings,
        turn_seconds=5.0,
        removal="drain",
        grace_seconds=NEVER,
        target=target,
        poll_seconds=5.0,
        cooldown_seconds=60.0,
        window_seconds=60.0,
    )


@dataclass(slots=True)
class CeleryAutoscale:
    """Celery's `--autoscale=max,min`: as many processes as there are reserved tasks, at once.

    A worker reserves four tasks per process of its max. It shrinks from 30 s after it last grew, when a message comes
    or every half a minute, and never below one process.
    """

    settings: RuleSettings
    turn_seconds: float = 1.0
    removal: Removal = "idle"
    grace_seconds: float = NEVER
    grew_at: float = NEVER
    turns: int = 0

    def size(self, counts: RuleObservation) -> int:
        """See `ScalingRule.size`."""
        self.turns += 1
        least = max(1, self.settings.least)
        reserved = min(counts.ready + counts.in_flight, 4 * self.settings.most)
        needed = max(least, min(self.settings.most, reserved))
        if needed > counts.workers:
            self.grew_at = counts.at
            return needed
        is_due = counts.arrivals or self.turns % 30 == 0
        return needed if is_due and counts.at - self.grew_at > 30.0 else counts.workers


@dataclass(slots=True)
class TargetTracking:
    """Amazon's target tracking on the backlog per worker; the target is slo by mean service time, checked every minute.

    It scales out after three minutes above the target, in after fifteen below nine tenths of it, and keeps one worker,
    as the metric is undefined without. Workers are killed after 30 s.
    """

    settings: RuleSettings
    turn_seconds: float = 60.0
    removal: Removal = "kill"
    grace_seconds: float = 30.0
    above: int = 0
    below: int = 0

    def size(self, counts: RuleObservation) -> int:
        """See `ScalingRule.size`."""
        least = max(1, self.settings.least)
        if counts.workers < least:
            return least
        target = max(1.0, self.settings.slots * self.settings.slo_seconds / self.settings.mean_service_seconds)
        running = max(1, counts.workers - counts.starting)
        backlog = counts.ready / running
        self.above = self.above + 1 if backlog > target else 0
        self.below = self.below + 1 if backlog < 0.9 * target else 0
        if self.above >= 3:
            return max(counts.workers, math.ceil(running * backlog / target))
        if self.below < 15:
            return counts.workers
        self.below = 0
        wanted = math.ceil(counts.workers * max(backlog, 0.01) / target)
        return max(least, min(counts.workers - 1, wanted), counts.workers // 2)


RULES: Final[Mapping[str, Callable[[RuleSettings], ScalingRule]]] = {
    "fixed": Fixed,
    "one-per-task": OnePerTask,
    "keda-hpa": HorizontalPodAutoscaler,
    "keda-hpa-tuned": tuned_autoscaler,
    "celery": CeleryAutoscale,
    "target-tracking": TargetTracking,
}
"""The rules by name."""


def rule_settings(workload: Workload, *, slo_seconds: float, least: int, most: int, slots: int) -> RuleSettings:
    """Return the settings that an operator would derive from a workload."""
    hours_seconds = max(1.0, workload.last_at)
    return RuleSettings(
        slo_seconds,
        least,
        most,
        max(_ROUNDING, workload.mean_service_seconds),
        workload.work_seconds / hours_seconds,
        slots,
    )


class RuleScaler:
    """A `Scaler` that follows a rule within the pool's bounds, at the rule's own pace: it is never woken."""

    wakes: Final = False
    ahead_seconds: Final = 0.0

    def __init__(self, name: str, settings: RuleSettings) -> None:
        """Raises `KeyError` for a name that is not in `RULES`."""
        self.name = name
        self._rule = RULES[name](settings)
        self._settings = settings
        self.turn_seconds = self._rule.turn_seconds
        self.recent_first = name == "one-per-task"

    def turn(self, pool: SimulatedPool) -> int:
        """See `Scaler.turn`."""
        arrivals = pool.take_events().arrivals
        counts = RuleObservation(pool.now, len(pool.ready), len(pool.leases), pool.staying, pool.starting, arrivals)
        size = max(self._settings.least, min(self._settings.most, self._rule.size(counts)))
        if size > counts.workers:
            pool.spawn(size - counts.workers)
            return 1
        leaving = self._leaving(pool, counts.workers - size)
        for name in leaving:
            pool.leave(name, grace_seconds=self._rule.grace_seconds)
        return -1 if leaving else 0

    def is_settled(self, pool: SimulatedPool) -> bool:
        """See `Scaler.is_settled`: rules count their turns, so only those of an empty pool may be skipped."""
        return not (pool.workers or pool.ready or pool.leases)

    def _leaving(self, pool: SimulatedPool, surplus: int) -> list[str]:
        if surplus <= 0:
            return []
        staying = [w for w in pool.workers.values() if not w.is_leaving]
        idle = sorted((w for w in staying if w.up_at is not None and not w.leases), key=lambda w: w.used_at)
        if self._rule.removal == "idle":
            return [w.name for w in idle[:surplus]]
        starting = [w for w in staying if w.up_at is None]
        if self._rule.removal == "drain":
            order = [*idle, *starting, *(w for w in staying if w.leases)]
        else:
            rest = [w for w in staying if w.up_at is not None]
            pool.rng.shuffle(rest)
            order = [*starting, *rest]
        return [w.name for w in order[:surplus]]

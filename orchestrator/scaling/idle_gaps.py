"""Learn from idle gaps how long a spare worker is worth keeping, for each level of the fleet. Pure.

Level n is the fleet's n-th worker. Ski rental: holding costs a worker-second each second, letting go costs one restart.
"""

import math
import sys
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import field
from itertools import pairwise
from typing import Final

from orchestrator.base.clock import Monotonic
from orchestrator.base.values import value

EDGES_SECONDS: Final = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0)
_TYPICAL_SECONDS: Final = (
    0.5,
    *(math.sqrt(low * high) for low, high in pairwise(EDGES_SECONDS)),
    2.0 * EDGES_SECONDS[-1],
)
_BUCKETS: Final = len(_TYPICAL_SECONDS)
_DECAY: Final = 0.97  # weight that older gaps keep per gap
_PAUSE_IN_TURNS: Final = 1.5  # turns without need that make a gap
_MAX_LEVELS: Final = 10_000

Histogram = tuple[float, ...]


@value
class IdleGaps:
    """The idle gaps of each level: how long it was not needed before it was needed again.

    `by_level` has a decayed histogram over `EDGES_SECONDS` for each level that had a gap; `last_needed_at[n - 1]` is
    when level n was last needed, never later than a lower level.
    """

    by_level: Mapping[int, Histogram] = field(default_factory=dict)
    last_needed_at: tuple[Monotonic, ...] = ()

    def after(self, needed: int, *, at: Monotonic, turn_seconds: float) -> "IdleGaps":
        """Learn that a fleet of `needed` workers was needed in the turn that ended `at`."""
        if needed == 0:
            return self
        paused: dict[int, Histogram] = {}
        level = min(needed, len(self.last_needed_at))
        while level and at - self.last_needed_at[level - 1] > _PAUSE_IN_TURNS * turn_seconds:
            paused[level] = _add_gap(self.by_level.get(level), at - self.last_needed_at[level - 1])
            level -= 1
        by_level = {**self.by_level, **paused} if paused else self.by_level
        return IdleGaps(by_level, (at,) * min(needed, _MAX_LEVELS) + self.last_needed_at[needed:])

    def needed_at(self, level: int) -> Monotonic | None:
        """Return when the level was last needed; None if never, as far as is known."""
        return self.last_needed_at[level - 1] if level <= len(self.last_needed_at) else None

    def hold_seconds(self, level: int, *, restart_seconds: float) -> float:
        """Return how long a worker at `level` may be spare before it costs more than a restart, on average.

        Without a gap that is as long as a restart costs, which is never worse than twice the optimum.
        """
        histogram = self.by_level.get(level)
        if histogram is None:
            return restart_seconds
        # Two imagined gaps around the restart's cost keep one odd gap from deciding.
        near = bisect_left(EDGES_SECONDS, restart_seconds)
        below, above = max(0, near - 1), min(_BUCKETS - 1, near + 1)
        weights = list(histogram)
        weights[below] += 1.0
        weights[above] += 1.0
        longer, waited = math.fsum(weights), 0.0
        best_cost, best = longer * restart_seconds, 0.0
        for hold, weight, typical in zip(EDGES_SECONDS, weights, _TYPICAL_SECONDS, strict=False):
            longer = max(0.0, longer - weight)  # rounding must not make a longer hold look cheaper
            waited += weight * typical
            cost = waited + longer * (hold + restart_seconds)
            if cost < best_cost:
                best_cost, best = cost, hold
        return best

    def to_json(self) -> dict[str, list[float]]:
        """Return the histograms by level, as plain values."""
        return {str(level): [round(w, 6) for w in weights] for level, weights in self.by_level.items()}

    @staticmethod
    def from_json(data: object) -> "IdleGaps":
        """Read what `to_json` returned. Raises `ValueError` for anything else."""
        if not isinstance(data, Mapping):
            raise ValueError(f"gaps must be a mapping: {data!r}")  # noqa: TRY004  callers handle one class of error
        return IdleGaps({_level(key): _histogram(weights) for key, weights in data.items()})


def _add_gap(histogram: Histogram | None, seconds: float) -> Histogram:
    weights = [w * _DECAY for w in histogram] if histogram else [0.0] * _BUCKETS
    weights[bisect_left(EDGES_SECONDS, seconds)] += 1.0
    return tuple(weights)


def _level(key: object) -> int:
    if not isinstance(key, str) or not key.isdecimal():
        raise ValueError(f"a level must be a number: {key!r}")
    return int(key)


def _histogram(weights: object) -> Histogram:
    if not isinstance(weights, list) or len(weights) != _BUCKETS:
        raise ValueError(f"a level's gaps must be {_BUCKETS} numbers: {weights!r}")
    if not all(isinstance(w, int | float) and 0 <= w <= sys.float_info.max for w in weights):
        raise ValueError(f"a level's gaps must be numbers, 0 or more: {weights!r}")
    return tuple(map(float, weights))

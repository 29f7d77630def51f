"""How much longer a lease will run, given how long it has: from the durations seen lately. Pure.

Of heavy-tailed work the longest leases are the least likely to end soon, of even work the most: a mean says neither.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Final

_RATIO: Final = math.sqrt(2.0)
_FIRST_SECONDS: Final = 0.01
_BUCKETS: Final = 56
EDGES_SECONDS: Final = (0.0, *(_FIRST_SECONDS * _RATIO**k for k in range(_BUCKETS - 1)))
"""Bucket k holds durations from edge k to the next; the last one is open, from 22 days on."""

_KEEP_PER_LEASE: Final = 0.5 ** (1 / 200)
_PRIOR_LEASES: Final = 5.0
_PRIOR_SHAPE: Final = 3.0
_REMEMBERED: Final = 512


@dataclass(frozen=True, slots=True)
class Durations:
    """A histogram of finished leases' durations over `EDGES_SECONDS`; half-life 200 leases."""

    weights: tuple[float, ...] = (0.0,) * _BUCKETS

    def after(self, held_seconds: Sequence[float]) -> "Durations":
        """Learn from leases that finished."""
        if not held_seconds:
            return self
        known = len(held_seconds)
        keep = _KEEP_PER_LEASE**known
        each = (1.0 - keep) / (1.0 - _KEEP_PER_LEASE) / known
        weights = [weight * keep for weight in self.weights]
        for seconds in held_seconds:
            weights[bisect_right(EDGES_SECONDS, seconds) - 1] += each
        return Durations(tuple(weights))

    def remaining(self, mean_seconds: float) -> "Remaining":
        """What these durations say of running leases, together with a guess that they have this mean."""
        return _remaining(self.weights, mean_seconds)

    def to_json(self) -> dict[str, float]:
        """The buckets that hold anything, as plain values."""
        return {str(bucket): round(weight, 4) for bucket, weight in enumerate(self.weights) if weight >= 0.0001}

    @staticmethod
    def from_json(data: object) -> "Durations":
        """What `to_json` gave. Raises `ValueError` for anything else."""
        if not isinstance(data, Mapping):
            raise ValueError(f"durations must be a mapping: {data!r}")  # noqa: TRY004  one class of error for callers
        weights = [0.0] * _BUCKETS
        for bucket, weight in data.items():
            if not (isinstance(bucket, str) and bucket.isdecimal() and int(bucket) < _BUCKETS):
                raise ValueError(f"a bucket of durations must be in [0, {_BUCKETS - 1}]: {bucket!r}")
            if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight < math.inf:
                raise ValueError(f"a weight of durations must be a number, 0 or more: {weight!r}")
            weights[int(bucket)] = float(weight)
        return Durations(tuple(weights))


@dataclass(frozen=True, slots=True)
class Remaining:
    """The share of leases over by each of `EDGES_SECONDS`, and the integral of that share up to there."""

    mean_seconds: float
    shares: tuple[float, ...]
    integrals: tuple[float, ...]

    def turns(self, held_seconds: float, within_seconds: float) -> float:
        """Leases that may begin on a slot within that time, when its present lease has run for `held_seconds`.

        The present lease's end counts one, and what is left of the time then one per mean duration.
        """
        now, integral_now = self._at(held_seconds)
        then, integral_then = self._at(held_seconds + within_seconds)
        left = 1.0 - now
        if left <= 1e-12:
            return within_seconds / self.mean_seconds
        spare_seconds = (integral_then - integral_now - within_seconds * now) / left
        return (then - now) / left + max(0.0, spare_seconds) / self.mean_seconds

    def _at(self, seconds: float) -> tuple[float, float]:
        """The share of leases over by then, and its integral."""
        bucket = bisect_right(EDGES_SECONDS, seconds) - 1
        low, share = EDGES_SECONDS[bucket], self.shares[bucket]
        if bucket + 1 < _BUCKETS:
            high = EDGES_SECONDS[bucket + 1]
            share += (self.shares[bucket + 1] - share) * (seconds - low) / (high - low)
        return share, self.integrals[bucket] + (self.shares[bucket] + share) / 2 * (seconds - low)


@lru_cache(maxsize=_REMEMBERED)
def _remaining(weights: tuple[float, ...], mean_seconds: float) -> Remaining:
    """A pool at rest asks for the same turn by turn."""
    total = math.fsum(weights) + _PRIOR_LEASES
    seen = accumulate(weights, initial=0.0)
    shares = tuple(
        [
            (below + _PRIOR_LEASES * _prior(edge, mean_seconds)) / total
            for below, edge in zip(seen, EDGES_SECONDS, strict=False)
        ]
    )
    return Remaining(mean_seconds, shares, tuple(_integral(shares)))


def _prior(seconds: float, mean_seconds: float) -> float:
    """The share over by then of a heavy-tailed guess (Lomax): what has lasted long is expected to last longer."""
    scale = mean_seconds * (_PRIOR_SHAPE - 1.0)
    beyond: float = (1.0 + seconds / scale) ** _PRIOR_SHAPE
    return 1.0 - 1.0 / beyond


def _integral(shares: Sequence[float]) -> list[float]:
    total = [0.0]
    for bucket in range(1, _BUCKETS):
        width = EDGES_SECONDS[bucket] - EDGES_SECONDS[bucket - 1]
        total.append(total[-1] + (shares[bucket - 1] + shares[bucket]) / 2 * width)
    return total


def grouped(held_seconds: Sequence[float]) -> list[tuple[float, int]]:
    """Running leases by the bucket their present duration is in: its mean there, and how many."""
    groups: dict[int, list[float]] = {}
    for seconds in held_seconds:
        groups.setdefault(bisect_right(EDGES_SECONDS, max(0.0, seconds)) - 1, []).append(max(0.0, seconds))
    return [(math.fsum(group) / len(group), len(group)) for group in groups.values()]

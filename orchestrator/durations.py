"""How much longer a lease will run, given how long it has: from the durations seen lately. Pure.

Of heavy-tailed work the longest leases are the least likely to end soon, of even work the most: a mean says neither.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Final

from orchestrator.value import value

_RATIO: Final = math.sqrt(2.0)
_FIRST_SECONDS: Final = 0.01
_BUCKETS: Final = 56
EDGES_SECONDS: Final = (0.0, *(_FIRST_SECONDS * _RATIO**k for k in range(_BUCKETS - 1)))
"""Bucket k holds durations from edge k to the next; the last one is open, from 22 days on."""
_WIDTHS_SECONDS: Final = tuple([high - low for low, high in pairwise(EDGES_SECONDS)])

_KEEP_PER_LEASE: Final = 0.5 ** (1 / 200)
_PRIOR_LEASES: Final = 5.0
_PRIOR_SHAPE: Final = 3
_REMEMBERED: Final = 8


@value
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

    def remaining(self, mean_seconds: float, *, until_seconds: float = math.inf) -> "Remaining":
        """What these durations say of running leases, together with a guess that they have this mean.

        What it will be asked about durations up to `until_seconds` is worked out at once.
        """
        return _remaining(self.weights, mean_seconds, bisect_right(EDGES_SECONDS, until_seconds) + 1)

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


@value
class Remaining:
    """The share of leases over by each of `EDGES_SECONDS`, or by the first of them, and its integral up to there.

    `weights` are those of the durations seen.
    """

    mean_seconds: float
    weights: tuple[float, ...]
    shares: tuple[float, ...]
    integrals: tuple[float, ...]

    def turns(self, held_seconds: float, within_seconds: float) -> float:
        """Leases that may begin on a slot within that time, when its present lease has run for `held_seconds`.

        The present lease's end counts one, and what is left of the time then one per mean duration.
        """
        now, integral_now = self.over_by(held_seconds)
        then, integral_then = self.over_by(held_seconds + within_seconds)
        left = 1.0 - now
        if left <= 1e-12:
            return within_seconds / self.mean_seconds
        begun = (then - now) / left
        spare_seconds = (integral_then - integral_now - within_seconds * now) / left
        return begun + spare_seconds / self.mean_seconds if spare_seconds > 0.0 else begun

    def over_by(self, seconds: float) -> tuple[float, float]:
        """The share of leases over by then, and its integral."""
        shares, above = self.shares, bisect_right(EDGES_SECONDS, seconds)
        bucket = above - 1
        beyond = seconds - EDGES_SECONDS[bucket]
        if above < len(shares):
            low = share = shares[bucket]
            share += (shares[above] - low) * beyond / _WIDTHS_SECONDS[bucket]
            return share, self.integrals[bucket] + (low + share) / 2 * beyond
        if len(shares) < _BUCKETS:
            return _whole(self.weights, self.mean_seconds).over_by(seconds)
        share = shares[-1]
        return share, self.integrals[-1] + (share + share) / 2 * beyond


def _remaining(weights: tuple[float, ...], mean_seconds: float, edges: int) -> Remaining:
    """For so many edges, to the leases seen it adds a heavy-tailed guess (Lomax): what has lasted long lasts longer."""
    total = math.fsum(weights) + _PRIOR_LEASES
    scale = mean_seconds * (_PRIOR_SHAPE - 1.0)
    shares = []
    for below, edge in zip(accumulate(weights[: edges - 1], initial=0.0), EDGES_SECONDS, strict=False):
        longer = scale / (scale + edge)
        shares.append((below + _PRIOR_LEASES * (1.0 - longer * longer * longer)) / total)
    areas = [(low + high) / 2 * width for low, high, width in zip(shares, shares[1:], _WIDTHS_SECONDS, strict=False)]
    return Remaining(mean_seconds, weights, tuple(shares), tuple(accumulate(areas, initial=0.0)))


@lru_cache(maxsize=_REMEMBERED)
def _whole(weights: tuple[float, ...], mean_seconds: float) -> Remaining:
    """Whoever asks about long times asks again."""
    return _remaining(weights, mean_seconds, _BUCKETS)


def grouped(held_seconds: Sequence[float]) -> list[tuple[float, int]]:
    """Running leases by the bucket their present duration is in: its mean there, and how many."""
    groups: dict[int, list[float]] = {}
    for held in held_seconds:
        seconds = max(0.0, held)
        bucket = bisect_right(EDGES_SECONDS, seconds)
        if bucket in groups:
            groups[bucket].append(seconds)
        else:
            groups[bucket] = [seconds]
    return [(math.fsum(group) / len(group), len(group)) for group in groups.values()]

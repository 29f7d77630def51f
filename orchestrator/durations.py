"""How much longer a lease will run, given how long it has: from the durations seen lately. Pure.

Of heavy-tailed work the longest leases are the least likely to end soon, of even work the most: a mean says neither.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, islice, pairwise, repeat
from operator import add, mul
from typing import Final

from orchestrator.value import value

_RATIO: Final = math.sqrt(2.0)
_FIRST_SECONDS: Final = 0.01
_BUCKETS: Final = 56
EDGES_SECONDS: Final = (0.0, *(_FIRST_SECONDS * _RATIO**k for k in range(_BUCKETS - 1)))
"""Bucket k holds durations from edge k to the next; the last one is open, from 22 days on."""
_WIDTHS_SECONDS: Final = (*(high - low for low, high in pairwise(EDGES_SECONDS)), math.inf)
_HALF_WIDTHS_SECONDS: Final = tuple([width / 2 for width in _WIDTHS_SECONDS])

_KEEP_PER_LEASE: Final = 0.5 ** (1 / 200)
_PRIOR_LEASES: Final = 5.0
_PRIOR_SHAPE: Final = 3
_PRIOR_ROOT: Final = _PRIOR_LEASES ** (1 / _PRIOR_SHAPE)
_REMEMBERED: Final = 8
_NONE: Final = (0.0,) * _BUCKETS


@value
class Durations:
    """A histogram of finished leases' durations over `EDGES_SECONDS`, up to the longest seen; half-life 200 leases."""

    weights: tuple[float, ...] = ()

    def after(self, held_seconds: Sequence[float]) -> "Durations":
        """Learn from leases that finished."""
        if not held_seconds:
            return self
        known = len(held_seconds)
        keep = _KEEP_PER_LEASE**known
        each = (1.0 - keep) / (1.0 - _KEEP_PER_LEASE) / known
        weights = list(map(mul, self.weights, repeat(keep)))
        for seconds in held_seconds:
            above = bisect_right(EDGES_SECONDS, seconds) or 1
            if above > len(weights):
                weights += (0.0,) * (above - len(weights))
            weights[above - 1] += each
        return Durations(tuple(weights))

    def remaining(
        self, mean_seconds: float, *, from_seconds: float = 0.0, until_seconds: float = math.inf
    ) -> "Remaining":
        """What these durations say of running leases, together with a guess that they have this mean.

        What it will be asked about durations between the two, neither below 0, is worked out at once.
        """
        first = bisect_right(EDGES_SECONDS, from_seconds) - 1
        return _remaining(self.weights, mean_seconds, first, bisect_right(EDGES_SECONDS, until_seconds) + 1)

    def to_json(self) -> dict[str, float]:
        """The buckets that hold anything, as plain values."""
        return {str(bucket): round(weight, 4) for bucket, weight in enumerate(self.weights) if weight >= 0.0001}

    @staticmethod
    def from_json(data: object) -> "Durations":
        """What `to_json` gave. Raises `ValueError` for anything else."""
        if not isinstance(data, Mapping):
            raise ValueError(f"durations must be a mapping: {data!r}")  # noqa: TRY004  one class of error for callers
        weights: dict[int, float] = {}
        for bucket, weight in data.items():
            if not (isinstance(bucket, str) and bucket.isdecimal() and int(bucket) < _BUCKETS):
                raise ValueError(f"a bucket of durations must be in [0, {_BUCKETS - 1}]: {bucket!r}")
            if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight < math.inf:
                raise ValueError(f"a weight of durations must be a number, 0 or more: {weight!r}")
            weights[int(bucket)] = float(weight)
        return Durations(tuple([weights.get(bucket, 0.0) for bucket in range(max(weights, default=-1) + 1)]))


@value
class Remaining:
    """How many of so many `leases` are over by each of some `EDGES_SECONDS`, from number `first` on, and its integral
    from there on.

    `weights` are those of the durations seen.
    """

    mean_seconds: float
    weights: tuple[float, ...]
    leases: float
    first: int
    over: tuple[float, ...]
    integrals: tuple[float, ...]

    @property
    def whole(self) -> "Remaining":
        """The same for any time: for many looks at long ones."""
        return _whole(self.weights, self.mean_seconds)

    def begun(
        self,
        running: Iterable[tuple[float, int]],
        within_seconds: float,
        *,
        beside: float = 0.0,
        enough: float = math.inf,
    ) -> float:
        """Leases that may begin within that time, `beside` others: for each time run so far, on so many slots.

        The present lease's end counts one, and what is left of the time then one per mean duration. Where there are
        `enough` it counts no further.
        """
        # The two looks into the table are written out: a decision takes a dozen of them.
        begun, mean_seconds, first = beside, self.mean_seconds, self.first
        leases, over, integrals = self.leases, self.over, self.integrals
        for held_seconds, slots in running:
            if begun >= enough:
                break
            until_seconds = held_seconds + within_seconds
            bucket, then_in = bisect_right(EDGES_SECONDS, held_seconds) - 1, bisect_right(EDGES_SECONDS, until_seconds)
            if bucket < first or then_in - first >= len(over):
                begun = _whole(self.weights, mean_seconds).begun(((held_seconds, slots),), within_seconds, beside=begun)
                continue
            at, beyond = bucket - first, held_seconds - EDGES_SECONDS[bucket]
            low = over[at]
            now = low + (over[at + 1] - low) * beyond / _WIDTHS_SECONDS[bucket]
            integral_now = integrals[at] + (low + now) / 2 * beyond
            bucket = then_in - 1
            at, beyond = bucket - first, until_seconds - EDGES_SECONDS[bucket]
            low = over[at]
            then = low + (over[at + 1] - low) * beyond / _WIDTHS_SECONDS[bucket]
            left = leases - now
            if left <= 1e-12 * leases:
                begun += slots * (within_seconds / mean_seconds)
                continue
            spare_seconds = integrals[at] + (low + then) / 2 * beyond - integral_now - within_seconds * now
            turns = then - now + spare_seconds / mean_seconds if spare_seconds > 0.0 else then - now
            begun += slots * turns / left
        return begun


def _remaining(weights: tuple[float, ...], mean_seconds: float, first: int, last: int) -> Remaining:
    """For the edges from `first` to before `last`; the one after the last of all has the same share as that.

    To the leases seen it adds a heavy-tailed guess (Lomax): what has lasted long lasts longer.
    """
    leases = math.fsum(weights) + _PRIOR_LEASES
    scale = mean_seconds * (_PRIOR_SHAPE - 1.0)
    heavy = scale * _PRIOR_ROOT
    seen = weights[first : last - 1]
    seen += _NONE[: last - 1 - first - len(seen)]
    ended = accumulate(seen, initial=sum(weights[:first]) + _PRIOR_LEASES)
    over = [
        known - (longer := heavy / (scale + edge)) * longer * longer
        for known, edge in zip(ended, EDGES_SECONDS[first:last], strict=False)
    ]
    areas = map(mul, map(add, over, islice(over, 1, None)), _HALF_WIDTHS_SECONDS[first:last])
    integrals = tuple(accumulate(areas, initial=0.0))
    if last > _BUCKETS:
        over.append(over[-1])
    return Remaining(mean_seconds, weights, leases, first, tuple(over), integrals)


@lru_cache(maxsize=_REMEMBERED)
def _whole(weights: tuple[float, ...], mean_seconds: float) -> Remaining:
    """Whoever asks about long times asks again."""
    return _remaining(weights, mean_seconds, 0, _BUCKETS + 1)


def grouped(held_seconds: Sequence[float]) -> list[tuple[float, int]]:
    """Running leases by the bucket their present duration is in: its mean there, and how many."""
    groups: dict[int, list[float]] = {}
    for held in held_seconds:
        seconds = max(0.0, held)  # a lease granted by a clock that is ahead
        bucket = bisect_right(EDGES_SECONDS, seconds)
        if bucket in groups:
            groups[bucket].append(seconds)
        else:
            groups[bucket] = [seconds]
    return [(math.fsum(group) / len(group), len(group)) for group in groups.values()]

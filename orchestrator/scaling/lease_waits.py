"""Count how long the tasks of a pool waited for their leases, in slos: in all, and over the last hour. Pure.

Memory is bounded: fixed buckets for the total, and slots of ten minutes with levels a tenth apart for the last hour.
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from orchestrator.base.clock import Monotonic
from orchestrator.base.samples import QueueSample
from orchestrator.base.values import value

BUCKETS: Final = (0.25, 0.5, 1.0, 1.5, 3.0, 10.0, 30.0, 100.0)
"""Upper bounds of the buckets of the total, in slos."""
SLOT_SECONDS: Final = 600.0
SLOTS: Final = 6
"""Complete slots that are kept besides the current one: an hour."""
_STEP: Final = 1.1
"""Ratio between two levels: the precision of the percentile."""
_MOST_LEVELS: Final = 75
"""Levels above and below 1 slo: from under a thousandth to over a thousand."""


@value
class Slot:
    """The waits of ten minutes. `levels` counts those in (1.1 ** (level - 1), 1.1 ** level] slos."""

    number: int
    worst: float
    levels: Mapping[int, int]


@value
class Recent:
    """The waits of about the last hour, in slos, 0 if no lease began. The p99 is accurate to 10 %."""

    leases: int = 0
    p99_over_slo: float = 0.0
    worst_over_slo: float = 0.0

    def record(self) -> dict[str, object]:
        """Return the same as plain values, for JSON."""
        return {
            "leases": self.leases,
            "p99_over_slo": round(self.p99_over_slo, 3),
            "worst_over_slo": round(self.worst_over_slo, 3),
        }


@value
class Waits:
    """The waits of leases, in slos. `counts` are per bucket of `BUCKETS` and one beyond; `total` is their sum."""

    counts: tuple[int, ...] = (0,) * (len(BUCKETS) + 1)
    total: float = 0.0
    slots: tuple[Slot, ...] = ()

    def after(self, waits: Sequence[float], *, at: Monotonic) -> "Waits":
        """Add leases that began after these waits, in slos, 0 or more."""
        if not waits:
            return self
        counts = list(self.counts)
        for wait in waits:
            counts[bisect_left(BUCKETS, wait)] += 1
        return Waits(tuple(counts), self.total + math.fsum(waits), self._slots_after(waits, at=at))

    def _slots_after(self, waits: Sequence[float], *, at: Monotonic) -> tuple[Slot, ...]:
        number = int(at // SLOT_SECONDS)
        levels, worst = Counter(map(_level, waits)), max(waits)
        slots = [slot for slot in self.slots if slot.number >= number - SLOTS]
        if slots and slots[-1].number >= number:
            last = slots.pop()
            number, levels, worst = last.number, levels + Counter(last.levels), max(worst, last.worst)
        return (*slots, Slot(number, worst, dict(levels)))

    def recent(self, at: Monotonic) -> Recent:
        """Return the summary of the hour before `at`."""
        since = int(at // SLOT_SECONDS) - SLOTS
        slots = [slot for slot in self.slots if slot.number >= since]
        if not slots:
            return Recent()
        levels: dict[int, int] = {}
        for slot in slots:
            for level, count in slot.levels.items():  # twice as fast as a Counter; there may be hundreds of pools
                levels[level] = levels.get(level, 0) + count
        worst, leases, seen = max(slot.worst for slot in slots), sum(levels.values()), 0
        for level in sorted(levels):
            seen += levels[level]
            if seen >= 0.99 * leases:
                break
        return Recent(leases, min(worst, _STEP**level), worst)


NO_WAITS: Final = Waits()
"""The waits of a pool in which no lease began yet."""


def waits_of(sample: QueueSample, *, elapsed_seconds: float, slo_seconds: float) -> list[float]:
    """Return the waits of leases that began since the previous sample, `elapsed_seconds` ago, in slos."""
    return [seconds / slo_seconds for seconds in _waited(sample, elapsed_seconds)]


def _waited(sample: QueueSample, elapsed_seconds: float) -> Iterator[float]:
    for running in sample.running:
        if running.held_seconds < elapsed_seconds:
            yield running.waited_seconds
    for ended in sample.finished:
        if ended.held_seconds + ended.ended_seconds_ago < elapsed_seconds:
            yield ended.waited_seconds


def _level(wait: float) -> int:
    if wait <= _STEP**-_MOST_LEVELS:
        return -_MOST_LEVELS
    return min(_MOST_LEVELS, math.ceil(math.log(wait) / math.log(_STEP)))

"""Estimate what Celery's messages don't say: when the waiting tasks came, and how long each ran. Pure.

A queue is first in, first out: the head of it is the first arrival that no worker has begun. So the times at which the
count of arrivals passed each number tell the ages of the tasks that wait, as exactly as the queue is probed; of those
that waited before the first probe only a lower bound is known.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from orchestrator.base.clock import Monotonic
from orchestrator.base.samples import Waiting
from orchestrator.base.values import value

MAX_POINTS: Final = 512
"""Points of the curve of arrivals; beyond these every second one of the older half is left out."""
MAX_WAITING: Final = 8
"""Positions of the waiting tasks of one sample."""
UNCONFIRMED_SECONDS: Final = 10.0
"""How long tasks that left the queue may still be reported by workers as begun; heartbeats come every 2 s."""


@value
class ArrivalPoint:
    """The count of all arrivals up to an instant."""

    at: Monotonic
    total: float


@value
class ArrivalCurve:
    """The arrivals of a pool's queues so far, as probes and workers' reports show them.

    `waiting` is the last probe's; `points` begin with what waited then. `unconfirmed` tasks have left the queue, at
    `left_at` the last of them, and no worker has reported them yet. `first_waiting` waited at the first probe.
    """

    waiting: int = 0
    points: tuple[ArrivalPoint, ...] = ()
    unconfirmed: float = 0.0
    left_at: Monotonic = Monotonic(0.0)
    watched_since: Monotonic = Monotonic(0.0)
    first_waiting: float = 0.0

    @property
    def total(self) -> float:
        """The number of arrivals, those that waited at the first probe included."""
        return self.points[-1].total if self.points else 0.0

    def after(self, waiting: int, *, begun: int, at: Monotonic) -> "ArrivalCurve":
        """Return the curve after a probe.

        Args:
            waiting: the tasks that wait now, those included that workers have fetched and not begun.
            begun: the tasks that workers have reported as begun since the previous probe; reports may be late.
            at: the instant of the probe.
        """
        if not self.points:
            return ArrivalCurve(waiting, (ArrivalPoint(at, float(waiting)),), 0.0, at, at, float(waiting))
        unconfirmed = self.unconfirmed if at - self.left_at <= UNCONFIRMED_SECONDS else 0.0
        new = max(0.0, begun - unconfirmed)
        unconfirmed = max(0.0, unconfirmed - begun)
        arrived = waiting - self.waiting + new
        left_at = self.left_at
        if arrived < 0:
            unconfirmed, arrived, left_at = unconfirmed - arrived, 0.0, at
        points = self.points
        if not arrived and len(points) > 1 and points[-1].total == points[-2].total:
            points = points[:-1]  # of a time without arrivals only its end matters
        points = (*points, ArrivalPoint(at, self.total + arrived))
        return replace(self, waiting=waiting, points=_pruned(points, waiting), unconfirmed=unconfirmed, left_at=left_at)

    def age_seconds(self, position: int, *, at: Monotonic) -> float:
        """Return how long the `position`-th waiting task (from 1) has waited; a lower bound if `is_bound`."""
        number = self._number(position)
        points = self.points
        place = bisect_left(points, number, key=lambda point: point.total)
        if place == 0 or number <= self.first_waiting:
            return max(0.0, at - self.watched_since)
        before, after = points[place - 1], points[min(place, len(points) - 1)]
        grown = after.total - before.total
        share = (number - before.total) / grown if grown > 0 else 1.0
        return max(0.0, at - (before.at + share * (after.at - before.at)))

    def is_bound(self, position: int) -> bool:
        """Return whether the task waited before the first probe, so that only a bound of its age is known."""
        return not self.points or self._number(position) <= self.first_waiting

    def _number(self, position: int) -> float:
        return self.total - self.waiting + position - 0.5

    def arrivals_since(self, total: float) -> int:
        """Return the arrivals since the total was `total`."""
        return max(0, round(self.total - total))


def _pruned(points: tuple[ArrivalPoint, ...], waiting: int) -> tuple[ArrivalPoint, ...]:
    """Return the points that the waiting tasks need, and not too many of them."""
    first = points[-1].total - waiting
    needed = max(0, bisect_left(points, first, key=lambda point: point.total) - 1)
    kept = points[needed:]
    if len(kept) > MAX_POINTS:
        half = len(kept) // 2
        kept = (*kept[:half:2], *kept[half:])
    return kept


def positions_of(waiting: int) -> list[int]:
    """Return the positions at which ages are sampled, from the first to the last: each about twice the one before."""
    if waiting <= MAX_WAITING:
        return list(range(1, waiting + 1))
    steps = MAX_WAITING - 1
    return sorted({max(1, round(waiting ** (step / steps))) for step in range(MAX_WAITING)})


def waiting_of(
    curve: ArrivalCurve, *, at: Monotonic, head_seconds: float = 0.0, is_head_exact: bool = False
) -> tuple[Waiting, ...]:
    """Return the waits of the waiting tasks.

    Args:
        curve: after the last probe.
        at: the instant of the sample.
        head_seconds: how long the same task has been the first one, at least.
        is_head_exact: whether `head_seconds` is the first task's age itself, as its message tells it.
    """
    found = []
    for position in positions_of(curve.waiting):
        age = curve.age_seconds(position, at=at)
        if position == 1:
            age = head_seconds if is_head_exact else max(age, head_seconds)
        found.append(Waiting(position, age))
    # In a queue nothing overtakes: a later task has not waited longer than an earlier one.
    for index in range(1, len(found)):
        if found[index].age_seconds > found[index - 1].age_seconds:
            found[index] = replace(found[index], age_seconds=found[index - 1].age_seconds)
    return tuple(found)


@value
class RunEstimate:
    """A task that ended: when it began and ended, about."""

    began_at: Monotonic
    ended_at: Monotonic

    @property
    def seconds(self) -> float:
        """How long it ran."""
        return max(0.0, self.ended_at - self.began_at)


def runs_between(
    starts: Sequence[Monotonic], *, begun: int, active: int, before: Monotonic, at: Monotonic
) -> tuple[tuple[Monotonic, ...], tuple[RunEstimate, ...]]:
    """Return the starts of the tasks that still run, and the runs that ended, between two reports of one worker.

    Starts and ends are spread evenly over the time between the reports, and what began first ends first: over many
    reports the mean run is that of Little's law.

    Args:
        starts: of the tasks that ran at the earlier report.
        begun: the tasks begun in between.
        active: the tasks that run now.
        before: the instant of the earlier report.
        at: that of the later one.
    """
    elapsed = max(0.0, at - before)
    new = [Monotonic(before + elapsed * (index + 0.5) / begun) for index in range(begun)]
    running = [*starts, *new]
    ended = max(0, len(running) - active)
    ends = [Monotonic(before + elapsed * (index + 0.5) / ended) for index in range(ended)]
    runs = tuple(
        RunEstimate(min(began_at, ended_at), ended_at) for began_at, ended_at in zip(running, ends, strict=False)
    )
    left = running[ended:]
    left += [at] * (active - len(left))
    return tuple(left), runs

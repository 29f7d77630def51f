"""What a queue tells of itself: counts at an instant, totals since its birth, finished leases, and rates. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from queue_core.clock import Instant, seconds_between

LeaseOutcome = Literal["deleted", "released", "expired"]


@dataclass(frozen=True, slots=True)
class QueueStats:
    """One queue, or some of its tags, at one instant.

    `ready + delayed + in_flight` are the tasks still to be done; `dead` are kept aside. The totals only grow
    (a tag that stayed empty for a day may start again from 0). `in_flight` counts leases that have not expired.
    `paused`: no lease is granted, as the queue is paused or was moved to another store. `as_of`: that instant, by the
    clock that decides, for whoever is told over a network.
    """

    queue: str
    ready: int = 0
    delayed: int = 0
    in_flight: int = 0
    dead: int = 0
    oldest_ready_at: Instant | None = None
    added_total: int = 0
    leased_total: int = 0
    deleted_total: int = 0
    released_total: int = 0
    expired_total: int = 0
    died_total: int = 0
    paused: bool = False
    as_of: Instant | None = field(default=None, compare=False)

    def oldest_ready_seconds(self, now: Instant) -> float:
        """How long the oldest ready task has waited; 0 when none waits."""
        return 0.0 if self.oldest_ready_at is None else max(0.0, seconds_between(self.oldest_ready_at, now))


@dataclass(frozen=True, slots=True)
class TagStats:
    """The counts of one tag (None: untagged)."""

    tag: str | None
    stats: QueueStats


@dataclass(frozen=True, slots=True)
class WaitingTask:
    """The `position`-th ready task (from 1, in lease order) has been leasable since `ready_at`.

    Of tasks to come: so many have become leasable soon after `ready_at`, an instant to come.
    """

    position: int
    ready_at: Instant


@dataclass(frozen=True, slots=True)
class FinishedLease:
    """A lease that ended, and how; `died` when the task became dead with it."""

    queue: str
    name: str
    tag: str | None
    worker: str
    lease_number: int
    outcome: LeaseOutcome
    waited_seconds: float
    held_seconds: float
    ended_at: Instant
    died: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True)
class HeardWorker:
    """A worker that a server has heard of.

    `silent_seconds` since its last call came or ended, 0 while one is under way; `waits`: its calls wait for work;
    `hung_up`: it ended its last call before it was answered.
    """

    worker: str
    silent_seconds: float
    waits: bool
    hung_up: bool


@dataclass(frozen=True, slots=True)
class LiveLease:
    """A lease that is held now, without its token and payload."""

    name: str
    tag: str | None
    worker: str
    lease_number: int
    leased_at: Instant
    expires_at: Instant
    ready_at: Instant


@dataclass(frozen=True, slots=True)
class Samples:
    """Finished leases after a cursor, oldest first; `cursor` is where the next call goes on.

    `missed` is true when older ones had been dropped (a bounded number is kept).
    """

    finished: tuple[FinishedLease, ...]
    cursor: int
    missed: bool = False


def positions_of(count: int, *, points: int = 8) -> tuple[int, ...]:
    """Up to `points` positions, evenly spread over `count` ready tasks: from 1, the oldest, to `count`."""
    if count <= points:
        return tuple(range(1, count + 1))
    return tuple(1 + (count - 1) * index // (points - 1) for index in range(points))


def spread(etas: Sequence[Instant], *, ready: int, newest: Instant, points: int = 8) -> tuple[WaitingTask, ...]:
    """Waiting tasks at evenly spread positions, from the first etas of the ready queue and its newest.

    Args:
        etas: the etas at the head of the ready queue, in lease order; the store bounds how many it reads.
        ready: length of the whole ready queue, at least `len(etas)`.
        newest: the eta at its very end.

    Positions beyond the head are interpolated between the last eta read and `newest`: a store that read on would pay
    in proportion to its backlog.
    """
    if not etas:
        return ()
    known = len(etas)
    waiting: list[WaitingTask] = []
    for position in positions_of(max(ready, known), points=points):
        if position <= known:
            eta = etas[position - 1]
        else:
            share = (position - known) / (ready - known)
            eta = Instant(etas[-1] + round((max(newest, etas[-1]) - etas[-1]) * share))
        waiting.append(WaitingTask(position, eta))
    return tuple(waiting)


def coming(etas: Sequence[Instant], *, now: Instant, until: Instant, slices: int = 64) -> tuple[WaitingTask, ...]:
    """How many tasks become leasable until then: one entry for each of up to `slices` equal spans in which any does.

    Args:
        etas: of these tasks, in order, each after `now` and at most `until`.

    An entry counts the tasks up to the end of its span, and has the eta of the first task within it.
    """
    width = max(1, until - now)
    told: dict[int, WaitingTask] = {}
    for position, eta in enumerate(etas, start=1):
        slice_of = (eta - now - 1) * slices // width
        first = told.get(slice_of)
        told[slice_of] = WaitingTask(position, eta if first is None else first.ready_at)
    return tuple(told.values())


def rate_per_second(earlier: int, later: int, *, seconds: float) -> float:
    """Mean rate between two readings of a total; a total that went back counts from 0 (the counter began anew)."""
    if seconds <= 0:
        return 0.0
    return (later - earlier if later >= earlier else later) / seconds

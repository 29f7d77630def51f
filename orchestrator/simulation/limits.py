"""Simulate the limits of a queue and of its tags: which tasks are ready, and how many leases may be granted.

Not simulated: `fair` and priorities, which change who waits, not how many workers are needed.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from queue_core.admission import NO_TAG_LIMITS, Rate, TagLimits, lane_change, lane_opens_at, queue_room
from queue_core.clock import MICROSECONDS, NEVER, Instant
from queue_core.process.wording import shown_limits

_EPOCH = 1 << 50
"""The instant at which simulated time begins: buckets are full before it."""


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """The limits of a queue's settings, and of each of its tags."""

    max_in_flight: int | None = None
    rate: Rate | None = None
    per_tag: TagLimits = NO_TAG_LIMITS

    @property
    def are_none(self) -> bool:
        """True for a queue whose limits hold nothing back."""
        return self.max_in_flight is None and self.rate is None and not self.per_tag.holds_tasks


NO_LIMITS: Final = QueueLimits()


@dataclass(slots=True)
class _Lane:
    ready: int = 0
    leased: int = 0
    held: deque[int] = field(default_factory=deque)
    full_at: Instant = NEVER
    opens_at: Instant | None = None


class SimulatedLimits:
    """The lanes of a simulated queue. Tasks are numbers; times are seconds since the simulation began."""

    def __init__(self, limits: QueueLimits, tags: Sequence[str | None] | None) -> None:
        """Args:
        tags: one for each task; None: no task has one.
        """
        self.held = 0
        self._limits = limits
        self._tags = tags if limits.per_tag.holds_tasks else None
        self._lanes: dict[str, _Lane] = {}
        self._leased = 0
        self._full_at = NEVER

    def enter(self, task: int, now: float) -> list[int]:
        """Take a task that becomes leasable; return the tasks that are ready now, this one or older ones of its tag."""
        lane = self._lane(task)
        if lane is None:
            return [task]
        lane.held.append(task)
        self.held += 1
        return self._admit(lane, _instant(now))

    def lease(self, task: int, now: float) -> None:
        """Count a ready task as leased, and take its tokens."""
        at = _instant(now)
        self._leased += 1
        if self._limits.rate is not None:
            self._full_at = self._limits.rate.full_again_at(self._full_at, taken=1, now=at)
        lane = self._lane(task)
        if lane is None:
            return
        lane.ready -= 1
        lane.leased += 1
        rate = self._limits.per_tag.rate
        if rate is not None:
            lane.full_at = rate.full_again_at(lane.full_at, taken=1, now=at)
            self._plan(lane)

    def end(self, task: int, now: float, *, gives_back: bool = False) -> list[int]:
        """Count a lease as ended; return the tasks that are ready now. A task that it gives back is its tag's first."""
        self._leased -= 1
        lane = self._lane(task)
        if lane is None:
            return [task] if gives_back else []
        lane.leased -= 1
        if gives_back:
            lane.held.appendleft(task)
            self.held += 1
        return self._admit(lane, _instant(now))

    def open(self, now: float) -> list[int]:
        """Return the held tasks that time alone has made ready."""
        if self._limits.per_tag.rate is None:
            return []
        at = _instant(now)
        due = [lane for lane in self._lanes.values() if lane.opens_at is not None and lane.opens_at <= at]
        return [task for lane in due for task in self._admit(lane, at)]

    def room(self, now: float) -> int:
        """Return how many leases the limits of the whole queue let it grant."""
        limits = self._limits
        return queue_room(
            limits.max_in_flight, limits.rate, leased=self._leased, full_at=self._full_at, now=_instant(now)
        )

    def opens_at(self, now: float, *, ready: int) -> float:
        """Return when time alone next lets a task be leased; infinity: never. `ready` counts the ready tasks."""
        rate, opens = self._limits.rate, []
        if self._limits.per_tag.rate is not None:
            opens = [lane.opens_at for lane in self._lanes.values() if lane.opens_at is not None]
        if rate is not None and ready and not rate.tokens(self._full_at, now=_instant(now)):
            opens.append(rate.reached_at(1, self._full_at))
        return min(((at - _EPOCH) / MICROSECONDS for at in opens), default=math.inf)

    @property
    def by(self) -> str:
        """The settings that hold tasks back, as they are written."""
        limits = self._limits
        found = [
            *shown_limits("", limits.max_in_flight, limits.rate),
            *shown_limits("per_tag.", limits.per_tag.max_in_flight, limits.per_tag.rate),
        ]
        return ", ".join(found)

    @property
    def have_rate(self) -> bool:
        """True where time alone lets more tasks be leased."""
        return self._limits.rate is not None or self._limits.per_tag.rate is not None

    def _lane(self, task: int) -> _Lane | None:
        tag = None if self._tags is None else self._tags[task]
        if tag is None:
            return None
        lane = self._lanes.get(tag)
        if lane is None:
            lane = self._lanes[tag] = _Lane()
        return lane

    def _admit(self, lane: _Lane, at: Instant) -> list[int]:
        change = lane_change(
            self._limits.per_tag,
            ready=lane.ready,
            leased=lane.leased,
            held=len(lane.held),
            full_at=lane.full_at,
            now=at,
        )
        admitted = [lane.held.popleft() for _ in range(change.admits)]
        lane.ready += len(admitted)
        self.held -= len(admitted)
        self._plan(lane)
        return admitted

    def _plan(self, lane: _Lane) -> None:
        lane.opens_at = lane_opens_at(
            self._limits.per_tag, ready=lane.ready, leased=lane.leased, held=len(lane.held), full_at=lane.full_at
        )


def _instant(now: float) -> Instant:
    return Instant(_EPOCH + math.ceil(now * MICROSECONDS))

"""Limits of a queue and of each of its tags, and which tasks they admit. Pure. See ADR 37.

A tag with a limit has a *lane*. Its tasks are HELD until the lane admits them; a READY task is admitted, so a lease
looks at no limit of a tag. A lane admits as many as `lane_room` says, first those of higher priority, then by eta, then
by id. A task's eta becomes the instant of its admission: since when it can be leased.
"""

from dataclasses import dataclass
from typing import Final

from queue_core.clock import MICROSECONDS, Instant
from queue_core.limits import MAX_IN_FLIGHT


@dataclass(frozen=True, slots=True)
class Rate:
    """A token bucket: `per_second` leases a second on average, at most `burst` at once.

    So no span of `s` seconds has more than `burst + s * per_second` leases. A store keeps one instant of a
    bucket, `full_at`: when it will be full again.

    Source: the generic cell rate algorithm, ITU-T I.371, whose theoretical arrival time `full_at` is.
    """

    per_second: float
    burst: int = 1

    @property
    def interval(self) -> int:
        """Microseconds in which one token comes, rounded up: every store reckons in whole ones."""
        return max(1, -int(-MICROSECONDS // self.per_second))

    def tokens(self, full_at: Instant, *, now: Instant) -> int:
        """Return the tokens in the bucket, at most `burst`."""
        missing = max(0, full_at - now)
        return max(0, (self.burst * self.interval - missing) // self.interval)

    def full_again_at(self, full_at: Instant, *, taken: int, now: Instant) -> Instant:
        """Return when the bucket will be full again after `taken` tokens were taken."""
        return Instant(max(full_at, now) + taken * self.interval)

    def reached_at(self, tokens: int, full_at: Instant) -> Instant:
        """Return when the bucket first has `tokens`, at most `burst`, if none is taken."""
        return Instant(full_at - (self.burst - tokens) * self.interval)


@dataclass(frozen=True, slots=True)
class TagLimits:
    """The limits of each tag of a queue; untagged tasks have none.

    Args:
        max_in_flight: leases of a tag that are held at a time; None: any number.
        rate: leases granted of a tag; None: any number.
        fair: tags take turns: a lease takes the first task of the tag that was leased from longest ago, among those
            whose first task has the highest priority. The untagged count as one tag.
    """

    max_in_flight: int | None = None
    rate: Rate | None = None
    fair: bool = False

    @property
    def holds_tasks(self) -> bool:
        """Return whether tags have lanes, which may hold tasks back."""
        return self.max_in_flight is not None or self.rate is not None


NO_TAG_LIMITS: Final = TagLimits()


@dataclass(frozen=True, slots=True)
class LaneChange:
    """A change of a lane: `holds` of its READY tasks are HELD again, the last ones; then it admits `admits` HELD ones.

    Besides, while a HELD task has a higher priority than some READY one, the two change places.
    """

    holds: int
    admits: int


def lane_change(
    limits: TagLimits,
    *,
    ready: int,
    leased: int,
    held: int,
    full_at: Instant,
    now: Instant,
    limits_changed: bool = False,
) -> LaneChange:
    """Return how a lane changes after a verb changed its tasks.

    More than `max_in_flight` allows are held again: its limit was lowered, or a quarantined task was leased. The rate
    takes an admission back only if it is another than before (`limits_changed`).
    """
    most = lane_room(limits, leased=leased, full_at=full_at, now=now)
    places = MAX_IN_FLIGHT if limits.max_in_flight is None else max(0, limits.max_in_flight - leased)
    holds = max(0, ready - (most if limits_changed else places))
    return LaneChange(holds, min(held + holds, max(0, most - (ready - holds))))


def lane_room(limits: TagLimits, *, leased: int, full_at: Instant, now: Instant) -> int:
    """Return how many READY tasks a lane may have while `leased` of its tasks are LEASED."""
    room = MAX_IN_FLIGHT if limits.max_in_flight is None else limits.max_in_flight - leased
    if limits.rate is not None:
        room = min(room, limits.rate.tokens(full_at, now=now))
    return max(0, room)


def lane_opens_at(limits: TagLimits, *, ready: int, leased: int, held: int, full_at: Instant) -> Instant | None:
    """Return when time alone next lets a lane admit a task, after its last change.

    None: never, as nothing is held, or as `max_in_flight` holds it.
    """
    if not held or limits.rate is None or ready >= limits.rate.burst:
        return None
    if limits.max_in_flight is not None and ready + leased >= limits.max_in_flight:
        return None
    return limits.rate.reached_at(ready + 1, full_at)


def has_room_for_one(limits: TagLimits, *, ready: int, leased: int, full_at: Instant, now: Instant) -> bool:
    """Return whether a lane lets a task be leased that was not admitted: a quarantined one.

    Its READY tasks keep their tokens, and give up a place under `max_in_flight`.
    """
    if limits.rate is not None and limits.rate.tokens(full_at, now=now) <= ready:
        return False
    return limits.max_in_flight is None or leased < limits.max_in_flight


def queue_room(max_in_flight: int | None, rate: Rate | None, *, leased: int, full_at: Instant, now: Instant) -> int:
    """Return how many leases the limits of a whole queue let it grant now; `MAX_IN_FLIGHT` or more: any number."""
    return lane_room(TagLimits(max_in_flight, rate), leased=leased, full_at=full_at, now=now)

"""Merge the samples of several queues into that of one pool, which works on all of them. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from orchestrator.base.samples import PresentWorker, QueueSample, Waiting

MAX_POSITIONS: Final = 64
"""Positions of a merged sample, at most: those in between are left out, and count as the younger one after them."""
PAUSED: Final = "the pause of a queue"


def merged(samples: Sequence[QueueSample]) -> QueueSample:
    """Return the sample of a pool whose workers take tasks of each of these queues, all of one instant.

    Tasks of a paused queue are held, unless all are paused. How many leases there were at a time when one began is not
    known of several queues. At least one sample is needed.
    """
    if len(samples) == 1:
        return samples[0]
    is_paused = all(one.paused for one in samples)
    open_ones = [one for one in samples if is_paused or not one.paused]
    shut = sum(one.ready for one in samples) - sum(one.ready for one in open_ones)
    held_by = [one.held_by for one in samples if one.held and one.held_by] + [PAUSED] * bool(shut)
    return QueueSample(
        at=samples[0].at,
        ready=sum(one.ready for one in open_ones),
        delayed=sum(one.delayed for one in samples),
        in_flight=sum(one.in_flight for one in samples),
        dead=sum(one.dead for one in samples),
        paused=is_paused,
        arrivals=sum(one.arrivals for one in open_ones),
        waiting=positions([one.waiting for one in open_ones]),
        running=tuple([replace(lease, at_a_time=0) for one in samples for lease in one.running]),
        finished=tuple([replace(lease, at_a_time=0) for one in samples for lease in one.finished]),
        first_seen_seconds_ago=_earliest(samples),
        presence=_presence(samples),
        upcoming=positions([one.upcoming for one in open_ones]),
        held=sum(one.held for one in samples) + shut,
        held_by=", ".join(dict.fromkeys(held_by)),
        held_by_rate=any(one.held_by_rate for one in samples),
    )


def positions(queues: Iterable[Sequence[Waiting]]) -> tuple[Waiting, ...]:
    """Merge positions of several queues by age, the oldest first.

    A position stands for the tasks since the one before it, each of which is at least as old: so no task gets a higher
    age than it has.
    """
    steps: list[tuple[float, int]] = []
    for queue in queues:
        before = 0
        for place in queue:
            steps.append((place.age_seconds, place.position - before))
            before = place.position
    steps.sort(key=lambda step: -step[0])
    found: list[Waiting] = []
    count = 0
    for age_seconds, tasks in steps:
        count += tasks
        if found and found[-1].age_seconds == age_seconds:
            found.pop()
        found.append(Waiting(count, age_seconds))
    return tuple(_thinned(found))


def _thinned(found: Sequence[Waiting]) -> Sequence[Waiting]:
    """Return at most `MAX_POSITIONS` of them, the first and the last included, and more of the old ones."""
    if len(found) <= MAX_POSITIONS:
        return found
    old = MAX_POSITIONS // 2
    rest, places = found[old:], MAX_POSITIONS - old
    return [*found[:old], *(rest[(index + 1) * len(rest) // places - 1] for index in range(places))]


def _earliest(samples: Sequence[QueueSample]) -> dict[str, float]:
    seen: dict[str, float] = {}
    for one in samples:
        for worker, seconds in one.first_seen_seconds_ago.items():
            seen[worker] = max(seconds, seen.get(worker, 0.0))
    return seen


def _presence(samples: Sequence[QueueSample]) -> dict[str, PresentWorker]:
    """Return for each worker its last call, for whichever of the queues; `waits` if it waits at any."""
    found: dict[str, PresentWorker] = {}
    for one in samples:
        for worker, heard in one.presence.items():
            known = found.get(worker)
            if known is None:
                found[worker] = heard
                continue
            last = heard if heard.silent_seconds < known.silent_seconds else known
            waits = heard.waits or known.waits
            found[worker] = PresentWorker(worker, last.silent_seconds, waits, last.hung_up)
    return found

"""I22: leases of a queue and of each of its tags never exceed its limits, at any instant and in any span of time. Pure.

Only leases that somebody was told of count, from their grant until they may have ended: fewer than there were, so what
is found is a proof.
"""

from collections.abc import Iterable, Iterator, Sequence

from queue_core.admission import Rate
from queue_core.clock import NEVER
from queue_core.task import QueueSpec
from tests.faults.lives import Contents, Grant, Life
from tests.faults.rules import READINGS_APART, live_until

Span = tuple[int, int]
"""The instants from and until which a lease surely lived."""


def limits_are_obeyed(lives: Iterable[Life], contents: Contents) -> Iterator[str]:
    """Yield each limit that was exceeded, and when."""
    found = list(lives)
    for spec in contents.limits.values():
        for whose, most, rate, granted in _limited(spec, found):
            spans = [_span(life, grant, contents) for life, grant in granted]
            if most is not None:
                number, at = _peak(spans)
                if number > most:
                    yield f"{whose}: {number} live leases of at most {most} at {at}"
            if rate is not None:
                yield from (f"{whose}: {what}" for what in _too_soon(rate, granted, contents))


def at_their_limit(lives: Iterable[Life], contents: Contents) -> int:
    """Return how many queues and tags surely had as many live leases at an instant as their limit allows."""
    found = list(lives)
    return sum(
        most is not None and _peak([_span(life, grant, contents) for life, grant in granted])[0] >= most
        for spec in contents.limits.values()
        for _, most, _, granted in _limited(spec, found)
    )


def _limited(
    spec: QueueSpec, lives: Sequence[Life]
) -> Iterator[tuple[str, int | None, Rate | None, list[tuple[Life, Grant]]]]:
    """Yield each that has limits, the queue and its tags, with its limits and its leases."""
    granted = [(life, grant) for life in lives if _queue_of(life) == spec.name for grant in life.grants]
    if spec.is_limited:
        yield spec.name, spec.max_in_flight, spec.rate, granted
    limits = spec.per_tag
    for tag in sorted({grant.lease.tag for _, grant in granted if grant.lease.tag is not None}):
        of_tag = [(life, grant) for life, grant in granted if grant.lease.tag == tag]
        yield f"{spec.name}, tag {tag}", limits.max_in_flight, limits.rate, of_tag


def _queue_of(life: Life) -> str:
    named = [adding.request.queue for adding in life.addings] + [task.queue for task in life.stored]
    return named[0] if named else ""


def _span(life: Life, grant: Grant, contents: Contents) -> Span:
    return grant.granted_by(contents), live_until(grant, life, contents.clock_error) - 2 * contents.clock_error


def _peak(spans: Iterable[Span]) -> tuple[int, int]:
    """Return the largest number of leases that lived at one instant, and the first such instant."""
    changes = [(at, change) for since, until in spans if since < until for at, change in ((since, 1), (until, -1))]
    number, peak = 0, (0, 0)
    for at, change in sorted(changes):  # at one instant leases end before others begin
        number += change
        peak = max(peak, (number, at), key=lambda each: each[0])
    return peak


def _too_soon(rate: Rate, granted: Sequence[tuple[Life, Grant]], contents: Contents) -> Iterator[str]:
    """Yield leases that were granted though the bucket had no token: as many as conform leave fewer than they took."""
    full_at = NEVER
    for _, grant in sorted(granted, key=lambda each: each[1].leased_at):
        full_at = rate.full_again_at(full_at, taken=1, now=grant.leased_at)  # type: ignore[arg-type]
        early = full_at - grant.leased_at - rate.burst * rate.interval
        if early > READINGS_APART + 2 * contents.clock_error:
            yield f"{grant.lease.token} was granted {early / 1e6:.6f} s before the rate of {rate} had a token for it"

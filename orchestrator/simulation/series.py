"""What happened over time, in as many slots as a chart has room for. Pure."""

from bisect import bisect_left
from collections.abc import Sequence


def arrivals_over(ready_at: Sequence[float], *, end_at: float, slots: int) -> list[float]:
    """Arrivals per second in each slot of the time from 0 to `end_at`."""
    width = end_at / slots
    edges = [bisect_left(ready_at, slot * width) for slot in range(slots)]
    edges.append(len(ready_at))
    return [(edges[slot + 1] - edges[slot]) / width for slot in range(slots)]


def workers_over(sizes: Sequence[tuple[float, int]], *, end_at: float, slots: int) -> list[float]:
    """Workers in each slot of the time from 0 to `end_at`, on average; `sizes` holds until the next of it."""
    width = end_at / slots
    seconds = [0.0] * slots
    for place, (at, size) in enumerate(sizes):
        until = min(end_at, sizes[place + 1][0] if place + 1 < len(sizes) else end_at)
        slot = int(at / width)
        while size and at < until and slot < slots:
            edge = min(until, (slot + 1) * width)
            seconds[slot] += size * max(0.0, edge - at)
            at = max(at, edge)  # noqa: PLW2901  what is left of this stretch
            slot += 1
    return [held / width for held in seconds]

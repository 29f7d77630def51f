"""The arrivals of tasks for a simulation: from a queue's history of leases, or from a CSV file. Pure."""

import csv
import math
from collections.abc import Iterable
from typing import Final

from queue_core.verbs.wire import Json

MAX_ARRIVALS: Final = 100_000
COLUMNS: Final = ("arrival_s", "service_s")
Arrivals = list[tuple[float, float]]
"""Pairs, one a task, in the order of arrival: the second at which it arrived, and the seconds that it took."""


def arrivals_of(leases: Iterable[Json], *, tags: object, since_seconds: float, until_seconds: float) -> Arrivals:
    """Return the arrivals of ended leases of a pool's tags in a window, the earliest first.

    `tags`: as the pool's settings have them: a list, all tags where it is empty, or "untagged".
    """
    found = []
    for one in leases:
        tag = one["tag"]
        is_wanted = tag is None if tags == "untagged" else not tags or (isinstance(tags, list) and tag in tags)
        held = float(str(one["held_seconds"]))
        at = int(str(one["ended_at"])) / 1e6 - held - float(str(one["waited_seconds"]))
        if is_wanted and since_seconds <= at < until_seconds:
            found.append((at, held))
    return sorted(found)


def read_arrivals(text: str) -> Arrivals:
    """Read a CSV with a header. Raises `ValueError` with the place of a mistake."""
    rows = csv.reader(text.lstrip("\ufeff").strip().splitlines())
    head = [name.strip().lower() for name in next(rows, [])]
    if not set(COLUMNS) <= set(head):
        raise ValueError("the first line must name the columns: arrival_s,service_s")
    places = [head.index(name) for name in COLUMNS]
    found = []
    for number, row in enumerate(rows, start=2):
        if not any(row):
            continue
        try:
            at, took = (float(row[place]) for place in places)
        except (ValueError, IndexError):
            raise ValueError(f"line {number}: {','.join(row)[:60]!r} has no two numbers") from None
        if not (math.isfinite(at) and math.isfinite(took) and took >= 0):
            raise ValueError(f"line {number}: write finite seconds, and 0 or more for service_s")
        found.append((at, took))
        if len(found) > MAX_ARRIVALS:
            raise ValueError(f"it has more than {MAX_ARRIVALS:,} rows, the most that are simulated at once")
    if not found:
        raise ValueError("it has no row below its header")
    return sorted(found)

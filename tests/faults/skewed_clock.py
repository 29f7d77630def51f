"""A process whose wall clock is wrong, as on a host that nobody keeps in time; the rest of the host is not touched."""

import time
from collections.abc import Callable

true_time_ns: Callable[[], int] = getattr(time.time_ns, "true", time.time_ns)
"""The host's wall clock, whatever this process is told."""


def skew_wall_clock(seconds: float) -> None:
    """From now on, let everybody in this process read a wall clock that is `seconds` ahead (or behind)."""
    ahead_ns = round(seconds * 1e9)

    def time_ns() -> int:
        return true_time_ns() + ahead_ns

    def time_seconds() -> float:
        return time_ns() / 1e9

    time_ns.true = true_time_ns  # type: ignore[attr-defined]
    time.time_ns = time_ns
    time.time = time_seconds

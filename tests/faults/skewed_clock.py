"""Skew the wall clock of this process only, as on a badly set host."""

import time
from collections.abc import Callable

true_time_ns: Callable[[], int] = getattr(time.time_ns, "true", time.time_ns)
"""Returns the host's real wall clock."""


def skew_wall_clock(seconds: float) -> None:
    """Let all code of this process read a wall clock `seconds` ahead (or behind)."""
    ahead_ns = round(seconds * 1e9)

    def time_ns() -> int:
        return true_time_ns() + ahead_ns

    def time_seconds() -> float:
        return time_ns() / 1e9

    time_ns.true = true_time_ns  # type: ignore[attr-defined]
    time.time_ns = time_ns
    time.time = time_seconds

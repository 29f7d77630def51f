"""The only place in the fleet that reads a clock. A `Monotonic` never goes back, so a clock step kills nobody."""

import time
from typing import NewType, Protocol

Monotonic = NewType("Monotonic", float)
"""Seconds since an arbitrary start, the same for every process of one boot of one host; never goes back."""


class MonotonicClock(Protocol):
    """Where a shell module gets its `now`; pure modules take `now` as an argument."""

    def monotonic(self) -> Monotonic:
        """Seconds that never go back (Linux CLOCK_MONOTONIC)."""

    def wall_seconds(self) -> float:
        """Seconds since the epoch, UTC; for people and for talking to the queue, never for a decision."""


class SystemMonotonicClock:
    """The host's clocks."""

    def monotonic(self) -> Monotonic:
        return Monotonic(time.monotonic())

    def wall_seconds(self) -> float:
        return time.time()


class ManualMonotonicClock:
    """A clock that stands still until it is told to advance; for tests and virtual time."""

    def __init__(self, *, monotonic: float = 1_000.0, wall_seconds: float = 1_700_000_000.0) -> None:
        self._monotonic = monotonic
        self._wall_seconds = wall_seconds

    def monotonic(self) -> Monotonic:
        return Monotonic(self._monotonic)

    def wall_seconds(self) -> float:
        return self._wall_seconds

    def advance(self, seconds: float) -> None:
        """Move both clocks on by `seconds`, which must not be negative."""
        if seconds < 0:
            raise ValueError(f"a clock goes forward: {seconds} s")
        self._monotonic += seconds
        self._wall_seconds += seconds

    def set_wall(self, seconds: float) -> None:
        """Set the wall clock by so much, forwards or backwards, as an operator or a time server does."""
        self._wall_seconds += seconds

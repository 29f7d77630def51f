"""Read the clocks; no other module of the fleet does. Decisions use `Monotonic`, so a clock step kills no worker."""

import time
from typing import NewType, Protocol

Monotonic = NewType("Monotonic", float)
"""Seconds since an arbitrary start, equal for all processes of one boot of one host; never goes back."""


class MonotonicClock(Protocol):
    """The clock that shell modules read `now` from; pure modules take `now` as an argument."""

    def monotonic(self) -> Monotonic:
        """Return seconds that never go back (Linux CLOCK_MONOTONIC)."""

    def wall_seconds(self) -> float:
        """Return seconds since the epoch, UTC: for people and for calls to the queue, never for a decision."""


class SystemMonotonicClock:
    """The host's clocks."""

    def monotonic(self) -> Monotonic:
        return Monotonic(time.monotonic())

    def wall_seconds(self) -> float:
        return time.time()


class ManualMonotonicClock:
    """A clock that stands still until `advance` is called; for tests and virtual time."""

    def __init__(self, *, monotonic: float = 1_000.0, wall_seconds: float = 1_700_000_000.0) -> None:
        self._monotonic = monotonic
        self._wall_seconds = wall_seconds

    def monotonic(self) -> Monotonic:
        return Monotonic(self._monotonic)

    def wall_seconds(self) -> float:
        return self._wall_seconds

    def advance(self, seconds: float) -> None:
        """Move both clocks forward by `seconds`, which must not be negative."""
        if seconds < 0:
            raise ValueError(f"seconds must be 0 or more: {seconds}")
        self._monotonic += seconds
        self._wall_seconds += seconds

    def set_wall(self, seconds: float) -> None:
        """Step the wall clock by `seconds`, forwards or backwards, as an operator or a time server does."""
        self._wall_seconds += seconds

"""The only place in the queue that reads a clock. Instants are shared between machines and compared with `==`."""

import time
from typing import NewType, Protocol

Instant = NewType("Instant", int)
"""Microseconds since the epoch, UTC."""

MICROSECONDS = 1_000_000
NEVER = Instant(0)
"""A placeholder for an instant that has not come yet."""


def after(start: Instant, seconds: float) -> Instant:
    """Return the instant `seconds` after `start`, rounded to the microsecond."""
    return Instant(start + round(seconds * MICROSECONDS))


def seconds_between(start: Instant, end: Instant) -> float:
    """Return the seconds from `start` to `end`; negative when `end` is earlier."""
    return (end - start) / MICROSECONDS


class Clock(Protocol):
    """The source of time for modules that do I/O."""

    def now(self) -> Instant:
        """Return the present instant, UTC."""

    def monotonic(self) -> float:
        """Return seconds that never go back, for waiting inside one process."""


def microseconds_since_boot() -> int:
    """Return the time since boot, including suspension; it is never set. `RemoteClock` is based on it."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


class SystemClock:
    """The host's clocks."""

    def now(self) -> Instant:
        return Instant(time.time_ns() // 1000)

    def monotonic(self) -> float:
        return time.monotonic()


START = Instant(1_700_000_000_000_000)


class ManualClock:
    """A clock that only moves when `advance` or `step` is called; for tests and replays."""

    def __init__(self, now: Instant = START) -> None:
        self._now = now
        self._monotonic_microseconds = 1_000_000_000

    def now(self) -> Instant:
        return self._now

    def monotonic(self) -> float:
        return self._monotonic_microseconds / MICROSECONDS

    def advance(self, seconds: float) -> None:
        """Advance by `seconds`, which must not be negative."""
        if seconds < 0:
            raise ValueError(f"a clock goes forward: {seconds} s; use `step` for a stepped clock")
        self.step(seconds)
        self._monotonic_microseconds += round(seconds * MICROSECONDS)

    def step(self, seconds: float) -> None:
        """Set the wall clock forward or back, as an operator or NTP may; the monotonic clock is unchanged."""
        self._now = after(self._now, seconds)

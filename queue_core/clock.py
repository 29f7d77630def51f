"""The only place in the queue that reads a clock. Instants are shared between machines and compared with `==`."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NewType, Protocol, runtime_checkable

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


def thread_cpu_seconds() -> float:
    """Return the CPU time of this thread."""
    return time.thread_time()


def monotonic_microseconds() -> int:
    """Return the time that this host ran for since its boot, without suspension; it is never set."""
    return time.monotonic_ns() // 1000


def _wall_nanoseconds_of(clock: Clock) -> int:
    return clock.now() * 1000


def _monotonic_nanoseconds_of(clock: Clock) -> int:
    return round(clock.monotonic() * MICROSECONDS) * 1000


class SystemClock:
    """The host's clocks."""

    def now(self) -> Instant:
        return Instant(time.time_ns() // 1000)

    monotonic = staticmethod(time.monotonic)


SLEW_PERCENT = 8
"""A store's time gains or loses at most so much on elapsed time after a step, so a lease keeps 90 % of its length."""
STEP_MICROSECONDS = 100_000
"""The wall clock was stepped when it moved by more than this against the monotonic clock; time servers slew both."""
READINGS = 5
"""Readings of both clocks at the start: a thread may stop running between the two."""
MAX_READING_MICROSECONDS = 20_000
"""Two clocks read further apart than this, as by a thread that was not running, tell nothing about a step."""


def lag_left(lag: int, elapsed: int) -> int:
    """Return what is left of a lag of store time behind the wall clock (negative: ahead of it) after `elapsed`."""
    made_up = max(0, elapsed) * SLEW_PERCENT // 100
    return max(0, lag - made_up) if lag > 0 else min(0, lag + made_up)


def boot_id() -> str:
    """Return a name for this boot of the host, and for the time namespace, which has its own monotonic clock.

    "" where there is none.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{Path('/proc/self/ns/time').stat().st_ino}"
    except OSError:
        return ""


@dataclass(frozen=True, slots=True)
class Course:
    """The course of a store's time on one boot of a host, in microseconds, until the next step (ADR 36).

    `offset` is the wall clock's lead over the monotonic clock, `lag` its lead over store time at monotonic time `at`;
    `steps` counts the steps so far, `step` is the last one.
    """

    boot: str
    offset: int
    lag: int = 0
    at: int = 0
    steps: int = 0
    step: int = 0

    def lag_at(self, monotonic: int) -> int:
        """Return the wall clock's lead over store time."""
        return lag_left(self.lag, monotonic - self.at) if self.lag else 0

    def store_time(self, monotonic: int) -> Instant:
        """Return the store's time."""
        return Instant(monotonic + self.offset - self.lag_at(monotonic))

    def stepped(self, offset: int, monotonic: int) -> "Course":
        """Return the course after the wall clock was found stepped: store time goes on, and the lag is slewed."""
        step = offset - self.offset
        return Course(self.boot, offset, self.lag_at(monotonic) + step, monotonic, self.steps + 1, step)


@dataclass(frozen=True, slots=True)
class ClockSteps:
    """The steps of the clock below a store's time: how many, the last one, and the lag that is left.

    A positive lag means that store time is behind that clock and gains on it.
    """

    steps: int = 0
    step_seconds: float = 0.0
    lag_seconds: float = 0.0

    @property
    def slewed_seconds(self) -> float:
        """Seconds until the lag is made up."""
        return abs(self.lag_seconds) * 100 / SLEW_PERCENT


@runtime_checkable
class StepsClock(Clock, Protocol):
    """A clock that goes on steadily when the clock below it is stepped."""

    def steps(self) -> ClockSteps:
        """Return the steps so far."""

    def is_stepped(self) -> bool:
        """Return whether there was a step that only the next change in the store will notice."""


class SteadyClock:
    """A `Clock` that goes on when the host's wall clock is stepped: wall time at the start plus monotonic time.

    Only `adopt` changes its course, so that all processes that share a store keep the same one; its store calls that
    where nobody else can act. Time in which the host was suspended counts as a step: nobody could work in it.
    """

    def __init__(self, host: Clock | None = None, *, boot: str | None = None) -> None:
        """Args:
        host: the clocks of the host; a test brings its own.
        boot: the id of this boot.
        """
        self._host = host or SystemClock()
        # The host's own are called directly: a change in a store reads them twice.
        self._wall_ns = time.time_ns if host is None else partial(_wall_nanoseconds_of, host)
        self._monotonic_ns = time.monotonic_ns if host is None else partial(_monotonic_nanoseconds_of, host)
        self.monotonic: Callable[[], float] = self._host.monotonic
        """Returns this host's monotonic seconds, for waiting."""
        self._boot = boot_id() if boot is None else boot
        _, offset, _ = min(self._reading() for _ in range(READINGS))
        self.course = Course(self._boot, offset)

    def _reading(self) -> tuple[int, int, int]:
        """Read both clocks; return how long that took, the wall clock's lead over the monotonic one, and that one."""
        before, wall, after = self._monotonic(), self._wall_ns() // 1000, self._monotonic()
        return after - before, wall - after, after

    def _monotonic(self) -> int:
        return self._monotonic_ns() // 1000

    def now(self) -> Instant:
        """Return the store's time."""
        course, monotonic = self.course, self._monotonic_ns() // 1000
        return course.store_time(monotonic) if course.lag else Instant(monotonic + course.offset)

    def wall(self) -> Instant:
        """Return the wall clock's time as of the last step that was noticed: what etas are meant by."""
        return Instant(self._monotonic() + self.course.offset)

    @property
    def lag_seconds(self) -> float:
        """The wall clock's lead over store time; negative when it is behind."""
        return self.course.lag_at(self._monotonic()) / MICROSECONDS

    def steps(self) -> ClockSteps:
        """See `StepsClock.steps`."""
        return ClockSteps(self.course.steps, self.course.step / MICROSECONDS, self.lag_seconds)

    def next_course(self, kept: Course | None = None) -> Course | None:
        """Return the course to adopt, if it is not the present one.

        Args:
            kept: the course that the store keeps, where it does; of another boot it says nothing about this one.
        """
        known = kept if kept is not None and kept.boot == self._boot != "" else self.course
        took, offset, monotonic = self._reading()
        if took <= MAX_READING_MICROSECONDS and abs(offset - known.offset) > STEP_MICROSECONDS:
            return known.stepped(offset, monotonic)
        return known if known != self.course else None

    def is_stepped(self) -> bool:
        """Return whether the wall clock was stepped since the last course was adopted; costs two readings."""
        moved = (self._wall_ns() - self._monotonic_ns()) // 1000 - self.course.offset
        return not -STEP_MICROSECONDS <= moved <= STEP_MICROSECONDS

    def adopt(self, course: Course) -> None:
        """Follow this course from now on."""
        self.course = course


START = Instant(1_700_000_000_000_000)


class ManualClock:
    """A clock that only moves when `advance` or `step` is called; for tests and replays."""

    def __init__(self, now: Instant = START) -> None:
        self._now = now
        self._monotonic_microseconds = 1_000_000_000

    def now(self) -> Instant:
        """Return the instant at which the clock stands."""
        return self._now

    def monotonic(self) -> float:
        """Return the seconds that `advance` has let pass, from an arbitrary start."""
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

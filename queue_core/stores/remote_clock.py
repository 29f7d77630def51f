"""The clock of a store that several hosts share: the store's time, estimated from its answers (ADR 9).

An answer that carries the store's time bounds its offset from the time since this host's boot; the shorter the round
trip, the closer. The bounds of several answers are intersected; an answer outside means that the store's clock was set.
Leases don't end by that: the time that verbs get goes on, and is slewed to the store's (ADR 36).
"""

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

from queue_core.clock import MICROSECONDS, ClockSteps, Instant, SystemClock, lag_left, microseconds_since_boot
from queue_core.errors import StoreUnavailableError

STALE_SECONDS = 3.0
"""Age of the last answer after which another call should read the store's time again."""
VAGUE_SECONDS = 0.005
"""An estimate with a larger error is vague: its round trip was slow, as to a busy server."""
VAGUE_STALE_SECONDS = 0.05
"""The same as `STALE_SECONDS`, while the estimate is vague."""
MAX_OPENING_READS = 3
"""Reads of the time right after connecting, while the estimate is vague."""
DRIFT = 200e-6
"""Seconds per second by which two hosts' clocks may drift apart. A faster drift is treated as a clock that was set."""
MAX_STANDSTILL_SECONDS = 1.0
"""A store's clock that was set by up to this is followed at once, and back by standing still; beyond, it is slewed."""


@dataclass(frozen=True, slots=True)
class _Bounds:
    """Bounds, at `at`, of the store's time minus the time since boot, in microseconds; they widen with age."""

    low: float
    high: float
    at: int

    def at_age(self, now: int) -> "_Bounds":
        drift = DRIFT * max(0, now - self.at)
        return _Bounds(self.low - drift, self.high + drift, max(now, self.at))

    @property
    def middle(self) -> int:
        return round((self.low + self.high) / 2)


@dataclass(frozen=True, slots=True)
class ClockRecord:
    """The steps of a store's clock, as it keeps them for processes that open it later; in microseconds (ADR 36).

    `lag` is the store's clock's lead over the time that verbs get, at `at` by that clock; `step` is the last step.
    """

    lag: int = 0
    at: int = 0
    steps: int = 0
    step: int = 0

    def lag_at(self, store_clock: int) -> int:
        """Return the lead that is left."""
        return lag_left(self.lag, store_clock - self.at) if self.lag else 0

    def encode(self) -> str:
        """Return it as text."""
        return f"{self.lag} {self.at} {self.steps} {self.step}"


NEVER_STEPPED = ClockRecord()


def decode_record(text: str) -> ClockRecord:
    """Return the record that the text shows; "" shows a clock that was never stepped."""
    return ClockRecord(*(int(part) for part in text.split())) if text else NEVER_STEPPED


class RemoteClock:
    """A `Clock` with the store's time, to within `error_seconds`. Thread-safe.

    It never goes back. Where the store's clock was set by more than `MAX_STANDSTILL_SECONDS`, or a server with another
    clock took over, it goes on a little faster or slower until the two agree, so that no lease ends early or late by
    the step. Where it was set back by less, it stands still until the store has caught up.
    """

    def __init__(self, *, since_boot: Callable[[], int] = microseconds_since_boot) -> None:
        """Args:
        since_boot: microseconds on a clock that is never set; a test brings its own.
        """
        self._since_boot = since_boot
        self._monotonic = SystemClock().monotonic
        self._lock = Lock()
        self._bounds: _Bounds | None = None
        self._offset = 0
        self._latest = 0
        self._answered_at = 0
        self._set_at = 0
        self._record = NEVER_STEPPED
        self._unkept: ClockRecord | None = None

    def renew_after_fork(self) -> None:
        """In the child of a fork: keep the parent's estimate, with a new lock."""
        self._lock = Lock()
        if self._bounds is not None:
            self._offset = self._bounds.middle

    def now(self) -> Instant:
        """Return the store's time. Raises `StoreUnavailableError` before the first `observe`."""
        with self._lock:
            if self._bounds is None:
                raise StoreUnavailableError(
                    "the store's time is not known yet: it has not answered since it was opened"
                )
            now = self._now_at(self._since_boot())
            if now < self._latest:
                return Instant(self._latest)
            self._latest = now
            return Instant(now)

    def _now_at(self, since_boot: int) -> int:
        store_clock = since_boot + self._offset
        return store_clock - self._record.lag_at(store_clock)

    def steps(self) -> ClockSteps:
        """See `StepsClock.steps`."""
        with self._lock:
            record = self._record
            lag = record.lag_at(self._since_boot() + self._offset)
            return ClockSteps(record.steps, record.step / MICROSECONDS, lag / MICROSECONDS)

    @property
    def unkept(self) -> ClockRecord | None:
        """The record that the store should keep, until an answer shows that it does; any process may write it."""
        return self._unkept

    def is_stepped(self) -> bool:
        """See `StepsClock.is_stepped`: the next answer tells."""
        return False

    def monotonic(self) -> float:
        """Return this host's monotonic seconds, for waiting."""
        return self._monotonic()

    def since_boot(self) -> int:
        """Return the time to give `observe` as `sent_at` and `received_at`, in microseconds."""
        return self._since_boot()

    @property
    def is_stale(self) -> bool:
        """Return whether the next call should read the store's time; true before the first `observe`."""
        bounds = self._bounds
        if bounds is None:
            return True
        max_age = VAGUE_STALE_SECONDS if self.is_vague else STALE_SECONDS
        return self._since_boot() - self._answered_at > max_age * MICROSECONDS

    @property
    def is_vague(self) -> bool:
        """Return whether `now` may be off by more than `VAGUE_SECONDS`, apart from drift; true before `observe`."""
        bounds = self._bounds
        return bounds is None or bounds.high - bounds.low > 2 * VAGUE_SECONDS * MICROSECONDS

    @property
    def error_seconds(self) -> float:
        """The largest error of `now`: half the best round trip and drift since; infinite before the first `observe`."""
        with self._lock:
            if self._bounds is None:
                return float("inf")
            bounds = self._bounds.at_age(self._since_boot())
            return max(self._offset - bounds.low, bounds.high - self._offset) / MICROSECONDS

    def observe(self, store_now: Instant, *, sent_at: int, received_at: int, record: ClockRecord | None = None) -> None:
        """Improve the estimate with an answer that carried the store's time.

        Args:
            store_now: read by the store between receiving the call and answering it.
            sent_at, received_at: `since_boot()` right before the call and right after its answer.
            record: what the store keeps of its clock's steps; None: it was not read.
        """
        slack = 1 + DRIFT * (received_at - sent_at)  # both times are cut to microseconds
        measured = _Bounds(store_now - received_at - slack, store_now - sent_at + slack, received_at)
        with self._lock:
            if sent_at < self._set_at:
                return  # on its way since before the clock was set
            self._answered_at = max(self._answered_at, received_at)
            if self._bounds is None:
                self._set(measured)
                self._record = record or self._record
                return
            current = self._bounds.at_age(received_at)
            low, high = max(current.low, measured.low), min(current.high, measured.high)
            if low <= high:
                self._set(_Bounds(low, high, current.at))
                self._follow(record, received_at)
            else:
                self._set_at = received_at
                self._outside(measured, record, received_at)

    def _outside(self, measured: _Bounds, record: ClockRecord | None, at: int) -> None:
        """Follow an answer outside the bounds: the store's clock was set."""
        expected, before = self._now_at(at), self._offset
        self._set(measured)
        step = self._offset - before
        if abs(step) <= MAX_STANDSTILL_SECONDS * MICROSECONDS:
            self._follow(record, at)
            return
        store_clock = at + self._offset
        if record is not None and record != self._record:  # another process may have noticed before
            now = store_clock - record.lag_at(store_clock)
            if abs(now - expected) <= MAX_STANDSTILL_SECONDS * MICROSECONDS:
                self._follow(record, at)
                return
        steps = max(self._record.steps, 0 if record is None else record.steps) + 1
        self._record = self._unkept = ClockRecord(store_clock - expected, store_clock, steps, step)

    def _follow(self, record: ClockRecord | None, at: int) -> None:
        """Follow what the store keeps, unless this process has noticed a later step."""
        if record is None or (self._unkept is not None and record.steps < self._unkept.steps):
            return
        self._record, self._unkept = record, None
        if self._now_at(at) < self._latest - MAX_STANDSTILL_SECONDS * MICROSECONDS:
            self._latest = 0

    def _set(self, bounds: _Bounds) -> None:
        self._bounds = bounds
        self._offset = bounds.middle

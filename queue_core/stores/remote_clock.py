"""The clock of a store that several hosts share: its time, whatever the wall clock of this host says.

An answer that carries the store's time says how far that is from the time since this host's boot, as exactly as its
round trip was short. What several answers agree on is kept; what contradicts them means that the store's clock was set.
"""

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

from queue_core.clock import MICROSECONDS, Instant, SystemClock, microseconds_since_boot
from queue_core.errors import StoreUnavailableError

STALE_SECONDS = 3.0
"""How old the last answer may grow before another call should bring the time along."""
VAGUE_SECONDS = 0.005
"""An estimate that may be off by more is made better soon: its round trip was slow, as that to a busy server is."""
AGAIN_SECONDS = 0.05
OPENING_LOOKS = 3
"""Of a vague first estimate, how often to ask at once: the server may just have been too busy to answer."""
DRIFT = 200e-6
"""Seconds by which two hosts' clocks may part per second. Faster ones are followed like clocks that were set."""
STAND_STILL_SECONDS = 1.0
"""Who must go back by no more than this waits instead until the time comes again."""


@dataclass(frozen=True, slots=True)
class _Bounds:
    """The store's time minus the time since boot lay in [low, high] microseconds at `at`; `note`s widen it with age."""

    low: float
    high: float
    at: int

    def at_age(self, now: int) -> "_Bounds":
        drift = DRIFT * max(0, now - self.at)
        return _Bounds(self.low - drift, self.high + drift, max(now, self.at))

    @property
    def middle(self) -> int:
        return round((self.low + self.high) / 2)


class RemoteClock:
    """A `Clock`: the store's time, right to within `error_seconds`. For several threads.

    It never goes back, but where the store's own clock was set back by more than a second, or another server whose
    clock is behind took over: that is followed at the next answer, as nothing would expire until the old time came
    again. Where it was ahead by less, as better answers may show, it stands still until the store has caught up.
    """

    def __init__(self, *, since_boot: Callable[[], int] = microseconds_since_boot) -> None:
        """Args:
        since_boot: microseconds on a clock that nobody sets; a test brings its own.
        """
        self._since_boot = since_boot
        self._monotonic = SystemClock().monotonic
        self._lock = Lock()
        self._bounds: _Bounds | None = None
        self._offset = 0
        self._latest = 0
        self._heard_at = 0
        self._set_at = 0

    def renew_after_fork(self) -> None:
        """In the child of a fork, which has the parent's time; whoever was about to set it is not here."""
        self._lock = Lock()
        if self._bounds is not None:
            self._offset = self._bounds.middle

    def now(self) -> Instant:
        """The store's time. Raises `StoreUnavailableError` before the first `note`."""
        with self._lock:
            if self._bounds is None:
                raise StoreUnavailableError(
                    "the store's time is not known yet: it has not answered since it was opened"
                )
            now = self._since_boot() + self._offset
            if now < self._latest:
                return Instant(self._latest)
            self._latest = now
            return Instant(now)

    def monotonic(self) -> float:
        """Seconds that never go back, for waiting; this host's."""
        return self._monotonic()

    def since_boot(self) -> int:
        """What to give `note` as `sent_at` and `received_at`."""
        return self._since_boot()

    @property
    def is_stale(self) -> bool:
        """Whether the next call should bring the store's time along; true before the first `note`."""
        bounds = self._bounds
        if bounds is None:
            return True
        patience = AGAIN_SECONDS if self.is_vague else STALE_SECONDS
        return self._since_boot() - self._heard_at > patience * MICROSECONDS

    @property
    def is_vague(self) -> bool:
        """Whether `now` may be off by more than `VAGUE_SECONDS`, apart from drift; true before the first `note`."""
        bounds = self._bounds
        return bounds is None or bounds.high - bounds.low > 2 * VAGUE_SECONDS * MICROSECONDS

    @property
    def error_seconds(self) -> float:
        """How far `now` may be from the store's time: half the best round trip, and drift since; infinite: unknown."""
        with self._lock:
            if self._bounds is None:
                return float("inf")
            bounds = self._bounds.at_age(self._since_boot())
            return max(self._offset - bounds.low, bounds.high - self._offset) / MICROSECONDS

    def note(self, store_now: Instant, *, sent_at: int, received_at: int) -> None:
        """An answer carried the store's time.

        Args:
            store_now: read by the store after it got the call and before it answered.
            sent_at, received_at: `since_boot()` right before the call and right after its answer.
        """
        slack = 1 + DRIFT * (received_at - sent_at)  # both times are cut to microseconds
        heard = _Bounds(store_now - received_at - slack, store_now - sent_at + slack, received_at)
        with self._lock:
            if sent_at < self._set_at:
                return  # on its way since before the clock was set
            self._heard_at = max(self._heard_at, received_at)
            if self._bounds is None:
                self._keep(heard)
                return
            known = self._bounds.at_age(received_at)
            low, high = max(known.low, heard.low), min(known.high, heard.high)
            if low <= high:
                self._keep(_Bounds(low, high, known.at))
            else:
                self._set_at = received_at
                self._keep(heard)
                if received_at + self._offset < self._latest - STAND_STILL_SECONDS * MICROSECONDS:
                    self._latest = 0

    def _keep(self, bounds: _Bounds) -> None:
        self._bounds = bounds
        self._offset = bounds.middle

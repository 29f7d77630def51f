"""A host whose wall clock is stepped while it runs; its monotonic clock is this host's."""

from queue_core.clock import Instant, SystemClock, after


class SteppedHost(SystemClock):
    """The host's clocks, after the steps made so far."""

    def __init__(self) -> None:
        self._ahead_seconds = 0.0

    def now(self) -> Instant:
        return after(super().now(), self._ahead_seconds)

    def step(self, seconds: float) -> None:
        """Step the wall clock forward, or back."""
        self._ahead_seconds += seconds

"""The pace of calls to an apiserver that change something: as many as kube-controller-manager itself makes."""

import threading
from typing import Final

from orchestrator.base.clock import Monotonic, MonotonicClock

CALLS_PER_SECOND: Final = 20.0
BURST: Final = 50.0
"""Calls at once, after a rest."""


class CallPace:
    """A bucket of tokens. Any thread may call it."""

    def __init__(self, clock: MonotonicClock, *, per_second: float = CALLS_PER_SECOND, burst: float = BURST) -> None:
        self._clock = clock
        self._per_second = per_second
        self._burst = burst
        self._lock = threading.Lock()
        self._tokens = burst
        self._at = clock.monotonic()
        self._held_until = Monotonic(float("-inf"))

    def take(self) -> float:
        """Take a token and return 0, or return the seconds until there is one."""
        with self._lock:
            now = self._clock.monotonic()
            if now < self._held_until:
                return self._held_until - now
            self._tokens = min(self._burst, self._tokens + (now - self._at) * self._per_second)
            self._at = now
            if self._tokens < 1.0:
                return (1.0 - self._tokens) / self._per_second
            self._tokens -= 1.0
            return 0.0

    def hold(self, seconds: float) -> None:
        """Make no call for so long: the apiserver has asked for it."""
        with self._lock:
            self._held_until = Monotonic(max(self._held_until, self._clock.monotonic() + seconds))

    def wait(self, closed: threading.Event) -> bool:
        """Sleep until there is a token and take it; False once `closed` is set."""
        while seconds := self.take():
            if closed.wait(seconds):
                return False
        return not closed.is_set()

"""What a supervisor shows to the threads that answer for it: its newest view, and whether its turns still finish.

One thread writes, any may read: each attribute is replaced as a whole, so nobody waits for anybody.
"""

from bisect import bisect_left
from dataclasses import dataclass
from typing import Final

from orchestrator.clock import Monotonic
from orchestrator.fleet_view import FleetView

LIVE_SECONDS: Final = 60.0
"""A supervisor that has not finished its turns for so long hangs: its numbers are not to be acted on any more."""
DURATION_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


@dataclass(frozen=True, slots=True)
class Rounds:
    """How long rounds of turns took: `counts` per bucket of `DURATION_BUCKETS`, and beyond them; `failed` of them."""

    counts: tuple[int, ...] = (0,) * (len(DURATION_BUCKETS) + 1)
    seconds: float = 0.0
    failed: int = 0

    def after(self, seconds: float, *, failed: int) -> "Rounds":
        """One round more."""
        place = bisect_left(DURATION_BUCKETS, seconds)
        counts = (*self.counts[:place], self.counts[place] + 1, *self.counts[place + 1 :])
        return Rounds(counts, self.seconds + seconds, self.failed + failed)


class Pulse:
    """Beats with every pass of the supervisor that went well."""

    def __init__(self, *, now: Monotonic) -> None:
        self.started_at = now
        self.view = FleetView("starting", now, {})
        self.rounds = Rounds()
        self.passed_at = now

    def show(self, view: FleetView) -> None:
        """From now on others see this."""
        self.view = view

    def took(self, seconds: float, *, is_well: bool) -> None:
        """A round of turns ended after so long."""
        self.rounds = self.rounds.after(seconds, failed=not is_well)

    def passed(self, *, now: Monotonic) -> None:
        """Everything that was due is done."""
        self.passed_at = now

    def is_live(self, *, now: Monotonic) -> bool:
        """Whether its turns finish."""
        return self.view.phase != "stopped" and now - self.passed_at <= LIVE_SECONDS

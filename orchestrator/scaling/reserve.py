"""Compute the warm reserve of a pool whose starts take longer than the slo allows, and its budget. Pure (ADR 18).

In such a pool a task that finds no idle worker is late. The workers needed beforehand follow from the Erlang C estimate
and from the worst recent burst. Idle time costs, so it is bounded by how busy the pool is: one burst an hour keeps no
worker warm for an hour.
"""

import math
from typing import Final

from orchestrator.base.clock import Monotonic
from orchestrator.base.values import value
from orchestrator.scaling.deadline import Pace, ServingCapacity

STEADY_SHARE: Final = 1.5
"""The most idle slots per slot that is busy on average, for random arrivals. Measured, like the others here: on 200
random worlds a larger share costs more than it saves in late tasks, and a smaller one saves nothing."""
BURST_SHARE: Final = 6.0
"""The same for bursts: they come to a pool that is idle most of the time."""
BUSY_SECONDS: Final = 1200.0
"""The time constant of the average of busy slots."""
_BURSTY: Final = 1.3
"""A burst counts if it needs this many times the Erlang C estimate."""
_HALF_LIFE_SECONDS: Final = 600.0
"""The half-life of the worst burst."""
_NOISE: Final = 0.2  # workers by which a burst is rounded down
_QUIET_TASKS: Final = 0.2
"""Arrivals expected within a start below which nothing is kept warm."""
_MAX_TURNS: Final = 256  # turns with arrivals that are kept
_LONG_AGO: Final = Monotonic(float("-inf"))


@value
class WarmWorkers:
    """The workers to keep warm: `wanted` would hold the slo, `kept` is what the budget allows.

    `busy` is the average from which the budget is computed, in workers.
    """

    wanted: int = 0
    kept: int = 0
    busy: float = 0.0

    @property
    def description(self) -> str:
        """A sentence on what the budget denied; "" if nothing."""
        if self.kept >= self.wanted:
            return ""
        times = self.wanted / max(self.busy, 0.01)
        return (
            f"{self.wanted} warm would meet the SLO at {times:.3g} times the cost of the work: keeping {self.kept}; "
            f"set workers.min for more"
        )


NOBODY_WARM: Final = WarmWorkers()


@value
class Reserve:
    """The state from which the reserve is computed.

    `burst` is the worst recent burst, in slots that had to be warm for it, with a half-life of ten minutes; `recent`
    has the arrivals of the last start-up time; `busy_slots` is an average over twenty minutes.
    """

    burst: float = 0.0
    at: Monotonic = _LONG_AGO
    recent: tuple[tuple[Monotonic, int], ...] = ()
    busy_slots: float = 0.0

    def after(
        self,
        arrivals: int,
        *,
        at: Monotonic,
        busy_seconds: float,
        elapsed_seconds: float,
        capacity: ServingCapacity,
        pace: Pace,
    ) -> "Reserve":
        """Learn from the turn that ended `at`: its `arrivals`, and the sum of `busy_seconds` of its slots."""
        gain = 1.0 - math.exp(-elapsed_seconds / BUSY_SECONDS)
        busy_slots = self.busy_slots + gain * (busy_seconds / elapsed_seconds - self.busy_slots)
        reach = pace.startup_seconds + pace.turn_seconds
        recent = (*self.recent, (at, arrivals))[-_MAX_TURNS:] if arrivals else self.recent
        while recent and recent[0][0] <= at - reach:
            recent = recent[1:]
        if pace.is_start_in_time:
            return Reserve(0.0, at, recent, busy_slots)
        burst = self.burst * 0.5 ** (max(0.0, at - self.at) / _HALF_LIFE_SECONDS)
        total = 0
        for then, count in reversed(recent):
            total += count
            burst = max(burst, total / (1.0 + (at - then + pace.usable_slo_seconds) / capacity.service_seconds))
        return Reserve(burst, at, recent, busy_slots)

    def warm(
        self, *, erlang_workers: int, tasks: int, in_flight: int, rate: float, capacity: ServingCapacity, pace: Pace
    ) -> WarmWorkers:
        """Return the workers to keep warm now.

        Args:
            erlang_workers: the Erlang C estimate, in workers.
            tasks: tasks that wait or are held.
            in_flight: tasks that are held; busy workers need no budget.
            rate: recent arrivals per second.
        """
        if pace.is_start_in_time:
            return NOBODY_WARM
        if not tasks and rate * pace.startup_seconds < _QUIET_TASKS:
            return NOBODY_WARM  # no arrival is expected within a start
        slots = capacity.slots_per_worker
        burst = math.ceil(max(0.0, self.burst / slots - _NOISE))
        kept = min(erlang_workers, self._affordable(STEADY_SHARE, in_flight, slots))
        if burst > _BURSTY * erlang_workers:
            kept = max(kept, min(burst, self._affordable(BURST_SHARE, in_flight, slots)))
        else:
            burst = 0
        return WarmWorkers(max(erlang_workers, burst), kept, self.busy_slots / slots)

    def _affordable(self, share: float, in_flight: int, slots: int) -> int:
        return math.floor((in_flight + share * self.busy_slots) / slots + 0.5)

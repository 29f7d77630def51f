"""What is kept warm where a start takes longer than the slo leaves, and the budget for it. Pure.

A task that comes while nobody is idle is then late, whatever is started for it. Two things say how many workers have to
be there before the work: the fleet that meets the slo on paper, and the worst burst lately. What they idle is paid for,
so it is bounded by what the pool is busy: one burst an hour keeps nobody for an hour.
"""

import math
from typing import Final

from orchestrator.clock import Monotonic
from orchestrator.scaling.deadline import Pace, ServingCapacity
from orchestrator.values import value

STEADY_SHARE: Final = 1.5
"""Idle slots per slot that was busy on average, at most, for arrivals at random. Chosen by measurement, as are the
others here: on 200 random worlds more of it costs more than it saves in late tasks, and less of it saves nothing."""
BURST_SHARE: Final = 6.0
"""The same for bursts: they come to a pool that is idle for most of the time."""
BUSY_SECONDS: Final = 1200.0
"""The time constant of the average."""
_BURSTY: Final = 1.3
_HALF_LIFE_SECONDS: Final = 600.0
_NOISE: Final = 0.2
_QUIET_TASKS: Final = 0.2
_MAX_LOOKS: Final = 256
_LONG_AGO: Final = Monotonic(float("-inf"))


@value
class WarmWorkers:
    """Workers to keep warm: as many as would hold the slo are `wanted`, and `kept` is what their budget leaves of them.

    `busy` is the average that the budget is counted from, in workers.
    """

    wanted: int = 0
    kept: int = 0
    busy: float = 0.0

    @property
    def description(self) -> str:
        """What the budget took away, in a sentence; "" for nothing."""
        if self.kept >= self.wanted:
            return ""
        times = self.wanted / max(self.busy, 0.01)
        return (
            f"{self.wanted} warm would hold the slo and cost {times:.3g} times the work, so {self.kept} are kept: "
            f"for more set workers.min"
        )


NOBODY_WARM: Final = WarmWorkers()


@value
class Reserve:
    """What the reserve is worked out from.

    `burst` is the worst burst lately in slots that had to be warm for it, half forgotten in ten minutes; `recent` has
    the arrivals of the last start-up's time; `busy_slots` is an average over twenty minutes.
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
        """Learn that `arrivals` came in the turn that ended `at`; slots were busy in it for `busy_seconds` in all."""
        gain = 1.0 - math.exp(-elapsed_seconds / BUSY_SECONDS)
        busy_slots = self.busy_slots + gain * (busy_seconds / elapsed_seconds - self.busy_slots)
        reach = pace.startup_seconds + pace.turn_seconds
        recent = (*self.recent, (at, arrivals))[-_MAX_LOOKS:] if arrivals else self.recent
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
        """What is to be kept warm now.

        Args:
            paper: workers that meet the slo on paper.
            tasks: that wait or are held.
            in_flight: tasks that are held; what is busy needs no budget.
            rate: arrivals per second lately.
        """
        if pace.is_start_in_time:
            return NOBODY_WARM
        if not tasks and rate * pace.startup_seconds < _QUIET_TASKS:
            return NOBODY_WARM  # nothing comes within a start, as far as can be told
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

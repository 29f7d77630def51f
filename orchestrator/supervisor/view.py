"""The fleet's newest view, for other threads, and whether the supervisor's turns still finish.

A view is one immutable value. One thread writes and any may read: each attribute of `Heartbeat` is replaced as a
whole, so no lock is needed.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

from orchestrator.base.clock import Monotonic
from orchestrator.base.samples import QueueSample, UnservedTag
from orchestrator.config.pools import PoolSpec
from orchestrator.fleet.trend import Trend
from orchestrator.fleet.workers import State
from orchestrator.scaling.decision import Decision
from orchestrator.scaling.lease_waits import Recent
from orchestrator.supervisor.pool import Concern, Pool, PoolCounters, concern_of, states_of

Phase = Literal["starting", "leading", "standby", "draining", "stopping", "stopped"]

WORKER_STATES: Final[tuple[State, ...]] = get_args(State)

LIVE_SECONDS: Final = 60.0
"""A supervisor that has finished no turns for this long hangs; its numbers must not be acted on."""
DURATION_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds of the histogram's buckets, in seconds."""


@dataclass(frozen=True, slots=True)
class PoolView:
    """A pool of the settings. `spec` has the bounds of the moment, `states` counts workers, `counters` is a copy.

    `alive` counts the workers that count towards its size; `suspected` counts the tasks that wait for solo workers;
    `states_in_force` are sentences (see `states_of`); `settings` has the bounds of the file.
    """

    spec: PoolSpec
    states: Mapping[State, int]
    alive: int
    memory_bytes: int
    failed_starts: int
    suspected: int
    sample: QueueSample | None
    decision: Decision | None
    counters: PoolCounters
    concern: Concern | None
    states_in_force: tuple[str, ...] = ()
    settings: PoolSpec | None = None
    trend: Trend = ()

    @property
    def desired(self) -> int | None:
        """The number of workers it should have; None before the first decision. A dry run keeps what is there."""
        if self.decision is None:
            return None
        return self.decision.current if self.spec.dry_run else self.decision.target

    @property
    def oldest_seconds(self) -> float:
        """The age of the oldest ready task at the last sample; 0 when there was none."""
        return self.sample.oldest_seconds if self.sample else 0.0

    @property
    def waited(self) -> Recent:
        """The waits of leases that began within the last hour."""
        return self.counters.waits.recent(self.sample.at) if self.sample else Recent()


@dataclass(frozen=True, slots=True)
class FleetView:
    """All pools of the settings, by name, and the tags of waiting tasks that none of them works on."""

    phase: Phase
    started_at: Monotonic
    pools: Mapping[str, PoolView]
    unserved: Sequence[UnservedTag] = ()


def view_of(
    pools: Iterable[Pool], *, phase: Phase, started_at: Monotonic, unserved: Sequence[UnservedTag] = ()
) -> FleetView:
    """Return a view of these pools, without those that have left the settings."""
    shown = {pool.name: _pool(pool, pool.spec) for pool in pools if pool.spec is not None}
    return FleetView(phase, started_at, shown, unserved)


def _pool(pool: Pool, spec: PoolSpec) -> PoolView:
    states: dict[State, int] = dict.fromkeys(WORKER_STATES, 0)
    memory_bytes = 0
    for worker in pool.fleet.workers.values():
        states[worker.state] += 1
        memory_bytes += worker.memory_bytes
    return PoolView(
        spec=pool.effective or spec,
        states=states,
        alive=len(pool.fleet.alive),
        memory_bytes=memory_bytes,
        failed_starts=pool.fleet.failed_starts(spec),
        suspected=len(pool.suspected),
        sample=pool.sample,
        decision=pool.decision,
        counters=pool.counters.copy(),
        concern=concern_of(pool),
        states_in_force=states_of(pool),
        settings=spec,
        trend=pool.trend,
    )


@dataclass(frozen=True, slots=True)
class TurnDurations:
    """Durations of rounds of turns: `counts` per bucket of `DURATION_BUCKETS` and beyond; `failed` of them failed."""

    counts: tuple[int, ...] = (0,) * (len(DURATION_BUCKETS) + 1)
    seconds: float = 0.0
    failed: int = 0

    def after(self, seconds: float, *, failed: int) -> "TurnDurations":
        """Return the durations with one round more."""
        place = bisect_left(DURATION_BUCKETS, seconds)
        counts = (*self.counts[:place], self.counts[place] + 1, *self.counts[place + 1 :])
        return TurnDurations(counts, self.seconds + seconds, self.failed + failed)


class Heartbeat:
    """The supervisor's sign of life, renewed by every pass that succeeded."""

    def __init__(self, *, now: Monotonic) -> None:
        self.started_at = now
        self.view = FleetView("starting", now, {})
        self.rounds = TurnDurations()
        self.passed_at = now

    def show(self, view: FleetView) -> None:
        """Publish a view to other threads."""
        self.view = view

    def record_round(self, seconds: float, *, is_well: bool) -> None:
        """Record the duration of a round of turns."""
        self.rounds = self.rounds.after(seconds, failed=not is_well)

    def beat(self, *, now: Monotonic) -> None:
        """Record that everything that was due is done."""
        self.passed_at = now

    def is_live(self, *, now: Monotonic) -> bool:
        """Return whether the supervisor's turns still finish."""
        return self.view.phase != "stopped" and now - self.passed_at <= LIVE_SECONDS

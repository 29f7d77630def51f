"""Run one workload through several pools and rules, and compare each with hindsight. Pure."""

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from orchestrator.config.pools import PoolSpec
from orchestrator.scaling.learning import PolicyState
from orchestrator.simulation.pool import NEVER, SimulatedPool
from orchestrator.simulation.results import RunResult, result_of
from orchestrator.simulation.rules import RuleScaler, rule_settings
from orchestrator.simulation.scaler import PolicyScaler, Scaler
from orchestrator.simulation.workload import SimulatedWorld, Workload

COOL_DOWN_SECONDS: Final = 900.0
"""Time after the last arrival until which remaining workers still cost."""
GIVE_UP_SECONDS: Final = 6 * 3600.0
"""Time after the last arrival at which tasks that are not done count as never done."""
_STEPS_PER_REPORT: Final = 20_000


def simulate(
    workload: Workload,
    world: SimulatedWorld,
    scaler: Scaler,
    *,
    slo_seconds: float,
    slots: int = 1,
    seed: int = 1,
    progress: Callable[[float], None] | None = None,
) -> RunResult:
    """Run a workload to its end.

    Args:
        slo_seconds: the longest wait that is in time, for the result.
        slots: leases that one worker holds at a time.
        seed: equal seeds give equal runs.
        progress: called now and then with the share of the arrivals' time that is over, in [0, 1].
    """
    rng = Random(seed)  # noqa: S311  no secret
    pool = SimulatedPool(workload, world, slots=slots, recent_first=scaler.recent_first, rng=rng)
    turn_at, changed = 0.0, {1: 0, -1: 0, 0: 0}
    last_at = workload.last_at
    report_at = _STEPS_PER_REPORT
    while pool.now < last_at or not _is_over(pool, last_at):
        next_at, visible_at = pool.next_at(), pool.next_visible_at(scaler.ahead_seconds)
        if turn_at <= visible_at and scaler.is_settled(pool):
            if visible_at == NEVER:  # remaining workers cost until the time is over
                pool.now = max(pool.now, last_at + COOL_DOWN_SECONDS) if pool.workers else pool.now
                break
            # The last turn before the next event stands for all in between.
            turn_at += math.floor((visible_at - turn_at) / scaler.turn_seconds) * scaler.turn_seconds
        if pool.wants_turn and scaler.wakes:
            turn_at = pool.now
        if turn_at <= next_at:
            pool.now = turn_at
            changed[scaler.turn(pool)] += 1
            turn_at += scaler.turn_seconds
            pool.wants_turn = False
            pool.serve()
            continue
        pool.advance(min(turn_at, last_at), wakes=scaler.wakes)
        if progress is not None and pool.steps >= report_at:
            report_at = pool.steps + _STEPS_PER_REPORT
            progress(min(1.0, pool.now / max(1.0, last_at)))
    return result_of(pool, workload, scaler=scaler.name, slo_seconds=slo_seconds, grew=changed[1], shrank=changed[-1])


def _is_over(pool: SimulatedPool, last_at: float) -> bool:
    """Return whether all tasks are done and all workers gone, or the time allowed for that is over."""
    beyond = pool.now - last_at
    if pool.is_over and not pool.leases:
        return not pool.workers or beyond > COOL_DOWN_SECONDS
    return beyond > GIVE_UP_SECONDS


_STYLES: Final = (
    # patience and lateness as shares of the slo; whether a task takes the first or the last slot it can wait for
    (0.0, 0.0, False),
    (0.5, 0.0, False),
    (0.95, 0.0, False),
    (0.95, 0.0, True),
    (0.95, 0.45, False),
    (0.95, 0.9, False),
    (0.95, 0.9, True),
)
_FORGET_STARTS: Final = 3.0
_FORGET_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Hindsight:
    """The cheapest schedule found without a late task, and the lower bound of any schedule: the work and one start."""

    worker_seconds: float
    starts: int
    least_worker_seconds: float


def hindsight(workload: Workload, *, slo_seconds: float, startup_seconds: float) -> Hindsight:
    """Return the best of several list schedules, which assign each task to a worker in order of arrival.

    A worker is started exactly `startup_seconds` before its first task, and goes at once unless keeping it idle until
    its next task costs less than another start. The styles differ in how long a task may wait for a busy worker, and in
    how late a worker is started.
    """
    found = [
        _schedule(
            workload,
            startup_seconds,
            patience_seconds=patience * slo_seconds,
            late_seconds=late * slo_seconds,
            takes_first=takes_first,
        )
        for patience, late, takes_first in _STYLES
    ]
    cost, starts = min(found)
    least = workload.work_seconds + (startup_seconds if workload.tasks else 0.0)
    return Hindsight(cost, starts, least)


def _schedule(
    workload: Workload, startup_seconds: float, *, patience_seconds: float, late_seconds: float, takes_first: bool
) -> tuple[float, int]:
    """Return the worker-seconds and starts of one schedule."""
    free_at: list[float] = []  # when each worker's last task so far ends, ascending
    idle_seconds, starts = 0.0, 0
    forgotten_seconds = _FORGET_STARTS * startup_seconds + _FORGET_SECONDS
    for ready_at, service_seconds in zip(workload.ready_at, workload.service_seconds, strict=True):
        idle = bisect_right(free_at, ready_at)
        soon = bisect_right(free_at, ready_at + patience_seconds, idle) if patience_seconds else idle
        if soon > idle and not (idle and free_at[idle - 1] == ready_at):
            begins_at = free_at.pop(idle if takes_first else soon - 1)  # wait for a busy worker: no idle time
        elif idle and ready_at - free_at[idle - 1] <= startup_seconds:
            idle_seconds += ready_at - free_at.pop(idle - 1)
            begins_at = ready_at
        else:
            starts += 1
            begins_at = ready_at + late_seconds
            del free_at[: bisect_left(free_at, ready_at - forgotten_seconds)]  # too long idle to be kept
        insort(free_at, begins_at + service_seconds)
    return workload.work_seconds + idle_seconds + starts * startup_seconds, starts


Progress = Callable[[str, float], None]
"""Called with the name of the present run and the share of its time that is over."""


@dataclass(frozen=True, slots=True)
class PoolCandidate:
    """A pool to simulate, with a name for display; `state` is its policy's at the start."""

    name: str
    spec: PoolSpec
    state: PolicyState | None = None


@dataclass(frozen=True, slots=True)
class StudyRow:
    """One run; `hindsight` is that of its slo, None if a worker holds several tasks at a time."""

    name: str
    is_towline: bool
    result: RunResult
    hindsight: Hindsight | None

    @property
    def cost_ratio(self) -> float | None:
        """The run's worker-seconds divided by those of hindsight."""
        if self.hindsight is None or not self.hindsight.worker_seconds:
            return None
        return self.result.worker_seconds / self.hindsight.worker_seconds


def study(
    workload: Workload,
    world: SimulatedWorld,
    candidates: Sequence[PoolCandidate],
    *,
    rules: Sequence[str] = (),
    seed: int = 1,
    progress: Progress | None = None,
) -> list[StudyRow]:
    """Run every candidate, then every rule at each of their slos, within the bounds of the first candidate with it."""
    yardsticks = {
        slo: hindsight(workload, slo_seconds=slo, startup_seconds=world.mean_startup_seconds)
        for slo in dict.fromkeys(candidate.spec.slo for candidate in candidates)
    }

    def row(scaler: Scaler, spec: PoolSpec, *, is_towline: bool) -> StudyRow:
        report = None if progress is None else lambda share: progress(scaler.name, share)
        slots = spec.concurrency
        result = simulate(workload, world, scaler, slo_seconds=spec.slo, slots=slots, seed=seed, progress=report)
        return StudyRow(scaler.name, is_towline, result, yardsticks[spec.slo] if slots == 1 else None)

    def scaler(one: PoolCandidate) -> Scaler:
        return PolicyScaler(
            one.spec,
            cores=world.cores,
            start_seconds=world.computed_start_seconds,
            begins_at=world.begins_at,
            name=one.name,
            state=one.state,
        )

    rows = [row(scaler(one), one.spec, is_towline=True) for one in candidates]
    for slo in yardsticks:
        spec = next(one.spec for one in candidates if one.spec.slo == slo)
        bounds = spec.workers
        settings = rule_settings(workload, slo_seconds=slo, least=bounds.min, most=bounds.max, slots=spec.concurrency)
        rows += [row(RuleScaler(name, settings), spec, is_towline=False) for name in rules]
    return rows

"""A workload through one way of sizing the pool, event by event and turn by turn. Pure."""

import math
from collections.abc import Callable
from random import Random
from typing import Final

from orchestrator.simulation.parts import NEVER
from orchestrator.simulation.pool import SimulatedPool
from orchestrator.simulation.results import Result, result_of
from orchestrator.simulation.scaler import Scaler
from orchestrator.simulation.workload import Workload, World

COOL_DOWN_SECONDS: Final = 900.0
"""How long after the last arrival workers that are kept still cost, at most."""
GIVE_UP_SECONDS: Final = 6 * 3600.0
"""How long after the last arrival tasks that are still not done count as never done."""
_STEPS_PER_REPORT: Final = 20_000


def simulate(
    workload: Workload,
    world: World,
    scaler: Scaler,
    *,
    slo_seconds: float,
    slots: int = 1,
    seed: int = 1,
    progress: Callable[[float], None] | None = None,
) -> Result:
    """Run a workload to its end.

    Args:
        slo_seconds: the longest wait that is in time, for the result.
        slots: leases that one worker holds at a time.
        seed: the same one gives the same run.
        progress: told now and then which share of the arrivals' time is over, in [0, 1].
    """
    rng = Random(seed)  # noqa: S311  no secret
    pool = SimulatedPool(workload, world, slots=slots, recent_first=scaler.recent_first, rng=rng)
    turn_at, changed = 0.0, {1: 0, -1: 0, 0: 0}
    last_at = workload.last_at
    report_at = _STEPS_PER_REPORT
    while pool.now < last_at or not _is_over(pool, last_at):
        next_at, news_at = pool.next_at(), pool.news_at(scaler.ahead_seconds)
        if turn_at <= news_at and scaler.is_settled(pool):
            if news_at == NEVER:  # workers that are kept cost until the time is over
                pool.now = max(pool.now, last_at + COOL_DOWN_SECONDS) if pool.workers else pool.now
                break
            # The last turn before something happens stands for all of those in between.
            turn_at += math.floor((news_at - turn_at) / scaler.turn_seconds) * scaler.turn_seconds
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
    """Every task has come and gone and so have the workers, within the time that either is given."""
    beyond = pool.now - last_at
    if pool.is_over and not pool.leases:
        return not pool.workers or beyond > COOL_DOWN_SECONDS
    return beyond > GIVE_UP_SECONDS

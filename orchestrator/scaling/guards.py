"""The guards that may change a decision's target, by name and in a fixed order. Pure.

A guard takes a target and the facts, and returns another target with its reason, or None. Add new ones to `GUARDS`.
"""

import math
from collections.abc import Callable
from typing import Final

from orchestrator.config.pools import PoolSpec
from orchestrator.fleet.workers import billed_for, least_recently_used
from orchestrator.scaling.context import Facts
from orchestrator.scaling.decision import Conditions, Decision, Limit
from orchestrator.scaling.estimates import SOON_SECONDS, turn_seconds_of
from orchestrator.scaling.overload import Ceiling

FAILING_SHARE: Final = 0.9
"""The share of failed first leases above which a pool stops growing: what its tasks depend on is down."""
SLOW_START_SECONDS: Final = 10.0
"""A worker that starts for so long is named where others wait for it."""
_TURNS_PER_START: Final = 8
"""Turns per start-up time while growth waits for starts."""


Guard = Callable[[int, Facts], tuple[int, Limit] | None]


def misconfigured(target: int, facts: Facts) -> tuple[int, Limit] | None:
    """Start no worker while the application can't be used, by a look at it and by a worker that failed to start."""
    failure = facts.conditions.application_failure
    if not failure or target <= facts.current or not facts.fleet.failed_starts(facts.spec):
        return None
    return facts.current, Limit("misconfigured", f"its application can't be used: {failure}")


def crash_loop(target: int, facts: Facts) -> tuple[int, Limit] | None:
    """After starts that failed, wait 2, 4, 8 ... 60 s; then probe with one worker until it proves itself."""
    failures = facts.fleet.failed_starts(facts.spec)
    if not failures or target <= facts.current:
        return None
    crash = facts.fleet.crash
    failed = "1 start failed" if failures == 1 else f"{failures} starts failed in a row"
    if facts.now < crash.retry_at:
        wait_seconds = crash.retry_at - facts.now
        return facts.current, Limit("crash_loop", f"{failed}: the next in {wait_seconds:.1f} s")
    if any(w.spawned_at >= crash.failed_at and w.spec_digest == crash.spec_digest for w in facts.alive):
        return facts.current, Limit("crash_loop", f"{failed}: a probe is under way")
    if target == facts.current + 1:
        return None
    return facts.current + 1, Limit("crash_loop", f"{failed}: probing with one worker")


def runtime_unavailable(target: int, facts: Facts) -> tuple[int, Limit] | None:
    """Start no worker while the engine does not answer or is not ready; existing workers are taken to be there."""
    trouble = facts.conditions.runtime_trouble
    if not trouble or target <= facts.current:
        return None
    return facts.current, Limit("runtime_unavailable", trouble)


def quota(target: int, facts: Facts) -> tuple[int, Limit] | None:
    """Start no worker for a while after the cluster has refused one for its quota."""
    said = facts.conditions.quota
    if not said or target <= facts.current:
        return None
    return facts.current, Limit("quota", f"the cluster's quota is used up: {said}")


def max_pending(target: int, facts: Facts) -> tuple[int, Limit] | None:
    """Ask for no more Pods than `max_pending` that no node has: they only keep the scheduler busy."""
    settings = facts.spec.runtime.kubernetes
    if settings is None or target <= facts.current:
        return None
    waiting = [w for w in facts.alive if w.place.is_unplaced]
    most = facts.current + max(0, settings.max_pending - len(waiting))
    if target <= most:
        return None
    bound = f"max_pending is {settings.max_pending:,}"
    words = next((f": {w.place.words}" for w in waiting if w.place.words), "")
    why = f"{len(waiting):,} wait for a node, and {bound}{words}" if waiting else f"{bound} at a time"
    return most, Limit("max_pending", why)


def failing_work(target: int, facts: Facts) -> tuple[int, Limit] | None:
    """Stay below the size from which tasks fail by overload; do not grow while nearly every task fails."""
    if facts.spec.on_failure == "ignore":
        return None
    if facts.state.overload.ceiling is not None:
        return _under(facts.state.overload.ceiling, target, facts)
    if not 0 < facts.current < target:
        return None
    share = facts.state.estimates.outcomes.failed_share
    if share <= FAILING_SHARE:
        return None
    return facts.current, Limit("failing_work", f"{share:.0%} of first leases fail (on_failure: freeze)")


def _under(ceiling: Ceiling, target: int, facts: Facts) -> tuple[int, Limit] | None:
    most = _workers_for(ceiling.leases, facts.spec)
    if target <= most:
        return None
    what = f"back to {most}" if ceiling.leases == ceiling.known else f"trying {most}"
    why = (
        f"{ceiling.many_share:.0%} of leases fail at {ceiling.beyond} at a time, {ceiling.few_share:.0%} at "
        f"{ceiling.known}: {what}"
    )
    return most, Limit("failing_work", why)


def contention(target: int, facts: Facts) -> tuple[int, Limit] | None:
    """Stay below the size from which more workers do no more, with `contention: guard` (see `contention`)."""
    trial = facts.state.contention.trial
    if trial is None or facts.spec.contention != "guard":
        return None
    most = _workers_for(trial.limit, facts.spec)
    if target <= most:
        return None
    return most, Limit("contention", trial.describe(facts.now))


def _workers_for(leases: int, spec: PoolSpec) -> int:
    return max(1, math.ceil(leases / spec.concurrency))


def host_headroom(target: int, facts: Facts) -> tuple[int, Limit] | None:
    """Stay within the memory and CPU allocated to the pool; with memory nearly used up, let an idle worker go."""
    allocation = facts.conditions.allocation
    if allocation is None or not (allocation.scarce or allocation.is_to_yield):
        return None
    most = facts.current + allocation.workers
    why = f"the host has room for {allocation.workers:,} more ({allocation.why})"
    if allocation.scarce == "unknown":
        why = allocation.why + _slow_start(facts)
    if allocation.is_to_yield and not facts.sample.ready and any(w.state == "idle" for w in facts.alive):
        most, why = facts.current - 1, f"stopping an idle worker: {allocation.why}"
    if target <= most:
        return None
    return most, Limit("host_headroom", why)


def _slow_start(facts: Facts) -> str:
    """Return what keeps the pool's workers from being measured, if none has started for long; else ""."""
    slow = min((w for w in facts.alive if w.state == "starting"), key=lambda w: w.spawned_at, default=None)
    if slow is None or facts.starting < facts.current or facts.now - slow.spawned_at < SLOW_START_SECONDS:
        return ""
    return (
        f"; {slow.worker} has been starting for {facts.now - slow.spawned_at:.0f} s, in an import or in on_start "
        f"(towline workers --stack {slow.worker})"
    )


def budget(target: int, facts: Facts) -> tuple[int, Limit] | None:
    """Stay at the Erlang C estimate when the budget is spent, and at the lower bound with an hour's debt."""
    spec = facts.spec
    if spec.budget is None or facts.conditions.budget == "left":
        return None
    most, why = max(spec.workers.min, facts.state.erlang.workers), "the Erlang C estimate"
    if facts.conditions.budget == "overdrawn":
        most, why = spec.workers.min, "min"
    if target <= most:
        return None
    spent = f"the budget of {spec.budget:g} worker-hours a day is {facts.conditions.budget}"
    return most, Limit("budget", f"{spent}, so {most:,} at most ({why})")


def max_step_up(target: int, facts: Facts) -> tuple[int, Limit] | None:
    """Add at most `max_step_up` workers by one decision."""
    step = facts.spec.max_step_up
    if step is None or target <= facts.current + step:
        return None
    return facts.current + step, Limit("max_step_up", f"max_step_up is {step:,} at a time")


def spawn_parallelism(target: int, facts: Facts) -> tuple[int, Limit] | None:
    """Limit the workers that start at a time: starts that compete for the cores are all slow."""
    if target <= facts.current:
        return None
    if facts.spec.spawn_parallelism is None and facts.spec.runtime.is_elsewhere:
        return None  # they do not start on this host
    at_a_time = facts.conditions.starts_at_a_time(facts.spec)
    most = facts.current + max(0, at_a_time - facts.starting)
    if target <= most:
        return None
    return most, Limit("spawn_parallelism", f"{at_a_time:,} may start at a time")


def bounds(target: int, facts: Facts) -> tuple[int, Limit] | None:
    """Never exceed max, never shrink below min. Growth up to min is a rule's, which other guards may slow down."""
    workers = facts.spec.workers
    low, high = workers.min, workers.max
    if low <= target <= high:
        return None
    least = min(low, facts.current)
    if least <= target <= high:
        return None
    if target > high:
        return high, limit_of_max(facts)
    return least, Limit("min", f"min is {low:,}{_set_by(facts)}")


def limit_of_max(facts: Facts) -> Limit:
    """Return the limit of the upper bound, with the reason why it is in force."""
    return Limit("max", f"max is {facts.spec.workers.max:,}{_set_by(facts)}")


def _set_by(facts: Facts) -> str:
    return f" ({facts.conditions.bounds_by})" if facts.conditions.bounds_by else ""


def queue_paused(target: int, facts: Facts) -> tuple[int, Limit] | None:
    """Do not grow beyond min while the queue is paused: it grants no lease."""
    if not facts.sample.paused or target <= max(facts.current, facts.spec.workers.min):
        return None
    return max(facts.current, facts.spec.workers.min), limit_of_pause(facts)


def rate_limited(target: int, facts: Facts) -> tuple[int, Limit] | None:
    """Start no worker that could lease nothing while limits of the queue or of its tags hold tasks back."""
    sample = facts.sample
    if not sample.held or target <= facts.current:
        return None
    most = max(facts.current, _workers_for(sample.ready + sample.in_flight, facts.spec))
    if target <= most:
        return None
    return most, Limit("rate_limited", sample.describe_held())


def limit_of_pause(facts: Facts) -> Limit:
    """Return the limit of a queue that is paused, and how to resume it."""
    return Limit("queue_paused", f"the queue {facts.spec.queue} is paused: `towline resume {facts.spec.queue}`")


def paused(target: int, facts: Facts) -> tuple[int, Limit] | None:
    """Hold the size while an operator has paused changes: all, upwards or downwards."""
    stopped = facts.conditions.paused
    if stopped == "no":
        return None
    up = target > facts.current and stopped in {"both", "up"}
    down = target < facts.current and stopped in {"both", "down"}
    if not (up or down):
        return None
    way = "up" if up else "down"
    return facts.current, Limit("paused", f"changes {way} are paused: `towline resume --pool {facts.spec.name}`")


def stale_sample(target: int, facts: Facts) -> tuple[int, Limit] | None:
    """Hold the size, or grow to the fallback, without a sample of the last three turns."""
    if not facts.is_stale:
        return None
    fallback = facts.spec.fallback
    most = facts.current if fallback == "hold" else max(facts.current, fallback)
    if facts.current <= target <= most:
        return None
    age_seconds = facts.now - facts.sample.at
    held = facts.current if target < facts.current else most
    return held, Limit("stale_sample", f"the last sample is {age_seconds:.0f} s old (fallback: {fallback})")


def min_billing(target: int, facts: Facts) -> tuple[int, Limit] | None:
    """Keep workers that are paid for anyway: an idle worker goes just before its next billing step."""
    spec = facts.spec
    if not spec.min_billing or target >= facts.current:
        return None
    idle = least_recently_used(facts.alive)
    left = [billed_for(w, spec, now=facts.now) for w in idle]
    ends_soon = sum(1 for seconds in left if not seconds)
    trial = facts.state.contention.trial if spec.contention == "guard" else None
    most = spec.workers.max if trial is None else min(spec.workers.max, _workers_for(trial.limit, spec))
    least = min(facts.current - ends_soon, most)
    if target >= least:
        return None
    next_in = min((seconds for seconds in left if seconds), default=0.0)
    why = f"min_billing {spec.min_billing:g} s: an idle worker is paid for, {next_in:.0f} s more at least"
    return least, Limit("min_billing", why)


GUARDS: Final[tuple[Guard, ...]] = (
    misconfigured,
    crash_loop,
    runtime_unavailable,
    quota,
    failing_work,
    contention,
    queue_paused,
    rate_limited,
    host_headroom,
    budget,
    bounds,
    max_pending,
    max_step_up,
    spawn_parallelism,
    paused,
    stale_sample,
    min_billing,
)

_AGAINST_GROWTH: Final = frozenset(
    {crash_loop, runtime_unavailable, quota, max_pending, queue_paused, rate_limited, max_step_up, spawn_parallelism}
)
_BESIDE_GROWTH: Final = tuple([guard for guard in GUARDS if guard not in _AGAINST_GROWTH])
"""Guards that may change a target which is not above the present size; none raises it above that."""


def guarded(target: int, facts: Facts) -> tuple[int, tuple[Limit, ...]]:
    """Return the target after every guard, and the limits of those that changed it."""
    limits: list[Limit] = []
    for guard in GUARDS if target > len(facts.alive) else _BESIDE_GROWTH:
        changed = guard(target, facts)
        if changed is not None:
            target, limit = changed
            limits.append(limit)
    return target, tuple(limits)


def turn_seconds_after(decision: Decision | None, conditions: Conditions, spec: PoolSpec) -> float:
    """Return the time until the next decision: short if growth waits for starts or for a first measurement."""
    if decision is None or spec.dry_run:
        return spec.turn_seconds
    turn_seconds = turn_seconds_of(spec, forks=decision.inputs.forks)
    if not decision.limits:
        return turn_seconds
    allocation, last = conditions.allocation, decision.limits[-1].guard
    is_untried = last == "host_headroom" and allocation is not None and allocation.scarce == "unknown"
    if last != "spawn_parallelism" and not is_untried:
        return turn_seconds
    return min(turn_seconds, max(SOON_SECONDS, decision.inputs.startup_seconds / _TURNS_PER_START))

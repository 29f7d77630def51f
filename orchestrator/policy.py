"""How many workers a pool should have, and why. Pure: no clock, no I/O, no log.

Up: the fewest workers with which every waiting task is leased before its deadline. Down: idle workers only, each
after a hold learned at its level of the fleet, or once a smaller fleet has met the slo on paper for a while.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from orchestrator.clock import Monotonic
from orchestrator.config import PoolSpec
from orchestrator.deadline import Crew, Pace
from orchestrator.decision import NOTHING_SPECIAL, Conditions, Decision, Inputs
from orchestrator.estimate import Estimates, activity, learn, peak_leases
from orchestrator.finishing import Course, course
from orchestrator.fleet import Fleet, Worker, least_recently_used
from orchestrator.growing import grow, told
from orchestrator.guards import Facts, guarded
from orchestrator.metrics import QueueSample
from orchestrator.paper import slots_needed
from orchestrator.scene import PolicyState, Scene, Wish, restart_seconds
from orchestrator.shrinking import shrink

__all__ = ["PolicyState", "decide"]

_MIN_ELAPSED_SECONDS: Final = 0.001
_NAMED: Final = 3


def decide(
    sample: QueueSample,
    *,
    fleet: Fleet,
    spec: PoolSpec,
    state: PolicyState,
    now: Monotonic,
    conditions: Conditions = NOTHING_SPECIAL,
) -> tuple[Decision, PolicyState]:
    """How many workers the pool should have now.

    Args:
        sample: the newest look at the pool's work; the same sample again teaches nothing, and its waits have grown.
        fleet: the pool's workers, which have observed that sample.
        spec: the pool's settings.
        state: what the decision before returned.
        now: no earlier than the sample.
        conditions: what else bears on it: pauses, the host.

    Returns:
        The decision with its reason, and the state for the next one.
    """
    scene = _scene(sample, fleet=fleet, spec=spec, state=state, now=now, conditions=conditions)
    wish, current = grow(scene), len(scene.facts.alive)
    held: Mapping[int, float] = {}
    if wish is None or wish.target <= current:
        wish, held = shrink(scene)
    if spec.fallback != "hold" and max(current, wish.target) < spec.fallback and scene.facts.is_stale:
        wish = Wish(spec.fallback, "fallback", f"no look at the queue for {now - sample.at:.0f} s")
    target, limits = guarded(wish.target, scene.facts)
    inputs, notes = _inputs(scene), _notes(scene, wish)
    decision = Decision(spec.name, now, current, target, wish.rule, wish.why, inputs, wish.target, limits, held, notes)
    return decision, scene.state.grown(current=current, target=target, now=now)


def _notes(scene: Scene, wish: Wish) -> tuple[str, ...]:
    """What is in force beside the rule that decided."""
    notes = scene.facts.conditions.notes
    hung = scene.facts.fleet.unresponsive if len(scene.facts.fleet.workers) > len(scene.facts.alive) else ()
    if hung:
        names = ", ".join(w.worker for w in hung[:_NAMED]) + (", ..." if len(hung) > _NAMED else "")
        notes = (*notes, f"{len(hung)} unresponsive and no capacity: {names}")
    if scene.warm.told:
        notes = (*notes, scene.warm.told)
    trial = scene.state.contention.trial
    if trial is not None and scene.facts.spec.contention == "watch":
        notes = (*notes, f"contention: {trial.did}")
    notes = (*notes, *[words for helper in scene.crew.helpers if (words := helper.told)])
    if scene.course is None or (wish.rule == "finish_by" and scene.course.workers):
        return notes
    return (*notes, told(scene, scene.course))


def _scene(
    sample: QueueSample, *, fleet: Fleet, spec: PoolSpec, state: PolicyState, now: Monotonic, conditions: Conditions
) -> Scene:
    """Learn from the sample if it is new, and count the fleet."""
    alive = fleet.alive
    learned = state
    if state.sampled_at is None or sample.at > state.sampled_at:
        learned, crew, pace = _learned(sample, alive, fleet=fleet, spec=spec, state=state, now=now)
    else:
        pace = _pace(state.estimates, spec)
        running = [lease.held_seconds for lease in sample.running]
        crew = _crew(running, alive, estimates=state.estimates, spec=spec, now=now)
    if conditions.helpers:
        crew = replace(crew, helpers=conditions.helpers)
    outcomes, idle = learned.estimates.outcomes, least_recently_used(alive)
    facts = Facts(
        sample,
        fleet,
        alive,
        spec,
        conditions,
        now,
        outcomes,
        learned.contention,
        learned.paper.workers,
        learned.overload,
    )
    warm = learned.reserve.warm(
        paper=learned.paper.workers,
        tasks=sample.ready + sample.in_flight,
        in_flight=sample.in_flight,
        rate=learned.estimates.arrival_rate,
        crew=crew,
        pace=pace,
    )
    upcoming = sample.upcoming
    if not pace.is_start_in_time:
        upcoming = upcoming or learned.recurrence.next(now=sample.at, turn_seconds=spec.turn_seconds)
    return Scene(
        facts,
        learned,
        crew,
        pace,
        tuple(idle),
        len(alive) - len(idle) - len(crew.ready_in_seconds),
        None if conditions.finish_by is None else _course(facts, crew=crew, pace=pace),
        warm,
        upcoming,
    )


def crew_of(sample: QueueSample, *, fleet: Fleet, spec: PoolSpec, state: PolicyState, now: Monotonic) -> Crew:
    """What the workers of a pool can lease, as far as it knows, for another pool that shares its tasks.

    Those that are starting while starts fail are not counted.
    """
    alive = fleet.alive
    if fleet.failed_starts(spec):
        alive = tuple([worker for worker in alive if worker.state != "starting"])
    running = [lease.held_seconds for lease in sample.running]
    return _crew(running, alive, estimates=state.estimates, spec=spec, now=now)


def _pace(estimates: Estimates, spec: PoolSpec) -> Pace:
    startup = estimates.startup
    return Pace(
        spec.slo,
        estimates.usable_slo_seconds(spec),
        startup.planned_seconds,
        spec.turn_seconds,
        startup.mean_seconds,
    )


def _course(facts: Facts, *, crew: Crew, pace: Pace) -> Course | None:
    finish_by = facts.conditions.finish_by
    if finish_by is None or not facts.sample.ready:
        return None
    return course(
        finish_by,
        facts.sample.ready,
        crew=crew,
        startup_seconds=pace.startup_seconds,
        current=facts.current,
        most=facts.spec.workers.max,
    )


def _learned(
    sample: QueueSample,
    alive: Sequence[Worker],
    *,
    fleet: Fleet,
    spec: PoolSpec,
    state: PolicyState,
    now: Monotonic,
) -> tuple[PolicyState, Crew, Pace]:
    """The state after a new sample, and what the fleet can do by what is known then."""
    known, at, turn_seconds = state.estimates, sample.at, spec.turn_seconds
    elapsed = turn_seconds if state.sampled_at is None else at - state.sampled_at
    if elapsed < _MIN_ELAPSED_SECONDS:
        elapsed = _MIN_ELAPSED_SECONDS
    seen = activity(sample, elapsed_seconds=elapsed, slo_seconds=spec.slo)
    wait = known.usable_slo_seconds(spec)
    backlogs, needed = state.backlogs.after(
        known.service.mean_seconds(seen.running_seconds) * (sample.ready + sample.in_flight),
        done=seen.done_seconds,
        elapsed_seconds=elapsed,
        fleet=len(alive),
        slots_per_worker=spec.concurrency,
        wait_seconds=wait,
        most=spec.workers.max,
    )
    if known.startup.planned_seconds + turn_seconds > wait:
        needed = math.ceil(peak_leases(sample, elapsed_seconds=elapsed) / spec.concurrency)
    startups = [started.seconds for started in fleet.started] if fleet.started else ()
    estimates = learn(known, sample, seen, startups=startups, needed=needed, elapsed_seconds=elapsed, spec=spec)
    pace = _pace(estimates, spec)
    crew = _crew(seen.running_seconds, alive, estimates=estimates, spec=spec, now=now)
    reserve = state.reserve.after(
        sample.arrivals, at=at, busy_seconds=seen.done_seconds, elapsed_seconds=elapsed, crew=crew, pace=pace
    )
    workers = _paper_workers(estimates, crew=crew, pace=pace, spec=spec)
    paper = state.paper.after(workers, at=at, window_seconds=restart_seconds(estimates, spec))
    contention = state.contention.after(sample, spec, startup_seconds=estimates.startup.planned_seconds)
    overload = state.overload.after(sample.finished, at=at)
    recurrence = state.recurrence
    if not pace.is_start_in_time:
        recurrence = recurrence.after(sample.arrivals, at=at, turn_seconds=turn_seconds)
    return (
        PolicyState(estimates, reserve, paper, contention, backlogs, at, state.grown_at, overload, recurrence),
        crew,
        pace,
    )


def _crew(
    held_seconds: Sequence[float], alive: Sequence[Worker], *, estimates: Estimates, spec: PoolSpec, now: Monotonic
) -> Crew:
    slots = spec.concurrency
    mean_start = estimates.startup.mean_seconds
    up = busy_slots = 0
    ready_in_seconds: list[float] = []
    for w in alive:
        if w.state == "starting":
            ready_in_seconds.append(max(0.0, mean_start - (now - w.spawned_at)))
            continue
        leases = w.leases
        if leases > slots:
            leases = slots
        up += 1
        busy_slots += leases
    service_seconds = estimates.service.mean_seconds(held_seconds)
    is_known = estimates.service.count > 0.0
    return Crew(up * slots - busy_slots, busy_slots, tuple(ready_in_seconds), slots, service_seconds, is_known=is_known)


def _paper_workers(estimates: Estimates, *, crew: Crew, pace: Pace, spec: PoolSpec) -> int:
    slots = slots_needed(
        rate=estimates.arrival_rate,
        service_seconds=crew.service_seconds,
        wait_seconds=pace.usable_slo_seconds,
        eps=spec.eps,
        limit=spec.workers.max * crew.slots_per_worker,
    )
    return math.ceil(slots / crew.slots_per_worker)


def _inputs(scene: Scene) -> Inputs:
    facts, state, pace = scene.facts, scene.state, scene.pace
    sample, fleet, estimates = facts.sample, facts.fleet, state.estimates
    starting = len(scene.crew.ready_in_seconds)
    draining = len(fleet.leaving) if len(fleet.workers) > len(facts.alive) else 0
    return Inputs(
        sample.ready,
        sample.delayed,
        sample.in_flight,
        sample.dead,
        scene.busy,
        len(scene.idle),
        starting,
        draining,
        scene.crew.service_seconds,
        pace.startup_seconds,
        estimates.arrival_rate,
        estimates.slack,
        pace.slo_seconds,
        pace.usable_slo_seconds,
        max(0.0, facts.now - sample.at),
    )

"""How many workers a pool should have, and why. Pure: no clock, no I/O, no log.

Up: the fewest workers with which every waiting task is leased before its deadline. Down: idle workers only, each
after a hold learned at its level of the fleet, or once a smaller fleet has met the slo on paper for a while.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from orchestrator.clock import Monotonic
from orchestrator.config import PoolSpec
from orchestrator.deadline import Burst, Crew, Need, Pace, workers_needed
from orchestrator.decision import NOTHING_SPECIAL, Conditions, Decision, Inputs, Rule
from orchestrator.estimate import Estimates, learn, peak_leases
from orchestrator.fleet import Fleet, Worker, least_recently_used
from orchestrator.guards import Facts, guarded
from orchestrator.metrics import QueueSample, Waiting
from orchestrator.paper import PaperNeed, slots_needed

_MIN_ELAPSED_SECONDS: Final = 0.001
_NOISE_TASKS: Final = 0.2  # a rate that has all but decayed keeps nobody warm


@dataclass(frozen=True, slots=True)
class PolicyState:
    """What the policy carries from one decision to the next; a new pool begins with `PolicyState()`."""

    estimates: Estimates = field(default_factory=Estimates)
    burst: Burst = field(default_factory=Burst)
    paper: PaperNeed = field(default_factory=PaperNeed)
    sampled_at: Monotonic | None = None

    def to_json(self) -> dict[str, object]:
        """What is worth keeping across a restart, as plain values: the estimates."""
        return self.estimates.to_json()

    @staticmethod
    def from_json(data: object) -> "PolicyState":
        """The state that `to_json` kept. Raises `ValueError` when `data` is anything else."""
        return PolicyState(estimates=Estimates.from_json(data))


@dataclass(frozen=True, slots=True)
class _Scene:
    """Everything one decision looks at, counted once."""

    facts: Facts
    state: PolicyState
    crew: Crew
    pace: Pace
    idle: tuple[Worker, ...]
    busy: int

    @property
    def sample(self) -> QueueSample:
        return self.facts.sample

    @property
    def spec(self) -> PoolSpec:
        return self.facts.spec

    @property
    def current(self) -> int:
        return self.facts.current


@dataclass(frozen=True, slots=True)
class _Wish:
    """What a rule asks for."""

    target: int
    rule: Rule
    why: str


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
    facts = Facts(sample, fleet, fleet.alive, spec, conditions, now)
    scene = _scene(facts, state)
    wish = _grow(scene)
    held: Mapping[int, float] = {}
    if wish.target <= scene.current:
        wish, held = _shrink(scene)
    target, limits = guarded(wish.target, facts)
    decision = Decision(
        pool=spec.name,
        at=now,
        current=scene.current,
        target=target,
        rule=wish.rule,
        why=wish.why,
        inputs=_inputs(scene),
        unguarded=wish.target,
        limits=limits,
        held=held,
    )
    return decision, scene.state


def _scene(facts: Facts, state: PolicyState) -> _Scene:
    """Learn from the sample if it is new, and count the fleet."""
    sample, spec = facts.sample, facts.spec
    is_new = state.sampled_at is None or sample.at > state.sampled_at
    estimates = _learned(facts, state) if is_new else state.estimates
    pace = Pace(
        slo_seconds=spec.slo,
        usable_slo_seconds=estimates.usable_slo_seconds(spec),
        startup_seconds=estimates.startup.planned_seconds,
        turn_seconds=spec.turn_seconds,
    )
    crew = _crew(facts, estimates)
    learned = replace(state, estimates=estimates)
    if is_new:
        learned = PolicyState(
            estimates=estimates,
            burst=state.burst.after(sample.arrivals, at=sample.at, crew=crew, pace=pace),
            paper=state.paper.after(
                _paper_workers(estimates, crew=crew, pace=pace, spec=spec),
                at=sample.at,
                window_seconds=_restart_seconds(estimates, spec),
            ),
            sampled_at=sample.at,
        )
    return _Scene(
        facts=facts,
        state=learned,
        crew=crew,
        pace=pace,
        idle=tuple(least_recently_used(facts.alive)),
        busy=sum(1 for w in facts.alive if w.state == "busy"),
    )


def _learned(facts: Facts, state: PolicyState) -> Estimates:
    sample, spec = facts.sample, facts.spec
    elapsed = spec.turn_seconds if state.sampled_at is None else sample.at - state.sampled_at
    elapsed = max(_MIN_ELAPSED_SECONDS, elapsed)
    return learn(
        state.estimates,
        sample,
        startups=[started.seconds for started in facts.fleet.started],
        busy=math.ceil(peak_leases(sample, elapsed_seconds=elapsed) / spec.concurrency),
        elapsed_seconds=elapsed,
        spec=spec,
    )


def _crew(facts: Facts, estimates: Estimates) -> Crew:
    slots = facts.spec.concurrency
    up = [w for w in facts.alive if w.state != "starting"]
    busy_slots = sum(min(slots, w.leases) for w in up)
    mean_start = estimates.startup.mean_seconds
    return Crew(
        busy_slots=busy_slots,
        idle_slots=len(up) * slots - busy_slots,
        ready_in_seconds=tuple(
            max(0.0, mean_start - (facts.now - w.spawned_at)) for w in facts.alive if w.state == "starting"
        ),
        slots_per_worker=slots,
        service_seconds=estimates.service.mean_seconds([r.held_seconds for r in facts.sample.running]),
    )


def _grow(scene: _Scene) -> _Wish:
    """The most that any rule asks for; `current` when none asks for more."""
    wishes = [_deadline(scene)]
    if not scene.pace.is_start_in_time:
        wishes += [_arrivals_during_a_start(scene), _one_worker_per_task(scene), _warm(scene)]
    if scene.sample.ready and scene.current == 0:
        wishes.append(_Wish(1, "wake", f"{scene.sample.ready} ready and nobody to lease them"))
    low = scene.spec.workers.min
    wishes.append(_Wish(low, "min", f"at least min {low}"))
    return max(wishes, key=lambda wish: wish.target)


def _deadline(scene: _Scene) -> _Wish:
    grown = max(0.0, scene.facts.now - scene.sample.at)
    waiting = [Waiting(w.position, w.age_seconds + grown) for w in scene.sample.waiting]
    need = workers_needed(waiting, crew=scene.crew, pace=scene.pace)
    return _Wish(scene.current + need.workers, "deadline", _why_deadline(scene, need) if need.workers else "")


def _why_deadline(scene: _Scene, need: Need) -> str:
    starting = len(scene.crew.ready_in_seconds)
    return (
        f"{scene.sample.ready} ready, #{need.position} is {need.age_seconds:.1f} s old: "
        f"must be leased within {need.within_seconds:.1f} s; "
        f"{scene.busy} busy + {len(scene.idle)} idle + {starting} starting can begin {need.can_start:.0f}; "
        f"{need.workers} more needed"
    )


def _arrivals_during_a_start(scene: _Scene) -> _Wish:
    """Tasks that arrive while a worker starts cannot wait for the next one: plan for them as if they were here."""
    arrivals, sample, pace = scene.state.estimates.arrivals, scene.sample, scene.pace
    rate = arrivals.peak_rate if sample.ready or sample.in_flight else arrivals.fast_rate
    expected = sample.ready + math.ceil(max(0.0, rate * pace.startup_seconds - _NOISE_TASKS))
    # Their deadline counts from their arrival, up to a start from now: a task that is younger than new.
    last = Waiting(expected, -pace.startup_seconds)
    need = workers_needed([last], crew=scene.crew, pace=pace)
    why = f"{rate:.2f} arrive per second, and a start takes {pace.startup_seconds:.1f} s"
    return _Wish(scene.current + need.workers, "warm", why)


def _one_worker_per_task(scene: _Scene) -> _Wish:
    tasks, slots = scene.sample.in_flight + scene.sample.ready, scene.spec.concurrency
    why = f"a start takes {scene.pace.startup_seconds:.1f} s, too long for the slo: a slot for each of {tasks} tasks"
    return _Wish(math.ceil(tasks / slots) if scene.sample.ready else 0, "warm", why)


def _warm(scene: _Scene) -> _Wish:
    why = f"a start takes {scene.pace.startup_seconds:.1f} s, too long for the slo: kept warm for a burst"
    return _Wish(scene.state.burst.warm_workers, "warm", why)


def _shrink(scene: _Scene) -> tuple[_Wish, Mapping[int, float]]:
    """Let idle workers go, least recently used first, while a rule says so; and the hold at the last level seen."""
    state, spec, now = scene.state, scene.spec, scene.facts.now
    wish = _Wish(scene.current, "hold", "nothing to change")
    if not scene.idle or (scene.sample.ready and not scene.sample.paused):
        return wish, {}
    restart = _restart_seconds(state.estimates, spec)
    warm = 0 if scene.pace.is_start_in_time else state.burst.warm_workers
    low = max(spec.workers.min, warm, scene.busy)
    level, held = scene.current, {}
    for worker in scene.idle:
        if level <= low:
            break
        idle_seconds = now - worker.since
        hold = state.estimates.gaps.hold_seconds(level, restart_seconds=restart)
        held = {level: hold}
        if idle_seconds >= hold:
            why = f"idle for {idle_seconds:.0f} s; at level {level} it pays to keep one for {hold:.0f} s"
            wish = _Wish(level - 1, "idle", why)
        elif level - 1 >= max(1, state.paper.workers):
            why = f"{max(1, state.paper.workers)} meet the slo on paper, for {restart:.0f} s now"
            wish = _Wish(level - 1, "paper", why)
        else:
            break
        level -= 1
    return wish, held


def _restart_seconds(estimates: Estimates, spec: PoolSpec) -> float:
    """What letting a worker go costs, in worker-seconds, if it is wanted again."""
    return estimates.startup.mean_seconds + spec.churn


def _paper_workers(estimates: Estimates, *, crew: Crew, pace: Pace, spec: PoolSpec) -> int:
    slots = slots_needed(
        rate=estimates.arrivals.peak_rate,
        service_seconds=crew.service_seconds,
        shape=estimates.service.shape,
        wait_seconds=pace.usable_slo_seconds,
        eps=spec.eps,
        limit=spec.workers.max * spec.concurrency,
    )
    return math.ceil(slots / spec.concurrency)


def _inputs(scene: _Scene) -> Inputs:
    sample, estimates = scene.sample, scene.state.estimates
    return Inputs(
        ready=sample.ready,
        delayed=sample.delayed,
        in_flight=sample.in_flight,
        dead=sample.dead,
        busy=scene.busy,
        idle=len(scene.idle),
        starting=len(scene.crew.ready_in_seconds),
        draining=len(scene.facts.fleet.leaving),
        service_seconds=scene.crew.service_seconds,
        startup_seconds=scene.pace.startup_seconds,
        fast_rate=estimates.arrivals.fast_rate,
        slow_rate=estimates.arrivals.slow_rate,
        slack=estimates.slack,
        slo_seconds=scene.spec.slo,
        usable_slo_seconds=scene.pace.usable_slo_seconds,
        sample_age_seconds=max(0.0, scene.facts.now - sample.at),
    )

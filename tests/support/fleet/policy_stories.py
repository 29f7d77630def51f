"""Stories for the policy: a queue and its workers over some steps with any events; every decision is returned.

Samples are consistent: workers that are up lease tasks in order, and each lease ends once. The fleet follows the
decisions fully, half or not at all; workers die, starts fail, samples are missed.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from typing import Final, Literal

from hypothesis import strategies as st

from orchestrator.base.clock import Monotonic
from orchestrator.base.samples import LeaseSample, Outcome, QueueSample, RunningLease, Waiting
from orchestrator.capacity.allocation import Allocation
from orchestrator.config.pools import PoolSpec
from orchestrator.fleet.observation import observe
from orchestrator.fleet.workers import Fleet, draining, exited, finishing, joined
from orchestrator.scaling.decision import Conditions, Decision, FinishBy
from orchestrator.scaling.learning import PolicyState
from orchestrator.scaling.plan import Plan, plan_actions
from orchestrator.scaling.sharing import SharingPool, helper
from queue_core.stats import positions_of
from tests.support.fleet.fleet_builders import NOW, AnExit, a_fleet_of, a_lease, a_pool, a_sample, learn_and_decide

RETRY_SECONDS: Final = 10.0
AHEAD_SECONDS: Final = 60.0
MAX_LEASES: Final = 3
PLENTY: Final = Conditions(cores=64)

Follow = Literal["all", "half", "nothing"]


@dataclass(frozen=True)
class OtherPool:
    """Another pool that takes the same tasks."""

    idle: int
    busy: int
    starting: int
    tags: tuple[str, ...] | None


@dataclass(frozen=True)
class StoryStep:
    """Events until the next decision, in the pool's turns; `old_slos`: tasks arrive that have waited so long."""

    turns: float
    arrivals: int
    old_slos: float
    service_seconds: float
    outcome: Outcome
    delayed: int
    follow: Follow
    is_seen: bool
    is_queue_paused: bool
    bounds: tuple[int, int] | None
    conditions: Conditions
    elsewhere: OtherPool | None
    failed_starts: int
    lost: int


@dataclass(frozen=True)
class PolicyStory:
    """A pool and the events it meets."""

    spec: PoolSpec
    startup_seconds: float
    steps: Sequence[StoryStep]


@dataclass(frozen=True)
class StoryDecision:
    """One decision and its inputs. `oldest_seconds` is of the queue when it was sampled."""

    sample: QueueSample
    fleet: Fleet
    spec: PoolSpec
    conditions: Conditions
    now: Monotonic
    before: PolicyState
    decision: Decision
    after: PolicyState
    todo: Plan
    oldest_seconds: float

    @property
    def is_late(self) -> bool:
        """Whether a leasable task has waited longer than the slo, in a pool that is not shut."""
        if self.sample.paused or not self.spec.workers.max:
            return False
        return self.oldest_seconds > self.spec.slo + 1e-6

    @property
    def tasks(self) -> int:
        """The number of waiting tasks, and of those held by workers that stay."""
        staying = {worker.worker for worker in self.fleet.alive}
        return self.sample.ready + sum(lease.worker in staying for lease in self.sample.running)

    @property
    def elsewhere(self) -> int:
        """The number of workers that other pools contribute."""
        slots = math.fsum(one.slots for one in self.conditions.helpers)
        return math.floor(slots / self.spec.concurrency + 1e-9)

    @property
    def slot_each(self) -> int:
        """The number of workers with a slot for each task, less those of other pools."""
        return math.ceil(self.tasks / self.spec.concurrency) - self.elsewhere


@dataclass
class _Lease:
    worker: str
    ready_at: float
    number: int
    began_at: float
    ends_at: float
    at_a_time: int


@dataclass
class _World:
    """The queue and the fleet. Tasks are pairs: since when each is ready, and how often it was leased."""

    story: PolicyStory
    now: float = NOW
    worked_at: float = NOW
    oldest_since: float = NOW
    ready: list[tuple[float, int]] = field(default_factory=list)
    delayed: list[tuple[float, int]] = field(default_factory=list)
    leases: list[_Lease] = field(default_factory=list)
    dead: int = 0
    arrivals: int = 0
    names: int = 0
    fleet: Fleet = field(default_factory=lambda: Fleet("resize"))
    state: PolicyState = field(default_factory=PolicyState)
    sample: QueueSample = field(default_factory=a_sample)

    def step(self, step: StoryStep) -> StoryDecision:
        spec = self.story.spec if step.bounds is None else self.story.spec.bounded(*step.bounds)
        self.now += step.turns * spec.turn_seconds
        now = Monotonic(self.now)
        if step.is_seen:
            self._look(step, spec)
        conditions = self._conditions(step, spec)
        before, fleet = self.state, self.fleet
        decision, self.state = learn_and_decide(
            self.sample, fleet=fleet, spec=spec, state=before, now=now, conditions=conditions
        )
        todo = plan_actions(decision, fleet=fleet, spec=spec, now=now, conditions=conditions)
        self._follow(todo, step.follow, spec)
        oldest_seconds = self.now - self.oldest_since if self.sample.ready else 0.0
        return StoryDecision(
            self.sample, fleet, spec, conditions, now, before, decision, self.state, todo, oldest_seconds
        )

    # -- the queue ------------------------------------------------------------------------------------------------

    def _look(self, step: StoryStep, spec: PoolSpec) -> None:
        self._lose(step)
        self._arrive(step, spec)
        finished = [] if step.is_queue_paused else self._work(step, spec)
        finished += self._ended(step)
        self.worked_at = self.now
        self.sample = self._sample(step, finished)
        self.oldest_since = min((since for since, _ in self.ready), default=self.now)
        self.arrivals = 0
        self.fleet = observe(self.fleet, self.sample)
        held = {lease.worker for lease in self.leases}
        for worker in self.fleet.leaving:
            if worker.worker not in held:
                self._exit(worker.worker, code=0)

    def _arrive(self, step: StoryStep, spec: PoolSpec) -> None:
        due = [task for task in self.delayed if task[0] <= self.now]
        self.delayed = [task for task in self.delayed if task[0] > self.now]
        self.delayed += [(self.now + AHEAD_SECONDS * n / step.delayed, 0) for n in range(1, step.delayed + 1)]
        since = self.now - step.old_slos * spec.slo
        self.ready = sorted([*self.ready, *due, *[(since, 0)] * step.arrivals])
        self.arrivals += len(due) + step.arrivals

    def _work(self, step: StoryStep, spec: PoolSpec) -> list[LeaseSample]:
        """Let workers that are up and stay lease in order while anything waits."""
        finished = self._ended(step)
        busy = {worker.worker: 0 for worker in self.fleet.workers.values()}
        for lease in self.leases:
            busy[lease.worker] += 1
        free: list[tuple[float, str]] = []
        for worker in self.fleet.workers.values():
            up_at = worker.spawned_at + self.story.startup_seconds
            if up_at <= self.now and not worker.is_leaving:
                free += [(max(up_at, self.worked_at), worker.worker)] * (spec.concurrency - busy[worker.worker])
        heapify(free)
        while free and self.ready:
            free_at, name = heappop(free)
            since, number = self.ready.pop(0)
            began_at = min(self.now, max(free_at, since))
            lease = _Lease(name, since, number + 1, began_at, began_at + step.service_seconds, len(self.leases) + 1)
            self.leases.append(lease)
            if lease.ends_at <= self.now:
                heappush(free, (lease.ends_at, name))
                finished += self._ended(step)
        return finished

    def _ended(self, step: StoryStep) -> list[LeaseSample]:
        over = [lease for lease in self.leases if lease.ends_at <= self.now]
        if not over:
            return []
        self.leases = [lease for lease in self.leases if lease.ends_at > self.now]
        return [self._end(lease, step.outcome) for lease in over]

    def _end(self, lease: _Lease, outcome: Outcome) -> LeaseSample:
        if outcome == "released" and lease.number < MAX_LEASES:
            self.delayed.append((self.now + RETRY_SECONDS, lease.number))
        elif outcome == "expired" and lease.number < MAX_LEASES:
            self.ready = sorted([*self.ready, (lease.ends_at, lease.number)])
        elif outcome != "deleted":
            outcome = "died"
            self.dead += 1
        held, waited = lease.ends_at - lease.began_at, lease.began_at - lease.ready_at
        ago = self.now - lease.ends_at
        return LeaseSample(lease.worker, held, waited, outcome, lease.number, ago, lease.at_a_time)

    def _sample(self, step: StoryStep, finished: Sequence[LeaseSample]) -> QueueSample:
        soon = sorted(due for due, number in self.delayed if not number)
        up = [w for w in self.fleet.workers.values() if self.now - w.spawned_at >= self.story.startup_seconds]
        return QueueSample(
            at=Monotonic(self.now),
            ready=len(self.ready),
            delayed=len(self.delayed),
            in_flight=len(self.leases),
            dead=self.dead,
            paused=step.is_queue_paused,
            arrivals=self.arrivals,
            waiting=tuple(Waiting(n, self.now - self.ready[n - 1][0]) for n in positions_of(len(self.ready))),
            running=tuple(
                RunningLease(
                    lease.worker,
                    self.now - lease.began_at,
                    lease.began_at - lease.ready_at,
                    lease.number,
                    lease.at_a_time,
                )
                for lease in self.leases
            ),
            finished=tuple(finished),
            first_seen_seconds_ago={w.worker: self.now - w.spawned_at - self.story.startup_seconds for w in up},
            upcoming=tuple(Waiting(n, self.now - due) for n, due in enumerate(soon, start=1)),
        )

    # -- the fleet ------------------------------------------------------------------------------------------------

    def _follow(self, todo: Plan, follow: Follow, spec: PoolSpec) -> None:
        now, share = Monotonic(self.now), {"all": 1, "half": 2, "nothing": 0}[follow]
        if not share:
            return
        for leave in todo.kill[::share]:
            self._exit(leave.worker, signal=9)
        for leave in todo.retire[::share]:
            self.fleet = draining(self.fleet, leave.worker, grace_seconds=spec.grace, now=now)
        for leave in todo.finish[::share]:
            self.fleet = finishing(self.fleet, leave.worker, now=now)
        for spawn in todo.spawn[::share]:
            self.names += 1
            self.fleet = joined(
                self.fleet,
                worker=f"w{self.names:04}",
                ref=f"pid:{self.names}",
                spec_digest=spec.digest(),
                spawned_at=now,
                replaces=spawn.replaces,
            )

    def _lose(self, step: StoryStep) -> None:
        starting = [w.worker for w in self.fleet.workers.values() if w.state == "starting"]
        up = [w.worker for w in self.fleet.workers.values() if w.state != "starting"]
        for name in starting[: step.failed_starts]:
            self._exit(name, code=1)
        for name in up[: step.lost]:
            self._exit(name, signal=9)

    def _exit(self, name: str, *, code: int | None = None, signal: int | None = None) -> None:
        held = [lease for lease in self.leases if lease.worker == name]
        self.leases = [lease for lease in self.leases if lease.worker != name]
        self.ready = sorted([*self.ready, *((lease.ready_at, lease.number) for lease in held)])
        now = Monotonic(self.now)
        self.fleet, _ = exited(self.fleet, AnExit(name, now, code=code, signal=signal), now=now, held=len(held))

    # -- conditions ------------------------------------------------------------------------------------

    def _conditions(self, step: StoryStep, spec: PoolSpec) -> Conditions:
        if step.elsewhere is None:
            return step.conditions
        other = a_pool("other", tags=step.elsewhere.tags, slo=spec.slo)
        fleet = a_fleet_of(
            idle=step.elsewhere.idle, busy=step.elsewhere.busy, starting=step.elsewhere.starting, spec=other
        )
        running = [a_lease(w.worker) for w in fleet.workers.values() if w.state == "busy"]
        theirs = a_sample(at=self.now, ages=[1.0] * 5, running=running)
        now = Monotonic(self.now)
        mine = SharingPool(spec, self.fleet, self.sample, self.state)
        found = helper(mine, SharingPool(other, fleet, theirs, PolicyState()), now=now)
        return replace(step.conditions, helpers=(replace(found, held=step.elsewhere.busy),))


def decisions_of(story: PolicyStory) -> Iterator[StoryDecision]:
    """Return every decision of a story."""
    scene = _World(story)
    for step in story.steps:
        yield scene.step(step)


def _bounds(least: int, more: int) -> tuple[int, int]:
    return least, least + more


bounds = st.builds(_bounds, st.sampled_from([0, 0, 1, 3]), st.integers(0, 60))

specs = st.builds(
    lambda bounds, **settings: a_pool(least=bounds[0], most=max(1, bounds[1]), **settings),
    bounds,
    slo=st.sampled_from([0.5, 2.0, 5.0, 30.0, 200.0]),
    concurrency=st.sampled_from([1, 1, 2, 7]),
    churn=st.sampled_from([0.0, 15.0, 60.0]),
    eps=st.sampled_from([0.005, 0.2]),
    on_failure=st.sampled_from(["freeze", "ignore"]),
    max_step_up=st.sampled_from([None, None, 1, 5]),
    spawn_parallelism=st.sampled_from([None, None, 1, 8]),
    fallback=st.sampled_from(["hold", "hold", 2]),
    budget=st.sampled_from([None, "24h/day"]),
    min_billing=st.sampled_from([0.0, 0.0, 60.0]),
)

rooms = st.builds(Allocation, st.integers(0, 9), st.sampled_from(["", "memory", "cpu"]), st.just("why"), st.booleans())

conditions = st.builds(
    Conditions,
    paused=st.sampled_from(["no", "no", "no", "no", "both", "up", "down"]),
    cores=st.sampled_from([1, 2, 64]),
    allocation=st.one_of(st.none(), st.none(), st.none(), rooms),
    budget=st.sampled_from(["left", "left", "left", "spent", "overdrawn"]),
    bounds_by=st.sampled_from(["", "schedule"]),
    finish_by=st.one_of(
        st.none(), st.none(), st.builds(FinishBy, st.sampled_from([1.0, 90.0, 5_000.0]), st.just(1_774_857_600.0))
    ),
    runtime_trouble=st.sampled_from(["", "", "", "", "the engine does not answer"]),
)

_anything = {
    "turns": st.sampled_from([0.0, 0.3, 1.0, 1.0, 1.0, 3.0, 20.0, 200.0]),
    "arrivals": st.sampled_from([0, 0, 0, 1, 2, 9, 40, 150]),
    "old_slos": st.sampled_from([0.0, 0.0, 0.0, 0.9, 1.1, 40.0]),
    "service_seconds": st.sampled_from([0.05, 1.0, 8.0, 100.0, 4_000.0]),
    "outcome": st.sampled_from(["deleted", "deleted", "deleted", "released", "expired", "died"]),
    "delayed": st.sampled_from([0, 0, 0, 5]),
    "follow": st.sampled_from(["all", "all", "all", "half", "nothing"]),
    "is_seen": st.sampled_from([True, True, True, False]),
    "is_queue_paused": st.sampled_from([False, False, False, False, True]),
    "bounds": st.one_of(st.none(), st.none(), bounds),
    "conditions": st.one_of(st.just(PLENTY), conditions),
    "elsewhere": st.one_of(
        st.none(),
        st.none(),
        st.builds(
            OtherPool, st.integers(0, 3), st.integers(0, 3), st.integers(0, 2), st.sampled_from([None, ("a", "b")])
        ),
    ),
    "failed_starts": st.sampled_from([0, 0, 0, 0, 1, 3]),
    "lost": st.sampled_from([0, 0, 0, 0, 1]),
}
_nothing_special = {
    "turns": st.just(1.0),
    "service_seconds": st.sampled_from([0.05, 1.0, 8.0]),
    "outcome": st.just("deleted"),
    "follow": st.just("all"),
    "is_seen": st.just(True),
    "is_queue_paused": st.just(False),
    "bounds": st.none(),
    "conditions": st.just(PLENTY),
    "elsewhere": st.none(),
    "failed_starts": st.just(0),
    "lost": st.just(0),
}
wild_steps = st.builds(StoryStep, **_anything)
calm_steps = st.builds(StoryStep, **{**_anything, **_nothing_special})

stories = st.builds(
    PolicyStory,
    specs,
    st.sampled_from([0.0, 0.5, 3.0, 40.0]),
    st.lists(st.one_of(calm_steps, calm_steps, calm_steps, wild_steps), min_size=12, max_size=50),
)
"""Steps leave the pool alone most of the time, so that it grows large and learns."""

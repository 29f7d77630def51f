"""What must hold of decisions one after another, whatever work comes and whatever bounds are in force."""

import math
from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.base.clock import Monotonic
from orchestrator.base.samples import LeaseSample, QueueSample, RunningLease, Waiting
from orchestrator.config.overrides import Expiry, Moment, Overrides, ScaleOverride
from orchestrator.config.pools import PoolSpec
from orchestrator.config.schedule import bounds_at
from orchestrator.fleet.observation import observe
from orchestrator.fleet.workers import Fleet, Worker, draining
from orchestrator.scaling.decision import Conditions, Decision
from orchestrator.scaling.learning import PolicyState
from orchestrator.scaling.plan import plan_actions
from tests.support.fleet.fleet_builders import NOW, a_pool, learn_and_decide

STARTUP_SECONDS = 2.0
MONDAY_8_UTC = 1_774_857_600.0 - 12 * 3_600 + 8 * 3_600  # 2026-03-30 08:00 UTC


@dataclass
class World:
    """A queue and a fleet that do what is decided at once; tasks take `service` seconds. Time goes by turns."""

    spec: PoolSpec
    service: float
    now: float = NOW
    waiting: list[float] = field(default_factory=list)
    fleet: Fleet = field(default_factory=lambda: Fleet("resize"))
    running: dict[str, float] = field(default_factory=dict)
    state: PolicyState = field(default_factory=PolicyState)
    names: int = 0

    def turn(self, arrivals: int, *, spec: PoolSpec, conditions: Conditions) -> Decision:
        """A turn's work is done, tasks arrive, a decision is made and carried out."""
        before, self.now = self.now, self.now + spec.turn_seconds
        self.waiting += [before + (self.now - before) * n / max(1, arrivals) for n in range(arrivals)]
        finished = self._work()
        sample = self._sample(arrivals, finished)
        self.fleet = observe(self.fleet, sample)
        now = Monotonic(self.now)
        decision, self.state = learn_and_decide(
            sample, fleet=self.fleet, spec=spec, state=self.state, now=now, conditions=conditions
        )
        todo = plan_actions(decision, fleet=self.fleet, spec=spec, now=now)
        for leave in todo.retire:
            assert leave.worker not in self.running, "a victim holds a lease"
        for leave in (*todo.retire, *todo.finish):
            self.fleet = draining(self.fleet, leave.worker, grace_seconds=30, now=now)
        workers = dict(self.fleet.workers)
        for _ in todo.spawn:
            self.names += 1
            name = f"w{self.names:05}"
            workers[name] = Worker(name, name, spec.digest(), now, "starting", now)
        self.fleet = replace(self.fleet, workers=workers)
        return decision

    def _work(self) -> list[LeaseSample]:
        finished = []
        for name, began in list(self.running.items()):
            if self.now - began >= self.service:
                del self.running[name]
                ago = self.now - began - self.service
                finished.append(LeaseSample(name, self.service, 0.1, "deleted", 1, ago, 1))
        gone = {w.worker for w in self.fleet.workers.values() if w.is_leaving and w.worker not in self.running}
        kept = {name: w for name, w in self.fleet.workers.items() if name not in gone}
        self.fleet = replace(self.fleet, workers=kept)
        for worker in kept.values():
            is_up = self.now - worker.spawned_at >= STARTUP_SECONDS
            if self.waiting and is_up and not worker.is_leaving and worker.worker not in self.running:
                self.waiting.pop(0)
                self.running[worker.worker] = self.now
        return finished

    def _sample(self, arrivals: int, finished: list[LeaseSample]) -> QueueSample:
        ready = len(self.waiting)
        places = sorted({math.ceil(ready * n / 8) for n in range(1, 9)} - {0})
        up = [w for w in self.fleet.workers.values() if self.now - w.spawned_at >= STARTUP_SECONDS]
        return QueueSample(
            at=Monotonic(self.now),
            ready=ready,
            delayed=0,
            in_flight=len(self.running),
            dead=0,
            arrivals=arrivals,
            waiting=tuple(Waiting(place, self.now - self.waiting[place - 1]) for place in places),
            running=tuple(RunningLease(name, self.now - began, 0.1, 1, 1) for name, began in self.running.items()),
            finished=tuple(finished),
            first_seen_seconds_ago={w.worker: self.now - w.spawned_at - STARTUP_SECONDS for w in up},
        )


work = st.lists(st.one_of(st.just(0), st.just(0), st.integers(0, 30)), min_size=10, max_size=80)
MANY = Conditions(cores=1_000)


@given(work, st.floats(0.5, 30), st.floats(0, 60), st.floats(5, 100))
@settings(max_examples=60, deadline=None)
def test_nobody_is_let_go_within_the_hold_after_growing(
    arrivals: list[int], service: float, churn: float, slo: float
) -> None:
    spec = a_pool(most=40, churn=churn, slo=slo)
    world = World(spec, service)
    wanted_at: dict[int, float] = {}
    for count in arrivals:
        decision = world.turn(count, spec=spec, conditions=MANY)
        if decision.target > decision.current:
            wanted_at.update(dict.fromkeys(range(decision.current + 1, decision.target + 1), world.now))
        elif decision.rule == "idle":
            # Those above it may have gone by the Erlang C estimate; levels count those that are up.
            level = decision.target + 1 - decision.inputs.starting
            assert world.now - wanted_at.get(level, 0.0) >= min(decision.held[level], 1e9) - 1e-6


@given(
    work,
    st.integers(0, 5),
    st.integers(5, 20),
    st.integers(0, 10),
    st.integers(0, 30),
    st.integers(0, 12),
    st.integers(0, 50),
)
@settings(max_examples=60, deadline=None)
def test_a_pool_keeps_within_the_bounds_in_force(
    arrivals: list[int], least: int, most: int, window_least: int, more: int, by_hand: int, order_at: int
) -> None:
    window = {"cron": "1 8 * * *", "for": "1m", "workers": {"min": window_least, "max": max(1, window_least + more)}}
    spec = a_pool(least=least, most=most, schedule=[window], churn=5)
    world = World(spec, 2.0)
    orders = Overrides()
    for turn, count in enumerate(arrivals):
        wall = MONDAY_8_UTC + turn * spec.turn_seconds
        moment = Moment(wall, world.now, "boot")
        if turn == order_at:
            orders = Overrides(ScaleOverride(by_hand, Expiry.after(30, moment)))
        bounds = bounds_at(spec.workers, spec.schedule, now=wall)
        scale = orders.in_force(moment).scale
        low, high = (bounds.min, bounds.max) if scale is None else (scale.workers, scale.workers)
        decision = world.turn(count, spec=spec.bounded(low, high), conditions=MANY)
        assert low <= decision.target <= high
        assert len(world.fleet.alive) <= max(high, decision.current)

"""A downstream that refuses what is too much for it, told from work that fails anyway and from one that is away."""

import math
import random
import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from orchestrator.base.clock import Monotonic
from orchestrator.base.samples import LeaseSample, QueueSample, RunningLease, Waiting
from orchestrator.config.pools import PoolSpec
from orchestrator.fleet.observation import observe
from orchestrator.fleet.workers import Fleet, draining, joined
from orchestrator.scaling.context import Facts
from orchestrator.scaling.decision import DEFAULT_CONDITIONS, Decision
from orchestrator.scaling.estimates import Estimates, Outcomes
from orchestrator.scaling.guards import FAILING_SHARE, failing_work
from orchestrator.scaling.learning import PolicyState
from orchestrator.scaling.overload import Overload
from orchestrator.scaling.plan import plan_actions
from tests.support.fleet.fleet_builders import NOW, a_fleet_of, a_pool, a_sample, learn_and_decide

Fails = Callable[[int, float], float]
"""The chance to fail of a lease that begins as one of so many, at an instant."""


def ended(at_a_time: int, outcome: str = "deleted", *, ago: float = 0.5, number: int = 1) -> LeaseSample:
    return LeaseSample("w1", 0.2, 0.0, outcome, number, ago, at_a_time)  # type: ignore[arg-type]


def lived(
    fails: Fails,
    *,
    seed: int = 1,
    most: int = 6,
    seconds: int = 600,
    per_second: int = 6,
    known: Overload | None = None,
) -> list[Overload]:
    """What is known second by second, of leases that begin as the first to the last of as many as are allowed."""
    chance, known, seen = random.Random(seed), known or Overload(), []
    begin = 0 if known.at == float("-inf") and known.ceiling is None else 10_000
    for second in range(begin, begin + seconds):
        allowed = min(most, known.ceiling.leases) if known.ceiling else most
        sizes = [chance.randint(1, allowed) for _ in range(per_second)]
        leases = [ended(size, "released" if chance.random() < fails(size, second) else "deleted") for size in sizes]
        known = known.after(leases, at=Monotonic(float(second)))
        seen.append(known)
    return seen


def ceilings(lived: list[Overload]) -> list[int | None]:
    """Each ceiling that there was, in order."""
    told = [known.ceiling.leases if known.ceiling else None for known in lived]
    return [one for index, one in enumerate(told) if not index or one != told[index - 1]]


@pytest.mark.parametrize("stands", [1, 2, 4])
def test_the_size_is_found_beyond_which_work_is_refused(stands: int) -> None:
    for seed in range(5):
        seen = lived(lambda size, _: 0.02 if size <= stands else 0.9, seed=seed, seconds=60)
        assert ceilings(seen)[-1] == stands
        ceiling = seen[-1].ceiling
        assert ceiling is not None
        assert ceiling.few_share < 0.15 < 0.7 < ceiling.many_share


@pytest.mark.parametrize(
    "fails",
    [
        pytest.param(lambda _size, _at: 0.0, id="none"),
        pytest.param(lambda _size, _at: 0.05, id="few"),
        pytest.param(lambda _size, _at: 0.4, id="many"),
        pytest.param(lambda _size, _at: 1.0, id="all"),
        pytest.param(lambda _size, at: 1.0 if 100 <= at < 300 else 0.02, id="an outage"),
        pytest.param(lambda size, _at: 0.04 + 0.01 * min(size, 6), id="a little more the more there are"),
    ],
)
@pytest.mark.parametrize("most", [6, 60])
def test_work_that_fails_whatever_the_size_holds_nobody(fails: Fails, most: int) -> None:
    for seed in range(5):
        assert ceilings(lived(fails, seed=seed, most=most)) == [None]


def test_a_pool_that_grew_because_all_fails_is_not_taken_for_the_cause() -> None:
    known = Overload()
    for second in range(300):
        is_away = second >= 150
        size, outcome = (40, "released") if is_away else (1 + second % 3, "deleted")
        known = known.after([ended(size, outcome)] * 4, at=Monotonic(float(second)))
    assert known.ceiling is None


def test_more_is_tried_after_a_while_and_less_often_where_it_is_refused_again() -> None:
    seen = lived(lambda size, _: 0.0 if size <= 2 else 0.9, seconds=1_200)
    told = ceilings(seen)
    assert told[:4] == [None, 2, 3, 2]
    assert set(told[1:]) == {2, 3}
    assert len(told) < 16, "not every minute"


def test_a_downstream_that_stands_more_by_now_is_given_more() -> None:
    seen = lived(lambda size, at: 0.0 if size <= 2 or at > 60 else 0.9, seconds=1_200)
    assert ceilings(seen)[:6] == [None, 2, 3, 4, 5, 6]
    assert seen[-1].ceiling is None


def test_a_ceiling_under_which_as_many_fail_is_given_up_for_a_while() -> None:
    found = lived(lambda size, _: 0.0 if size <= 2 else 0.9, seconds=60)[-1]
    assert found.ceiling is not None
    seen = lived(lambda _size, _: 0.9, known=found, seconds=60)
    assert ceilings(seen)[-1] is None
    assert lived(lambda size, _: 0.0 if size <= 2 else 0.9, known=seen[-1], seconds=60)[-1].ceiling is None


@pytest.mark.parametrize("bad", [20, 8])
def test_tasks_that_come_at_once_and_fail_anyway_hold_a_pool_for_a_moment_at_most(bad: int) -> None:
    """Good tasks come one by one, bad ones together and again every ten seconds: so it looks as if many failed."""
    known, held_back, chance = Overload(), 0, random.Random(1)
    for second in range(3_600):
        most = known.ceiling.leases if known.ceiling else 20
        leases = [ended(1, ago=0.9), ended(1, ago=0.8)]
        if second % 10 == 0:
            leases += [ended(min(most, 1 + number), "released", ago=0.5) for number in range(bad)]
        chance.shuffle(leases)
        known = known.after(leases, at=Monotonic(float(second)))
        held_back += known.ceiling is not None
    assert held_back < 300


def test_one_that_stands_less_by_now_is_given_less() -> None:
    found = lived(lambda size, _: 0.0 if size <= 4 else 0.9, seconds=60)[-1]
    seen = lived(lambda size, _: 0.0 if size <= 2 else 0.9, known=found, seconds=60)
    assert ceilings(seen)[-1] == 2


def test_tasks_that_fail_again_and_again_and_leases_of_unknown_company_tell_nothing() -> None:
    known = Overload()
    for second in range(100):
        leases = [ended(1), ended(6, "released", number=11), ended(0, "released")]
        known = known.after(leases * 4, at=Monotonic(float(second)))
    assert known.ceiling is None


class World:
    """A pool whose tasks take a second at a downstream that stands two at a time, and refuses the rest at once.

    A refused task spends no attempt, and comes back after a second. Time goes by hundredths, decisions by turns.
    """

    def __init__(self, spec: PoolSpec, *, tasks: int, refuses: bool = True) -> None:
        self.spec, self.stands = spec, 2 if refuses else math.inf
        self.now, self.state, self.fleet = float(NOW), PolicyState(), Fleet("resize")
        self.ready = dict.fromkeys(range(tasks), float(NOW))
        self.held: dict[str, tuple[int, float, float, int, bool]] = {}
        self.finished: list[tuple[str, float, LeaseSample]] = []
        self.decisions: list[Decision] = []
        self.done = self.refused = 0

    def run(self, *, seconds: float) -> None:
        ends_at, turn_at = self.now + seconds, self.now
        while self.now < ends_at and (self.ready or self.held):
            self._end()
            self._lease()
            if self.now >= turn_at:
                turn_at += self.spec.turn_seconds
                self._turn()
            self.now += 0.01

    def _end(self) -> None:
        for worker, (task, began, ends_at, held, stood) in list(self.held.items()):
            if self.now < ends_at:
                continue
            del self.held[worker]
            self.done += stood
            self.refused += not stood
            if not stood:
                self.ready[task] = self.now + 1.0
            outcome = "deleted" if stood else "released"
            lease = LeaseSample(worker, ends_at - began, 0.0, outcome, 1, 0.0, held)  # type: ignore[arg-type]
            self.finished.append((worker, self.now, lease))
            if self.fleet.workers[worker].is_leaving:
                self._leave(worker)

    def _lease(self) -> None:
        for worker in self.fleet.workers.values():
            is_up = not worker.is_leaving and self.now >= worker.spawned_at + 0.3
            task = next((task for task, at in self.ready.items() if at <= self.now), None)
            if is_up and worker.worker not in self.held and task is not None:
                del self.ready[task]
                stood = sum(one[4] for one in self.held.values()) < self.stands
                ends_at = self.now + (1.0 if stood else 0.02)
                self.held[worker.worker] = (task, self.now, ends_at, len(self.held) + 1, stood)

    def _turn(self) -> None:
        now = Monotonic(self.now)
        ages = sorted((self.now - at for at in self.ready.values() if at <= self.now), reverse=True)
        sample = QueueSample(
            at=now,
            ready=len(ages),
            delayed=len(self.ready) - len(ages),
            in_flight=len(self.held),
            dead=0,
            waiting=tuple(Waiting(n, ages[n - 1]) for n in sorted({1, len(ages)}) if ages),
            running=tuple(RunningLease(w, self.now - one[1], 0.0, 1, one[3]) for w, one in self.held.items()),
            finished=tuple(replace(lease, ended_seconds_ago=self.now - at) for _, at, lease in self.finished),
            first_seen_seconds_ago={
                w.worker: self.now - w.spawned_at - 0.3
                for w in self.fleet.workers.values()
                if self.now >= w.spawned_at + 0.3
            },
        )
        self.finished.clear()
        self.fleet = observe(self.fleet, sample)
        decision, self.state = learn_and_decide(sample, fleet=self.fleet, spec=self.spec, state=self.state, now=now)
        self.decisions.append(decision)
        todo = plan_actions(decision, fleet=self.fleet, spec=self.spec, now=now)
        for leave in (*todo.retire, *todo.finish):
            self.fleet = draining(self.fleet, leave.worker, grace_seconds=30, now=now)
            if leave.worker not in self.held:
                self._leave(leave.worker)
        for _ in todo.spawn:
            name = f"w{len(self.decisions)}-{len(self.fleet.workers)}"
            self.fleet = joined(self.fleet, worker=name, ref=name, spec_digest=self.spec.digest(), spawned_at=now)

    def _leave(self, worker: str) -> None:
        self.fleet = replace(self.fleet, workers={n: w for n, w in self.fleet.workers.items() if n != worker})


def test_a_pool_goes_back_to_what_its_downstream_stands_and_says_so() -> None:
    world = World(a_pool(most=6, slo=2.0), tasks=400)
    world.run(seconds=900)
    assert world.done == 400
    assert world.now - NOW < 1.25 * 400 / 2
    said = [limit.why for decision in world.decisions for limit in decision.limits if limit.guard == "failing_work"]
    assert any(re.fullmatch(r"\d+% of leases fail at \d at a time, \d+% at 2: back to 2", why) for why in said)
    late = [decision for decision in world.decisions if decision.at > NOW + 60]
    assert sum(decision.current for decision in late) / len(late) < 3


def test_a_pool_whose_downstream_stands_all_is_not_held() -> None:
    world = World(a_pool(most=6, slo=2.0), tasks=400, refuses=False)
    world.run(seconds=900)
    assert max(decision.target for decision in world.decisions) == 6
    assert not [decision for decision in world.decisions if "failing_work" in decision.limited_by]


def test_a_pool_whose_work_fails_does_not_grow_unless_told_to() -> None:
    failing, fleet = Outcomes(failed=19.0, done=0.5), a_fleet_of(busy=20)
    assert failing.failed_share > FAILING_SHARE
    seen = Facts(
        a_sample(),
        fleet,
        fleet.alive,
        a_pool(most=100),
        DEFAULT_CONDITIONS,
        NOW,
        PolicyState(Estimates(outcomes=failing)),
    )
    answer = failing_work(30, seen)
    assert answer is not None
    assert answer[0] == 20
    assert failing_work(30, replace(seen, spec=a_pool(most=100, on_failure="ignore"))) is None
    assert failing_work(10, seen) is None


def test_a_task_that_fails_again_tells_nothing_new() -> None:
    assert Outcomes().after([ended(1, "released", number=2)] * 50).failed_share == 0.0
    assert Outcomes().after([ended(1, "released", number=1)] * 50).failed_share == 1.0

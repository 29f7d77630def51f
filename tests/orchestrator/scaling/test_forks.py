"""Starts of two kinds: workers that are executed, in seconds, and workers that are forked, in milliseconds."""

import json
from dataclasses import replace

import pytest

from orchestrator.base.clock import Monotonic
from orchestrator.base.samples import Waiting
from orchestrator.capacity.allocation import PRIOR_FORK_SECONDS, WorkerUsage
from orchestrator.config.pools import PoolSpec
from orchestrator.fleet.workers import Fleet, Started
from orchestrator.scaling.deadline import capacity_of, pace_of
from orchestrator.scaling.decision import Conditions, Decision
from orchestrator.scaling.estimates import (
    FORK_CHURN_SECONDS,
    Estimates,
    ServiceTime,
    Startup,
    activity,
    turn_seconds_of,
)
from orchestrator.scaling.guards import turn_seconds_after
from orchestrator.scaling.learning import PolicyState
from orchestrator.scaling.reserve import NOBODY_WARM, Reserve
from tests.support.fleet.fleet_builders import NOW, a_fleet, a_fleet_of, a_pool, a_sample, a_worker, learn_and_decide

IMPORTS_FOR_TWO_SECONDS = WorkerUsage(start_seconds=2.0)
KNOWN = Estimates(service=ServiceTime().after([10.0] * 9), executed=Startup(1, 2.4))


def after(known: Estimates, *started: Started, forks: bool) -> Estimates:
    sample, spec = a_sample(), a_pool()
    seen = activity(sample, elapsed_seconds=1.0, slo_seconds=spec.slo)
    return known.after(sample, seen, started=started, forks=forks, needed=0, elapsed_seconds=1.0, spec=spec)


def decided(
    *,
    forks: bool,
    fleet: Fleet | None = None,
    ready: int = 40,
    age: float = 0.0,
    spec: PoolSpec | None = None,
    state: PolicyState | None = None,
) -> Decision:
    conditions = Conditions(cores=2, start_seconds=IMPORTS_FOR_TWO_SECONDS.next_start_seconds(forks=forks))
    decision, _ = learn_and_decide(
        a_sample(ages=[age] * 2 if ready else [], positions=[1, ready] if ready else []),
        fleet=replace(fleet or Fleet("resize"), forks=forks),
        spec=spec or a_pool(slo=2.0, most=40),
        state=state or PolicyState(KNOWN),
        now=NOW,
        conditions=conditions,
    )
    return decision


def test_starts_are_learned_by_kind_so_that_a_mixture_misleads_nobody() -> None:
    known = Estimates()
    known = after(known, Started("executed", 2.4), forks=False)
    assert known.startup.mean_seconds == pytest.approx(2.4)
    known = after(known, *[Started("forked", 0.02, is_forked=True)] * 3, forks=True)
    assert known.startup.mean_seconds == pytest.approx(0.02)
    known = after(known, Started("executed", 2.6), forks=False)  # the template was renewed just then
    assert known.startup.mean_seconds == pytest.approx(2.5)
    assert after(known, forks=True).startup.mean_seconds == pytest.approx(0.02)


def test_until_a_fork_was_measured_it_is_taken_to_be_short() -> None:
    known = after(Estimates(executed=Startup(1, 2.4)), forks=True)
    assert known.startup.planned_seconds < 0.2
    assert pace_of(known, a_pool(slo=2.0)).is_start_in_time
    assert not pace_of(replace(known, forks=False), a_pool(slo=2.0)).is_start_in_time


@pytest.mark.parametrize(
    ("slo", "forks", "seconds"),
    [
        pytest.param(1.0, False, 1.0, id="executed"),
        pytest.param(30.0, False, 3.0, id="executed-and-long"),
        pytest.param(1.0, True, 0.25, id="shortest"),
        pytest.param(4.0, True, 0.5, id="an-eighth-of-the-slo"),
        pytest.param(8.0, True, 1.0, id="no-longer-than-others"),
        pytest.param(30.0, True, 3.0, id="long"),
    ],
)
def test_a_turn_is_not_what_a_burst_waits_for(slo: float, forks: bool, seconds: float) -> None:
    spec = a_pool(slo=slo)
    assert turn_seconds_of(spec, forks=forks) == seconds
    calm = decided(forks=forks, ready=0, spec=spec)
    assert turn_seconds_after(calm, Conditions(), spec) == seconds


@pytest.mark.parametrize("slo", [1.0, 2.0, 5.0])
@pytest.mark.parametrize("fleet", [Fleet("resize"), a_fleet_of(busy=1)], ids=["at-zero", "one-busy"])
@pytest.mark.parametrize("age", [0.0, 0.25])
def test_a_burst_is_started_in_one_turn_where_its_workers_are_forked(slo: float, fleet: Fleet, age: float) -> None:
    spec = a_pool(slo=slo, most=60)
    decision = decided(forks=True, fleet=fleet, age=age, spec=spec)
    assert decision.limited_by == ()
    assert decision.target >= 38  # a worker may begin a second task in time
    held = decided(forks=False, fleet=fleet, age=age, spec=spec)
    assert (held.target - held.current, held.limited_by) == (4, ("spawn_parallelism",))


@pytest.mark.parametrize(
    ("usage", "slo", "at_a_time"),
    [
        pytest.param(WorkerUsage(start_seconds=2.0), 2.0, 64, id="not-measured"),
        pytest.param(WorkerUsage(start_seconds=2.0, fork_seconds=0.0), 2.0, 64, id="too-short-to-measure"),
        pytest.param(WorkerUsage(start_seconds=2.0, fork_seconds=0.02), 2.0, 40, id="measured"),
        pytest.param(WorkerUsage(start_seconds=2.0, fork_seconds=0.02), 60.0, 64, id="as-many-as-a-plan-has"),
        pytest.param(WorkerUsage(fork_seconds=1.0), 60.0, 4, id="hooks-that-compute"),
    ],
)
def test_as_many_are_forked_at_a_time_as_the_cores_carry(usage: WorkerUsage, slo: float, at_a_time: int) -> None:
    conditions = Conditions(cores=2, start_seconds=usage.next_start_seconds(forks=True))
    assert conditions.starts_at_a_time(a_pool(slo=slo)) == at_a_time


def test_the_cpu_of_a_start_is_that_of_its_kind() -> None:
    assert IMPORTS_FOR_TWO_SECONDS.next_start_seconds(forks=False) == 2.0
    assert IMPORTS_FOR_TWO_SECONDS.next_start_seconds(forks=True) == PRIOR_FORK_SECONDS
    assert WorkerUsage().next_start_seconds(forks=False) is None


@pytest.mark.parametrize("slo", [1.0, 2.0])
def test_nobody_is_kept_warm_where_workers_are_forked(slo: float) -> None:
    spec, reserve = a_pool(slo=slo, most=40), Reserve(burst=30.0, at=NOW, busy_slots=5.0)
    for forks in (True, False):
        known = replace(KNOWN, forks=forks)
        pace, capacity = pace_of(known, spec), capacity_of((), (), estimates=known, spec=spec, now=NOW)
        warm = reserve.warm(erlang_workers=4, tasks=1, in_flight=0, rate=1.0, capacity=capacity, pace=pace)
        assert (warm == NOBODY_WARM) == forks


def test_a_worker_that_starts_counts_from_when_its_kind_is_up() -> None:
    spawned_at = Monotonic(NOW - 0.05)
    workers = [
        a_worker("executed", "starting", spawned_at=spawned_at),
        a_worker("forked", "starting", spawned_at=spawned_at, is_forked=True),
    ]
    known = replace(KNOWN, forked=Startup(9, 0.06))
    capacity = capacity_of(workers, (), estimates=known, spec=a_pool(), now=NOW)
    assert capacity.ready_in_seconds == (pytest.approx(2.35), pytest.approx(0.01))


@pytest.mark.parametrize(
    ("churn", "forks", "seconds"),
    [
        pytest.param(None, False, 15.0 + 2.4, id="executed"),
        pytest.param(None, True, FORK_CHURN_SECONDS + 0.02, id="forked"),
        pytest.param("40s", True, 40.02, id="what-was-set-is-kept"),
        pytest.param("0s", True, 0.02, id="none"),
    ],
)
def test_a_spare_worker_is_worth_less_where_the_next_is_forked(churn: str | None, forks: bool, seconds: float) -> None:
    known = replace(KNOWN, forked=Startup(9, 0.02), forks=forks)
    spec = a_pool() if churn is None else a_pool(churn=churn)
    assert known.restart_seconds(spec) == pytest.approx(seconds)


def test_for_tasks_to_come_an_unmeasured_fork_is_no_long_start() -> None:
    spec = a_pool(slo=2.0, most=40)
    sample = replace(a_sample(), upcoming=(Waiting(4, -9.0),))
    for forks, target in ((False, 4), (True, 0)):
        decision, _ = learn_and_decide(
            sample, fleet=a_fleet(forks=forks), spec=spec, state=PolicyState(), now=NOW, conditions=Conditions(cores=2)
        )
        assert decision.target == target


def test_what_was_learned_of_each_kind_survives_and_a_state_of_old_is_read() -> None:
    known = replace(KNOWN, forked=Startup(7, 0.03), forks=True)
    plain = json.loads(json.dumps(known.to_json()))
    again = Estimates.from_json(plain)
    assert (again.executed, again.forked, again.forks) == (known.executed, known.forked, True)
    del plain["forked"], plain["forks"]
    old = Estimates.from_json(plain)
    assert (old.executed, old.forked, old.forks) == (known.executed, Estimates().forked, False)

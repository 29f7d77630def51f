"""Estimated ages on queues where the truth is known, and what decisions made from them cost."""

from dataclasses import replace
from random import Random
from statistics import fmean

import pytest

from orchestrator.base.clock import Monotonic
from orchestrator.base.samples import Waiting
from orchestrator.scaling.context import context_of
from orchestrator.scaling.learning import PolicyState
from orchestrator.simulation.scaler import PolicyScaler
from orchestrator.simulation.study import simulate
from orchestrator.sources.celery.estimates import (
    MAX_POINTS,
    ArrivalCurve,
    positions_of,
    runs_between,
    waiting_of,
)
from orchestrator.sources.celery.messages import ActiveTask
from orchestrator.sources.celery.nodes import CeleryNode
from orchestrator.sources.celery.sampling import PoolMeter, QueueDepth, fetched, sample_of
from tests.support.fleet.estimated_ages import EstimatingScaler
from tests.support.fleet.fleet_builders import NOW, a_fleet, a_pool, a_sample, learn_and_decide
from tests.support.fleet.worlds import a_world

WORLDS = (1, 3, 5, 6, 12, 16, 18, 21)
CORES = 64


def curve_of(*probes: tuple[float, int, int]) -> ArrivalCurve:
    """A curve after probes: at, waiting, begun."""
    curve = ArrivalCurve()
    for at, waiting, begun in probes:
        curve = curve.after(waiting, begun=begun, at=Monotonic(at))
    return curve


def test_a_queue_that_only_grows_shows_when_each_task_came() -> None:
    curve = curve_of((0, 0, 0), (1, 1, 0), (2, 1, 0), (3, 3, 0))
    at = Monotonic(4.0)
    assert [round(curve.age_seconds(position, at=at), 3) for position in (1, 2, 3)] == [3.5, 1.75, 1.25]
    assert not curve.is_bound(1)


def test_what_waited_at_first_is_only_bounded() -> None:
    curve = curve_of((0, 5, 0), (10, 3, 2), (20, 3, 1))
    assert curve.is_bound(1)
    assert curve.is_bound(2)
    assert not curve.is_bound(3)
    at = Monotonic(20.0)
    assert curve.age_seconds(1, at=at) == 20.0
    assert curve.age_seconds(3, at=at) == 5.0


def test_a_late_report_of_begun_tasks_is_no_second_departure() -> None:
    prompt = curve_of((0, 10, 0), (2, 5, 5), (4, 5, 0))
    late = curve_of((0, 10, 0), (2, 5, 0), (4, 5, 5))
    assert prompt.total == late.total == 10.0


def test_a_purge_hides_no_later_arrivals_for_long() -> None:
    curve = curve_of((0, 100, 0), (1, 0, 0), (30, 0, 0), (31, 2, 0), (32, 2, 3))
    assert curve.total == 105.0


def test_arrivals_that_leave_at_once_are_seen_by_the_workers_reports() -> None:
    assert curve_of((0, 0, 0), (2, 0, 7), (4, 0, 3)).total == 10.0


def test_a_long_history_is_bounded_and_keeps_its_ends() -> None:
    curve = ArrivalCurve()
    for second in range(5_000):
        curve = curve.after(second, begun=0, at=Monotonic(float(second)))
    assert len(curve.points) <= MAX_POINTS
    assert curve.age_seconds(1, at=Monotonic(5_000.0)) == pytest.approx(4_999.5, abs=30)
    assert curve.age_seconds(4_999, at=Monotonic(5_000.0)) == pytest.approx(1.5, abs=1)


@pytest.mark.parametrize(("waiting", "count"), [(0, 0), (1, 1), (8, 8), (9, 8), (100_000, 8)])
def test_positions(waiting: int, count: int) -> None:
    found = positions_of(waiting)
    assert len(found) <= count
    assert found == sorted(set(found))
    assert not found or (found[0], found[-1]) == (1, waiting)


def test_the_same_head_for_long_is_a_bound_and_a_time_in_it_is_exact() -> None:
    curve = curve_of((0, 0, 0), (10, 4, 0))
    ages = [one.age_seconds for one in waiting_of(curve, at=Monotonic(10.0), head_seconds=30.0)]
    assert ages[0] == 30.0
    assert ages[1] < 10.0
    exact = waiting_of(curve, at=Monotonic(10.0), head_seconds=2.0, is_head_exact=True)
    assert exact[0].age_seconds == 2.0
    assert max(one.age_seconds for one in exact) == 2.0


def test_runs_are_littles_law_over_many_reports() -> None:
    rng = Random(7)
    seconds, starts, before, runs = 3.0, (), Monotonic(0.0), []
    at, free_at = 0.0, [0.0] * 4
    spans = []
    while at < 4_000.0:  # four slots, a task of 1 to 5 s each, half a second apart
        slot = min(range(4), key=lambda index: free_at[index])
        began = max(at, free_at[slot]) + 0.5
        ended = began + rng.uniform(1.0, 5.0)
        free_at[slot] = ended
        spans.append((began, ended))
        at = min(free_at)
    for report in range(2, 4_000, 2):
        begun = sum(1 for began, _ in spans if before < began <= report)
        active = sum(1 for began, ended in spans if began <= report < ended)
        starts, ended_runs = runs_between(
            starts, begun=begun, active=active, before=before, at=Monotonic(float(report))
        )
        runs += [run.seconds for run in ended_runs]
        before = Monotonic(float(report))
    assert fmean(runs) == pytest.approx(seconds, rel=0.1)


def a_node(**given: object) -> CeleryNode:
    return CeleryNode("shop-1@h", Monotonic(0.0), Monotonic(10.0), has_heartbeats=True, **given)  # type: ignore[arg-type]


def test_what_workers_have_fetched_is_not_hidden() -> None:
    told = a_node(active=1, answered=(ActiveTask("a"),), answered_at=Monotonic(9.0), reserved=3)
    depths = [QueueDepth(0, unacked=4)]
    assert fetched(depths, [told], at=Monotonic(10.0)) == 3
    assert fetched(depths, [a_node(active=1)], at=Monotonic(10.0)) == 3
    assert fetched([QueueDepth(0)], [a_node(active=1)], at=Monotonic(10.0)) == 0
    meter = PoolMeter()
    meter.probed(depths, [told], at=Monotonic(10.0), wall_seconds=0.0)
    sample = sample_of(
        meter,
        [told],
        {told.node: "shop-1"},
        workers=["shop-1"],
        ahead_seconds=0.0,
        at=Monotonic(10.0),
        wall_seconds=0.0,
    )
    assert (sample.ready, sample.in_flight, sample.ages) == (3, 1, "at least")
    assert [lease.worker for lease in sample.running] == ["shop-1"]
    assert sample.first_seen_seconds_ago == {"shop-1": 10.0}


def test_tasks_whose_time_has_not_come_are_delayed_and_seen_ahead() -> None:
    meter = PoolMeter()
    depth = QueueDepth(1_000, future=1_000, etas=(130.0, 3_600.0), head="a")
    meter.probed([depth], [], at=Monotonic(0.0), wall_seconds=100.0)
    sample = sample_of(meter, [], {}, workers=(), ahead_seconds=60.0, at=Monotonic(0.0), wall_seconds=100.0)
    assert (sample.ready, sample.delayed, sample.waiting) == (0, 1_000, ())
    assert sample.upcoming == (Waiting(1, -30.0),)
    decision, _ = learn_and_decide(sample, fleet=a_fleet(), spec=a_pool(), state=PolicyState(), now=sample.at)
    assert decision.target == 0


def test_a_sentence_says_that_ages_are_estimated() -> None:
    for ages, words in (
        ("exact", "1 task has waited 10 s past its SLO of 30 s"),
        ("about", "1 task has waited about 10 s past its SLO of 30 s (estimated: the messages carry no time)"),
        ("at least", "1 task has waited at least 10 s past its SLO of 30 s (estimated: the messages carry no time)"),
    ):
        sample = a_sample(ages=[40.0])
        known = replace(sample, ages=ages)
        context = context_of(known, fleet=a_fleet(), spec=a_pool(), state=PolicyState(), now=NOW)
        assert context.describe_late() == words


def test_decisions_from_estimates_are_about_as_good_as_from_the_truth() -> None:
    late: dict[type[PolicyScaler], list[float]] = {PolicyScaler: [], EstimatingScaler: []}
    cost: dict[type[PolicyScaler], list[float]] = {PolicyScaler: [], EstimatingScaler: []}
    slos_off = []
    for number in WORLDS:
        world = a_world(number)
        for kind in (PolicyScaler, EstimatingScaler):
            spec = a_pool("towline", most=world.most, slo=world.slo_seconds)
            scaler = kind(spec, cores=CORES)
            result = simulate(world.workload, world.world, scaler, slo_seconds=spec.slo)
            late[kind].append(result.late_share)
            cost[kind].append(result.worker_seconds)
            if isinstance(scaler, EstimatingScaler):
                slos_off.append(fmean(estimated - true for estimated, true in scaler.errors) / world.slo_seconds)
    assert fmean(late[EstimatingScaler]) <= fmean(late[PolicyScaler]) + 0.005
    ratios = [some / others for some, others in zip(cost[EstimatingScaler], cost[PolicyScaler], strict=True)]
    assert fmean(ratios) <= 1.05
    assert max(map(abs, slos_off)) < 0.15

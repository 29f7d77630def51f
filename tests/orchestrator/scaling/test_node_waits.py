"""Waits for nodes: learned apart from starts, planned with where they are to be expected, and given up first."""

import pytest

from orchestrator.base.clock import Monotonic
from orchestrator.config.pools import PoolSpec
from orchestrator.fleet.placement import Placement
from orchestrator.fleet.workers import Fleet, Started, Worker
from orchestrator.scaling.context import context_of
from orchestrator.scaling.decision import Conditions
from orchestrator.scaling.estimates import Estimates
from orchestrator.scaling.guards import guarded
from orchestrator.scaling.learning import PolicyState
from orchestrator.scaling.node_waits import NodeWaits
from orchestrator.scaling.plan import plan_actions
from orchestrator.scaling.policy import decide
from tests.support.fleet.fleet_builders import NOW, a_decision, a_pool, a_sample

COLD, WARM, GATED = Started("c", 100.0, False, 95.0), Started("w", 2.0, False, 0.0), Started("g", 100.0, False, None)
UNPLACED = Placement(waits_for="node", words="0/8 nodes are available")


def a_pod_pool(**settings: object) -> PoolSpec:
    return a_pool(app="tasks:app", most=200, runtime={"kubernetes": {"image": "thumbs:1", **settings}})


def unplaced(count: int, *, ago: float = 5.0) -> dict[str, Worker]:
    at = Monotonic(NOW - ago)
    names = [f"resize-{number}" for number in range(count)]
    return {name: Worker(name, "r", a_pod_pool().digest(), at, "starting", at, place=UNPLACED) for name in names}


def test_the_usual_wait_is_the_median_and_nine_tenths_are_told_beside_it() -> None:
    waits = NodeWaits()
    for seconds in range(10, 110, 10):
        waits = waits.after([Started("c", 200.0, False, float(seconds))], size=1)
    assert (waits.usual_seconds, waits.long_seconds) == (50.0, 90.0)
    assert NodeWaits.from_json(waits.to_json()) == waits


def test_a_wait_is_expected_once_the_last_three_starts_had_one_at_that_size() -> None:
    waits = NodeWaits().after([COLD, COLD], size=10)
    assert not waits.is_expected(size=20)
    waits = waits.after([COLD], size=12)
    assert waits.is_expected(size=10)
    assert not waits.is_expected(size=9)
    assert waits.after([WARM], size=5).is_expected(size=10)
    assert not waits.after([WARM], size=10).is_expected(size=10)


def test_a_start_that_waited_for_a_node_or_its_admission_is_no_start_up_sample() -> None:
    spec = a_pod_pool()

    def after(*started: Started) -> Estimates:
        from orchestrator.scaling.estimates import activity

        sample = a_sample()
        summary = activity(sample, elapsed_seconds=1.0, slo_seconds=spec.slo)
        return Estimates().after(
            sample, summary, started=started, forks=False, needed=1, elapsed_seconds=1.0, spec=spec, size=3, unplaced=1
        )

    assert after(COLD, GATED).executed.count == 0
    assert after(WARM).executed.mean_seconds == 2.0
    assert after(WARM).startup.mean_seconds == 2.0
    assert after(WARM, COLD).startup.mean_seconds == 97.0


@pytest.mark.parametrize(("ready", "kept"), [(0, 0), (3, 3), (30, 12)])
def test_starts_that_wait_for_a_node_are_given_up_when_no_task_waits_for_them(ready: int, kept: int) -> None:
    """dask-kubernetes#659, #817, ray#45195: when growing stops, first what is pending."""
    spec = a_pod_pool()
    fleet = Fleet("resize", unplaced(12))
    decision = decide(context_of(a_sample(ready=ready), fleet=fleet, spec=spec, state=PolicyState(), now=NOW))
    assert decision.target >= kept
    assert (decision.target == kept) or ready == 30
    plan = plan_actions(decision, fleet=fleet, spec=spec, now=NOW)
    assert len(plan.retire) == max(0, 12 - max(decision.target, kept))


def test_those_that_wait_for_a_node_go_before_idle_ones_and_the_newest_of_them_first() -> None:
    spec = a_pod_pool()
    waiting = unplaced(1, ago=9.0) | {
        "resize-new": Worker("resize-new", "r", "d", NOW, "starting", NOW, place=UNPLACED)
    }
    idle = {"resize-idle": Worker("resize-idle", "r", "d", NOW, "idle", Monotonic(NOW - 60), started_at=NOW)}
    plan = plan_actions(a_decision(current=3, target=1), fleet=Fleet("resize", {**idle, **waiting}), spec=spec, now=NOW)
    assert [one.worker for one in plan.retire] == ["resize-new", "resize-0"]


def test_a_worker_may_wait_for_a_node_for_as_long_as_there_is_none() -> None:
    """gocd/kubernetes-elastic-agents#10: bounded is how many wait, not how long."""
    spec = a_pod_pool()
    fleet = Fleet("resize", unplaced(1, ago=3_600.0))
    decision = a_decision(current=1, target=1)
    assert plan_actions(decision, fleet=fleet, spec=spec, now=NOW).kill == ()


@pytest.mark.parametrize(("waiting", "target", "most"), [(12, 40, 20), (12, 18, 18), (20, 40, 20), (25, 40, 25)])
def test_no_more_pods_than_max_pending_wait_for_a_node(waiting: int, target: int, most: int) -> None:
    """gocd/kubernetes-elastic-agents#10, apache/spark#33492."""
    spec = a_pod_pool(max_pending=20)
    facts = context_of(
        a_sample(ready=40), fleet=Fleet("resize", unplaced(waiting)), spec=spec, state=PolicyState(), now=NOW
    ).facts
    found, limits = guarded(target, facts)
    assert found == most
    assert ("max_pending" in [limit.guard for limit in limits]) is (most < target)
    if most < target:
        assert limits[0].why == f"{waiting} wait for a node, and max_pending is 20: 0/8 nodes are available"


def test_where_max_is_lower_that_is_the_limit_and_not_max_pending() -> None:
    spec = a_pool(app="tasks:app", most=5, runtime={"kubernetes": {"image": "thumbs:1"}})
    facts = context_of(a_sample(ready=544), fleet=Fleet("resize"), spec=spec, state=PolicyState(), now=NOW).facts
    found, limits = guarded(544, facts)
    assert (found, [limit.guard for limit in limits]) == (5, ["max"])


def test_a_worker_that_its_cluster_takes_away_has_its_successor_also_where_max_is_1() -> None:
    spec = a_pool(app="tasks:app", most=1, runtime={"kubernetes": {"image": "thumbs:1"}})
    taken = Placement("node-1", words="EvictionByEvictionAPI", is_leaving=True)
    leaving = Worker("resize-1", "r", spec.digest(), NOW, "draining", NOW, leases=1, started_at=NOW, place=taken)
    decision = a_decision(current=0, target=1)
    plan = plan_actions(decision, fleet=Fleet("resize", {"resize-1": leaving}), spec=spec, now=NOW)
    assert len(plan.spawn) == 1


def test_a_used_up_quota_holds_growth_with_the_servers_sentence_and_ends_nothing() -> None:
    spec = a_pod_pool()
    conditions = Conditions(quota='pods "x" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1')
    idle = {"resize-1": Worker("resize-1", "r", spec.digest(), NOW, "idle", NOW, started_at=NOW)}
    facts = context_of(
        a_sample(ready=9), fleet=Fleet("resize", idle), spec=spec, state=PolicyState(), now=NOW, conditions=conditions
    ).facts
    found, limits = guarded(5, facts)
    assert found == 1
    assert [limit.guard for limit in limits] == ["quota"]
    assert "exceeded quota" in limits[0].why
    assert guarded(1, facts) == (1, ())


def test_starts_elsewhere_are_not_bounded_by_the_cores_of_this_host() -> None:
    spec = a_pod_pool(max_pending=200)
    facts = context_of(a_sample(ready=150), fleet=Fleet("resize"), spec=spec, state=PolicyState(), now=NOW).facts
    assert guarded(150, facts) == (150, ())

"""Where workers are and what they wait for: as a fleet takes it in, and as people read it."""

from dataclasses import replace

import pytest

from orchestrator.base.clock import Monotonic
from orchestrator.fleet.exits import SPARED, WITHOUT_FAULT, Cause, cause_of, ending_of
from orchestrator.fleet.observation import observe
from orchestrator.fleet.placement import ANYWHERE, Placement, describe_waits
from orchestrator.fleet.workers import Fleet, Worker, exited, least_recently_used, placed
from tests.support.fleet.fleet_builders import NOW, AnExit, a_fleet, a_pool, a_sample

UNPLACED = Placement(waits_for="node", words="0/8 nodes are available: insufficient cpu")


def sentences(*places: Placement, wanted: int = 0, usual: float = 0.0, slo: float = 300.0) -> list[str]:
    return list(describe_waits(places, wanted=wanted, usual_seconds=usual, long_seconds=usual, slo_seconds=slo))


def test_waits_are_told_with_their_number_the_usual_time_and_the_schedulers_sentence() -> None:
    assert sentences(UNPLACED, UNPLACED, ANYWHERE, wanted=30, usual=95.0) == [
        "30 more workers are wanted, 2 workers wait for a node (usually 95 s, most within 95 s): " + UNPLACED.words
    ]
    assert sentences(Placement(waits_for="admission", words="by kueue"), UNPLACED) == [
        "1 worker waits for admission (Kueue, or another that gates Pods): by kueue",
        "1 worker waits for a node: 0/8 nodes are available: insufficient cpu",
    ]
    assert sentences(ANYWHERE, Placement("node-1")) == []


def test_a_wait_for_nodes_that_is_longer_than_the_slo_says_what_would_help() -> None:
    told = sentences(UNPLACED, usual=95.0, slo=30.0)
    assert told[1].startswith("a new node usually takes 95 s, longer than its slo of 30 s: workers.min keeps")


def test_silent_nodes_and_what_a_cluster_takes_away_are_told() -> None:
    silent = Placement("node-1", is_silent=True, words="its node does not answer")
    taken = Placement("node-2", is_leaving=True, words="EvictionByEvictionAPI")
    assert sentences(silent, taken) == [
        "the node of 1 worker does not answer: no new work counts on them, and none is ended",
        "1 worker is ended by the cluster, and replaced",
    ]


@pytest.mark.parametrize(("fate", "cause"), [("disrupted", Cause.DISRUPTED), ("node lost", Cause.NODE_LOST)])
def test_an_end_by_the_cluster_is_no_failed_start_and_blames_no_task(fate: str, cause: Cause) -> None:
    fleet = a_fleet(Worker("w1", "r", "d", Monotonic(NOW - 5), "starting", Monotonic(NOW - 5)))
    ended = replace(AnExit("w1"), fate=fate)  # type: ignore[arg-type]
    left, death = exited(fleet, ended, now=NOW)
    assert (death.cause, death.failed_start, left.crash.failures) == (cause, False, 0)
    assert cause in WITHOUT_FAULT
    assert cause in SPARED
    assert ending_of(ended, cause) == cause.value


def test_out_of_memory_stays_that_also_while_a_node_is_drained() -> None:
    ended = AnExit("w1", signal=9, out_of_memory=True, fate="disrupted")
    assert cause_of(ended, drained=True, overdue=False)[0] is Cause.OUT_OF_MEMORY


def test_idle_workers_on_emptier_nodes_go_first_then_the_longest_idle() -> None:
    """dask-kubernetes#99, autoscaler#3300: nodes become empty on purpose."""
    workers = tuple(
        Worker(name, "r", "d", NOW, "idle", Monotonic(NOW - idle), place=Placement(node, neighbours=neighbours))
        for name, idle, node, neighbours in (("a", 9.0, "n1", 3), ("b", 1.0, "n2", 1), ("c", 5.0, "n1", 3))
    )
    assert [w.worker for w in least_recently_used(workers)] == ["b", "a", "c"]


def test_an_idle_worker_whose_node_does_not_answer_is_no_capacity_and_a_busy_one_is_left() -> None:
    fleet = a_fleet(Worker("w1", "r", "d", NOW, "idle", NOW), Worker("w2", "r", "d", NOW, "busy", NOW, leases=1))
    silent = Placement("node-1", words="its node does not answer", is_silent=True)
    after = placed(fleet, {"w1": silent, "w2": silent}, now=NOW)
    assert [(w.state, w.condition) for w in after.workers.values()] == [
        ("unresponsive", "its node does not answer"),
        ("busy", ""),
    ]
    assert [w.worker for w in after.alive] == ["w2"]


def test_a_fleet_without_news_of_places_is_the_same_value() -> None:
    fleet = a_fleet(Worker("w1", "r", "d", NOW, "idle", NOW))
    assert placed(fleet, {}, now=NOW) is fleet


def test_the_start_of_a_worker_is_told_with_its_wait_for_a_node() -> None:
    waited = Placement("node-1", node_wait_seconds=95.0)
    starting = Worker("w1", "r", "d", Monotonic(NOW - 100), "starting", Monotonic(NOW - 100), place=waited)
    (started,) = observe(Fleet("resize", {"w1": starting}), a_sample(first_seen_seconds_ago={"w1": 0.0})).started
    assert (started.seconds, started.node_wait_seconds, started.is_cold) == (100.0, 95.0, True)
    gated = replace(starting, place=replace(waited, was_gated=True))
    (started,) = observe(Fleet("resize", {"w1": gated}), a_sample(first_seen_seconds_ago={"w1": 0.0})).started
    assert started.node_wait_seconds is None
    assert a_pool().name == "resize"

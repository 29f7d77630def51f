"""Orders about workers: one drains, one is killed, all of a pool are replaced; by whom, and what becomes of tasks."""

import pytest

from orchestrator.base import events
from orchestrator.config.overrides import Moment
from orchestrator.config.worker_requests import MAX_REQUESTS, NO_WORKER_REQUESTS, WorkerRequests, WorkerVerb
from orchestrator.runtimes.procfs import boot
from tests.support.fleet.fleet_builders import a_pool
from tests.support.fleet.reconciler_stage import ReconcilerStage

NOW = Moment(1000.0, 50.0, "boot")
ANN = "ann@example.com"


def order(stage: ReconcilerStage, worker: str, verb: WorkerVerb) -> None:
    now = Moment(stage.clock.wall_seconds(), stage.clock.monotonic(), boot())
    stage.files.change_worker_requests(lambda before: before.with_worker(worker, verb, by=ANN, now=now))
    stage.reconciler.heed_worker_requests()


def test_an_idle_worker_that_is_drained_goes_at_once_and_the_others_stay(stage: ReconcilerStage) -> None:
    first, second = stage.with_workers(2)
    order(stage, first, "drain")
    assert stage.runtime.calls == [("drain", first)]
    assert (stage.state_of(first), stage.state_of(second)) == ("draining", "idle")
    (told,) = stage.logged(events.WORKER_RETIRED)
    assert (told["worker"], told["why"]) == (first, f"drained by {ANN}")
    stage.turn()
    assert ("spawn", "resize-3") in stage.runtime.calls, "the pool needs two"


def test_a_busy_worker_that_is_drained_finishes_its_task_and_gets_no_other(stage: ReconcilerStage) -> None:
    (worker,) = stage.with_workers(1)
    stage.source.held[worker] = ["letter-1"]
    order(stage, worker, "drain")
    assert stage.runtime.calls == []
    assert worker in stage.source.retired
    (told,) = stage.logged(events.WORKER_FINISHING)
    assert told["why"] == f"drained by {ANN}"


def test_a_drain_waits_until_the_queue_answers(stage: ReconcilerStage) -> None:
    (worker,) = stage.with_workers(1)
    stage.source.is_down = True
    order(stage, worker, "drain")
    assert stage.state_of(worker) == "idle"
    stage.source.is_down = False
    stage.reconciler.heed_worker_requests()
    assert stage.runtime.calls == [("drain", worker)]


def test_a_killed_worker_has_a_certificate_that_says_by_whom_and_its_task_runs_again(stage: ReconcilerStage) -> None:
    (worker,) = stage.with_workers(1)
    stage.source.held[worker] = ["letter-1"]
    order(stage, worker, "kill")
    assert stage.runtime.calls == [("kill", worker)]
    stage.reconciler.heed_worker_requests()
    assert stage.runtime.calls == [("kill", worker)], "it is killed once"
    stage.runtime.end(worker, now=stage.clock.monotonic(), signal=9)
    stage.turn(after=1.0)
    (death,) = stage.files.read_deaths(limit=1)
    assert (death["cause"], death["detail"]) == ("killed", f"killed by {ANN}")
    assert stage.source.settled == [("letter-1", "not counted")], "neither the task nor the worker is at fault"
    assert ("spawn", "resize-2") in stage.runtime.calls
    assert not stage.reconciler.pools["resize"].fleet.crash.failures


def test_a_worker_that_drains_can_be_killed_and_a_killed_one_not_drained(stage: ReconcilerStage) -> None:
    (worker,) = stage.with_workers(1)
    stage.source.held[worker] = ["letter-1"]
    order(stage, worker, "drain")
    order(stage, worker, "kill")
    order(stage, worker, "drain")
    assert stage.runtime.calls == [("kill", worker)]
    assert stage.state_of(worker) == "killed"


def test_all_workers_of_a_pool_are_replaced_new_before_old_and_later_ones_stay(stage: ReconcilerStage) -> None:
    (old,) = stage.with_workers(1)
    stage.clock.advance(1.0)
    now = Moment(stage.clock.wall_seconds(), stage.clock.monotonic(), boot())
    stage.files.change_worker_requests(lambda before: before.with_replaced("resize", by=ANN, now=now))
    stage.reconciler.heed_worker_requests()
    (told,) = stage.logged(events.POOL_REPLACED)
    assert (told["workers"], told["by"]) == ([old], ANN)
    stage.turn()
    assert stage.runtime.calls == [("spawn", "resize-2")]
    stage.source.seen.add("resize-2")
    stage.turn()
    assert stage.runtime.calls == [("spawn", "resize-2"), ("drain", old)]
    assert stage.logged(events.WORKER_RETIRED)[-1]["why"] == f"ordered by {ANN}"
    stage.runtime.end(old, now=stage.clock.monotonic(), code=0)
    stage.runtime.calls.clear()
    stage.turn()
    stage.turn()
    assert stage.runtime.calls == []


def test_a_supervisor_that_starts_goes_on_with_a_replacement(stage: ReconcilerStage) -> None:
    (old,) = stage.with_workers(1)
    stage.clock.advance(1.0)
    now = Moment(stage.clock.wall_seconds(), stage.clock.monotonic(), boot())
    stage.files.change_worker_requests(lambda before: before.with_replaced("resize", by=ANN, now=now))
    stage.reconciler = stage.made()
    stage.set_pools(a_pool(least=1))
    stage.runtime.left_running = [stage.runtime.live[old]]
    stage.reconciler.adopt_own(stage.runtime.left_running)
    stage.reconciler.heed_worker_requests()
    assert stage.reconciler.pools["resize"].fleet.workers[old].replaced_for == ANN


def test_orders_that_cannot_be_read_are_told_once_and_change_nothing(stage: ReconcilerStage) -> None:
    (worker,) = stage.with_workers(1)
    (stage.files.path / "worker_requests.json").write_text('{"version": 9}')
    stage.reconciler.heed_worker_requests()
    stage.reconciler.heed_worker_requests()
    assert len(stage.logged(events.STATE_DISCARDED)) == 1
    order(stage, worker, "drain")
    assert stage.runtime.calls == [("drain", worker)]


def test_orders_survive_their_file() -> None:
    given = NO_WORKER_REQUESTS.with_worker("a-1", "drain", by=ANN, now=NOW).with_worker("a-2", "kill", by="x", now=NOW)
    given = given.with_replaced("a", by=ANN, now=NOW)
    assert WorkerRequests.from_json(given.to_json()) == given


def test_the_oldest_orders_are_forgotten() -> None:
    orders = NO_WORKER_REQUESTS
    for number in range(MAX_REQUESTS + 3):
        orders = orders.with_worker(f"a-{number}", "drain", by=ANN, now=NOW)
    assert len(orders.workers) == MAX_REQUESTS
    assert "a-2" not in orders.workers


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"version": 2, "workers": {}, "pools": {}},
        {"version": 1, "workers": {"a": {"verb": "shoot", "by": "x"}}, "pools": {}},
        {"version": 1, "workers": {"a": {"verb": "kill", "by": "x"}}, "pools": {}},
        {"version": 1, "workers": {}, "pools": {"a": {"until": 1, "until_monotonic": 1, "boot": ""}}},
    ],
)
def test_what_is_no_order_is_refused(data: object) -> None:
    with pytest.raises(ValueError, match=r"order|expiry"):
        WorkerRequests.from_json(data)

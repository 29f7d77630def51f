"""The first turns of a supervisor that finds workers and knowledge of an earlier one."""

from orchestrator.base import events
from orchestrator.base.clock import Monotonic
from orchestrator.config.pools import PoolSpec
from orchestrator.fleet.workers import RememberedWorker
from orchestrator.runtime import WorkerHandle
from tests.support.fleet.fleet_builders import a_pool
from tests.support.fleet.reconciler_stage import ReconcilerStage


def adopted_worker(stage: ReconcilerStage, worker: str, *, pool: PoolSpec) -> WorkerHandle:
    handle = WorkerHandle(worker, pool.name, "fake:1", pool.digest(), Monotonic(stage.clock.monotonic() - 100))
    stage.runtime.left_running.append(handle)
    return handle


def test_workers_that_an_earlier_supervisor_left_are_adopted_and_not_touched(stage: ReconcilerStage) -> None:
    pool = a_pool(least=1)
    left = adopted_worker(stage, "resize-old", pool=pool)
    stage.source.seen.add("resize-old")
    stage.set_pools(pool)
    stage.reconciler.adopt_own([left])
    stage.turn()
    assert stage.runtime.calls == []
    assert stage.logged(events.WORKER_ADOPTED)[0]["worker"] == "resize-old"


def test_adopted_workers_with_other_settings_are_replaced(stage: ReconcilerStage) -> None:
    adopted_worker(stage, "resize-old", pool=a_pool(env={"COLOUR": "red"}))
    stage.source.seen.add("resize-old")
    stage.set_pools(a_pool(least=1))
    stage.reconciler.adopt_own(())
    stage.turn()
    assert stage.runtime.calls == [("spawn", "resize-1")]


def test_adopted_workers_of_a_pool_that_is_gone_finish(stage: ReconcilerStage) -> None:
    adopted_worker(stage, "gone-old", pool=a_pool("gone"))
    stage.set_pools(a_pool())
    stage.reconciler.adopt_own(())
    assert stage.runtime.calls == [("drain", "gone-old")]


def test_what_an_earlier_supervisor_asked_of_workers_is_not_asked_again(stage: ReconcilerStage) -> None:
    changed, gone = a_pool(least=2, env={"COLOUR": "red"}), a_pool("gone")
    for name, pool in (
        ("resize-old", changed),
        ("resize-new", a_pool()),
        ("resize-other", changed),
        ("gone-old", gone),
    ):
        adopted_worker(stage, name, pool=pool)
        stage.source.seen.add(name)
    leaves_by = Monotonic(stage.clock.monotonic() + 8.0)
    memories = {
        "resize-old": RememberedWorker(replaced_by="resize-new", leaves_by=leaves_by),
        "resize-other": RememberedWorker(replaced_by="resize-dead"),
        "gone-old": RememberedWorker(leaves_by=leaves_by),
        "resize-dead": RememberedWorker(leaves_by=leaves_by),
    }
    stage.set_pools(a_pool(least=2, most=2))
    stage.reconciler.adopt_own((), memories=memories)
    stage.turn()
    assert stage.runtime.calls == []
    stage.turn()
    assert sorted(stage.runtime.calls) == [("kill", "gone-old"), ("kill", "resize-old")]


def test_a_worker_that_an_earlier_supervisor_let_finish_is_not_asked_to_end_while_it_works(
    stage: ReconcilerStage,
) -> None:
    adopted_worker(stage, "resize-old", pool=a_pool())
    stage.source.held["resize-old"] = ["a long task"]
    stage.set_pools(a_pool(most=1))
    stage.reconciler.adopt_own((), memories={"resize-old": RememberedWorker(finishes=True)})
    for _ in range(20):
        stage.turn()
    assert (stage.runtime.calls, stage.state_of("resize-old")) == ([], "draining")
    del stage.source.held["resize-old"]
    stage.turn()
    assert stage.runtime.calls == [("drain", "resize-old")]


def test_leases_of_workers_that_died_unseen_are_given_back(stage: ReconcilerStage) -> None:
    stage.source.held["resize-lost"] = ["t1"]
    stage.set_pools(a_pool())
    stage.reconciler.adopt_own([WorkerHandle("resize-lost", "resize", "fake:1", "digest", stage.clock.monotonic())])
    assert stage.source.released == ["resize-lost"]
    (death,) = stage.files.read_deaths(limit=1)
    assert (death["worker"], death["detail"]) == ("resize-lost", "ended while no supervisor was there")


def test_what_was_learned_is_taken_up_again(stage: ReconcilerStage) -> None:
    stage.set_pools(a_pool())
    state = stage.reconciler.pools["resize"].state
    stage.reconciler.set_pools({})
    stage.set_pools(a_pool("other"), learned={"other": state.to_json()})
    assert stage.reconciler.pools["other"].state == state
    assert stage.logged(events.STATE_DISCARDED) == []


def test_what_was_learned_is_left_out_with_a_warning_when_it_makes_no_sense(stage: ReconcilerStage) -> None:
    stage.set_pools(a_pool(), learned={"resize": {"version": 99}})
    assert stage.logged(events.STATE_DISCARDED)[0]["pool"] == "resize"

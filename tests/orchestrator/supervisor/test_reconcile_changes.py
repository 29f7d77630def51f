"""Turns after the settings changed: pools that come, go and come back, and workers that are replaced."""

from tests.support.fleet.fleet_builders import a_pool
from tests.support.fleet.reconciler_stage import ReconcilerStage


def test_a_reload_leaves_pools_that_did_not_change_alone(stage: ReconcilerStage) -> None:
    stage.with_workers(2)
    before = stage.reconciler.pools["resize"]
    stage.set_pools(a_pool(least=2, spawn_parallelism=2), a_pool("encode"))
    stage.turn()
    assert stage.reconciler.pools["resize"] is before
    assert stage.runtime.calls == []
    assert set(stage.reconciler.pools) == {"resize", "encode"}


def test_a_removed_pool_lets_its_workers_finish_and_is_gone(stage: ReconcilerStage) -> None:
    workers = stage.with_workers(2)
    stage.set_pools()
    assert stage.runtime.calls == [("drain", worker) for worker in workers]
    for worker in workers:
        stage.runtime.end(worker, now=stage.clock.monotonic(), code=0)
    stage.turn()
    assert stage.reconciler.pools == {}


def test_a_removed_pool_without_workers_is_gone_at_once(stage: ReconcilerStage) -> None:
    stage.set_pools(a_pool())
    stage.set_pools()
    assert stage.reconciler.pools == {}


def test_a_pool_that_comes_back_counts_the_workers_that_still_leave(stage: ReconcilerStage) -> None:
    workers = stage.with_workers(2)
    stage.set_pools()
    stage.set_pools(a_pool(least=2, most=2))
    stage.turn()
    assert ("spawn", "resize-3") not in stage.runtime.calls
    stage.runtime.end(workers[0], now=stage.clock.monotonic(), code=0)
    stage.turn()
    assert ("spawn", "resize-3") in stage.runtime.calls


def test_changed_settings_replace_workers_new_before_old(stage: ReconcilerStage) -> None:
    (old,) = stage.with_workers(1)
    stage.set_pools(a_pool(least=1, env={"COLOUR": "blue"}))
    stage.turn()
    assert stage.runtime.calls == [("spawn", "resize-2")]
    stage.source.seen.add("resize-2")
    stage.turn()
    assert stage.runtime.calls == [("spawn", "resize-2"), ("drain", old)]
    assert stage.source.retired == {old}

"""Turns after the settings changed: pools that come, go and come back, and workers that are replaced."""

from orchestrator.runtime import ApplicationReport
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
    stage.runtime.end(old, now=stage.clock.monotonic(), code=0)
    stage.turn()
    (death,) = stage.files.read_deaths(limit=9)
    assert (death["cause"], death["detail"]) == ("drained", "replaced by resize-2: its settings changed")


def test_a_worker_without_a_successor_also_says_that_the_settings_changed(stage: ReconcilerStage) -> None:
    (old,) = stage.with_workers(1)
    stage.set_pools(a_pool(least=1, most=1, surge=0, env={"COLOUR": "blue"}))
    stage.turn()
    assert ("drain", old) in stage.runtime.calls
    stage.runtime.end(old, now=stage.clock.monotonic(), code=0)
    stage.turn()
    (death,) = stage.files.read_deaths(limit=9)
    assert (death["cause"], death["detail"]) == ("drained", "asked to finish: its settings changed")


def test_workers_of_an_application_that_changed_are_replaced_new_before_old(stage: ReconcilerStage) -> None:
    (old,) = stage.with_workers(1)
    at = stage.clock.wall_seconds()
    stage.runtime.applications["resize"] = ApplicationReport(changed_at=at, changed_file="/srv/tasks.py")
    stage.clock.advance(60)
    stage.turn()
    assert stage.runtime.calls == []  # nobody has asked for a reload
    stage.set_pools(a_pool(least=1))
    stage.turn()
    assert stage.runtime.calls == [("spawn", "resize-2")]
    (changed,) = stage.logged("pool.application_changed")
    assert (changed["pool"], changed["file"], changed["workers"]) == ("resize", "/srv/tasks.py", [old])
    stage.source.seen.add("resize-2")
    stage.turn()
    assert stage.runtime.calls == [("spawn", "resize-2"), ("drain", old)]
    assert [(told["current"], told["target"], told["why"]) for told in stage.logged("pool.decided")][-2:] == [
        (1, 1, "1 worker is replaced: tasks.py changed after its start"),
        (1, 1, "1 worker leaves: tasks.py changed after its start"),
    ]
    stage.runtime.end(old, now=stage.clock.monotonic(), code=0)
    stage.runtime.calls.clear()
    stage.turn()
    (death,) = stage.files.read_deaths(limit=9)
    assert (death["cause"], death["detail"]) == ("drained", "replaced by resize-2: tasks.py changed after its start")
    stage.set_pools(a_pool(least=1))
    stage.turn()
    assert stage.runtime.calls == []  # the new one has the new file


def test_workers_stay_while_their_changed_application_cannot_be_imported(stage: ReconcilerStage) -> None:
    stage.with_workers(1)
    at = stage.clock.wall_seconds()
    stage.runtime.applications["resize"] = ApplicationReport("can't import tasks: tasks.py:1: no", at, "/srv/tasks.py")
    stage.set_pools(a_pool(least=1))
    stage.turn(after=60)
    stage.turn()
    assert stage.runtime.calls == []
    stage.runtime.applications["resize"] = None  # it imports
    stage.turn()
    assert stage.runtime.calls == []
    stage.runtime.applications["resize"] = ApplicationReport("", at, "/srv/tasks.py")
    stage.turn()
    assert stage.runtime.calls == [("spawn", "resize-2")]

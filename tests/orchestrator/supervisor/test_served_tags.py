"""What a pool works on: the tags of its settings that its application handles or that its workers ask for."""

from pathlib import Path

import pytest

from orchestrator.base.samples import PresentWorker
from orchestrator.base.values import ServedTags
from orchestrator.config.pools import PoolSpec
from orchestrator.runtime import ApplicationReport
from orchestrator.state.directory import StateDir
from tests.support.fleet.fleet_builders import a_pool
from tests.support.fleet.reconciler_stage import ReconcilerStage

PROGRAM = a_pool("resize", workers={"min": 1, "max": 2})
APPLICATION = a_pool("resize", app="tasks:app", command=None)


@pytest.fixture
def stage(tmp_path: Path) -> ReconcilerStage:
    return ReconcilerStage(StateDir(tmp_path), [])


def tags(stage: ReconcilerStage) -> tuple[str, ...] | None:
    return stage.reconciler.works["resize"].tags


def ask(stage: ReconcilerStage, served: ServedTags | None) -> None:
    """Have each worker ask for tasks of these tags, as a server reports it, and run a turn."""
    stage.source.lease_tags = served
    stage.source.asked_at = dict.fromkeys(stage.reconciler.workers, stage.clock.monotonic())
    stage.turn()


def test_an_application_says_at_its_import_what_its_pool_works_on(stage: ReconcilerStage) -> None:
    stage.runtime.applications["resize"] = ApplicationReport(served=("shrink",))
    stage.set_pools(APPLICATION)
    assert tags(stage) is None
    stage.turn()
    assert tags(stage) == ("shrink",)
    assert stage.source.sampled == [("shrink",)]


def test_an_application_that_fails_after_a_reload_leaves_what_was_known(stage: ReconcilerStage) -> None:
    stage.runtime.applications["resize"] = ApplicationReport(served=("shrink",))
    stage.set_pools(APPLICATION)
    stage.turn()
    stage.runtime.applications["resize"] = ApplicationReport("no module")
    stage.set_pools(APPLICATION)
    stage.turn()
    assert tags(stage) == ("shrink",)


def test_the_first_worker_of_a_program_says_it_and_the_next_version_at_once(stage: ReconcilerStage) -> None:
    stage.set_pools(PROGRAM)
    stage.turn()
    assert tags(stage) is None
    ask(stage, ("shrink",))
    assert tags(stage) == ("shrink",)
    ask(stage, ("shrink", "acme"))
    assert tags(stage) == ("shrink", "acme")


@pytest.mark.parametrize("reload", [False, True], ids=["of its life", "until a reload"])
def test_it_stays_known_without_workers(stage: ReconcilerStage, reload: bool) -> None:
    stage.set_pools(PROGRAM)
    stage.turn()
    ask(stage, ("shrink",))
    stage.source.asked_at = {}
    stage.turn()
    assert tags(stage) == ("shrink",)
    if reload:
        stage.set_pools(PROGRAM)
        assert tags(stage) is None


def test_a_worker_of_another_pool_says_nothing_of_this_one(stage: ReconcilerStage) -> None:
    other: PoolSpec = a_pool("other", workers={"min": 1, "max": 1})
    stage.set_pools(PROGRAM, other)
    stage.turn()
    pool = stage.reconciler.pools["resize"]
    assert pool.sample is not None
    pool.sample.presence["other-1"] = PresentWorker("other-1", 0.0, tags=("mail",))
    pool.record_leases()
    assert tags(stage) is None

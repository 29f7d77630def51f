"""A supervisor's schedules: the leader adds their ticks, and they come from its file and its applications."""

from pathlib import Path

import pytest

from orchestrator.runtime import ApplicationReport
from orchestrator.supervisor.reload import ReloadedSettings
from tests.support.eventually import eventually
from tests.support.fleet.fakes import FakeTicks
from tests.support.fleet.fleet_builders import a_pool
from tests.support.fleet.supervisor_stage import SupervisorStage

OF_APP = {"name": "of-app", "queue": "work", "every": 1.0}


@pytest.fixture
def ticks() -> FakeTicks:
    """The schedules of the supervisor."""
    return FakeTicks()


@pytest.fixture
def stage(tmp_path: Path, ticks: FakeTicks) -> SupervisorStage:
    """A supervisor with schedules and one pool."""
    return SupervisorStage(tmp_path, ticks=ticks, pools=[a_pool(name="resize", app="tasks:app", command=None)])


def test_a_leader_adds_ticks_whenever_they_are_due(stage: SupervisorStage, ticks: FakeTicks) -> None:
    with stage.running():
        eventually(lambda: ticks.runs > 5)
    assert ticks.pools == ["resize"]


def test_a_standby_adds_none(stage: SupervisorStage, ticks: FakeTicks) -> None:
    stage.source.leader = "another"
    with stage.running() as supervisor:
        eventually(lambda: supervisor.snapshot().get("phase") == "standby")
    assert ticks.runs == 0


def test_the_schedules_of_an_imported_application_are_learned(stage: SupervisorStage, ticks: FakeTicks) -> None:
    stage.runtime.applications["resize"] = ApplicationReport(schedules=[OF_APP])
    with stage.running():
        eventually(lambda: ticks.applications == {"tasks:app": [OF_APP]})


def test_an_application_that_is_not_imported_here_says_nothing(stage: SupervisorStage, ticks: FakeTicks) -> None:
    with stage.running():
        eventually(lambda: ticks.runs > 1)
    assert ticks.applications == {}


def test_a_reload_brings_the_schedules_of_the_file(stage: SupervisorStage, ticks: FakeTicks) -> None:
    pool = stage.pools[0]
    settings = ReloadedSettings({"other": pool.model_copy(update={"name": "other"})}, schedules=[OF_APP])
    stage.load = lambda: settings  # type: ignore[assignment,return-value]
    with stage.running() as supervisor:
        eventually(lambda: ticks.runs > 0)
        supervisor.request_reload()
        eventually(lambda: ticks.file == [OF_APP])
    assert ticks.pools == ["other"]

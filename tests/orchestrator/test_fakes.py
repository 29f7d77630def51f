"""The fakes decide a few things themselves; those are held to what the real ones do."""

import pytest

from orchestrator.base.clock import Monotonic
from orchestrator.base.errors import SourceUnavailableError, SpawnError
from orchestrator.fleet.exits import DeathNotice
from orchestrator.runtime import SpawnRequest
from tests.support.fleet.fakes import FakeRuntime, FakeSource
from tests.support.fleet.fleet_builders import NOW, a_pool


def test_a_fake_worker_is_live_until_it_is_ended_and_told_once() -> None:
    runtime = FakeRuntime()
    runtime.spawn(SpawnRequest("w1", a_pool()), now=NOW)
    assert list(runtime.usage()) == ["w1"]
    runtime.end("w1", now=Monotonic(NOW + 1), code=3)
    assert [(ended.worker, ended.code) for ended in runtime.reap(now=NOW)] == [("w1", 3)]
    assert runtime.reap(now=NOW) == []
    assert runtime.usage() == {}


def test_a_fake_runtime_refuses_with_the_reason_it_was_given() -> None:
    runtime = FakeRuntime()
    runtime.refuses = "no such command: x"
    with pytest.raises(SpawnError, match="no such command"):
        runtime.spawn(SpawnRequest("w1", a_pool()), now=NOW)


def test_a_fake_source_does_not_retire_a_worker_that_holds_a_lease() -> None:
    source = FakeSource(held={"busy": ["t1"]})
    assert (source.retire("busy"), source.retire("idle")) == (False, True)
    assert source.retired == {"idle"}
    assert source.retire("busy", busy="finish") is False
    assert source.retired == {"idle", "busy"}


def test_a_fake_source_makes_released_tasks_ready_again() -> None:
    source = FakeSource(held={"dead": ["t1", "t2"]})
    assert [task.task for task in source.release_held_by("dead", DeathNotice("SIGKILL", ""))] == ["t1", "t2"]
    sample = source.sample(a_pool(), workers=(), now=NOW)
    assert (sample.ready, sample.in_flight) == (2, 0)


def test_a_fake_source_that_is_down_answers_nothing() -> None:
    source = FakeSource(is_down=True)
    with pytest.raises(SourceUnavailableError):
        source.sample(a_pool(), workers=(), now=NOW)
    with pytest.raises(SourceUnavailableError):
        source.lead("me", seconds=1)

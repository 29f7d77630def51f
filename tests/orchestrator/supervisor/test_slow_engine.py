"""An engine that answers slowly makes starts slow, and no decision late by more than a turn."""

from collections.abc import Callable

import pytest

from orchestrator.base import events
from orchestrator.base.clock import Monotonic
from orchestrator.base.errors import StartPendingError
from orchestrator.runtime import SpawnRequest, WorkerHandle
from orchestrator.supervisor.executor import SPAWNING_SECONDS
from tests.support.fleet.fakes import FakeRuntime
from tests.support.fleet.fleet_builders import a_pool
from tests.support.fleet.reconciler_stage import ReconcilerStage

CALL_SECONDS = 0.3
MOST = 200


class PreparingRuntime(FakeRuntime):
    """Prepares a pool's first starts beside the turns, and says so, this often."""

    left = 2

    def spawn(self, request: SpawnRequest, *, now: Monotonic) -> WorkerHandle:
        if self.left:
            self.left -= 1
            raise StartPendingError("the engine is slow: it is still asked about the image")
        return super().spawn(request, now=now)


class SlowRuntime(FakeRuntime):
    """Takes 0.3 s for each start, as an engine does behind a slow connection."""

    def __init__(self, advance: Callable[[float], object]) -> None:
        super().__init__()
        self._advance = advance

    def spawn(self, request: SpawnRequest, *, now: Monotonic) -> WorkerHandle:
        self._advance(CALL_SECONDS)
        return super().spawn(request, now=now)


@pytest.fixture
def slow(stage: ReconcilerStage) -> ReconcilerStage:
    stage.runtime = SlowRuntime(stage.clock.advance)
    stage.reconciler = stage.made()
    return stage


def test_two_hundred_starts_of_300_ms_each_hold_no_turn_up(slow: ReconcilerStage) -> None:
    slow.set_pools(a_pool(least=MOST, most=MOST, spawn_parallelism=MOST))
    began = slow.clock.monotonic()
    longest = 0.0
    while len(slow.runtime.live) < MOST:
        before, count = slow.clock.monotonic() + 1.0, len(slow.runtime.live)
        slow.turn(after=1.0)
        longest = max(longest, slow.clock.monotonic() - before)
        assert len(slow.runtime.live) > count
    assert longest < SPAWNING_SECONDS + CALL_SECONDS
    assert slow.clock.monotonic() - began < 3 * MOST * CALL_SECONDS


def test_every_pool_starts_one_worker_in_a_turn_though_others_take_all_of_its_time(slow: ReconcilerStage) -> None:
    pools = [a_pool(f"p{number}", least=20, most=20, spawn_parallelism=20) for number in range(6)]
    slow.set_pools(*pools)
    slow.turn()
    assert {handle.pool for handle in slow.runtime.live.values()} == {pool.name for pool in pools}


def test_a_start_that_is_being_prepared_is_tried_again_each_turn_told_once_and_no_failure(
    stage: ReconcilerStage,
) -> None:
    stage.runtime = PreparingRuntime()
    stage.reconciler = stage.made()
    stage.set_pools(a_pool("resize", least=1, most=1, slo=1.0))
    for _ in range(3):
        assert not stage.runtime.live
        stage.turn(after=1.0)
    assert len(stage.runtime.live) == 1
    (told,) = stage.logged(events.RUNTIME_UNAVAILABLE)
    assert "is slow" in str(told["error"])
    assert len(stage.logged(events.RUNTIME_RECOVERED)) == 1
    assert stage.reconciler.pools["resize"].counters.failed_starts == 0

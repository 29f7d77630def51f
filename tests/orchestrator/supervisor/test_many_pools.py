"""What a supervisor of many pools pays per pool does not grow with their number."""

import statistics
from collections.abc import Collection, Mapping, Sequence

import pytest
from structlog.testing import capture_logs

from orchestrator.base.clock import Monotonic
from orchestrator.base.errors import SourceUnavailableError
from orchestrator.base.samples import QueueSample
from orchestrator.config.pools import PoolSpec
from orchestrator.source import SampleQuery
from orchestrator.supervisor.pool import ASLEEP_SECONDS
from tests.bench.pools import turn_seconds
from tests.support.fleet.fakes import FakeSource
from tests.support.fleet.fleet_builders import a_pool
from tests.support.fleet.reconciler_stage import ReconcilerStage


def test_four_times_the_pools_cost_about_four_times_as_much() -> None:
    with capture_logs():
        few, _ = turn_seconds(50)
        many, _ = turn_seconds(200)
    assert statistics.median(many) < 7 * statistics.median(few)


class AtOnce(FakeSource):
    """Looks at all pools at once, and counts how often, at how many."""

    def __init__(self) -> None:
        super().__init__()
        self.looks: list[int] = []
        self.alone: list[str] = []
        self.failure: SourceUnavailableError | None = None

    def samples(
        self, asked: Sequence[SampleQuery], *, now: Monotonic
    ) -> Mapping[str, QueueSample | SourceUnavailableError]:
        self.looks.append(len(asked))
        if self.failure is not None:
            return {one.pool.name: self.failure for one in asked}
        return {one.pool.name: super(AtOnce, self).sample(one.pool, workers=one.workers, now=now) for one in asked}

    def sample(
        self, pool: PoolSpec, *, workers: Collection[str], ahead_seconds: float = 0.0, now: Monotonic
    ) -> QueueSample:
        self.alone.append(pool.name)
        return super().sample(pool, workers=workers, ahead_seconds=ahead_seconds, now=now)


@pytest.fixture
def source(stage: ReconcilerStage) -> AtOnce:
    stage.source = AtOnce()
    stage.reconciler = stage.made()
    return stage.source


def test_a_turn_of_many_pools_is_one_look_at_all_of_them(stage: ReconcilerStage, source: AtOnce) -> None:
    stage.set_pools(*(a_pool(f"p{number}", least=1) for number in range(50)))
    for _ in range(3):
        stage.turn()
    assert (source.looks, source.alone) == ([50] * 3, [])


def test_a_source_that_is_away_makes_all_of_them_stale_without_being_asked_again(
    stage: ReconcilerStage, source: AtOnce
) -> None:
    stage.set_pools(*(a_pool(f"p{number}", least=1) for number in range(5)))
    stage.turn()
    source.failure = SourceUnavailableError("away")
    stage.turn()
    assert all(pool.is_stale for pool in stage.reconciler.pools.values())
    assert source.alone == []


def test_pools_that_sleep_are_looked_at_every_ten_seconds_and_when_a_task_arrives(
    stage: ReconcilerStage, source: AtOnce
) -> None:
    stage.set_pools(*(a_pool(f"p{number}", slo=10.0) for number in range(5)))
    for _ in range(int(1.5 * ASLEEP_SECONDS)):
        stage.turn(after=1.0)
    assert source.looks == [5, 5]
    source.ready = 1
    stage.reconciler.arrived("p3")
    stage.turn(after=1.0)
    assert source.alone == ["p3"]
    assert [worker for verb, worker in stage.runtime.calls if verb == "spawn"] == ["p3-1"]


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"least": 1}, id="it has workers"),
        pytest.param(
            {"schedule": [{"cron": "0 9 * * *", "for": "1h", "workers": {"min": 1}}]}, id="an hour wants some"
        ),
        pytest.param({"finish_by": "09:00"}, id="what waits is to be done by an hour"),
    ],
)
def test_a_pool_that_may_change_by_itself_does_not_sleep(
    stage: ReconcilerStage, source: AtOnce, settings: dict[str, object]
) -> None:
    stage.set_pools(a_pool("p0", slo=10.0, **settings), a_pool("p1", slo=10.0, **settings))  # type: ignore[arg-type]
    for _ in range(5):
        stage.turn(after=1.0)
    assert source.looks == [2] * 5


def test_a_pool_with_work_that_it_may_not_grow_for_does_not_sleep(stage: ReconcilerStage, source: AtOnce) -> None:
    stage.set_pools(a_pool("p0", slo=10.0), a_pool("p1", slo=10.0))
    source.ready, stage.runtime.refuses = 1, "no such command"
    for _ in range(3):
        stage.turn(after=1.0)
    assert source.looks == [2] * 3

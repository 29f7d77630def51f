"""Turns over workers in a cluster: one that is taken away has a successor at once, and one on a silent node is left."""

from collections.abc import Sequence

import pytest

from orchestrator.base import events
from orchestrator.base.clock import Monotonic
from orchestrator.base.errors import QuotaError, StartPendingError
from orchestrator.fleet.placement import Placement
from orchestrator.runtime import SpawnRequest, WorkerHandle
from orchestrator.supervisor.pool import states_of
from tests.support.fleet.fakes import FakeRuntime
from tests.support.fleet.fleet_builders import a_pool
from tests.support.fleet.reconciler_stage import ReconcilerStage

TAKEN = Placement("node-1", words="EvictionByEvictionAPI: evicting", is_leaving=True)
SILENT = Placement("node-1", words="its node does not answer", is_silent=True)


class RefusingRuntime(FakeRuntime):
    """A runtime that refuses the next starts with these errors."""

    def __init__(self, errors: Sequence[Exception]) -> None:
        super().__init__()
        self.errors = list(errors)

    def spawn(self, request: SpawnRequest, *, now: Monotonic) -> WorkerHandle:
        if self.errors:
            raise self.errors.pop(0)
        return super().spawn(request, now=now)


def test_a_busy_worker_that_its_cluster_takes_away_is_fenced_and_has_a_successor_in_the_same_pass(
    stage: ReconcilerStage,
) -> None:
    """airflow#17693, karpenter#1167: right also when an annotated Pod is evicted."""
    one, two = stage.with_workers(2, slo=30.0)
    stage.source.held[one] = ["task-1"]
    stage.turn()
    stage.runtime.places = {one: TAKEN}
    stage.turn(after=0.1)
    assert stage.state_of(one) == "draining"
    assert stage.runtime.calls == [("spawn", "resize-3")]
    assert [(entry["worker"], entry["held"]) for entry in stage.logged(events.WORKER_FINISHING)] == [(one, 1)]
    assert stage.state_of(two) == "idle"


def test_an_idle_worker_on_a_silent_node_is_no_capacity_and_nothing_is_ended(stage: ReconcilerStage) -> None:
    one, two = stage.with_workers(2, slo=30.0, grace=5.0)
    stage.runtime.places = {one: SILENT}
    for _ in range(4):
        stage.turn()
    assert stage.state_of(one) == "unresponsive"
    assert [call for call in stage.runtime.calls if call[0] in {"drain", "kill"}] == []
    assert ("spawn", "resize-3") in stage.runtime.calls
    assert stage.state_of(two) == "idle"


def test_what_workers_wait_for_is_one_of_the_pools_states(stage: ReconcilerStage) -> None:
    (one,) = stage.with_workers(1, slo=30.0)
    stage.runtime.places = {one: Placement(waits_for="node", words="0/8 nodes are available")}
    stage.turn()
    assert "1 worker waits for a node: 0/8 nodes are available" in states_of(stage.reconciler.pools["resize"])


def test_a_standby_fences_nothing_that_a_cluster_takes_away(stage: ReconcilerStage) -> None:
    (one,) = stage.with_workers(1, slo=30.0)
    stage.leads = False
    stage.runtime.places = {one: TAKEN}
    stage.turn()
    assert stage.state_of(one) == "idle"


@pytest.fixture
def refused(stage: ReconcilerStage) -> ReconcilerStage:
    quota = QuotaError('pods "towline-resize-1" is forbidden: exceeded quota: q')
    stage.runtime = RefusingRuntime([quota])
    stage.reconciler = stage.made()
    return stage


def test_a_start_that_a_quota_forbids_is_no_failed_start_and_is_tried_again_in_half_a_minute(
    refused: ReconcilerStage,
) -> None:
    refused.set_pools(a_pool(least=1, slo=30.0))
    refused.turn()
    pool = refused.reconciler.pools["resize"]
    assert (pool.counters.failed_starts, pool.fleet.crash.failures) == (0, 0)
    refused.turn()
    assert pool.decision is not None
    assert pool.decision.limited_by == ("quota",)
    assert "exceeded quota: q" in pool.decision.limits[0].why
    for _ in range(4):
        refused.turn()
    assert refused.runtime.calls == []
    refused.turn(after=6.0)
    refused.turn()
    assert refused.runtime.calls == [("spawn", "resize-2")]
    assert pool.outage is None


def test_a_start_that_the_pace_of_calls_puts_off_is_tried_again_before_the_next_turn(stage: ReconcilerStage) -> None:
    stage.runtime = RefusingRuntime([StartPendingError("as many as it bears", seconds=0.05)])
    stage.reconciler = stage.made()
    stage.set_pools(a_pool(least=1, slo=300.0))
    stage.turn()
    assert stage.runtime.calls == []
    due_at = stage.reconciler.next_turn_at()
    assert due_at is not None
    assert due_at - stage.clock.monotonic() == pytest.approx(0.25)
    stage.turn(after=0.25)
    assert stage.runtime.calls == [("spawn", "resize-2")]

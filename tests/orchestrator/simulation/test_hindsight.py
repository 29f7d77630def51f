"""The yardstick: what the same tasks cost whoever knew them all."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.simulation.study import hindsight
from orchestrator.simulation.workload import Workload, workload_of


def cost_of(tasks: list[tuple[float, float]], *, slo: float = 30.0, startup: float = 5.0) -> float:
    return hindsight(workload_of("test", tasks), slo_seconds=slo, startup_seconds=startup).worker_seconds


def test_one_task_costs_its_service_and_a_start() -> None:
    assert cost_of([(10.0, 4.0)]) == 9.0


def test_tasks_that_may_wait_for_each_other_share_one_worker() -> None:
    assert cost_of([(0.0, 4.0), (0.0, 4.0), (1.0, 4.0)]) == 17.0


def test_tasks_that_may_not_wait_need_a_worker_each() -> None:
    assert cost_of([(0.0, 4.0), (0.0, 4.0)], slo=0.1) == 18.0


@pytest.mark.parametrize(("gap", "cost"), [(3.0, 16.0), (50.0, 18.0)], ids=["kept", "let go"])
def test_a_worker_is_kept_for_a_gap_only_while_that_is_cheaper_than_a_start(gap: float, cost: float) -> None:
    assert cost_of([(0.0, 4.0), (4.0 + gap, 4.0)], slo=1e-6) == pytest.approx(cost)


def test_nothing_costs_nothing() -> None:
    found = hindsight(Workload("none", [], []), slo_seconds=30.0, startup_seconds=5.0)
    assert (found.worker_seconds, found.starts, found.least_worker_seconds) == (0.0, 0, 0.0)


@settings(max_examples=100, deadline=None)
@given(
    tasks=st.lists(st.tuples(st.floats(0, 1_000), st.floats(0.01, 100)), min_size=1, max_size=60),
    slo=st.floats(0.1, 300),
    startup=st.floats(0, 60),
)
def test_it_is_never_below_the_bound_nor_above_a_worker_per_task(
    tasks: list[tuple[float, float]], slo: float, startup: float
) -> None:
    workload = workload_of("test", tasks)
    found = hindsight(workload, slo_seconds=slo, startup_seconds=startup)
    assert found.least_worker_seconds - 1e-6 <= found.worker_seconds
    assert found.worker_seconds <= workload.work_seconds + len(tasks) * startup + 1e-6

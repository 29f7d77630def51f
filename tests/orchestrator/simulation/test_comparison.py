"""Whether a worker per task would have done better than a pool, and how that is said."""

import pytest

from orchestrator.simulation.comparison import Comparison, Figures, against_rule
from orchestrator.simulation.study import PoolCandidate
from orchestrator.simulation.workload import SimulatedWorld, workload_of
from tests.support.fleet.fleet_builders import a_pool


def figures(cost: float, *, late: float = 0.0, p99: float = 0.5, worst: float = 0.9) -> Figures:
    return Figures(cost, late, p99, worst)


@pytest.mark.parametrize(
    ("pool", "rule", "is_worse", "said"),
    [
        pytest.param(figures(100), figures(96), True, "cost 4% less and been no later", id="dearer, as late"),
        pytest.param(figures(100), figures(99), False, "cost about as much and been no later", id="alike"),
        pytest.param(figures(100), figures(140), False, "cost 40% more and been no later", id="cheaper"),
        pytest.param(
            figures(100, late=0.12, p99=3.2, worst=9.0),
            figures(101, p99=0.8),
            True,
            "cost about as much and been less late (p99 0.8 slo against 3.2, worst 0.9 against 9, 0.0% late against",
            id="later, and no cheaper",
        ),
        pytest.param(
            figures(100, late=0.12, p99=3.2),
            figures(120),
            False,
            "cost 20% more and been less late",
            id="later, cheaper",
        ),
        pytest.param(
            figures(100), figures(80, late=0.2, p99=1.5), False, "cost 20% less and been later", id="dearer, in time"
        ),
        pytest.param(
            figures(100, late=0.001, worst=4.0), figures(80, worst=4.8), False, "been later", id="the worst is worse"
        ),
        pytest.param(
            figures(100, p99=0.1, worst=0.2), figures(90, p99=0.9, worst=1.0), True, "no later", id="both in time"
        ),
    ],
)
def test_a_pool_is_worse_when_the_rule_is_better_in_one_thing_and_no_worse_in_the_other(
    pool: Figures,
    rule: Figures,
    is_worse: bool,
    said: str,
) -> None:
    compared = Comparison(pool, rule)
    assert compared.is_worse == is_worse
    assert said in compared.sentence()


def test_a_pool_that_keeps_idle_workers_for_hours_is_told_what_the_rule_would_have_saved() -> None:
    workload = workload_of("test", [(600.0 * burst + 0.1 * task, 2.0) for burst in range(20) for task in range(10)])
    miser = PoolCandidate("resize", a_pool(churn="1h", most=20))
    compared = against_rule(workload, SimulatedWorld(), miser, seeds=(1, 2))
    assert compared.is_worse
    assert compared.rule.worker_seconds < 0.5 * compared.pool.worker_seconds


def test_without_a_task_both_cost_nothing() -> None:
    compared = against_rule(workload_of("test", []), SimulatedWorld(), PoolCandidate("resize", a_pool()), seeds=(1,))
    assert not compared.is_worse

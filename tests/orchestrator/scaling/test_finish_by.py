"""What waits is to be done by an instant, at least cost; and what is said when that can't be."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.base.clock import Monotonic
from orchestrator.config.pools import PoolSpec
from orchestrator.fleet.workers import Fleet
from orchestrator.scaling.deadline import ServingCapacity
from orchestrator.scaling.decision import Conditions, Decision, FinishBy
from orchestrator.scaling.estimates import Estimates, ServiceTime, Startup
from orchestrator.scaling.finish_by import forecast_finish
from orchestrator.scaling.learning import PolicyState
from tests.support.fleet.fleet_builders import NOW, a_fleet_of, a_lease, a_pool, a_sample, learn_and_decide

NINE = 9 * 3600.0  # 09:00 UTC of the first day


def decided(
    ready: int, *, within: float, fleet: Fleet | None = None, spec: PoolSpec | None = None, age: float = 0.0
) -> Decision:
    """Leases last 2 s, starts 1 s; the slo is of no concern unless a test says so."""
    known = PolicyState(
        Estimates(service=ServiceTime(10_000, 20_000), executed=Startup(100, 0.8), slack=0.8),
        sampled_at=Monotonic(NOW - 3),
    )
    known_fleet = fleet or a_fleet_of()
    busy = [a_lease(w.worker, held=0.0) for w in known_fleet.alive if w.state == "busy"]
    decision, _ = learn_and_decide(
        a_sample(ages=[age] if ready else [], positions=[ready] if ready else [], running=busy),
        fleet=known_fleet,
        spec=spec or a_pool(most=1_000, slo=86_400),
        state=known,
        now=NOW,
        conditions=Conditions(cores=10_000, finish_by=FinishBy(within, NINE)),
    )
    return decision


# Of an hour a twentieth is kept back, and 4 s for the last task's end: about 1,708 leases a worker.
@pytest.mark.parametrize(
    ("ready", "within", "target"),
    [
        pytest.param(1, 3600, 1, id="one-task"),
        pytest.param(1_700, 3600, 1, id="one-worker-does"),
        pytest.param(1_720, 3600, 2, id="one-does-not"),
        pytest.param(17_000, 3600, 10, id="ten"),
        pytest.param(17_000, 360, 101, id="a-tenth-of-the-time"),
        pytest.param(0, 3600, 0, id="nothing-waits"),
    ],
)
def test_the_fleet_is_the_smallest_that_is_done_in_time(ready: int, within: float, target: int) -> None:
    decision = decided(ready, within=within)
    assert (decision.target, decision.limited_by) == (target, ())
    if target > 1:
        assert decision.rule == "finish_by"
        assert decision.why == f"{ready:,} tasks wait to be done by 09:00: {target} more workers are needed for that"


def test_who_is_there_already_counts() -> None:
    assert decided(17_000, within=3600, fleet=a_fleet_of(busy=10)).target == 10
    assert decided(17_000, within=3600, fleet=a_fleet_of(busy=4, starting=3)).target == 10


def test_nobody_goes_while_it_waits_and_how_it_stands_is_told() -> None:
    decision = decided(17_000, within=3600, fleet=a_fleet_of(busy=12))
    assert decision.target == 12
    assert decision.notes == ("17,000 tasks wait to be done by 09:00: no more workers are needed for that",)


def test_it_is_never_less_than_the_slo_needs() -> None:
    urgent = a_pool(most=1_000, slo=30)
    assert decided(110, within=86_400, spec=urgent).target == 10


def test_what_cant_be_done_is_told_with_when_it_can() -> None:
    decision = decided(17_000, within=3600, spec=a_pool(most=5, slo=86_400))
    assert (decision.target, decision.limited_by) == (5, ("max",))
    # 17,000 tasks of 2 s by 5 workers take 6,800 s: 53 min and 20 s after nine, and a little.
    assert decision.why == "17,000 tasks wait, and can't be done by 09:00 with max 5: 09:54 at the earliest"


def test_what_comes_too_late_for_any_start_gets_all_there_may_be() -> None:
    decision = decided(500, within=2, spec=a_pool(most=20, slo=86_400))
    assert decision.target == 20
    assert "can't be done by 09:00 with max 20: 09:01 at the earliest" in decision.why


def test_the_time_is_told_on_the_clock_of_who_asked() -> None:
    assert FinishBy(60, NINE, 3600).clock() == "10:00"
    assert FinishBy(60, NINE, -10 * 3600).clock() == "23:00"
    assert FinishBy(60, NINE).clock(15 * 3600 - 1) == "00:00"


@given(
    ready=st.integers(1, 5_000),
    within=st.floats(10, 10_000),
    service=st.floats(0.1, 60),
    startup=st.floats(0.1, 60),
    idle=st.integers(0, 20),
    busy=st.integers(0, 20),
    slots=st.integers(1, 4),
    longer=st.floats(1, 1_000),
    more=st.integers(0, 1_000),
)
@settings(max_examples=200, deadline=None)
def test_more_work_or_less_time_never_wants_fewer_and_what_is_promised_is_kept(
    ready: int,
    within: float,
    service: float,
    startup: float,
    idle: int,
    busy: int,
    slots: int,
    longer: float,
    more: int,
) -> None:
    capacity = ServingCapacity(idle * slots, busy * slots, (), slots, service)

    def workers(ready: int, within: float) -> int:
        by = FinishBy(within, NINE)
        return forecast_finish(
            by, ready, capacity=capacity, startup_seconds=startup, current=idle + busy, most=100_000
        ).workers

    needed = workers(ready, within)
    assert workers(ready + more, within) >= needed
    assert workers(ready, within + longer) <= needed
    found = forecast_finish(
        FinishBy(within, NINE), ready, capacity=capacity, startup_seconds=startup, current=idle + busy, most=100_000
    )
    if 0.95 * within - 2 * service > startup:
        assert found.is_in_time

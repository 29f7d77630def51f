"""What is kept warm where a start takes longer than the slo leaves, and what bounds it."""

import pytest

from orchestrator.base.clock import Monotonic
from orchestrator.scaling.deadline import Pace, ServingCapacity
from orchestrator.scaling.reserve import BURST_SHARE, BUSY_SECONDS, NOBODY_WARM, STEADY_SHARE, Reserve, WarmWorkers
from tests.support.fleet.fleet_builders import NOW

PACE = Pace(slo_seconds=10, usable_slo_seconds=7, startup_seconds=12, turn_seconds=1, usual_start_seconds=11)
IN_TIME = Pace(slo_seconds=30, usable_slo_seconds=21, startup_seconds=1, turn_seconds=3, usual_start_seconds=1)
CREW = ServingCapacity(0, 0, (), 1, 2.0)


def after(known: Reserve, arrivals: int, *, seconds: float, busy: float = 0.0, pace: Pace = PACE) -> Reserve:
    at = Monotonic(max(known.at, NOW) + seconds)
    return known.after(arrivals, at=at, busy_seconds=busy * seconds, elapsed_seconds=seconds, capacity=CREW, pace=pace)


def warm(known: Reserve, *, paper: int = 0, tasks: int = 1, in_flight: int = 0, pace: Pace = PACE) -> WarmWorkers:
    return known.warm(erlang_workers=paper, tasks=tasks, in_flight=in_flight, rate=0.0, capacity=CREW, pace=pace)


BURST = after(Reserve(busy_slots=100.0), 90, seconds=1.0)


def test_a_burst_is_what_had_to_be_there_for_it_and_half_forgotten_in_ten_minutes() -> None:
    assert BURST.burst == pytest.approx(90 / (1 + 7 / 2))
    assert after(BURST, 0, seconds=600).burst == pytest.approx(BURST.burst / 2)
    assert warm(after(BURST, 0, seconds=6_000)).kept == 0


def test_what_idles_is_bounded_by_what_is_busy() -> None:
    rarely_busy = Reserve(BURST.burst, busy_slots=1.0)
    assert warm(rarely_busy) == WarmWorkers(20, round(BURST_SHARE), 1.0)
    assert warm(rarely_busy, in_flight=5).kept == round(BURST_SHARE) + 5
    assert warm(Reserve(busy_slots=2.0), paper=40) == WarmWorkers(40, round(2 * STEADY_SHARE), 2.0)


def test_the_average_that_bounds_it_forgets_in_twenty_minutes() -> None:
    known = Reserve()
    for _ in range(100):
        known = after(known, 0, seconds=60.0, busy=4.0)
    assert known.busy_slots == pytest.approx(4.0, rel=0.01)
    assert after(known, 0, seconds=BUSY_SECONDS).busy_slots == pytest.approx(4.0 / 2.718, rel=0.01)


def test_what_the_budget_takes_away_is_told() -> None:
    assert warm(Reserve(busy_slots=2.0), paper=18).description == (
        "18 warm would meet the SLO at 9 times the cost of the work: keeping 3; set workers.min for more"
    )
    assert warm(Reserve(busy_slots=20.0), paper=18).description == ""


def test_nobody_is_kept_where_nothing_comes_or_a_start_is_in_time() -> None:
    assert warm(BURST, tasks=0) == NOBODY_WARM
    assert warm(BURST, pace=IN_TIME) == NOBODY_WARM
    assert after(Reserve(busy_slots=100.0), 90, seconds=1.0, pace=IN_TIME).burst == 0.0

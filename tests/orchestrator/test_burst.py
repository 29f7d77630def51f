"""What is kept warm for the next burst, where a start takes longer than the slo leaves."""

import pytest

from orchestrator.clock import Monotonic
from orchestrator.deadline import Burst, Crew, Pace
from orchestrator.durations import Durations
from tests.support.fleet_builders import NOW

PACE = Pace(slo_seconds=10, usable_slo_seconds=7, startup_seconds=12, turn_seconds=1)
CREW = Crew(0, (), 1, Durations().remaining(2.0))
BURST = Burst().after(90, at=NOW, crew=CREW, pace=PACE)


def later(seconds: float, *, lateness: float = 0.0) -> Burst:
    return BURST.after(0, at=Monotonic(NOW + seconds), crew=CREW, pace=PACE, lateness=lateness)


def test_it_is_half_forgotten_in_ten_minutes_and_lets_the_pool_empty() -> None:
    assert later(600).workers == pytest.approx(BURST.workers / 2)
    assert later(6_000).warm_workers == 0


@pytest.mark.parametrize(
    ("lateness", "half_life_seconds"),
    [(0.0, 600), (1.0, 600), (2.0, 1_200), (3.0, 2_400), (7.0, 21_600), (8.0, 28_800), (99.0, 28_800)],
)
def test_a_pool_that_is_late_too_often_is_slower_to_forget(lateness: float, half_life_seconds: int) -> None:
    assert later(half_life_seconds, lateness=lateness).workers == pytest.approx(BURST.workers / 2)


def test_nothing_is_kept_where_a_start_is_in_time() -> None:
    in_time = Pace(slo_seconds=30, usable_slo_seconds=21, startup_seconds=1, turn_seconds=3)
    assert Burst().after(90, at=NOW, crew=CREW, pace=in_time).warm_workers == 0

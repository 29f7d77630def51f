"""How long leases waited, in slos: counted for ever and over the last hour, in bounded memory."""

from random import Random

import pytest

from orchestrator.base.clock import Monotonic
from orchestrator.scaling.lease_waits import BUCKETS, SLOT_SECONDS, SLOTS, Recent, Waits

HOUR = 3_600.0


def waits_at(*told: tuple[float, float]) -> Waits:
    """Waits in slos, each at its instant."""
    known = Waits()
    for at, wait in told:
        known = known.after([wait], at=Monotonic(at))
    return known


def test_a_wait_falls_into_the_bucket_that_ends_at_or_after_it() -> None:
    known = Waits().after([0.0, 0.25, 0.2501, 1.0, 1.01, 100.0, 100.1], at=Monotonic(0.0))
    assert dict(zip([*BUCKETS, "beyond"], known.counts, strict=True)) == {
        0.25: 2,
        0.5: 1,
        1.0: 1,
        1.5: 1,
        3.0: 0,
        10.0: 0,
        30.0: 0,
        100.0: 1,
        "beyond": 1,
    }
    assert known.total == pytest.approx(202.6101)


def test_the_99th_percentile_is_right_to_a_tenth_and_the_worst_exactly() -> None:
    rng = Random(3)
    waits = [rng.lognormvariate(-1.0, 1.5) for _ in range(5_000)]
    recent = Waits().after(waits, at=Monotonic(50.0)).recent(Monotonic(60.0))
    exact = sorted(waits)[round(0.99 * len(waits)) - 1]
    assert recent.leases == 5_000
    assert exact <= recent.p99_over_slo <= exact * 1.1
    assert recent.worst_over_slo == max(waits)


@pytest.mark.parametrize(("wait", "is_late"), [(0.0, False), (0.999, False), (1.0, False), (1.001, True), (9e9, True)])
def test_a_percentile_is_beyond_the_slo_exactly_when_the_wait_is(wait: float, is_late: bool) -> None:
    recent = waits_at((0.0, wait)).recent(Monotonic(0.0))
    assert (recent.p99_over_slo > 1.0) == is_late
    assert recent.worst_over_slo == wait


def test_one_wait_in_a_hundred_is_beyond_the_percentile_and_two_are_not() -> None:
    known = Waits().after([0.5] * 99 + [8.0], at=Monotonic(0.0))
    assert known.recent(Monotonic(0.0)).p99_over_slo == pytest.approx(0.5, rel=0.1)
    assert known.after([8.0], at=Monotonic(1.0)).recent(Monotonic(1.0)).p99_over_slo == 8.0


def test_what_is_older_than_an_hour_is_forgotten_but_stays_counted() -> None:
    known = waits_at((10.0, 7.0), (1_000.0, 0.5))
    assert known.recent(Monotonic(HOUR)).worst_over_slo == 7.0
    assert known.recent(Monotonic(HOUR + SLOT_SECONDS)) == Recent(1, 0.5, 0.5)
    assert known.recent(Monotonic(3 * HOUR)) == Recent()
    assert sum(known.counts) == 2


def test_a_month_of_waits_of_every_size_takes_bounded_memory() -> None:
    known = Waits()
    for turn in range(30 * 24 * 12):
        known = known.after([10.0**power for power in range(-12, 12)], at=Monotonic(turn * SLOT_SECONDS))
    assert len(known.slots) == SLOTS + 1
    assert all(len(slot.levels) <= 24 for slot in known.slots)


def test_nothing_that_began_changes_nothing() -> None:
    known = waits_at((10.0, 7.0))
    assert known.after([], at=Monotonic(9 * HOUR)) is known
    assert Waits().recent(Monotonic(0.0)) == Recent()

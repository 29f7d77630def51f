"""Contention: found where more workers get no more done, and nowhere else; tried again after a while."""

from dataclasses import replace

import pytest

from orchestrator.clock import Monotonic
from orchestrator.decision import NOTHING_SPECIAL
from orchestrator.estimate import Outcomes
from orchestrator.guards import FAILING_SHARE, Facts, contention, failing_work
from orchestrator.knee import Cap, Knee
from orchestrator.metrics import FinishedLease, RunningLease
from tests.support.fleet_builders import NOW, a_fleet_of, a_pool, a_sample


def ended(seconds: float, at_a_time: int, count: int = 1) -> list[FinishedLease]:
    """Leases of about as many seconds each."""
    spread = (0.8, 1.0, 1.25)
    return [FinishedLease("w", seconds * spread[n % 3], 0.0, "deleted", 1, 0.0, at_a_time) for n in range(count)]


def held(seconds: float, at_a_time: int, count: int) -> list[RunningLease]:
    return [RunningLease("w", seconds, 0.0, 1, at_a_time) for _ in range(count)]


def under_the_law(size: int) -> float:
    """Seconds of a lease among so many, with a knee at about ten."""
    return 1.0 + 0.05 * (size - 1) + 0.01 * size * (size - 1)


def seen(sizes: dict[int, float], running: list[RunningLease], *, leases: int = 40) -> Knee:
    knee = Knee()
    for turn, (size, seconds) in enumerate(sizes.items()):
        knee = knee.after(ended(seconds, size, leases), running, is_waited_for=True, at=Monotonic(NOW + turn))
    return knee


def test_where_every_worker_helps_there_is_no_knee() -> None:
    knee = seen({4: 1.0, 8: 1.0, 16: 1.0, 60: 1.0}, held(0.5, 60, 60))
    assert knee.cap is None
    assert not knee.is_suspected


def test_work_that_lasts_longer_past_the_knee_is_capped_about_where_most_gets_done() -> None:
    knee = seen({size: under_the_law(size) for size in (3, 5, 8, 14, 25, 60)}, held(10.0, 60, 60))
    assert knee.cap is not None
    assert 7 <= knee.cap.workers <= 15


def test_leases_that_run_long_count_before_they_end() -> None:
    before = seen({4: 1.27}, held(0.5, 4, 4))
    late = before.after([], held(60.0, 60, 40), is_waited_for=True, at=Monotonic(NOW + 2))
    assert late.cap is not None
    early = before.after([], held(1.0, 60, 40), is_waited_for=True, at=Monotonic(NOW + 2))
    assert early.cap is None


def test_growth_in_vain_is_suspected_before_it_is_proven_and_not_for_ever() -> None:
    knee = seen({4: 1.27}, held(0.5, 4, 4))
    stuck = held(5.0, 20, 20)
    knee = knee.after([], stuck, is_waited_for=True, at=Monotonic(NOW + 5))
    assert knee.is_suspected
    assert knee.cap is None
    assert not knee.after([], stuck, is_waited_for=True, at=Monotonic(NOW + 80)).is_suspected


def test_nothing_is_concluded_while_nobody_waits() -> None:
    knee = Knee().after(ended(1.0, 4, 40), [], is_waited_for=True, at=NOW)
    assert knee.after([], held(60.0, 60, 40), is_waited_for=False, at=Monotonic(NOW + 2)).cap is None


CAP = Cap(10, beyond=60, log_throughput=0.0, until=Monotonic(NOW + 1_800))


def test_a_cap_under_which_less_gets_done_is_lifted_and_left_for_an_hour() -> None:
    knee = Knee(cap=CAP).after(ended(20.0, 10, 60), [], is_waited_for=True, at=NOW)
    assert knee.cap is None
    assert knee.quiet_until == NOW + 3_600


def test_a_cap_that_holds_what_it_promised_stays_until_its_time_is_over() -> None:
    knee = Knee(cap=CAP).after(ended(2.0, 10, 60), [], is_waited_for=True, at=NOW)
    assert knee.cap is not None
    assert knee.after([], [], is_waited_for=True, at=Monotonic(NOW + 1_801)).cap is None


def facts(**given: object) -> Facts:
    fleet = a_fleet_of(busy=20)
    return replace(Facts(a_sample(), fleet, fleet.alive, a_pool(most=100), NOTHING_SPECIAL, NOW), **given)  # type: ignore[arg-type]


def test_the_guard_lowers_a_pool_to_its_cap() -> None:
    answer = contention(40, facts(knee=Knee(cap=CAP)))
    assert answer is not None
    assert (answer[0], answer[1].guard) == (10, "contention")
    assert contention(9, facts(knee=Knee(cap=CAP))) is None


def test_a_suspicion_only_stops_growth() -> None:
    suspected = facts(knee=Knee(is_suspected=True))
    assert contention(20, suspected) is None
    answer = contention(21, suspected)
    assert answer is not None
    assert answer[0] == 20


def test_for_the_rest_of_a_minute_after_a_suspicion_a_pool_grows_by_half_at_a_time() -> None:
    doubtful = facts(knee=Knee(suspected_at=Monotonic(NOW - 60)))
    assert contention(30, doubtful) is None
    answer = contention(31, doubtful)
    assert answer is not None
    assert (answer[0], answer[1].guard) == (30, "contention")
    clear = facts(knee=Knee(suspected_at=Monotonic(NOW - 61)))
    assert contention(99, clear) is None


@pytest.mark.parametrize(("starting", "most"), [(0, 30), (8, 30), (10, 30), (15, 35)])
def test_in_doubt_only_workers_that_are_up_count_for_growth(starting: int, most: int) -> None:
    fleet = a_fleet_of(busy=20, starting=starting)
    doubtful = facts(knee=Knee(suspected_at=NOW), fleet=fleet, alive=fleet.alive)
    assert contention(most, doubtful) is None
    answer = contention(most + 1, doubtful)
    assert answer is not None
    assert answer[0] == most


def test_a_pool_whose_work_fails_does_not_grow_unless_told_to() -> None:
    failing = Outcomes(failed=19.0, done=0.5)
    assert failing.failed_share > FAILING_SHARE
    answer = failing_work(30, facts(outcomes=failing))
    assert answer is not None
    assert answer[0] == 20
    assert failing_work(30, facts(outcomes=failing, spec=a_pool(most=100, on_failure="ignore"))) is None
    assert failing_work(10, facts(outcomes=failing)) is None


def test_a_task_that_fails_again_tells_nothing_new() -> None:
    again = FinishedLease("w", 1.0, 0.0, "released", 2, 0.0)
    assert Outcomes().after([again] * 50).failed_share == 0.0
    first = FinishedLease("w", 1.0, 0.0, "released", 1, 0.0)
    assert Outcomes().after([first] * 50).failed_share == 1.0

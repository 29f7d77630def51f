"""What samples teach: service time, start-up time, rates, slack, gaps."""

import json
import math
from collections.abc import Sequence
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.base.clock import Monotonic
from orchestrator.base.samples import QueueSample
from orchestrator.fleet.workers import Started
from orchestrator.scaling.erlang import ErlangNeed, slots_needed
from orchestrator.scaling.estimates import Estimates, ServiceTime, Startup, activity, peak_leases
from orchestrator.scaling.idle_gaps import EDGES_SECONDS, IdleGaps
from tests.support.fleet.fleet_builders import NOW, a_finished_lease, a_lease, a_pool, a_sample

seconds = st.floats(min_value=0.001, max_value=10_000)


def test_nothing_known_is_one_lease_of_two_seconds() -> None:
    assert ServiceTime().mean_seconds() == 2.0
    assert ServiceTime().after([4.0]).mean_seconds() == 3.0


def test_the_service_time_follows_a_change_within_its_half_life() -> None:
    known = ServiceTime().after([1.0] * 2_000)
    assert known.mean_seconds() == pytest.approx(1.0, rel=0.01)
    for _ in range(200):
        known = known.after([3.0])
    assert known.mean_seconds() == pytest.approx(2.0, rel=0.01)


def test_a_lease_that_runs_on_counts_before_it_ends() -> None:
    known = ServiceTime().after([1.0] * 9)
    assert known.mean_seconds([0.5]) == known.mean_seconds()
    assert known.mean_seconds([101.1]) == pytest.approx(known.mean_seconds() + 10.0, rel=0.02)


@given(st.lists(seconds, max_size=50), st.lists(seconds, max_size=50))
def test_the_service_time_lies_between_its_extremes(finished: list[float], running: list[float]) -> None:
    mean = ServiceTime().after(finished).mean_seconds(running)
    assert 0.001 <= mean <= 2.0 + max(finished, default=0) + math.fsum(running)


def test_the_first_start_replaces_the_guess_and_a_quarter_more_is_allowed() -> None:
    assert Startup().mean_seconds == 2.0
    known = Startup().after([0.4])
    assert (known.mean_seconds, known.planned_seconds) == (pytest.approx(0.4), pytest.approx(0.5))


def test_the_rate_of_arrivals_forgets_within_the_slo_and_a_start_but_not_at_once() -> None:
    known = Estimates()
    for _ in range(20):  # of 3 s; slo 30 s and a start of 2 s
        known = learned(known, a_sample(arrivals=30))
    assert known.arrival_rate == pytest.approx(10 * (1 - math.exp(-60 / 32)))


def learned(
    known: Estimates, sample: QueueSample, *, startups: Sequence[float] = (), needed: int = 0, elapsed: float = 3.0
) -> Estimates:
    spec = a_pool()
    seen = activity(sample, elapsed_seconds=elapsed, slo_seconds=spec.slo)
    started = [Started("w", seconds) for seconds in startups]
    return known.after(
        sample, seen, started=started, forks=known.forks, needed=needed, elapsed_seconds=elapsed, spec=spec
    )


def test_what_leases_come_to_since_the_look_before() -> None:
    running = [a_lease(held=1.0, waited=31.0), a_lease(held=9.0, waited=31.0)]
    finished = [
        a_finished_lease(held=0.5, ended_ago=1.0),
        a_finished_lease(held=5.0, ended_ago=1.0),
        a_finished_lease(ended_ago=4.0),
    ]
    seen = activity(a_sample(running=running, finished=finished), elapsed_seconds=3.0, slo_seconds=30.0)
    assert (list(seen.running_seconds), list(seen.finished_seconds)[:2]) == ([1.0, 9.0], [0.5, 5.0])
    assert (seen.begun, seen.late) == (2, 1), "two are older than the look before"
    assert seen.done_seconds == 1.0 + 3.0 + 0.5 + 2.0


def test_a_late_lease_tightens_the_slack_and_punctual_ones_loosen_it() -> None:
    late = a_sample(running=[a_lease(held=1, waited=31)])
    punctual = a_sample(finished=[a_finished_lease(held=1, waited=29)] * 100)
    assert learned(Estimates(), late).slack == pytest.approx(0.8 + 0.02 * (0.005 - 1))
    assert learned(Estimates(), punctual).slack == pytest.approx(0.8 + 0.02 * 0.5)


def test_a_lease_is_judged_once_when_it_begins() -> None:
    begun_before = a_sample(running=[a_lease(held=4, waited=31)], finished=[a_finished_lease(held=4, waited=31)])
    assert learned(Estimates(), begun_before).slack == 0.8


def test_the_slack_stays_within_its_bounds() -> None:
    late = a_sample(finished=[a_finished_lease(waited=99)] * 1_000)
    assert learned(Estimates(), late).slack == 0.5
    punctual = a_sample(finished=[a_finished_lease(waited=0)] * 100_000)
    assert learned(Estimates(), punctual).slack == 0.95


def test_the_usable_slo_leaves_room_for_slack_and_a_turn() -> None:
    assert Estimates().usable_slo_seconds(a_pool(slo=30)) == pytest.approx(0.8 * 30 - 3)
    assert Estimates().usable_slo_seconds(a_pool(slo=1)) == pytest.approx(0.2)


def test_the_peak_between_two_samples_is_found() -> None:
    one_after_another = [a_finished_lease(held=1, ended_ago=1.5), a_finished_lease(held=1, ended_ago=0.5)]
    assert peak_leases(a_sample(finished=one_after_another), elapsed_seconds=3) == 1
    together = [a_finished_lease(held=1, ended_ago=0.5)] * 3
    assert peak_leases(a_sample(finished=together, running=[a_lease(held=1)]), elapsed_seconds=3) == 4
    assert peak_leases(a_sample(running=[a_lease()] * 7), elapsed_seconds=3) == 7
    assert peak_leases(a_sample(), elapsed_seconds=3) == 0


def used_at(*instants: float, level: int = 1) -> IdleGaps:
    gaps = IdleGaps()
    for at in instants:
        gaps = gaps.after(level, at=Monotonic(at), turn_seconds=1.0)
    return gaps


def test_without_a_gap_seen_a_worker_is_held_for_what_a_restart_costs() -> None:
    assert IdleGaps().hold_seconds(3, restart_seconds=20.0) == 20.0


def test_a_worker_that_is_always_wanted_again_soon_is_held_that_long() -> None:
    gaps = used_at(*range(0, 300, 7))
    assert 8.0 <= gaps.hold_seconds(1, restart_seconds=20.0) <= 15.0
    assert gaps.hold_seconds(2, restart_seconds=20.0) == 20.0


def test_a_worker_that_is_wanted_rarely_goes_at_once() -> None:
    assert used_at(*range(0, 100_000, 1_000)).hold_seconds(1, restart_seconds=20.0) <= 1.0


def test_no_worker_is_held_for_longer_than_any_gap_because_of_rounding() -> None:
    gaps = used_at(*accumulate([20, 3, 3] * 3, initial=0.0))
    assert gaps.hold_seconds(1, restart_seconds=20.0) == 60.0, "the edge above the longest gap, imagined ones too"


def test_a_pause_of_a_turn_is_no_gap() -> None:
    assert used_at(1, 2, 3.5, 5).by_level == {}
    assert set(used_at(1, 2, 3.51, level=3).by_level) == {1, 2, 3}


def test_only_the_levels_that_paused_learn_a_gap() -> None:
    gaps = used_at(0, 1, level=5)
    gaps = gaps.after(2, at=Monotonic(2), turn_seconds=1.0)
    gaps = gaps.after(2, at=Monotonic(3), turn_seconds=1.0)
    gaps = gaps.after(4, at=Monotonic(4), turn_seconds=1.0)
    assert set(gaps.by_level) == {3, 4}
    assert gaps.last_needed_at == (4, 4, 4, 4, 1)


@given(
    st.lists(st.floats(min_value=2, max_value=4_000), min_size=1, max_size=40),
    st.floats(min_value=0.5, max_value=300),
)
def test_the_hold_is_the_cheapest_of_all_edges(pauses: list[float], restart: float) -> None:
    at, instants = 0.0, [0.0]
    for pause in pauses:
        at += pause
        instants.append(at)
    hold = used_at(*instants).hold_seconds(1, restart_seconds=restart)
    assert hold in {0.0, *EDGES_SECONDS}


@pytest.mark.parametrize("slots", [1, 2, 8, 40])
def test_the_paper_need_is_the_fewest_slots_that_meet_the_slo(slots: int) -> None:
    """Against the closed form of one slot, and against the definition for more."""
    rate = 0.7 * slots
    needed = slots_needed(rate=rate, service_seconds=1, wait_seconds=5, eps=0.01, limit=1_000)

    def late(count: int) -> float:
        terms = [rate**k / math.factorial(k) for k in range(count + 1)]
        waits = terms[-1] / (terms[-1] + (1 - rate / count) * math.fsum(terms[:-1]))
        return waits * math.exp(-(count - rate) * 5)

    assert late(needed) <= 0.01
    assert needed - 1 <= rate or late(needed - 1) > 0.01


def test_no_arrivals_need_nobody_and_too_many_need_the_limit() -> None:
    assert slots_needed(rate=0, service_seconds=1, wait_seconds=5, eps=0.01, limit=9) == 0
    assert slots_needed(rate=99, service_seconds=1, wait_seconds=5, eps=0.01, limit=9) == 9


def test_the_paper_need_is_the_largest_of_its_window() -> None:
    need = ErlangNeed()
    for at, workers in [(0, 3), (5, 9), (10, 2), (14, 4)]:
        need = need.after(workers, at=Monotonic(at), window_seconds=10)
    assert need.workers == 9
    assert need.after(1, at=Monotonic(16), window_seconds=10).workers == 4
    assert ErlangNeed().workers == 0


def test_what_was_learned_survives_as_json() -> None:
    known = Estimates(gaps=used_at(*range(0, 300, 7), level=3))
    for step in range(5):
        sample = a_sample(at=NOW + step, arrivals=4, finished=[a_finished_lease(held=1.5)] * 3)
        known = learned(known, sample, startups=[0.3], needed=2, elapsed=1.0)
    again = Estimates.from_json(json.loads(json.dumps(known.to_json())))
    assert again.service == known.service
    assert (again.startup, again.arrival_rate, again.slack) == (known.startup, known.arrival_rate, known.slack)
    assert again.to_json() == known.to_json()
    assert again.gaps.last_needed_at == (), "an instant of another boot means nothing"


@pytest.mark.parametrize("broken", [None, [], {}, {"version": 0}, {"version": 1}, {"version": 1, "slack": "x"}])
def test_a_state_that_is_no_state_is_refused(broken: object) -> None:
    with pytest.raises(ValueError, match=r"version|slack"):
        Estimates.from_json(broken)


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("service", {"count": -1, "seconds": 1}),
        ("service", {"count": 1}),
        ("startup", 7),
        ("arrival_rate", float("nan")),
        ("gaps", {"x": [0.0] * 13}),
        ("gaps", {"1": [0.0] * 12}),
        ("gaps", {"1": [-1.0] * 13}),
        ("gaps", []),
    ],
)
def test_a_broken_part_of_a_state_is_refused(part: str, value: object) -> None:
    with pytest.raises(ValueError, match=r"must be|not a Startup"):
        Estimates.from_json({**Estimates().to_json(), part: value})

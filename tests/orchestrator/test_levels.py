"""Which fleet was needed, told by the backlogs that smaller ones would have had; how much longer leases run."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.durations import Durations, Remaining
from orchestrator.levels import Backlogs


def after(
    known: Backlogs,
    real: float,
    *,
    done: float = 0.0,
    wait: float = 10.0,
    fleet: int = 6,
    most: int = 8,
    slots: int = 1,
) -> tuple[Backlogs, int]:
    return known.after(
        real, done=done, elapsed_seconds=1.0, fleet=fleet, slots_per_worker=slots, wait_seconds=wait, most=most
    )


def begun_on_a_slot(remaining: Remaining, held: float, within: float) -> float:
    return remaining.begun(((held, 1),), within)


def test_nobody_is_needed_without_work() -> None:
    assert after(Backlogs(), 0.0) == (Backlogs(), 0)


def test_one_worker_is_needed_for_any_work() -> None:
    assert after(Backlogs(), 0.5)[1] == 1


@pytest.mark.parametrize(
    ("work", "needed"),
    [
        pytest.param(9.0, 1, id="less than one worker does in time"),
        pytest.param(10.0, 1, id="just what one worker does in time"),
        pytest.param(10.1, 2, id="a little more"),
        pytest.param(39.0, 4, id="what four do in time"),
        pytest.param(1_000.0, 8, id="more than anybody does in time"),
    ],
)
def test_as_many_are_needed_as_do_the_work_in_time(work: float, needed: int) -> None:
    assert after(Backlogs(), work)[1] == needed


def test_slots_of_one_worker_share_the_work() -> None:
    assert after(Backlogs(), 39.0, slots=4)[1] == 1


def test_a_large_fleet_that_keeps_up_does_not_hide_that_a_small_one_would_not() -> None:
    backlogs, needed = Backlogs(), 0
    for _ in range(60):  # three seconds of work arrive each second, and are done at once
        backlogs, needed = after(backlogs, 0.0, done=3.0)
    assert needed == 3
    assert backlogs.real == 0.0
    assert backlogs.of_fleets[:2] == (10.0, 20.0)


def test_what_a_smaller_fleet_left_undone_is_worked_off_when_work_stops() -> None:
    backlogs, _ = after(Backlogs(), 0.0, done=15.0)
    for _ in range(20):
        backlogs, needed = after(backlogs, 0.0)
    assert (backlogs, needed) == (Backlogs(), 0)


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 20)), max_size=30), st.integers(1, 12))
def test_a_larger_fleet_never_has_the_larger_backlog_a_slot(turns: list[tuple[float, float]], most: int) -> None:
    backlogs = Backlogs()
    for real, done in turns:
        least = backlogs.real - real  # nothing is deleted undone
        backlogs, needed = after(backlogs, real, done=max(done, least), fleet=most, most=most)
        assert 0 <= needed <= most
        each = [backlog / workers for workers, backlog in enumerate(backlogs.of_fleets, 1)]
        assert all(one >= other - 1e-9 for one, other in pairwise(each))


def test_a_lease_of_even_work_is_the_nearer_to_its_end_the_longer_it_ran() -> None:
    even = Durations().after([10.0] * 500).remaining(10.0)
    assert begun_on_a_slot(even, 9.0, 5.0) > begun_on_a_slot(even, 0.0, 5.0)


def test_a_lease_of_heavy_tailed_work_is_the_further_from_its_end_the_longer_it_ran() -> None:
    heavy = Durations().after([1.0] * 450 + [300.0] * 50).remaining(31.0)
    assert begun_on_a_slot(heavy, 60.0, 30.0) < begun_on_a_slot(heavy, 0.0, 30.0)


def test_without_any_lease_seen_a_slot_begins_about_one_per_mean_duration() -> None:
    assert begun_on_a_slot(Durations().remaining(2.0), 0.0, 20.0) == pytest.approx(10.0, rel=0.1)


@given(st.lists(st.floats(0.0, 1e7), max_size=50), st.floats(0.001, 1e5), st.floats(0, 1e6), st.floats(0, 1e5))
def test_more_time_never_means_fewer_turns(seen: list[float], mean: float, held: float, within: float) -> None:
    remaining = Durations().after(seen).remaining(mean)
    assert 0.0 <= begun_on_a_slot(remaining, held, within) <= begun_on_a_slot(remaining, held, 2 * within) + 1e-6


@given(st.lists(st.floats(0.0, 1e3), max_size=50), st.floats(0.1, 100), st.floats(0, 20), st.floats(0, 100))
def test_a_table_of_some_durations_tells_what_the_table_of_all_does(
    seen: list[float], mean: float, held_means: float, within: float
) -> None:
    durations, held = Durations().after(seen), held_means * mean
    whole = durations.remaining(mean)
    some = durations.remaining(mean, from_seconds=held, until_seconds=held + within)
    for asked in (held, held / 2):
        assert begun_on_a_slot(some, asked, within) == pytest.approx(
            begun_on_a_slot(whole, asked, within), rel=1e-5, abs=1e-5
        )


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(1, 9)), max_size=9), st.floats(0, 1e3), st.integers(0, 99))
def test_beyond_enough_nobody_counts(running: list[tuple[float, int]], within: float, enough: int) -> None:
    remaining = Durations().after([1.0, 5.0, 60.0]).remaining(4.0)
    exact, begun = remaining.begun(running, within), remaining.begun(running, within, enough=enough)
    assert begun <= exact
    assert begun == exact or begun >= enough


def test_what_was_learned_of_durations_survives_as_json() -> None:
    known = Durations().after([0.001, 1.0, 2.0, 1e9])
    again = Durations.from_json(json.loads(json.dumps(known.to_json())))
    assert again.to_json() == known.to_json()


@pytest.mark.parametrize("broken", [[], {"x": 1}, {"99": 1}, {"1": -1}, {"1": True}, {"1": "2"}])
def test_durations_that_are_none_are_refused(broken: object) -> None:
    with pytest.raises(ValueError, match="duration"):
        Durations.from_json(broken)

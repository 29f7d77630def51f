"""Which fleet was needed, told by the backlogs that smaller ones would have had; how much longer leases run."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.scaling.learning import CounterfactualBacklogs


def after(
    known: CounterfactualBacklogs,
    real: float,
    *,
    done: float = 0.0,
    wait: float = 10.0,
    fleet: int = 6,
    most: int = 8,
    slots: int = 1,
) -> tuple[CounterfactualBacklogs, int]:
    return known.after(
        real, done=done, elapsed_seconds=1.0, fleet=fleet, slots_per_worker=slots, wait_seconds=wait, most=most
    )


def test_nobody_is_needed_without_work() -> None:
    assert after(CounterfactualBacklogs(), 0.0) == (CounterfactualBacklogs(), 0)


def test_one_worker_is_needed_for_any_work() -> None:
    assert after(CounterfactualBacklogs(), 0.5)[1] == 1


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
    assert after(CounterfactualBacklogs(), work)[1] == needed


def test_slots_of_one_worker_share_the_work() -> None:
    assert after(CounterfactualBacklogs(), 39.0, slots=4)[1] == 1


def test_a_large_fleet_that_keeps_up_does_not_hide_that_a_small_one_would_not() -> None:
    backlogs, needed = CounterfactualBacklogs(), 0
    for _ in range(60):  # three seconds of work arrive each second, and are done at once
        backlogs, needed = after(backlogs, 0.0, done=3.0)
    assert needed == 3
    assert backlogs.real == 0.0
    assert backlogs.of_fleets[:2] == (10.0, 20.0)


def test_what_a_smaller_fleet_left_undone_is_worked_off_when_work_stops() -> None:
    backlogs, _ = after(CounterfactualBacklogs(), 0.0, done=15.0)
    for _ in range(20):
        backlogs, needed = after(backlogs, 0.0)
    assert (backlogs, needed) == (CounterfactualBacklogs(), 0)


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 20)), max_size=30), st.integers(1, 12))
def test_a_larger_fleet_never_has_the_larger_backlog_a_slot(turns: list[tuple[float, float]], most: int) -> None:
    backlogs = CounterfactualBacklogs()
    for real, done in turns:
        least = backlogs.real - real  # nothing is deleted undone
        backlogs, needed = after(backlogs, real, done=max(done, least), fleet=most, most=most)
        assert 0 <= needed <= most
        each = [backlog / workers for workers, backlog in enumerate(backlogs.of_fleets, 1)]
        assert all(one >= other - 1e-9 for one, other in pairwise(each))

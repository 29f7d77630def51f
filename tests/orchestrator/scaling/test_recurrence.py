"""Bursts that come at even intervals: when the next one is expected, and that uneven ones are not."""

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.base.clock import Monotonic
from orchestrator.base.samples import Waiting
from orchestrator.scaling.decision import Conditions
from orchestrator.scaling.estimates import Estimates, ServiceTime, Startup
from orchestrator.scaling.learning import PolicyState
from orchestrator.scaling.recurrence import Recurrence
from tests.support.fleet.fleet_builders import NOW, a_fleet_of, a_pool, a_sample, learn_and_decide


def after(gaps: list[float], *, tasks: int = 40) -> Recurrence:
    """A burst now, and others after each of these gaps."""
    known = Recurrence()
    for at in accumulate(gaps, initial=float(NOW)):
        known = known.after(tasks, at=Monotonic(at), turn_seconds=1.0)
        known = known.after(3, at=Monotonic(at + 30.0), turn_seconds=1.0)  # what comes between is no burst
    return known


def expected(known: Recurrence, *, at: float) -> tuple[Waiting, ...]:
    return known.next(now=Monotonic(NOW + at), turn_seconds=1.0)


def test_the_next_of_even_bursts_is_expected_with_its_tasks_and_a_turn_early() -> None:
    known = after([600.0, 601.0])
    assert expected(known, at=1201.0) == (Waiting(40, pytest.approx(-599.5)),)  # type: ignore[arg-type]
    assert expected(known, at=1801.5) == (Waiting(40, 0.0),)


def test_one_that_does_not_come_is_expected_no_more() -> None:
    assert expected(after([600.0, 600.0]), at=1861.0) == ()


@pytest.mark.parametrize("gaps", [[], [600.0], [600.0, 300.0], [60.0, 600.0, 60.0]])
def test_a_few_or_uneven_bursts_tell_nothing(gaps: list[float]) -> None:
    assert expected(after(gaps), at=sum(gaps)) == ()


def test_a_much_larger_burst_makes_the_smaller_ones_forgotten() -> None:
    known = after([60.0] * 5, tasks=10)
    later = known.after(500, at=Monotonic(NOW + 330.0), turn_seconds=1.0)
    assert expected(later, at=331.0) == ()


@given(st.lists(st.tuples(st.floats(0.1, 1e4), st.integers(0, 1000)), max_size=40))
def test_what_is_expected_is_never_more_than_what_came(turns: list[tuple[float, int]]) -> None:
    known, at = Recurrence(), float(NOW)
    for seconds, arrivals in turns:
        at += seconds
        known = known.after(arrivals, at=Monotonic(at), turn_seconds=1.0)
        for task in known.next(now=Monotonic(at), turn_seconds=1.0):
            assert 2 <= task.position <= max(count for _, count in turns)
            assert task.age_seconds <= 0.0


def test_workers_are_up_when_the_next_burst_is_due_and_not_long_before() -> None:
    spec, recurrence = a_pool(slo=5.0, most=40), after([600.0, 600.0])
    known = PolicyState(Estimates(ServiceTime().after([60.0] * 99), Startup(9, 10.0)), recurrence=recurrence)
    targets = {}
    for at in (1750.0, 1770.0, 1790.0):
        decision, _ = learn_and_decide(
            a_sample(at=NOW + at),
            fleet=a_fleet_of(),
            spec=spec,
            state=known,
            now=Monotonic(NOW + at),
            conditions=Conditions(cores=64),
        )
        targets[at] = decision.target
    assert targets == {1750.0: 0, 1770.0: 0, 1790.0: 40}

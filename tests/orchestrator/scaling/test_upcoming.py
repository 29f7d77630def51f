"""Workers for tasks to come: started just before these become leasable, and only where a start takes too long."""

from dataclasses import replace

import pytest

from orchestrator.base.samples import Waiting
from orchestrator.config.pools import PoolSpec
from orchestrator.fleet.workers import Fleet
from orchestrator.scaling.decision import Conditions, Decision
from orchestrator.scaling.estimates import Estimates, ServiceTime, Startup
from orchestrator.scaling.learning import PolicyState
from orchestrator.scaling.upcoming import lead_seconds
from tests.support.fleet.fleet_builders import NOW, a_fleet_of, a_pool, a_sample, learn_and_decide

FOUR_CORES = Conditions(cores=4)
SLOW_START = Startup(9, 6.4)


def known(*, startup: Startup = SLOW_START, service: float | None = 60.0) -> PolicyState:
    """A pool that has seen starts, and tasks of so many seconds."""
    tasks = [] if service is None else [service] * 99
    return PolicyState(Estimates(ServiceTime().after(tasks), startup))


def decided(
    *upcoming: tuple[int, float],
    ready: int = 0,
    fleet: Fleet | None = None,
    spec: PoolSpec | None = None,
    state: PolicyState | None = None,
    conditions: Conditions = FOUR_CORES,
    paused: bool = False,
) -> Decision:
    """A decision where tasks become leasable: (how many so far, in how many seconds)."""
    spec = spec or a_pool(slo=5.0, most=40)
    sample = replace(
        a_sample(ages=[0.0] * ready), paused=paused, upcoming=tuple(Waiting(count, -due) for count, due in upcoming)
    )
    decision, _ = learn_and_decide(
        sample, fleet=fleet or Fleet("resize"), spec=spec, state=state or known(), now=NOW, conditions=conditions
    )
    return decision


@pytest.mark.parametrize(
    ("due_in", "wanted"),
    [
        pytest.param(9.5, 0, id="a start and a turn before they are due, and not sooner"),
        pytest.param(9.0, 4, id="a start and a turn before"),
        pytest.param(1.0, 4, id="too late for some of them"),
    ],
)
def test_workers_are_started_as_late_as_they_are_up_in_time(due_in: float, wanted: int) -> None:
    decision = decided((4, due_in))
    assert decision.target == wanted
    if wanted:
        assert decision.rule == "deadline"
        assert f"4 tasks are due within {due_in:.1f} s, and a start takes 8.0 s" in decision.why


def test_where_starts_are_limited_the_first_of_many_begin_earlier() -> None:
    # Twenty, eight at a time, take three starts.
    assert decided((20, 26.0)).target == 0
    decision = decided((20, 25.0))
    assert (decision.unguarded, decision.target, decision.limited_by) == (20, 8, ("spawn_parallelism",))
    assert lead_seconds(known().estimates, a_pool(slo=5.0, most=20), FOUR_CORES) == 25.0
    alone = a_pool(slo=5.0, most=40, spawn_parallelism=40)
    assert [decided((20, due_in), spec=alone).target for due_in in (9.5, 9.0)] == [0, 20]


def test_where_a_start_fits_into_the_slo_nobody_is_started_ahead() -> None:
    assert decided((20, 5.0), spec=a_pool(slo=30.0)).target == 0


def test_short_tasks_share_a_worker_as_far_as_they_can_begin_in_time() -> None:
    # Three usable seconds of five: nearly seven tasks of half a second for each worker.
    assert decided((20, 8.5), state=known(service=0.5)).target == 3


def test_while_nothing_is_known_of_its_tasks_each_has_a_worker() -> None:
    assert decided((6, 5.0), state=known(service=None)).target == 6


def test_a_start_that_nobody_saw_yet_is_taken_for_a_long_one() -> None:
    assert [decided((2, due), state=known(startup=Startup())).target for due in (16.5, 15.5)] == [0, 2]


def test_workers_that_idle_starting_or_become_free_take_their_part() -> None:
    assert decided((6, 5.0), fleet=a_fleet_of(idle=4)).target == 6
    assert decided((6, 5.0), fleet=a_fleet_of(idle=2, starting=2)).target == 6
    assert decided((6, 5.0), fleet=a_fleet_of(idle=6)).target == 6


def test_what_is_ready_before_takes_the_idle_ones() -> None:
    assert decided((2, 5.0), ready=2, fleet=a_fleet_of(idle=2)).target == 4


def test_idle_workers_do_not_work_ahead() -> None:
    # Until then one could have begun all of them: but they are not there.
    assert decided((12, 9.0), fleet=a_fleet_of(idle=1), state=known(service=0.5)).target == 2


def test_who_will_be_wanted_in_a_moment_is_not_let_go() -> None:
    idle = a_fleet_of(idle=3, idle_seconds=500.0)
    assert decided(fleet=idle).target < 3
    assert decided((3, 5.0), fleet=idle).target == 3
    assert decided((2, 5.0), fleet=idle).target == 2
    assert decided((3, 60.0), fleet=idle).target < 2
    assert decided((3, 5.0), fleet=idle, paused=True).target < 2

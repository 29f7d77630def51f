"""Guards that speak of what workers cost: the host, a budget, what is billed; and of a queue that can't be seen."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.base.clock import Monotonic
from orchestrator.capacity.allocation import Allocation
from orchestrator.config.budget import Left
from orchestrator.config.pools import PoolSpec
from orchestrator.fleet.workers import Fleet
from orchestrator.scaling.context import Facts
from orchestrator.scaling.decision import Conditions, GuardName
from orchestrator.scaling.erlang import ErlangNeed
from orchestrator.scaling.guards import GUARDS, Guard, budget, guarded, host_headroom, min_billing, stale_sample
from orchestrator.scaling.learning import PolicyState
from orchestrator.scaling.plan import plan_actions
from tests.support.fleet.fleet_builders import NOW, a_fleet, a_fleet_of, a_pool, a_sample, a_worker, learn_and_decide

SMALL = "96 of 1,024 MiB are free, and one worker takes 100 MiB"


def facts(
    *,
    fleet: Fleet | None = None,
    spec: PoolSpec | None = None,
    room: Allocation | None = None,
    left: Left = "left",
    ready: int = 0,
    sample_age: float = 0.0,
    paper: int = 0,
    bounds_by: str = "",
) -> Facts:
    known = fleet or a_fleet_of(idle=4)
    sample = a_sample(at=NOW - sample_age, ages=[1.0] * ready)
    conditions = Conditions(cores=100, allocation=room, budget=left, bounds_by=bounds_by)
    state = PolicyState(erlang=ErlangNeed().after(paper, at=NOW, window_seconds=1.0))
    return Facts(sample, known, known.alive, spec or a_pool(most=50), conditions, NOW, state)


def test_workers_that_do_not_get_ready_are_blamed_on_their_start_and_not_on_the_host() -> None:
    unknown = "starting with 2 until the first worker's memory and CPU use is known"
    for age, slow in [(9.0, ""), (42.0, "; w1 has been starting for 42 s, in an import or in on_start")]:
        fleet = a_fleet(a_worker("w1", "starting", spawned_at=NOW - age), a_worker("w2", "starting", spawned_at=NOW))
        changed = host_headroom(9, facts(fleet=fleet, room=Allocation(0, "unknown", unknown)))
        assert changed is not None
        assert changed[1].why.startswith(unknown + slow)
        assert "room" not in changed[1].why
    fleet = a_fleet(a_worker("w1", "starting", spawned_at=NOW - 42.0), a_worker("w2", "busy", spawned_at=NOW))
    changed = host_headroom(9, facts(fleet=fleet, room=Allocation(0, "unknown", unknown)))
    assert changed is not None
    assert (changed[0], changed[1].why) == (2, unknown)


def billed(*ages: float, state: str = "idle") -> Fleet:
    return a_fleet(*(a_worker(f"w{n}", state, spawned_at=NOW - age) for n, age in enumerate(ages)))  # type: ignore[arg-type]


MINUTE = a_pool(most=50, min_billing="60s")  # a turn of 3 s: what has 6 s left to its next step may go
BUDGET = a_pool(least=1, most=50, budget="24h/day")


@pytest.mark.parametrize(
    ("guard", "target", "seen", "allowed"),
    [
        pytest.param(host_headroom, 9, facts(), None, id="a-host-nobody-looked-at"),
        pytest.param(host_headroom, 9, facts(room=Allocation(64)), None, id="room-for-all"),
        pytest.param(
            host_headroom, 90, facts(room=Allocation(64)), None, id="one-turn-grants-no-more-and-limits-nothing"
        ),
        pytest.param(host_headroom, 9, facts(room=Allocation(2, "memory", SMALL)), 6, id="memory-for-two"),
        pytest.param(host_headroom, 6, facts(room=Allocation(2, "cpu", SMALL)), None, id="two-is-all-it-wants"),
        pytest.param(host_headroom, 3, facts(room=Allocation(0, "memory", SMALL)), None, id="shrinking-needs-no-room"),
        pytest.param(
            host_headroom,
            4,
            facts(room=Allocation(0, "memory", SMALL, is_to_yield=True)),
            3,
            id="pressed-one-idle-goes",
        ),
        pytest.param(
            host_headroom,
            9,
            facts(room=Allocation(0, "memory", SMALL, is_to_yield=True), ready=1),
            4,
            id="pressed-with-work",
        ),
        pytest.param(
            host_headroom,
            4,
            facts(fleet=a_fleet_of(busy=4), room=Allocation(0, "memory", SMALL, is_to_yield=True)),
            None,
            id="pressed-but-all-are-busy",
        ),
        pytest.param(budget, 9, facts(spec=BUDGET), None, id="something-is-left"),
        pytest.param(budget, 9, facts(spec=BUDGET, left="spent", paper=6), 6, id="spent-the-erlang-estimate"),
        pytest.param(budget, 6, facts(spec=BUDGET, left="spent", paper=6), None, id="spent-and-content"),
        pytest.param(budget, 4, facts(spec=BUDGET, left="spent", paper=2), 2, id="spent-shrinks-to-it"),
        pytest.param(budget, 9, facts(spec=BUDGET, left="spent"), 1, id="spent-never-below-min"),
        pytest.param(budget, 9, facts(spec=BUDGET, left="overdrawn", paper=6), 1, id="overdrawn-min"),
        pytest.param(budget, 9, facts(left="overdrawn"), None, id="no-budget"),
        pytest.param(min_billing, 0, facts(fleet=billed(10, 20), spec=MINUTE), 2, id="paid-for"),
        pytest.param(min_billing, 0, facts(fleet=billed(53.9, 20), spec=MINUTE), 2, id="a-moment-before"),
        pytest.param(min_billing, 0, facts(fleet=billed(54, 20), spec=MINUTE), 1, id="just-before-the-first-step-ends"),
        pytest.param(min_billing, 0, facts(fleet=billed(61, 119), spec=MINUTE), 1, id="just-before-the-second"),
        pytest.param(min_billing, 1, facts(fleet=billed(54, 55), spec=MINUTE), None, id="one-of-two"),
        pytest.param(min_billing, 2, facts(fleet=billed(10, 20), spec=MINUTE), None, id="nobody-is-to-go"),
        pytest.param(min_billing, 0, facts(fleet=billed(10, 20)), None, id="billed-by-the-second"),
        pytest.param(
            min_billing, 1, facts(fleet=billed(10, 20, 30), spec=MINUTE.bounded(0, 1)), None, id="max-was-lowered"
        ),
        pytest.param(stale_sample, 9, facts(sample_age=10, spec=a_pool(fallback=6)), 6, id="fallback"),
        pytest.param(stale_sample, 5, facts(sample_age=10, spec=a_pool(fallback=6)), None, id="on-the-way-to-it"),
        pytest.param(stale_sample, 1, facts(sample_age=10, spec=a_pool(fallback=6)), 4, id="fallback-lets-nobody-go"),
        pytest.param(stale_sample, 9, facts(sample_age=10, spec=a_pool(fallback=2)), 4, id="fallback-is-there"),
        pytest.param(stale_sample, 9, facts(sample_age=9, spec=a_pool(fallback=6)), None, id="fresh-enough"),
    ],
)
def test_a_guard_allows_so_many(guard: Guard, target: int, seen: Facts, allowed: int | None) -> None:
    answer = guard(target, seen)
    assert (answer[0] if answer else None) == allowed
    if answer:
        assert guard(answer[0], seen) is None


@pytest.mark.parametrize(
    ("target", "seen", "why"),
    [
        pytest.param(
            9, facts(room=Allocation(2, "memory", SMALL)), f"the host has room for 2 more ({SMALL})", id="room"
        ),
        pytest.param(
            9,
            facts(spec=BUDGET, left="spent", paper=5),
            "the budget of 24 worker-hours a day is spent, so 5 at most (the Erlang C estimate)",
            id="budget",
        ),
        pytest.param(
            0,
            facts(fleet=billed(10, 20), spec=MINUTE),
            "min_billing 60 s: an idle worker is paid for, 34 s more at least",
            id="billing",
        ),
        pytest.param(
            99, facts(bounds_by="schedule 0 8 * * 1-5"), "max is 50 (schedule 0 8 * * 1-5)", id="who-set-the-bound"
        ),
    ],
)
def test_a_guard_says_why_in_words(target: int, seen: Facts, why: str) -> None:
    _, limits = guarded(target, seen)
    assert [limit.why for limit in limits] == [why]


def test_guards_speak_in_their_order() -> None:
    names = [guard.__name__ for guard in GUARDS]
    wanted = ["crash_loop", "failing_work", "contention", "host_headroom", "budget", "bounds", "max_step_up", "paused"]
    assert [name for name in names if name in wanted] == wanted
    assert names[-2:] == ["stale_sample", "min_billing"]


def test_an_order_by_hand_goes_before_min_and_max_but_not_before_the_host() -> None:
    scaled = facts(spec=a_pool(most=8).bounded(12, 12), room=Allocation(3, "memory", SMALL))
    target, limits = guarded(12, scaled)
    assert (target, [limit.guard for limit in limits]) == (7, ["host_headroom"])


def test_only_a_worker_at_the_end_of_its_bill_goes_though_another_idles_longer() -> None:
    fleet = a_fleet(
        a_worker("longest", since=NOW - 400, spawned_at=NOW - 425),
        a_worker("shorter", since=NOW - 300, spawned_at=NOW - 415),
    )
    spec = a_pool(min_billing="60s", churn=0)
    decision, _ = learn_and_decide(a_sample(), fleet=fleet, spec=spec, state=PolicyState(), now=NOW)
    assert (decision.target, decision.limited_by) == (1, ("min_billing",))
    todo = plan_actions(decision, fleet=fleet, spec=spec, now=NOW)
    assert [leave.worker for leave in todo.retire] == ["shorter"]


def test_a_worker_that_goes_for_want_of_memory_is_told_so() -> None:
    pressed = Conditions(allocation=Allocation(0, "memory", SMALL, is_to_yield=True))
    fleet, spec = billed(4), a_pool(churn="1h")
    decision, _ = learn_and_decide(a_sample(), fleet=fleet, spec=spec, state=PolicyState(), now=NOW, conditions=pressed)
    todo = plan_actions(decision, fleet=fleet, spec=spec, now=NOW)
    assert [leave.why for leave in todo.retire] == [f"stopping an idle worker: {SMALL}"]


def test_without_a_look_at_the_queue_a_pool_grows_to_its_fallback() -> None:
    spec = a_pool(fallback=3)
    old = a_sample(at=NOW - 20)
    decision, _ = learn_and_decide(old, fleet=a_fleet_of(idle=1), spec=spec, state=PolicyState(), now=NOW)
    assert (decision.target, decision.rule, decision.limited_by) == (3, "fallback", ())
    held, _ = learn_and_decide(old, fleet=a_fleet_of(idle=1), spec=a_pool(), state=PolicyState(), now=NOW)
    assert held.target == 1


def test_the_fallback_takes_nothing_from_what_is_wanted() -> None:
    spec, late = a_pool(fallback=2), a_sample(at=NOW - 60, ages=[90.0] * 6)
    decision, _ = learn_and_decide(late, fleet=a_fleet_of(), spec=spec, state=PolicyState(), now=NOW)
    assert (decision.target, decision.unguarded) == (2, 6)
    assert decision.limited_by == ("spawn_parallelism", "stale_sample")


def heard(target: int, seen: Facts) -> int:
    """The target after each guard was asked."""
    for guard in GUARDS:
        answer = guard(target, seen)
        target = target if answer is None else answer[0]
    return target


rooms = st.builds(
    lambda workers, scarce, is_to_yield: Allocation(workers, scarce, "", is_to_yield=is_to_yield),
    st.integers(0, 64),
    st.sampled_from(["", "memory", "cpu"]),
    st.booleans(),
)


@given(
    low=st.integers(0, 60),
    more=st.integers(0, 60),
    idle=st.integers(0, 20),
    busy=st.integers(0, 20),
    room=st.one_of(st.none(), rooms),
    left=st.sampled_from(["left", "spent", "overdrawn"]),
    paper=st.integers(0, 30),
    age=st.floats(0, 30),
    fallback=st.one_of(st.just("hold"), st.integers(1, 20)),
    billing=st.floats(0, 600),
    least=st.integers(0, 10),
    most=st.integers(10, 50),
)
def test_guards_keep_order_and_bounds_whatever_they_see(
    low: int,
    more: int,
    idle: int,
    busy: int,
    room: Allocation | None,
    left: Left,
    paper: int,
    age: float,
    fallback: str | int,
    billing: float,
    least: int,
    most: int,
) -> None:
    spec = a_pool(least=least, most=most, budget="24h/day", min_billing=billing, fallback=fallback)
    seen = facts(fleet=a_fleet_of(idle=idle, busy=busy), spec=spec, room=room, left=left, sample_age=age, paper=paper)
    small, large = guarded(low, seen)[0], guarded(low + more, seen)[0]
    assert small <= large
    assert [small, large] == [heard(low, seen), heard(low + more, seen)], "whoever is not asked has nothing to say"
    if not seen.is_stale:
        assert min(least, seen.current) <= small
        assert large <= most
    for guard in GUARDS:
        answer = guard(low, seen)
        assert answer is None or (answer[0] != low and guard(answer[0], seen) is None)


def test_every_guard_has_a_name_of_its_own() -> None:
    seen = replace(facts(sample_age=10, room=Allocation(0, "memory", SMALL)), now=Monotonic(NOW + 1))
    _, limits = guarded(9, seen)
    names: list[GuardName] = [limit.guard for limit in limits]
    assert names == ["host_headroom"]

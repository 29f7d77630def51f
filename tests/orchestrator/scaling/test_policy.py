"""How many workers, and why: tables of the rules, and what must hold for any backlog."""

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.base.clock import Monotonic
from orchestrator.base.samples import QueueSample, RunningLease, Waiting
from orchestrator.config.pools import PoolSpec
from orchestrator.fleet.observation import observe
from orchestrator.fleet.workers import Fleet
from orchestrator.scaling.deadline import Pace, ServingCapacity, workers_needed
from orchestrator.scaling.decision import Conditions, Decision
from orchestrator.scaling.erlang import ErlangNeed
from orchestrator.scaling.estimates import Estimates, ServiceTime, Startup
from orchestrator.scaling.learning import PolicyState
from orchestrator.scaling.reserve import Reserve
from tests.support.fleet.fleet_builders import (
    NOW,
    a_finished_lease,
    a_fleet,
    a_fleet_of,
    a_lease,
    a_pool,
    a_sample,
    a_worker,
    learn_and_decide,
)

MANY_CORES = Conditions(cores=100_000)


def what_is_known(*, service: float = 2.0, startup: float = 1.0, slack: float = 0.8) -> PolicyState:
    """Leases last `service` seconds, starts exactly `startup`; the state has seen a sample a turn ago."""
    return PolicyState(
        Estimates(
            service=ServiceTime(10_000, 10_000 * service),
            executed=Startup(100, startup / 1.25),  # a quarter more is allowed for it
            slack=slack,
        ),
        sampled_at=Monotonic(NOW - 3),
    )


def decided(
    sample: QueueSample | None = None,
    *,
    fleet: Fleet | None = None,
    spec: PoolSpec | None = None,
    state: PolicyState | None = None,
    now: float = NOW,
) -> Decision:
    decision, _ = learn_and_decide(
        sample or a_sample(),
        fleet=fleet or a_fleet_of(),
        spec=spec or a_pool(most=1_000),
        state=state or what_is_known(),
        now=Monotonic(now),
        conditions=MANY_CORES,
    )
    return decision


def waits(count: int, age: float, *, shown: int = 8) -> dict[str, Sequence[float]]:
    """`count` tasks of one age, seen at up to eight positions."""
    places = sorted({-(-count * n // shown) for n in range(1, shown + 1)})
    return {"positions": places, "ages": [age] * len(places)}


def test_an_empty_pool_with_nothing_to_do_stays_empty() -> None:
    decision = decided()
    assert (decision.current, decision.target, decision.rule) == (0, 0, "hold")


def test_one_task_wakes_an_empty_pool_though_its_deadline_is_far() -> None:
    decision = decided(a_sample(ages=[0.0]))
    assert (decision.target, decision.limited_by) == (1, ())


# An slo of 30 s leaves 21 s (slack 0.8, a turn of 3 s). A start takes 1 s, a lease 2 s: a worker spawned now begins
# 1 + (21 - 1) / 2 = 11 leases for tasks that have just arrived, an idle one 11.5; one that is spawned a turn later 9.5.
# The last worker that is needed is put off while that changes nothing.
@pytest.mark.parametrize(
    ("sample", "fleet", "target"),
    [
        pytest.param(a_sample(**waits(11, 0)), a_fleet_of(), 1, id="one-is-enough"),
        pytest.param(a_sample(**waits(12, 0)), a_fleet_of(), 1, id="the-last-one-may-wait"),
        pytest.param(a_sample(**waits(20, 0)), a_fleet_of(), 2, id="one-that-would-be-two-later-may-not"),
        pytest.param(a_sample(**waits(110, 0)), a_fleet_of(), 10, id="ten"),
        pytest.param(a_sample(**waits(120, 0)), a_fleet_of(busy=10), 11, id="busy-ones-count-from-their-next-lease"),
        pytest.param(a_sample(**waits(110, 0)), a_fleet_of(idle=10), 10, id="idle-ones-count-at-once"),
        pytest.param(a_sample(**waits(110, 0)), a_fleet_of(starting=10), 10, id="starting-ones-count"),
        pytest.param(a_sample(**waits(100, 18)), a_fleet_of(), 50, id="old-tasks-leave-less-time"),
        pytest.param(a_sample(**waits(100, 20)), a_fleet_of(), 100, id="just-in-time"),
        pytest.param(a_sample(**waits(100, 20.5)), a_fleet_of(), 100, id="late-whatever-is-done-so-a-slot-each"),
        pytest.param(
            a_sample(**waits(100, 900)), a_fleet_of(starting=90), 100, id="long-late-and-the-starting-ones-count"
        ),
        pytest.param(
            a_sample(positions=[10, 100], ages=[20, 0]), a_fleet_of(), 10, id="the-most-urgent-position-decides"
        ),
        pytest.param(
            a_sample(positions=[1, 100], ages=[20, 0]), a_fleet_of(), 10, id="not-the-oldest-but-the-neediest"
        ),
    ],
)
def test_the_fleet_is_the_smallest_that_meets_every_deadline(sample: QueueSample, fleet: Fleet, target: int) -> None:
    assert decided(sample, fleet=fleet).target == target


def test_workers_of_several_slots_are_fewer() -> None:
    backlog = a_sample(**waits(110, 0))
    assert decided(backlog, spec=a_pool(most=1_000, concurrency=4)).target == 2


def test_a_worker_with_free_slots_counts_them() -> None:
    spec = a_pool(most=1_000, concurrency=4)
    fleet = a_fleet(a_worker("w1", "busy", leases=1, spec=spec))
    backlog = a_sample(**waits(45, 0))
    assert decided(backlog, fleet=fleet, spec=spec).target == 1
    assert decided(a_sample(**waits(90, 0)), fleet=fleet, spec=spec).target == 2


def test_a_task_waits_on_while_no_new_sample_comes() -> None:
    spec = a_pool(most=1_000, slo=60)
    backlog = a_sample(at=NOW - 9, **waits(100, 0))
    assert decided(backlog, spec=spec, now=NOW).target > decided(backlog, spec=spec, now=NOW - 9).target


def test_a_running_lease_that_takes_long_asks_for_more_workers() -> None:
    fleet = a_fleet_of(busy=4)
    known = PolicyState(Estimates(service=ServiceTime(50, 100), executed=Startup(9, 0.8)))
    calm = a_sample(**waits(40, 0), running=[a_lease(held=1)] * 4)
    stuck = a_sample(**waits(40, 0), running=[a_lease(held=400)] * 4)
    assert decided(stuck, fleet=fleet, state=known).target > decided(calm, fleet=fleet, state=known).target == 4


def test_the_reason_can_be_read() -> None:
    decision = decided(a_sample(**waits(282, 9.1)), fleet=a_fleet_of(busy=3, starting=2))
    assert decision.rule == "deadline"
    assert decision.why == (
        "282 tasks must start within 12 s; of 5 workers 3 are busy and 2 are starting, 31 can start by then: "
        "39 more needed"
    )


def test_min_workers_are_kept_without_work() -> None:
    assert decided(spec=a_pool(least=3)).target == 3
    assert decided(spec=a_pool(least=3), fleet=a_fleet_of(idle=5, idle_seconds=999)).target == 3


class TestAnSloShorterThanAStart:
    spec = a_pool(most=100, slo=10)
    known = what_is_known(startup=12.0)

    def test_each_task_gets_a_worker_now(self) -> None:
        assert decided(a_sample(**waits(40, 0)), spec=self.spec, state=self.known).target == 40

    def test_workers_for_a_burst_stay_warm_within_their_budget(self) -> None:
        fleet = a_fleet_of(idle=20, idle_seconds=500)
        burst = a_sample(arrivals=40)
        for busy, warm in ((1.0, 6), (0.1, 1), (0.0, 0)):
            state = replace(self.known, reserve=Reserve(busy_slots=busy))
            decision, _ = learn_and_decide(burst, fleet=fleet, spec=self.spec, state=state, now=NOW)
            assert decision.target == pytest.approx(warm, abs=1)
            assert f"keeping {decision.target}; set workers.min for more" in decision.notes[0]


class TestShrinking:
    def test_an_idle_worker_goes_after_what_a_restart_costs(self) -> None:
        spec = a_pool(churn=20)  # and a start takes 0.8 s
        assert decided(spec=spec, fleet=a_fleet_of(idle=1, idle_seconds=20.7)).target == 1
        gone = decided(spec=spec, fleet=a_fleet_of(idle=1, idle_seconds=20.9))
        assert (gone.target, gone.rule) == (0, "idle")
        assert gone.held == {1: pytest.approx(20.8)}

    def test_a_smaller_fleet_by_the_erlang_estimate_is_enough_before_that(self) -> None:
        known = what_is_known()
        assert decided(fleet=a_fleet_of(idle=9), state=known).target == 1
        peak = PolicyState(known.estimates, erlang=ErlangNeed(((Monotonic(NOW - 5), 6),)), sampled_at=known.sampled_at)
        enough = decided(fleet=a_fleet_of(idle=9), state=peak)
        assert (enough.target, enough.rule) == (6, "paper")

    def test_a_worker_that_works_is_never_counted_out(self) -> None:
        assert decided(fleet=a_fleet_of(busy=3, idle=5, idle_seconds=999)).target == 3

    def test_nobody_goes_while_work_waits(self) -> None:
        backlog = a_sample(ages=[0.0])
        assert decided(backlog, fleet=a_fleet_of(idle=5, idle_seconds=999)).target == 5

    def test_workers_that_limits_leave_nothing_go_after_a_turn(self) -> None:
        held = a_sample(held=40, held_by="per_tag.max_in_flight: 2")
        fleet = a_fleet_of(busy=2, idle=3, idle_seconds=12)
        decision = decided(held, fleet=fleet)
        assert (decision.target, decision.rule) == (2, "rate_limited")
        assert decision.why == (
            "stopping 3 idle workers: 40 waiting, all limited by per_tag.max_in_flight: 2: none can be leased"
        )
        just_idle = a_fleet_of(busy=2, idle=3, idle_seconds=0.1)
        assert decided(held, fleet=just_idle).target == 5
        assert decided(held, fleet=fleet, spec=a_pool(least=4)).target == 4

    def test_workers_that_wait_for_a_token_are_kept_as_any_idle_ones(self) -> None:
        held = a_sample(held=40, held_by="per_tag.rate: 1/s", held_by_rate=True)
        assert decided(held, fleet=a_fleet_of(idle=1, idle_seconds=5)).target == 1
        assert decided(held, fleet=a_fleet_of(idle=1, idle_seconds=99)).target == 0

    def test_what_is_held_is_told_with_every_decision(self) -> None:
        backlog = a_sample(ages=[0.0] * 8, held=40, held_by="per_tag.max_in_flight: 2")
        decision = decided(backlog)
        assert "48 waiting, 40 of them limited by per_tag.max_in_flight: 2: 8 can be leased" in decision.notes
        assert decision.record()["held_back"] == 40

    def test_a_paused_queue_keeps_nobody(self) -> None:
        paused = a_sample(**waits(500, 20), paused=True)
        decision = decided(paused, fleet=a_fleet_of(idle=5, idle_seconds=5))
        assert decision.target == 5
        assert decision.limited_by == ("queue_paused",)

    def test_an_idle_pool_is_empty_soon_after_its_last_task(self) -> None:
        """As a demo needs it: churn 5 s, eight workers, all of them gone within the hold and a few turns."""
        spec = a_pool(slo=10, churn="5s")
        state = PolicyState(what_is_known().estimates)
        fleet = a_fleet(*(a_worker(f"w{n}", "busy", spec=spec) for n in range(8)))
        finished = [a_finished_lease(f"w{n}", held=1) for n in range(8)]
        sample = a_sample(arrivals=8, finished=finished)
        for turn in range(30):
            fleet = observe(fleet, sample)
            now = Monotonic(NOW + turn)
            decision, state = learn_and_decide(sample, fleet=fleet, spec=spec, state=state, now=now)
            gone = sorted(fleet.workers)[: decision.current - decision.target]
            fleet = a_fleet(*(w for name, w in fleet.workers.items() if name not in gone))
            if not fleet.workers:
                break
            sample = a_sample(at=now + 1)
        assert now - NOW <= 8


def test_a_sample_teaches_once() -> None:
    sample = a_sample(arrivals=30, finished=[a_finished_lease(held=9)] * 30)
    fleet, spec = a_fleet_of(idle=1), a_pool()
    _, once = learn_and_decide(sample, fleet=fleet, spec=spec, state=PolicyState(), now=NOW)
    _, twice = learn_and_decide(sample, fleet=fleet, spec=spec, state=once, now=Monotonic(NOW + 1))
    assert once.estimates.service.count > 0
    assert twice == once


def test_the_first_lease_call_of_a_worker_teaches_the_start_up_time() -> None:
    fleet = a_fleet(a_worker("w1", "starting", spawned_at=NOW - 4))
    sample = a_sample(first_seen_seconds_ago={"w1": 0.5})
    _, state = learn_and_decide(sample, fleet=observe(fleet, sample), spec=a_pool(), state=PolicyState(), now=NOW)
    assert state.estimates.startup.mean_seconds == pytest.approx(3.5)


def test_a_rate_that_has_all_but_decayed_starts_nobody() -> None:
    known = what_is_known(startup=60.0)
    faded = PolicyState(
        Estimates(known.estimates.service, known.estimates.startup, 0.001),
        sampled_at=known.sampled_at,
    )
    assert decided(state=faded).target == 0


def test_a_decision_is_plain_values_with_all_its_numbers() -> None:
    record = decided(a_sample(**waits(5_000, 9)), fleet=a_fleet_of(busy=2), spec=a_pool(most=6)).record()
    assert json.loads(json.dumps(record)) == record
    assert (record["current"], record["target"], record["limited_by"]) == (2, 6, ["max"])
    assert record["would_be_without_guards"] > 6  # type: ignore[operator]
    assert {"ready", "in_flight", "service_seconds", "startup_seconds", "slack", "arrival_rate", "why"} <= set(record)


def test_what_the_policy_learned_survives_a_restart() -> None:
    state = what_is_known()
    assert PolicyState.from_json(json.loads(json.dumps(state.to_json()))).estimates == state.estimates


ages = st.lists(st.floats(min_value=0, max_value=100), min_size=1, max_size=8).map(lambda a: sorted(a, reverse=True))
fleets = st.builds(
    a_fleet_of,
    idle=st.integers(0, 20),
    busy=st.integers(0, 20),
    starting=st.integers(0, 20),
    idle_seconds=st.floats(0, 100),
)
states = st.builds(
    what_is_known,
    service=st.floats(0.01, 100),
    startup=st.floats(0.01, 60),
    slack=st.floats(0.5, 0.95),
)


@given(ages=ages, fleet=fleets, state=states, times=st.integers(2, 50), slo=st.floats(1, 300))
@settings(max_examples=200, deadline=None)
def test_a_larger_backlog_of_the_same_ages_never_wants_fewer(
    ages: list[float], fleet: Fleet, state: PolicyState, times: int, slo: float
) -> None:
    spec = a_pool(most=10_000, slo=slo)
    small = decided(a_sample(ages=ages), fleet=fleet, spec=spec, state=state)
    longer = [times * place for place in range(1, len(ages) + 1)]
    large = decided(a_sample(ages=ages, positions=longer), fleet=fleet, spec=spec, state=state)
    assert large.target >= small.target


@given(ages=ages, more=st.integers(1, 500), fleet=fleets, state=states)
@settings(max_examples=200, deadline=None)
def test_more_tasks_at_the_end_of_the_queue_never_want_fewer(
    ages: list[float], more: int, fleet: Fleet, state: PolicyState
) -> None:
    before = decided(a_sample(ages=ages), fleet=fleet, state=state)
    places = [*range(1, len(ages) + 1), len(ages) + more]
    after = decided(a_sample(ages=[*ages, 0.0], positions=places), fleet=fleet, state=state)
    assert after.target >= before.target


@given(
    ages=ages,
    capacity=st.builds(
        ServingCapacity,
        st.integers(0, 50),
        st.integers(0, 50),
        st.lists(st.floats(0, 30), max_size=10).map(tuple),
        st.integers(1, 16),
        st.floats(0.01, 100),
    ),
    startup=st.floats(0.01, 60),
    usable=st.tuples(st.floats(0.1, 500), st.floats(0.1, 500)).map(sorted),
)
@settings(max_examples=300, deadline=None)
def test_a_shorter_slo_never_wants_fewer_for_tasks_that_can_be_saved(
    ages: list[float], capacity: ServingCapacity, startup: float, usable: list[float]
) -> None:
    short, long = (
        Pace(slo_seconds=u / 0.8, usable_slo_seconds=u, startup_seconds=startup, turn_seconds=1) for u in usable
    )
    savable = [Waiting(n, age) for n, age in enumerate(ages, 1) if usable[0] - age >= startup]
    need_short = workers_needed(savable, capacity=capacity, pace=short).workers
    assert need_short >= workers_needed(savable, capacity=capacity, pace=long).workers


@given(ages=ages, fleet=fleets, state=states, least=st.integers(0, 10), more=st.integers(1, 30))
@settings(max_examples=200, deadline=None)
def test_the_target_stays_between_min_and_max_and_above_those_who_work(
    ages: list[float], fleet: Fleet, state: PolicyState, least: int, more: int
) -> None:
    spec = a_pool(least=least, most=least + more)
    decision = decided(a_sample(ages=ages), fleet=fleet, spec=spec, state=state)
    assert least <= decision.target <= least + more
    busy = sum(1 for w in fleet.alive if w.state == "busy")
    assert decision.target >= min(busy, spec.workers.max)
    again = decided(a_sample(ages=ages), fleet=fleet, spec=spec, state=state)
    assert again == decision, "the same input gives the same decision"


@given(ages=ages, fleet=fleets, state=states)
@settings(max_examples=200, deadline=None)
def test_added_workers_are_needed(ages: list[float], fleet: Fleet, state: PolicyState) -> None:
    """With one worker fewer than wanted some deadline is missed: the answer is the smallest that does."""
    sample = a_sample(ages=ages, positions=[60 * n for n in range(1, len(ages) + 1)])
    decision = decided(sample, fleet=fleet, state=state)
    if decision.rule != "deadline":
        return
    numbers = decision.inputs
    starting = [max(0.0, numbers.startup_seconds - 0.5)] * numbers.starting
    added = [numbers.startup_seconds] * (decision.target - decision.current - 1)
    fewer = ServingCapacity(numbers.idle, numbers.busy, (*starting, *added), 1, numbers.service_seconds)
    left = [(task.position, numbers.usable_slo_seconds - task.age_seconds) for task in sample.waiting]
    if all(within >= numbers.startup_seconds for _, within in left):
        assert any(position > fewer.can_start(within) for position, within in left)


@pytest.mark.parametrize(
    ("seen", "fleet", "spec", "rule", "limited_by", "why"),
    [
        pytest.param(
            a_sample(ages=[34.0], running=[a_lease(), a_lease("w2")]),
            a_fleet_of(busy=2),
            a_pool(most=2, slo="5s"),
            "at_max",
            ("max",),
            "1 task has waited 29 s past its SLO of 5 s: all 2 workers are busy and max is 2",
            id="a-third-would-be-wanted",
        ),
        pytest.param(
            a_sample(ages=[34.0], running=[a_lease()]),
            a_fleet_of(busy=2),
            a_pool(most=2, slo="5s"),
            "at_max",
            ("max",),
            "1 task has waited 29 s past its SLO of 5 s: all 2 workers are busy and max is 2",
            id="no-third-is-wanted-by-any-rule",
        ),
        pytest.param(
            a_sample(ages=[34.0, 20.0, 6.0]),
            a_fleet_of(idle=3),
            a_pool(most=4, slo="5s"),
            "hold",
            (),
            "3 tasks have waited up to 29 s past their SLO of 5 s: all 3 workers are idle and an idle one is to lease "
            "it at once",
            id="workers-are-there",
        ),
        pytest.param(
            a_sample(ages=[34.0], paused=True),
            a_fleet_of(busy=1),
            a_pool(most=4, slo="5s"),
            "queue_paused",
            ("queue_paused",),
            "1 task has waited 29 s past its SLO of 5 s: the only worker is busy and the queue thumbs is paused: "
            "`towline resume thumbs`",
            id="the-queue-is-paused",
        ),
    ],
)
def test_a_pool_that_is_late_and_does_not_grow_says_why(
    seen: QueueSample, fleet: Fleet, spec: PoolSpec, rule: str, limited_by: tuple[str, ...], why: str
) -> None:
    decision = decided(seen, fleet=fleet, spec=spec)
    assert (decision.target, decision.rule, decision.limited_by) == (decision.current, rule, limited_by)
    assert decision.why == decision.trouble == why


def test_workers_that_a_bound_denies_are_told_before_a_task_is_late() -> None:
    decision = decided(a_sample(**waits(40, 9.0)), fleet=a_fleet_of(busy=2), spec=a_pool(most=2))
    assert decision.trouble == f"{decision.unguarded} workers are wanted and max is 2"
    assert decision.rule not in ("at_max", "hold")


def test_tasks_behind_a_limit_get_as_many_workers_as_the_limit_lets_work() -> None:
    """Two of 300 tasks may run at a time: with one worker the second place would be idle half of the time."""
    state = what_is_known(service=1.0)
    backlog = a_sample(
        ages=[0.1], running=[RunningLease("w1", 0.5, 0.0, 1)], held=298, held_by="per_tag.max_in_flight: 2"
    )
    decision = decided(backlog, fleet=a_fleet_of(busy=1), spec=a_pool(slo=10, most=50), state=state)
    assert (decision.target, decision.limited_by, decision.trouble) == (2, ("rate_limited",), "")
    assert "all 299 waiting tasks, those under limits included," in decision.why
    few = a_sample(ages=[0.1], running=[RunningLease("w1", 0.5, 0.0, 1)], held=2, held_by="per_tag.max_in_flight: 2")
    assert decided(few, fleet=a_fleet_of(busy=1), spec=a_pool(slo=10, most=50), state=state).target == 1

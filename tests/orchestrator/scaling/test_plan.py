"""Which workers come and go for a decision, and what may never happen."""

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.base.clock import Monotonic
from orchestrator.capacity.allocation import Allocation
from orchestrator.config.pools import PoolSpec
from orchestrator.fleet.workers import CrashLoop, Fleet, Worker, draining, finishing, joined, killed
from orchestrator.scaling.decision import Conditions, Limit
from orchestrator.scaling.plan import MAX_ACTIONS, START_LIMIT_SECONDS, Plan, WorkerRemoval, plan_actions
from tests.support.fleet.fleet_builders import NOW, a_decision, a_fleet, a_fleet_of, a_pool, a_worker

OLD = a_pool(cwd="/old")
NEW = a_pool(cwd="/new")


def planned(fleet: Fleet, target: int, *, spec: PoolSpec | None = None, now: float = NOW, limits: object = ()) -> Plan:
    decision = a_decision(current=len(fleet.alive), target=target, limits=limits)  # type: ignore[arg-type]
    return plan_actions(decision, fleet=fleet, spec=spec or a_pool(), now=Monotonic(now))


def names(leaves: Iterable[WorkerRemoval]) -> list[str]:
    return [leave.worker for leave in leaves]


def test_a_pool_of_its_size_is_left_alone() -> None:
    assert planned(a_fleet_of(idle=2, busy=1), 3).is_empty


def test_a_pool_grows_by_what_it_lacks() -> None:
    plan_ = planned(a_fleet_of(busy=1, starting=1), 5)
    assert (len(plan_.spawn), plan_.spawn[0].replaces, plan_.spawn[0].why) == (3, None, "as the test wishes")


def test_those_who_leave_take_up_room_until_they_are_collected() -> None:
    fleet = a_fleet_of(busy=6)
    for name in ("b0000", "b0001"):
        fleet = draining(fleet, name, grace_seconds=30, now=NOW)
    assert len(planned(fleet, 8).spawn) == 2


def test_the_longest_idle_are_retired_first() -> None:
    plan_ = planned(a_fleet_of(idle=4, busy=2), 4)
    assert names(plan_.retire) == ["i0000", "i0001"]
    assert not plan_.finish
    assert not plan_.spawn


def test_no_more_are_retired_than_are_idle() -> None:
    plan_ = planned(a_fleet_of(idle=1, busy=3, starting=2), 0)
    assert (names(plan_.retire), plan_.finish) == (["i0000"], ())


def test_with_its_max_lowered_a_pool_asks_those_who_lose_least() -> None:
    fleet = a_fleet(
        a_worker("busy-with-two", "busy", leases=2),
        a_worker("busy-with-one", "busy", leases=1),
        a_worker("idle"),
        a_worker("starting", "starting"),
    )
    plan_ = planned(fleet, 1, spec=a_pool(most=1))
    assert names(plan_.retire) == ["idle"]
    assert names(plan_.finish) == ["starting", "busy-with-one"]


def test_a_worker_that_finishes_has_no_deadline_and_is_told_apart_when_it_is_done() -> None:
    fleet = finishing(a_fleet_of(busy=3), "b0000", now=NOW)
    spec = a_pool(most=2)
    assert planned(fleet, 2, spec=spec, now=NOW + 1_000_000).is_empty
    done = a_fleet(*(replace(w, leases=0) if w.is_finishing else w for w in fleet.workers.values()))
    assert planned(done, 2, spec=spec).finish == (WorkerRemoval("b0000", "its tasks are done"),)


def test_those_who_finish_are_no_capacity_but_take_up_room() -> None:
    fleet = a_fleet_of(busy=4)
    for name in ("b0000", "b0001"):
        fleet = finishing(fleet, name, now=NOW)
    assert len(fleet.alive) == 2
    assert planned(fleet, 4, spec=a_pool(most=4)).is_empty
    assert len(planned(fleet, 4, spec=a_pool(most=5)).spawn) == 1


def test_a_held_pool_is_not_cut_to_a_lowered_max() -> None:
    assert planned(a_fleet_of(busy=4), 4, spec=a_pool(most=1), limits=[Limit("paused", "paused")]).is_empty


def test_a_worker_is_ended_when_its_grace_is_over() -> None:
    fleet = draining(a_fleet_of(busy=1), "b0000", grace_seconds=30, now=NOW)
    assert not planned(fleet, 0, now=NOW + 31.9).kill
    assert names(planned(fleet, 0, now=NOW + 32).kill) == ["b0000"]


def test_a_worker_that_was_ended_is_ended_again_only_later() -> None:
    fleet = killed(a_fleet_of(busy=1), "b0000", now=NOW)
    assert not planned(fleet, 0, now=NOW + 9.9).kill
    assert names(planned(fleet, 0, now=NOW + 10).kill) == ["b0000"]


def test_a_start_that_never_ends_is_ended() -> None:
    fleet = a_fleet(a_worker("w1", "starting", since=NOW, spawned_at=NOW))
    assert not planned(fleet, 1, now=NOW + START_LIMIT_SECONDS - 1).kill
    assert names(planned(fleet, 1, now=NOW + START_LIMIT_SECONDS).kill) == ["w1"]


def test_a_worker_is_asked_or_ended_but_not_both() -> None:
    fleet = a_fleet(*(a_worker(f"w{n}", "starting", since=NOW, spawned_at=NOW) for n in range(2)))
    plan_ = planned(fleet, 1, spec=a_pool(most=1), now=NOW + START_LIMIT_SECONDS)
    assert (names(plan_.kill), plan_.finish) == (["w0", "w1"], ())


def test_a_plan_has_a_bounded_number_of_actions_and_ends_come_first() -> None:
    fleet = a_fleet_of(idle=50, busy=50)
    for n in range(40):
        fleet = draining(fleet, f"b{n:04}", grace_seconds=0, now=Monotonic(NOW - 10))
    plan_ = planned(fleet, 0, spec=a_pool(most=100))
    assert (len(plan_.kill), len(plan_.retire)) == (40, MAX_ACTIONS - 40)
    assert len(planned(Fleet("resize"), 500, spec=a_pool(most=500)).spawn) == MAX_ACTIONS


class TestReplacing:
    def test_the_new_one_comes_first(self) -> None:
        fleet = a_fleet_of(idle=1, busy=3, spec=OLD)
        plan_ = planned(fleet, 4, spec=NEW)
        assert [(s.replaces, s.why) for s in plan_.spawn] == [("i0000", "its settings changed")]
        assert not plan_.retire
        assert not plan_.finish

    def test_the_old_one_goes_when_the_new_one_is_up(self) -> None:
        fleet = a_fleet(a_worker("old", "busy", spec=OLD))
        digest = NEW.digest()
        fleet = joined(fleet, worker="new", ref="r", spec_digest=digest, spawned_at=NOW, replaces="old")
        assert planned(fleet, 1, spec=NEW).is_empty
        up = a_fleet(fleet.workers["old"], a_worker("new", "idle", spec=NEW))
        assert planned(up, 1, spec=NEW).finish == (WorkerRemoval("old", "its settings changed"),)

    def test_an_old_one_that_idles_goes_the_same_way(self) -> None:
        up = a_fleet(a_worker("old", spec=OLD, replaced_by="new"), a_worker("new", spec=NEW))
        assert names(planned(up, 1, spec=NEW).finish) == ["old"]

    def test_a_few_are_replaced_at_a_time(self) -> None:
        fleet = a_fleet_of(busy=12, spec=OLD)
        assert len(planned(fleet, 12, spec=a_pool(cwd="/new", most=40)).spawn) == 3
        assert len(planned(a_fleet_of(busy=2, spec=OLD), 2, spec=NEW).spawn) == 1

    def test_no_more_while_some_are_under_way(self) -> None:
        fleet = a_fleet(
            *(a_worker(f"old{n}", "busy", spec=OLD) for n in range(3)),
            a_worker("old3", "busy", spec=OLD, replaced_by="new3"),
            a_worker("new3", "starting", spec=NEW, since=NOW),
        )
        assert planned(fleet, 4, spec=NEW).is_empty

    @pytest.mark.parametrize(("seconds", "begun"), [(29.9, 0), (30.0, 1)])
    def test_who_takes_longer_than_the_grace_to_finish_holds_up_nobody_else(self, seconds: float, begun: int) -> None:
        old = [a_worker(f"old{n}", "busy", spec=OLD, replaced_by="new0" if n == 0 else None) for n in range(3)]
        fleet = finishing(a_fleet(*old, a_worker("new0", "busy", spec=NEW)), "old0", now=NOW)
        assert len(planned(fleet, 3, spec=a_pool(cwd="/new", grace=30), now=NOW + seconds).spawn) == begun

    def test_but_where_there_is_no_room_no_more_are_gone_at_a_time_than_may_be(self) -> None:
        spec = a_pool(cwd="/new", most=4, surge=0)
        fleet = finishing(a_fleet_of(busy=4, spec=OLD), "b0000", now=NOW)
        assert planned(fleet, 4, spec=spec, now=NOW + 1_000_000).is_empty

    def test_nobody_goes_whose_place_nobody_could_take(self) -> None:
        fleet = finishing(a_fleet_of(busy=2, spec=OLD), "b0000", now=NOW)
        assert planned(fleet, 1, spec=a_pool(cwd="/new", most=1), now=NOW + 1_000_000).is_empty
        alone = a_fleet(fleet.workers["b0001"])
        assert names(planned(alone, 1, spec=a_pool(cwd="/new", most=1)).finish) == ["b0001"]

    def test_who_finishes_after_its_successor_has_gone_again_is_in_nobodys_place(self) -> None:
        old = a_worker("old", "draining", spec=OLD, leases=1, replaced_by="gone", deadline_at=None)
        spec = a_pool(cwd="/new", most=1, surge=1)
        assert len(planned(a_fleet(old), 1, spec=spec).spawn) == 1

    def test_at_its_max_a_pool_has_some_more_for_the_moment(self) -> None:
        spec = a_pool(cwd="/new", most=10)
        plan_ = planned(a_fleet_of(busy=10, spec=OLD), 10, spec=spec)
        assert [s.replaces for s in plan_.spawn] == ["b0000", "b0001"]
        assert not plan_.finish

    @pytest.mark.parametrize(
        ("most", "surge", "beside"),
        [
            pytest.param(1, None, 0, id="a pool of one never has two"),
            pytest.param(2, None, 1, id="two"),
            pytest.param(10, None, 3, id="a quarter, rounded up"),
            pytest.param(10, 0, 0, id="never beyond max"),
            pytest.param(1, 1, 1, id="a pool of one that may have two"),
        ],
    )
    def test_how_many_more(self, most: int, surge: int | None, beside: int) -> None:
        spec = a_pool(cwd="/new", most=most, surge=surge)
        assert spec.surge_workers == beside
        plan_ = planned(a_fleet_of(busy=most, spec=OLD), most, spec=spec)
        at_a_time = max(1, most // 4)
        assert len(plan_.spawn) == min(beside, at_a_time)
        assert len(plan_.finish) == at_a_time - min(beside, at_a_time)

    def test_a_worker_that_dies_meanwhile_is_made_good_at_once(self) -> None:
        spec = a_pool(cwd="/new", most=4)
        fleet = a_fleet(
            *(a_worker(f"old{n}", "busy", spec=OLD) for n in range(2)),  # and a third that just died
            a_worker("old3", "busy", spec=OLD, replaced_by="new3"),
            a_worker("new3", "starting", spec=spec, since=NOW),
        )
        assert [s.replaces for s in planned(fleet, 4, spec=spec).spawn] == [None]
        assert not planned(fleet, 4, spec=a_pool(cwd="/new", most=4, surge=0)).spawn

    def test_without_memory_for_another_an_old_one_goes_first(self) -> None:
        spec = a_pool(cwd="/new", most=10)
        fleet = a_fleet_of(busy=4, spec=OLD)
        decision = a_decision(current=4, target=4)
        for scarce, spawned in (("memory", 0), ("cpu", 1), ("", 1)):
            conditions = Conditions(allocation=Allocation(0, scarce))
            plan_ = plan_actions(decision, fleet=fleet, spec=spec, now=NOW, conditions=conditions)
            assert (len(plan_.spawn), len(plan_.finish)) == (spawned, 1 - spawned)

    def test_without_room_an_old_one_goes_first(self) -> None:
        spec = a_pool(cwd="/new", most=4, surge=0)
        plan_ = planned(a_fleet_of(busy=3, idle=1, spec=OLD), 4, spec=spec)
        assert (names(plan_.finish), plan_.spawn) == (["i0000"], ())
        assert names(planned(a_fleet_of(busy=4, spec=OLD), 4, spec=spec).finish) == ["b0000"]

    @pytest.mark.parametrize("why", ["crash_loop", "stale_sample"])
    def test_nobody_is_replaced_while_starts_fail_or_nothing_is_known(self, why: str) -> None:
        fleet = a_fleet_of(busy=4, spec=OLD)
        limits: list[Limit] = []
        if why == "crash_loop":
            fleet = Fleet(fleet.pool, fleet.workers, CrashLoop(1, NOW, NOW, NEW.digest()))
        else:
            limits = [Limit("stale_sample", "")]
        assert planned(fleet, 4, spec=NEW, limits=limits).is_empty

    def test_a_worker_that_has_done_its_share_is_replaced_as_well(self) -> None:
        spec = a_pool(app=None, command=["work"], recycle={"tasks": 100})
        fleet = a_fleet(a_worker("tired", "busy", spec=spec, finished=100), a_worker("fresh", "busy", spec=spec))
        assert [s.replaces for s in planned(fleet, 2, spec=spec).spawn] == ["tired"]

    @pytest.mark.parametrize("surge", [0, 1, None])
    def test_a_whole_pool_is_replaced_in_the_end_without_leaving_its_bounds(self, surge: int | None) -> None:
        for most in (4, 5, 9):
            spec = a_pool(cwd="/new", least=1, most=most, surge=surge)
            fleet = a_fleet_of(busy=4, spec=OLD)
            for turn in range(60):
                plan_ = planned(fleet, max(len(fleet.alive), 4), spec=spec, now=NOW + turn)
                fleet = _applied(plan_, fleet, spec, now=NOW + turn)
                assert 1 <= len(fleet.workers) <= most + spec.surge_workers
                assert _ready(fleet) >= (3 if surge == 0 else 4)
                fleet = _everyone_moves_on(fleet, spec, now=NOW + turn)
            assert {w.spec_digest for w in fleet.workers.values()} == {spec.digest()}
            assert len(fleet.alive) == 4


def _ready(fleet: Fleet) -> int:
    return sum(1 for w in fleet.workers.values() if not w.is_leaving and w.started_at is not None)


def _applied(plan_: Plan, fleet: Fleet, spec: PoolSpec, *, now: float) -> Fleet:
    at = Monotonic(now)
    for leave in plan_.retire:
        fleet = draining(fleet, leave.worker, grace_seconds=spec.grace, now=at)
    for leave in plan_.finish:
        if fleet.workers[leave.worker].leases:
            fleet = finishing(fleet, leave.worker, now=at)
        else:
            fleet = draining(fleet, leave.worker, grace_seconds=spec.grace, now=at)
    for leave in plan_.kill:
        fleet = killed(fleet, leave.worker, now=at)
    for n, spawn in enumerate(plan_.spawn):
        name = f"n{now}-{n}"
        fleet = joined(fleet, worker=name, ref="r", spec_digest=spec.digest(), spawned_at=at, replaces=spawn.replaces)
    return fleet


def _everyone_moves_on(fleet: Fleet, spec: PoolSpec, *, now: float) -> Fleet:
    """Those asked to finish have, and those starting are busy."""
    return a_fleet(
        *(
            w if w.state != "starting" else a_worker(w.worker, "busy", spec=spec, spawned_at=now)
            for w in fleet.workers.values()
            if not w.is_leaving
        )
    )


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    """Workers of every state, old and new, some under replacement."""
    fleet = a_fleet_of(
        idle=draw(st.integers(0, 6)),
        busy=draw(st.integers(0, 6)),
        starting=draw(st.integers(0, 4)),
        spec=draw(st.sampled_from([OLD, NEW])),
    )
    everyone = sorted(fleet.workers)
    for name in draw(st.lists(st.sampled_from(everyone), unique=True)) if everyone else []:
        what = draw(st.sampled_from(["drain", "finish", "kill", "replace"]))
        if what == "finish":
            fleet = finishing(fleet, name, now=Monotonic(NOW - draw(st.floats(0, 60))))
        elif what == "drain":
            fleet = draining(fleet, name, grace_seconds=draw(st.floats(0, 60)), now=Monotonic(NOW - 30))
        elif what == "kill":
            fleet = killed(fleet, name, now=Monotonic(NOW - draw(st.floats(0, 30))))
        elif not fleet.workers[name].is_leaving:
            fleet = joined(
                fleet, worker=f"new-{name}", ref="r", spec_digest=NEW.digest(), spawned_at=NOW, replaces=name
            )
    return fleet


@given(
    fleet=fleets(),
    target=st.integers(0, 20),
    least=st.integers(0, 5),
    most=st.integers(5, 20),
    surge=st.none() | st.integers(0, 5),
)
@settings(max_examples=400, deadline=None)
def test_no_plan_breaks_the_bounds_or_touches_a_lease(
    fleet: Fleet, target: int, least: int, most: int, surge: int | None
) -> None:
    spec = a_pool(cwd="/new", least=least, most=most, surge=surge)
    target = min(most, max(least, target))
    plan_ = planned(fleet, target, spec=spec)
    after = _applied(plan_, fleet, spec, now=NOW)

    assert len(after.workers) <= max(most + spec.surge_workers, len(fleet.workers)), "never above max and surge"
    if all(spawn.replaces is None for spawn in plan_.spawn):
        beside = min(spec.surge_workers, sum(1 for w in fleet.workers.values() if w.replaced_by in fleet.workers))
        assert len(after.workers) <= max(most + beside, len(fleet.workers)), "never above max, but beside the replaced"
    floor = min(least, len(fleet.alive))
    outdated_without_room = 1 if len(fleet.workers) >= most else 0
    assert len(after.alive) >= floor - max(outdated_without_room, target // 4), "never below min, but to replace"
    for leave in plan_.retire:
        assert fleet.workers[leave.worker].state == "idle", "never a victim with a lease"
    for leave in plan_.finish:
        drained = fleet.workers[leave.worker]
        is_old = drained.spec_digest != spec.digest() or drained.replaced_by is not None or drained.is_finishing
        assert is_old or len(fleet.alive) > most, "let finish only when outdated or above max"
    for leave in plan_.kill:
        assert fleet.workers[leave.worker].deadline_at is not None, "who may finish is not ended for taking long"
        assert fleet.workers[leave.worker].is_leaving, "ended only after it was asked"
    gone = [*names(plan_.retire), *names(plan_.finish), *names(plan_.kill)]
    assert len(gone) == len(set(gone)), "each worker at most once"
    assert len(gone) + len(plan_.spawn) <= MAX_ACTIONS
    assert not (plan_.spawn and plan_.retire and target != len(fleet.alive)), "never both ways at once"
    assert planned(fleet, target, spec=spec) == plan_, "the same input gives the same plan"


@given(fleet=fleets(), target=st.integers(0, 20), more=st.integers(0, 10))
@settings(max_examples=200, deadline=None)
def test_a_higher_target_never_starts_fewer_or_retires_more(fleet: Fleet, target: int, more: int) -> None:
    current = a_fleet(*(w for w in fleet.workers.values() if not w.replaced_by))
    spec = a_pool(most=40)
    fresh = a_fleet(*(a_worker(w.worker, w.state, spec=spec) for w in current.workers.values()))
    low, high = planned(fresh, target, spec=spec), planned(fresh, target + more, spec=spec)
    assert len(high.spawn) >= len(low.spawn)
    assert len(high.retire) <= len(low.retire)


def hung(name: str, *, seconds: float = 1.0, **more: object) -> Worker:
    return a_worker(name, "unresponsive", since=NOW - seconds, hung_at=Monotonic(NOW - seconds), **more)


def test_workers_that_hang_are_replaced_beside_them_within_max_and_surge() -> None:
    fleet = a_fleet(hung("h1"), hung("h2"))
    plan_ = planned(fleet, 2, spec=a_pool(most=3))
    assert (len(plan_.spawn), names(plan_.end), names(plan_.kill)) == (2, [], [])


@pytest.mark.parametrize(
    ("most", "surge", "spawned", "ended"),
    [
        pytest.param(3, 1, 2, [], id="one beyond max"),
        pytest.param(3, 0, 1, ["h1"], id="no place beyond max: the longest to hang makes room"),
        pytest.param(2, 0, 0, ["h1", "h2"], id="both make room"),
        pytest.param(1, 0, 0, ["h1", "h2"], id="above max"),
    ],
)
def test_where_its_place_is_needed_a_worker_that_hangs_is_ended_first(
    most: int, surge: int, spawned: int, ended: list[str]
) -> None:
    fleet = a_fleet(hung("h1", seconds=3), hung("h2", seconds=2))
    plan_ = planned(fleet, min(2, most), spec=a_pool(most=most, surge=surge))
    assert (len(plan_.spawn), names(plan_.end)[: len(ended)]) == (spawned, ended[: min(2, most)])


def test_no_more_workers_that_hang_are_ended_than_places_are_needed() -> None:
    fleet = draining(a_fleet(hung("h1", seconds=3), hung("h2", seconds=2)), "h1", grace_seconds=30, now=NOW)
    plan_ = planned(fleet, 1, spec=a_pool(most=2, surge=0))
    assert (plan_.spawn, plan_.end) == ((), ()), "the place of the first is free when it is collected"


def test_a_worker_that_hangs_is_ended_when_its_grace_is_over_and_no_sooner() -> None:
    spec = a_pool(grace=30)
    assert planned(a_fleet(hung("h1", seconds=29.9)), 0, spec=spec).is_empty
    (leave,) = planned(a_fleet(hung("h1", seconds=30.0)), 0, spec=spec).end
    assert (leave.worker, leave.why) == ("h1", "it is unresponsive for longer than its grace of 30 s")


def test_a_worker_that_hangs_is_no_capacity_and_never_surplus() -> None:
    fleet = a_fleet(hung("h1"), a_worker("i1"))
    assert [w.worker for w in fleet.alive] == ["i1"]
    plan_ = planned(fleet, 0)
    assert (names(plan_.retire), plan_.end, plan_.finish) == (["i1"], (), ())

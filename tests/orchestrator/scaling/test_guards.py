"""What holds a decision back, each by its name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.base.clock import Monotonic
from orchestrator.capacity.allocation import Allocation, Scarce
from orchestrator.config.pools import PoolSpec
from orchestrator.fleet.workers import CrashLoop, Fleet
from orchestrator.scaling.context import Facts
from orchestrator.scaling.decision import Conditions, Limit, Paused
from orchestrator.scaling.guards import GUARDS, guarded, turn_seconds_after
from tests.support.fleet.fleet_builders import NOW, a_decision, a_fleet_of, a_pool, a_sample, a_worker

DIGEST = a_pool().digest()


def facts(
    *,
    fleet: Fleet | None = None,
    spec: PoolSpec | None = None,
    paused: Paused = "no",
    cores: int = 100,
    start_seconds: float | None = None,
    sample_age: float = 0.0,
    queue_paused: bool = False,
    ready: int = 0,
    held: int = 0,
) -> Facts:
    known = fleet or a_fleet_of(idle=4)
    sample = a_sample(at=NOW - sample_age, paused=queue_paused, ready=ready, held=held)
    return Facts(sample, known, known.alive, spec or a_pool(most=50), Conditions(paused, cores, start_seconds), NOW)


def a_crash_loop(*, retry_in: float, failures: int = 3, failed_ago: float = 4.0) -> CrashLoop:
    return CrashLoop(failures, Monotonic(NOW - failed_ago), Monotonic(NOW + retry_in), DIGEST)


def crashing(retry_in: float, *more_workers: object, failures: int = 3) -> Fleet:
    workers = {w.worker: w for w in (a_worker("old"), *more_workers)}  # type: ignore[attr-defined]
    return Fleet("resize", workers, a_crash_loop(retry_in=retry_in, failures=failures))


@pytest.mark.parametrize(
    ("target", "seen", "allowed", "names"),
    [
        pytest.param(9, facts(), 9, (), id="nothing-to-say"),
        pytest.param(60, facts(), 50, ("max",), id="max"),
        pytest.param(0, facts(spec=a_pool(least=2, most=8)), 2, ("min",), id="min"),
        pytest.param(
            0, facts(fleet=a_fleet_of(idle=1), spec=a_pool(least=2, most=8)), 1, ("min",), id="min-never-grows-a-pool"
        ),
        pytest.param(2, facts(spec=a_pool(most=3)), 2, (), id="shrinking-to-a-lowered-max"),
        pytest.param(4, facts(spec=a_pool(most=3)), 3, ("max",), id="max-was-lowered"),
        pytest.param(20, facts(spec=a_pool(most=50, max_step_up=5)), 9, ("max_step_up",), id="step"),
        pytest.param(9, facts(spec=a_pool(most=50, max_step_up=5)), 9, (), id="step-just-so"),
        pytest.param(20, facts(cores=2), 8, ("spawn_parallelism",), id="two-starts-a-core"),
        pytest.param(
            20, facts(cores=2, start_seconds=0.2), 14, ("spawn_parallelism",), id="as-many-as-start-in-a-second"
        ),
        pytest.param(
            20,
            facts(cores=2, start_seconds=0.2, spec=a_pool(slo=3, most=50)),
            10,
            ("spawn_parallelism",),
            id="or-in-a-fifth-of-the-slo",
        ),
        pytest.param(20, facts(cores=2, start_seconds=9.0), 8, ("spawn_parallelism",), id="long-starts"),
        pytest.param(
            99,
            facts(cores=9, start_seconds=0.0, spec=a_pool(most=99)),
            68,
            ("spawn_parallelism",),
            id="starts-that-only-wait",
        ),
        pytest.param(
            20, facts(spec=a_pool(most=50, spawn_parallelism=1)), 5, ("spawn_parallelism",), id="one-at-a-time"
        ),
        pytest.param(
            20, facts(fleet=a_fleet_of(idle=1, starting=3), cores=2), 5, ("spawn_parallelism",), id="some-are-starting"
        ),
        pytest.param(20, facts(fleet=a_fleet_of(starting=9), cores=2), 9, ("spawn_parallelism",), id="none-may-start"),
        pytest.param(9, facts(queue_paused=True), 4, ("queue_paused",), id="queue-paused"),
        pytest.param(9, facts(ready=6, held=9), 6, ("rate_limited",), id="no-worker-that-could-lease-nothing"),
        pytest.param(9, facts(ready=2, held=9), 4, ("rate_limited",), id="limits-take-nobody-away"),
        pytest.param(6, facts(ready=6, held=9), 6, (), id="limits-leave-what-can-be-leased"),
        pytest.param(9, facts(ready=1), 9, (), id="nothing-is-held"),
        pytest.param(9, facts(paused="both"), 4, ("paused",), id="paused"),
        pytest.param(1, facts(paused="both"), 4, ("paused",), id="paused-down-too"),
        pytest.param(9, facts(paused="up"), 4, ("paused",), id="paused-up"),
        pytest.param(1, facts(paused="up"), 1, (), id="paused-up-lets-shrink"),
        pytest.param(1, facts(paused="down"), 4, ("paused",), id="paused-down"),
        pytest.param(9, facts(paused="down"), 9, (), id="paused-down-lets-grow"),
        pytest.param(9, facts(sample_age=9.1), 4, ("stale_sample",), id="stale"),
        pytest.param(1, facts(sample_age=9.1), 4, ("stale_sample",), id="stale-down-too"),
        pytest.param(9, facts(sample_age=9.0), 9, (), id="not-yet-stale"),
        pytest.param(60, facts(cores=1), 6, ("max", "spawn_parallelism"), id="the-tightest-has-spoken"),
        pytest.param(
            60,
            facts(spec=a_pool(most=50, max_step_up=9), cores=1),
            6,
            ("max", "max_step_up", "spawn_parallelism"),
            id="both",
        ),
        pytest.param(9, facts(fleet=crashing(3.0)), 1, ("crash_loop",), id="crash-loop-waits"),
        pytest.param(9, facts(fleet=crashing(-0.1)), 2, ("crash_loop",), id="crash-loop-probes"),
        pytest.param(2, facts(fleet=crashing(-0.1)), 2, (), id="crash-loop-probe-wanted"),
        pytest.param(
            9,
            facts(fleet=crashing(-0.1, a_worker("probe", "starting", spawned_at=NOW - 1))),
            2,
            ("crash_loop",),
            id="one-probe-at-a-time",
        ),
        pytest.param(0, facts(fleet=crashing(3.0)), 0, (), id="crash-loop-lets-shrink"),
        pytest.param(
            5,
            facts(fleet=crashing(3.0), spec=a_pool(least=5, most=50)),
            1,
            ("crash_loop",),
            id="crash-loop-before-min",
        ),
        pytest.param(9, facts(fleet=crashing(3.0), spec=a_pool(most=50, cwd="/new")), 9, (), id="mended-settings"),
    ],
)
def test_a_guard_changes_the_target_and_says_so(target: int, seen: Facts, allowed: int, names: tuple[str, ...]) -> None:
    got, limits = guarded(target, seen)
    assert (got, tuple(limit.guard for limit in limits)) == (allowed, names)


def test_a_guard_says_why_in_words() -> None:
    _, limits = guarded(60, facts(fleet=crashing(3.0)))
    assert [limit.why for limit in limits] == ["3 starts failed in a row: the next in 3.0 s"]


@given(
    target=st.integers(0, 100),
    idle=st.integers(0, 60),
    starting=st.integers(0, 10),
    least=st.integers(0, 20),
    most=st.integers(20, 60),
    paused=st.sampled_from(["no", "both", "up", "down"]),
    age=st.floats(0, 60),
)
def test_every_guard_is_silent_about_its_own_answer(
    target: int, idle: int, starting: int, least: int, most: int, paused: Paused, age: float
) -> None:
    seen = facts(
        fleet=a_fleet_of(idle=idle, starting=starting),
        spec=a_pool(least=least, most=most, max_step_up=7),
        paused=paused,
        cores=2,
        sample_age=age,
    )
    for guard in GUARDS:
        answer = guard(target, seen)
        assert answer is None or (answer[0] != target and guard(answer[0], seen) is None)


@given(low=st.integers(0, 100), more=st.integers(0, 100), idle=st.integers(0, 60), paused=st.sampled_from(["no", "up"]))
def test_a_larger_wish_is_never_granted_less(low: int, more: int, idle: int, paused: Paused) -> None:
    seen = facts(fleet=a_fleet_of(idle=idle), spec=a_pool(most=40, max_step_up=7), paused=paused, cores=3)
    assert guarded(low, seen)[0] <= guarded(low + more, seen)[0]


SPAWNS = Limit("spawn_parallelism", "4 starting at a time")
UNKNOWN = Limit("host_headroom", "nothing is known yet")


@pytest.mark.parametrize(
    ("limits", "scarce", "settings", "seconds"),
    [
        pytest.param([SPAWNS], "", {}, 0.25, id="starts end soon"),
        pytest.param([UNKNOWN], "unknown", {}, 0.25, id="a measurement is soon there"),
        pytest.param([UNKNOWN], "memory", {}, 3.0, id="memory is not soon free"),
        pytest.param([SPAWNS, Limit("max", "max 8")], "", {}, 3.0, id="there is no room for more"),
        pytest.param([SPAWNS], "", {"dry_run": True}, 3.0, id="nobody was started"),
        pytest.param([], "", {}, 3.0, id="nothing is waited for"),
    ],
)
def test_the_next_turn_comes_soon_where_growth_waits_for_a_moment(
    limits: list[Limit], scarce: Scarce, settings: dict[str, object], seconds: float
) -> None:
    decision = a_decision(current=4, target=6, limits=limits)
    conditions = Conditions(allocation=Allocation(2, scarce, "as the test says"))
    assert turn_seconds_after(decision, conditions, a_pool(**settings)) == seconds

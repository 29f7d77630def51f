"""Scenarios in virtual time, with the pool's own decisions."""

import math
from random import Random

import pytest

from orchestrator.config.pools import PoolSpec
from orchestrator.simulation.results import RunResult
from orchestrator.simulation.rules import RULES, RuleScaler, RuleSettings, rule_settings
from orchestrator.simulation.scaler import PolicyScaler
from orchestrator.simulation.study import COOL_DOWN_SECONDS, GIVE_UP_SECONDS, simulate
from orchestrator.simulation.workload import SimulatedWorld, Workload, workload_of
from tests.support.fleet.fleet_builders import a_pool

CORES = 64


def tasks_of(ready: list[float], *, service: float = 2.0, **more) -> Workload:
    return workload_of("test", [(at, service) for at in ready], **more)


def poisson(*, rate: float, seconds: float, service: float, seed: int = 5) -> Workload:
    rng, at, tasks = Random(seed), 0.0, []
    while (at := at + rng.expovariate(rate)) < seconds:
        tasks.append((at, rng.expovariate(1.0 / service)))
    return workload_of("poisson", tasks)


def run(workload: Workload, spec: PoolSpec, *, world: SimulatedWorld | None = None, seed: int = 1) -> RunResult:
    return simulate(
        workload,
        world or SimulatedWorld(cores=CORES),
        PolicyScaler(spec, cores=CORES),
        slo_seconds=spec.slo,
        slots=spec.concurrency,
        seed=seed,
    )


def test_a_fixed_fleet_waits_as_erlang_says() -> None:
    workload = poisson(rate=2.0, seconds=40_000.0, service=3.0)
    told = RuleSettings(1.0, least=8, most=8, mean_service_seconds=3.0, mean_load=6.0)
    result = simulate(workload, SimulatedWorld(startup_seconds=0.01), RuleScaler("fixed", told), slo_seconds=1.0)
    assert result.late_share == pytest.approx(0.183, abs=0.02)
    assert result.wait_p95 == pytest.approx(2.95, abs=0.4)


def test_a_burst_is_leased_in_time_and_the_pool_goes_back_to_nothing() -> None:
    result = run(tasks_of([100.0] * 200), a_pool(most=60))
    assert result.late_share == 0.0
    assert result.peak <= 60
    assert result.sizes[-1][1] == 0
    assert result.ended_at < 100.0 + COOL_DOWN_SECONDS


def started_by(result: RunResult, at: float) -> int:
    return next(size for since, size in reversed(result.sizes) if since <= at)


@pytest.mark.parametrize("min_workers", [0, 20])
def test_a_new_pool_is_tried_for_a_second_and_then_grows_as_the_cores_carry_starts(min_workers: int) -> None:
    world = SimulatedWorld(startup_samples=(0.4,), start_cpu_seconds=0.2, cores=2)
    spec = a_pool(slo=5.0, least=min_workers, most=20)
    scaler = PolicyScaler(spec, cores=2, start_seconds=0.2)
    result = simulate(tasks_of([10.0] * 20, service=30.0), world, scaler, slo_seconds=5.0)
    if min_workers:
        assert started_by(result, 0.0) == 10  # what two cores start in a second
        assert started_by(result, 3.0) == 20
    else:
        assert started_by(result, 10.9) == 2
        assert started_by(result, 12.0) >= 10


def forked(spec: PoolSpec, tasks: list[tuple[float, float]]) -> RunResult:
    """A pool whose import takes 2 s of CPU on a host of two cores; its template is kept."""
    world = SimulatedWorld(startup_seconds=2.4, start_cpu_seconds=2.0, fork_seconds=0.02, cores=2)
    scaler = PolicyScaler(spec, cores=2, start_seconds=2.0)
    return simulate(workload_of("forked", tasks), world, scaler, slo_seconds=spec.slo)


@pytest.mark.parametrize("begins_at", [300.0, 300.4, 300.9])
@pytest.mark.parametrize("least", [0, 1])
def test_a_burst_at_a_pool_whose_template_is_kept_is_begun_in_time(least: int, begins_at: float) -> None:
    burst = forked(a_pool(slo=2.0, least=least, most=40), [(10.0, 12.0)] + [(begins_at, 10.0)] * 40)
    assert (burst.peak, burst.starts) == (40, 41 - least)
    assert burst.late_share == 0.0


def test_a_burst_at_busy_workers_is_begun_within_a_second_where_they_are_forked() -> None:
    tasks = [(10.0, 12.0), (99.6, 60.0), (99.9, 60.0)] + [(100.3, 10.0)] * 38
    burst = forked(a_pool(slo=1.0, most=40), tasks)
    assert burst.late_share <= 1 / 41  # the pool's first task, for which its application was imported
    assert burst.starts <= 42


def test_no_worker_is_kept_warm_where_the_next_is_forked() -> None:
    result = forked(a_pool(slo=1.0, most=40), [(60.0 * burst, 5.0) for burst in range(20) for _ in range(20)])
    at_rest = [size for at, size in result.sizes if at % 60.0 > 30.0]
    assert set(at_rest) <= {0}
    assert result.worker_seconds < 2.2 * 20 * 20 * 5.0


def test_an_idle_pool_costs_nothing_and_a_month_of_it_is_simulated_at_once() -> None:
    month = 30 * 86_400.0
    result = run(tasks_of([0.0, month]), a_pool())
    assert result.worker_seconds < 120.0
    assert result.starts == 2


def test_a_task_that_meets_an_empty_pool_waits_for_one_start_only() -> None:
    world = SimulatedWorld(startup_samples=(3.0,), cores=CORES)
    result = run(tasks_of([1_000.3]), a_pool(), world=world)
    assert result.wait_max == pytest.approx(3.0, abs=0.01)


def test_workers_of_the_lower_bound_stay_until_the_time_is_over() -> None:
    result = run(tasks_of([0.0]), a_pool(least=2))
    assert result.sizes[-1][1] == 2
    assert result.worker_seconds == pytest.approx(2 * COOL_DOWN_SECONDS, rel=0.02)


def test_a_crash_loop_backs_off_and_ends_by_itself() -> None:
    world = SimulatedWorld(startup_seconds=2.0, no_start_until=600.0, cores=CORES)
    result = run(tasks_of([float(at) for at in range(0, 600, 2)]), a_pool(most=40), world=world)
    assert result.unfinished == 0
    assert result.starts < 60


def test_a_pool_never_exceeds_its_bounds_and_never_kills_by_itself() -> None:
    result = run(tasks_of([float(at) / 5 for at in range(3_000)], service=10.0), a_pool(most=7))
    assert result.peak == 7
    assert result.killed == 0
    assert result.unfinished == 0


def test_a_worker_of_several_slots_replaces_several_workers() -> None:
    workload = poisson(rate=2.0, seconds=1_200.0, service=4.0)
    narrow, wide = run(workload, a_pool(most=60)), run(workload, a_pool(most=60, concurrency=4))
    assert wide.late_share <= 0.01
    assert wide.worker_seconds < narrow.worker_seconds / 2.5


def test_tasks_that_fail_come_back_and_are_done() -> None:
    workload = tasks_of([float(at) for at in range(200)], failures=[index % 2 for index in range(200)])
    result = run(workload, a_pool(most=20))
    assert (result.unfinished, result.dead) == (0, 0)


def test_tasks_that_nobody_ever_did_have_waited_until_the_end() -> None:
    result = run(tasks_of([0.0, 30.0]), a_pool(slo=60.0), world=SimulatedWorld(cores=CORES, no_start_until=math.inf))
    assert (result.unfinished, result.late_share) == (2, 1.0)
    assert result.worst_over_slo >= GIVE_UP_SECONDS / 60.0
    assert result.p99_over_slo == pytest.approx(result.worst_over_slo, rel=0.01)


def test_how_late_is_told_in_slos() -> None:
    result = run(tasks_of([0.0] * 8, service=10.0), a_pool(slo=20.0, most=1))
    assert result.worst_over_slo == result.wait_max / 20.0 > 3.0
    assert 1.0 < result.p99_over_slo <= result.worst_over_slo


def test_tasks_with_an_eta_start_nobody_before_it() -> None:
    workload = tasks_of([3_600.0] * 50, added_at=[0.0] * 50)
    result = run(workload, a_pool(most=20))
    assert result.sizes[1][0] >= 3_590.0
    assert result.late_share == 0.0


@pytest.mark.parametrize("added_at", [0.0, 980.0], ids=["known long before", "known just in time"])
def test_where_a_start_is_too_long_workers_for_tasks_with_an_eta_are_up_when_it_comes(added_at: float) -> None:
    workload = tasks_of([100.0, 1_000.0] + [1_025.0] * 20, added_at=[100.0] + [added_at] * 21)
    result = run(workload, a_pool(slo=5.0, most=40), world=SimulatedWorld(startup_samples=(8.0,), cores=CORES))
    assert result.late_share <= 1 / 22  # the first, which nobody knew of
    sizes = [size for at, size in result.sizes if 200.0 < at < 985.0]
    assert sizes == sorted(sizes, reverse=True)  # nobody is started long before


def test_windows_of_the_schedule_open_and_close_by_the_simulated_hour() -> None:
    window = {"cron": "0 1 * * *", "for": "1h", "workers": {"min": 3}}
    result = run(tasks_of([0.0, 5 * 3_600.0]), a_pool(schedule=[window]))
    at_noon = {hour: [size for at, size in result.sizes if at <= hour * 3_600.0][-1] for hour in (0.5, 1.5, 3.5)}
    assert at_noon == {0.5: 0, 1.5: 3, 3.5: 0}


def test_a_pool_that_has_used_its_budget_is_held_to_what_comes_in() -> None:
    workload = poisson(rate=2.0, seconds=6 * 3_600.0, service=4.0)
    free, held = run(workload, a_pool(most=20)), run(workload, a_pool(most=20, budget="24h/day"))
    assert free.late_share <= 0.01
    assert held.worker_seconds < free.worker_seconds


def test_work_that_is_to_be_done_by_a_time_of_day_is_done_by_then_with_a_small_fleet() -> None:
    workload = tasks_of([60.0] * 900, service=8.0)
    result = run(workload, a_pool(most=60, slo="1d", finish_by="01:00"))
    assert result.wait_max < 3_540.0
    assert result.peak <= 6


def test_the_same_seed_gives_the_same_run() -> None:
    workload = poisson(rate=1.0, seconds=1_000.0, service=2.0)
    first, second, other = (run(workload, a_pool(), seed=seed) for seed in (3, 3, 4))
    assert first == second
    assert first != other


@pytest.mark.parametrize("name", RULES)
def test_every_rule_does_all_the_work_within_the_bounds(name: str) -> None:
    workload = poisson(rate=1.0, seconds=2_000.0, service=3.0)
    told = rule_settings(workload, slo_seconds=30.0, least=0, most=12, slots=1)
    result = simulate(workload, SimulatedWorld(), RuleScaler(name, told), slo_seconds=30.0)
    assert result.unfinished == 0
    assert 1 <= result.peak <= 12
    assert result.worker_seconds > workload.work_seconds
    assert math.isfinite(result.wait_p99)

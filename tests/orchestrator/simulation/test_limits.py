"""The simulated queue obeys limits, and the pool knows what could be leased."""

from dataclasses import replace
from random import Random

import pytest

from orchestrator.simulation.limits import QueueLimits, SimulatedLimits
from orchestrator.simulation.pool import SimulatedPool
from orchestrator.simulation.results import RunResult
from orchestrator.simulation.scaler import PolicyScaler
from orchestrator.simulation.study import simulate
from orchestrator.simulation.workload import SimulatedWorld, Workload, workload_of
from queue_core.admission import Rate, TagLimits
from tests.support.fleet.fleet_builders import a_pool
from tests.support.fleet.worlds import a_world


class Recorder(PolicyScaler):
    """The policy, and what it saw at each turn: live leases of each tag, workers, and tasks that could be leased."""

    def __init__(self, *args: object, **settings: object) -> None:
        super().__init__(*args, **settings)  # type: ignore[arg-type]
        self.most_of_a_tag = 0
        self.most_leases = 0
        self.useless_turns: dict[tuple[str, float], int] = {}
        self.most_useless_turns = 0
        self.tags: list[str | None] = []

    def turn(self, pool: SimulatedPool) -> int:
        of_tag: dict[str | None, int] = {}
        for lease in pool.leases.values():
            of_tag[self.tags[lease.task]] = of_tag.get(self.tags[lease.task], 0) + 1
        self.most_of_a_tag = max([self.most_of_a_tag, *of_tag.values()])
        self.most_leases = max(self.most_leases, len(pool.leases))
        assert pool.limits is not None
        idle = pool.free.values() if pool.limits.held and not pool.ready else ()
        before = self.useless_turns
        self.useless_turns = {key: before.get(key, 0) + 1 for key in [(worker.name, worker.used_at) for worker in idle]}
        self.most_useless_turns = max([self.most_useless_turns, *self.useless_turns.values()])
        return super().turn(pool)


def a_run(tasks: Workload, limits: QueueLimits, **settings: object) -> tuple[Recorder, RunResult]:
    spec = a_pool(slo=5, most=30, **settings)
    scaler = Recorder(spec, cores=4)
    scaler.tags = list(tasks.tags or [None] * tasks.tasks)
    result = simulate(tasks, SimulatedWorld(startup_seconds=0.3, limits=limits), scaler, slo_seconds=5)
    return scaler, result


def of_tenants(tenants: int, each: int, *, every: float = 0.0, service: float = 1.0) -> Workload:
    tasks = [(number * every, service) for number in range(tenants * each)]
    return workload_of("tenants", tasks, tags=[f"tenant-{number % tenants}" for number in range(tenants * each)])


def test_one_tenant_with_two_thousand_tasks_gets_the_workers_that_it_can_use() -> None:
    scaler, result = a_run(of_tenants(1, 2000, service=0.5), QueueLimits(per_tag=TagLimits(max_in_flight=2)))
    assert (scaler.most_of_a_tag, result.peak, result.unfinished) == (2, 2, 0)


def test_twenty_tenants_get_two_workers_each_at_most() -> None:
    scaler, result = a_run(of_tenants(20, 20), QueueLimits(per_tag=TagLimits(max_in_flight=2)))
    assert scaler.most_of_a_tag == 2
    assert (result.unfinished, result.late_share) == (0, 0.0)  # waits count from when a task could be leased


def test_a_token_that_comes_with_a_task_goes_to_the_one_that_waits_for_it() -> None:
    limits = SimulatedLimits(QueueLimits(per_tag=TagLimits(rate=Rate(1.0))), ["a", "a", "a"])
    assert limits.enter(0, 0.0) == [0]
    limits.lease(0, 0.0)
    assert limits.enter(1, 0.5) == []
    assert (limits.enter(2, 1.0), limits.held) == ([1], 1)


def test_a_task_arrives_when_its_lane_admits_it_and_once() -> None:
    limits = QueueLimits(per_tag=TagLimits(max_in_flight=2))
    world = SimulatedWorld(limits=limits)
    pool = SimulatedPool(of_tenants(1, 10), world, slots=1, recent_first=True, rng=Random(1))
    pool.advance(0.5, wakes=False)
    assert (pool.take_events().arrivals, len(pool.ready)) == (2, 2)


def test_a_limit_of_the_queue_bounds_the_pool() -> None:
    scaler, result = a_run(of_tenants(5, 40), QueueLimits(max_in_flight=3))
    assert (scaler.most_leases, result.peak, result.unfinished) == (3, 3, 0)


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param(QueueLimits(rate=Rate(2.0, burst=2)), id="queue"),
        pytest.param(QueueLimits(per_tag=TagLimits(rate=Rate(2.0, burst=2))), id="tag"),
    ],
)
def test_a_rate_spreads_the_leases(limits: QueueLimits) -> None:
    _, result = a_run(of_tenants(1, 100, service=0.1), limits)
    assert result.unfinished == 0
    assert result.peak <= 2


@pytest.mark.parametrize("number", [1, 11, 14, 17, 28, 34, 44, 50])
def test_no_worker_that_could_lease_nothing_stays_for_longer_than_two_turns(number: int) -> None:
    """In random worlds whose tasks are of one to a hundred tags, each with one to three leases at a time."""
    rng, drawn = Random(number), a_world(number)
    tenants, most = rng.choice([1, 3, 20, 100]), rng.choice([1, 2, 3])
    tags = [f"tenant-{rng.randrange(tenants)}" for _ in range(drawn.workload.tasks)]
    world = replace(drawn.world, limits=QueueLimits(per_tag=TagLimits(most)))
    scaler = Recorder(a_pool(most=drawn.most, slo=drawn.slo_seconds), cores=world.cores)
    scaler.tags = list(tags)
    result = simulate(replace(drawn.workload, tags=tags), world, scaler, slo_seconds=drawn.slo_seconds)
    assert (result.unfinished, scaler.most_of_a_tag <= most) == (0, True)
    assert scaler.most_useless_turns <= 2

"""The simulated pool: who gets a task, what a lease does, what a worker costs."""

from random import Random

from orchestrator.simulation.pool import NEVER, SimulatedPool
from orchestrator.simulation.workload import NEVER_SUCCEEDS, SimulatedWorld, Workload

EXACT = SimulatedWorld(startup_samples=(2.0,), retry_min_seconds=10.0)


def a_pool(
    *, ready: list[float], service: float = 1.0, slots: int = 1, world: SimulatedWorld = EXACT, **more
) -> SimulatedPool:
    workload = Workload("test", ready, [service] * len(ready), **more)
    return SimulatedPool(workload, world, slots=slots, recent_first=True, rng=Random(1))


def run_until(pool: SimulatedPool, at: float) -> None:
    while pool.next_at() <= at:
        pool.advance(0.0, wakes=False)  # one thing at a time
    pool.now = at


def test_a_task_waits_for_a_start_and_the_worker_costs_from_its_spawn() -> None:
    pool = a_pool(ready=[1.0])
    run_until(pool, 1.0)
    [name] = pool.spawn(1)
    run_until(pool, 10.0)
    assert pool.waits == [2.0]
    pool.leave(name)
    assert pool.worker_seconds == 9.0
    assert pool.is_over


def test_the_worker_used_last_gets_the_next_task() -> None:
    pool = a_pool(ready=[10.0, 20.0, 30.0])
    for _ in range(3):
        pool.spawn(1)
    run_until(pool, 40.0)
    used = [lease.worker.name for lease in pool.take_events().finished]
    assert len(used) == 3
    assert len(set(used)) == 1


def test_a_worker_holds_as_many_tasks_as_it_has_slots_and_no_more() -> None:
    pool = a_pool(ready=[5.0] * 5, service=10.0, slots=2)
    pool.spawn(2)
    run_until(pool, 6.0)
    assert sorted(worker.leases for worker in pool.workers.values()) == [2, 2]
    assert len(pool.ready) == 1
    assert [lease.at_a_time for lease in pool.leases.values()] == [1, 2, 3, 4]


def test_a_failed_lease_comes_back_after_its_back_off_and_is_delayed_until_then() -> None:
    pool = a_pool(ready=[5.0], failures=[2])
    pool.spawn(1)
    run_until(pool, 7.0)
    assert (pool.delayed, len(pool.ready)) == (1, 0)
    run_until(pool, 100.0)
    news = pool.take_events()
    assert [(f.outcome, f.ended_at) for f in news.finished] == [
        ("released", 6.0),
        ("released", 17.0),
        ("deleted", 38.0),
    ]
    assert news.arrivals == 3


def test_a_task_that_always_fails_is_dead_after_its_last_lease() -> None:
    pool = a_pool(ready=[5.0], failures=[NEVER_SUCCEEDS], world=SimulatedWorld(startup_samples=(1.0,), max_leases=3))
    pool.spawn(1)
    run_until(pool, 200.0)
    assert pool.dead == 1
    assert pool.is_over


def test_tasks_with_an_eta_are_delayed_until_it_comes() -> None:
    pool = a_pool(ready=[50.0, 60.0], added_at=[0.0, 0.0])
    assert pool.delayed == 2
    run_until(pool, 55.0)
    assert pool.delayed == 1


def test_a_worker_that_is_asked_to_leave_finishes_what_it_holds() -> None:
    pool = a_pool(ready=[5.0, 6.0], service=10.0)
    [name] = pool.spawn(1)
    run_until(pool, 7.0)
    pool.leave(name)
    assert (pool.staying, len(pool.workers)) == (0, 1)
    run_until(pool, 20.0)
    assert not pool.workers
    assert len(pool.ready) == 1
    assert pool.killed == 0


def test_a_worker_past_its_grace_is_ended_and_its_task_is_first_again() -> None:
    pool = a_pool(ready=[5.0, 6.0], service=100.0)
    [name] = pool.spawn(1)
    run_until(pool, 7.0)
    pool.leave(name, grace_seconds=30.0)
    run_until(pool, 40.0)
    assert not pool.workers
    assert list(pool.ready) == [0, 1]
    assert pool.killed == 1
    assert pool.next_at() == NEVER or pool.next_at() > 40.0


def test_workers_that_die_at_their_start_lease_nothing() -> None:
    pool = a_pool(ready=[1.0], world=SimulatedWorld(startup_samples=(2.0,), no_start_until=60.0))
    pool.spawn(1)
    run_until(pool, 10.0)
    assert not pool.workers
    assert [gone.code for gone in pool.take_events().gone] == [1]


def test_contention_lengthens_leases_that_begin_among_many() -> None:
    world = SimulatedWorld(startup_samples=(1.0,), contention=(0.5, 0.0))
    pool = a_pool(ready=[5.0, 5.0], world=world)
    pool.spawn(2)
    run_until(pool, 100.0)
    assert [f.ended_at for f in pool.take_events().finished] == [6.0, 6.5]


def test_tasks_to_come_are_seen_from_when_they_were_added_and_retries_are_not() -> None:
    failing = SimulatedWorld(startup_samples=(0.0,), retry_min_seconds=20.0)
    pool = a_pool(ready=[1.0, 50.0, 60.0, 90.0], added_at=[1.0, 0.0, 30.0, 0.0], failures=[1, 0, 0, 0], world=failing)
    assert pool.next_visible_at(0.0) == 1.0
    pool.spawn(1)
    run_until(pool, 20.0)
    assert (pool.delayed, pool.upcoming_seconds(45.0)) == (3, [30.0])
    run_until(pool, 45.0)
    assert pool.upcoming_seconds(20.0) == [5.0, 15.0]
    assert [pool.next_visible_at(ahead) for ahead in (0.0, 3.0, 10.0)] == [50.0, 47.0, 40.0]


def test_starts_at_the_same_time_share_the_cores() -> None:
    world = SimulatedWorld(startup_samples=(2.0,), start_cpu_seconds=1.0, cores=2)
    pool = a_pool(ready=[100.0], world=world)
    pool.spawn(3)
    pool.spawn(5)
    run_until(pool, 50.0)
    assert sorted(worker.up_at for worker in pool.workers.values() if worker.up_at) == [2.0] * 3 + [4.0] * 5

"""The samples of several queues as that of one pool: sums, waits merged by age, and what nobody knows."""

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.base.samples import LeaseSample, PresentWorker, QueueSample, RunningLease, Waiting
from orchestrator.sources.merged_samples import MAX_POSITIONS, merged, positions
from orchestrator.sources.pull_queue import QueueSource
from queue_core.client.local_calls import LocalQueues
from queue_core.clock import ManualClock
from queue_core.stores import open_store
from queue_core.task import NewTask, QueueSpec
from queue_core.unit.service import QueueService
from tests.support.fleet.fleet_builders import NOW, a_pool, a_sample

AGES = st.lists(st.integers(-100, 100).map(float), max_size=30).map(lambda ages: sorted(ages, reverse=True))
SHOP = {"app": None, "celery": {"app": "proj", "queues": ["default", "my_images"], "concurrency": 2}}


def places(ages: list[float]) -> tuple[Waiting, ...]:
    return tuple(Waiting(position, age) for position, age in enumerate(ages, start=1))


@given(st.lists(AGES, min_size=1, max_size=5))
def test_where_every_task_is_a_position_the_merged_ones_are_those_of_all_tasks(queues: list[list[float]]) -> None:
    found = positions([places(ages) for ages in queues])
    ages = sorted((age for queue in queues for age in queue), reverse=True)
    assert all(ages[place.position - 1] == place.age_seconds for place in found)
    assert (found[-1].position if found else 0) == len(ages)
    assert len(found) <= MAX_POSITIONS


@given(st.lists(AGES, min_size=1, max_size=5), st.randoms())
def test_no_task_gets_a_higher_age_than_it_has_and_the_oldest_its_own(queues: list[list[float]], dice: object) -> None:
    sparse = []
    for ages in queues:
        whole = places(ages)
        kept = [one for one in whole[1:-1] if dice.random() < 0.4]  # type: ignore[attr-defined]
        sparse.append([*whole[:1], *kept, *whole[-1:]] if len(whole) > 1 else list(whole))
    found = positions(sparse)
    ages = sorted((age for queue in queues for age in queue), reverse=True)
    assert all(place.age_seconds <= ages[place.position - 1] for place in found)
    assert [one.position for one in found] == sorted({one.position for one in found})
    assert [one.age_seconds for one in found] == sorted({one.age_seconds for one in found}, reverse=True)
    if found:
        assert found[0].age_seconds == ages[0]
        assert found[-1].position == len(ages)


def test_one_sample_is_itself() -> None:
    sample = a_sample(ages=(3.0,))
    assert merged([sample]) is sample


def test_counts_are_sums_and_a_lease_does_not_know_its_company() -> None:
    running = RunningLease("w1", 1.0, 0.5, 1, at_a_time=3)
    done = LeaseSample("w2", 1.0, 0.5, "deleted", 1, 0.2, at_a_time=2)
    one = a_sample(ages=(9.0, 1.0), running=(running,), arrivals=2)
    other = a_sample(ages=(4.0,), finished=(done,), arrivals=1)
    sample = merged([one, other])
    assert (sample.ready, sample.in_flight, sample.arrivals) == (3, 1, 3)
    assert sample.waiting == (Waiting(1, 9.0), Waiting(2, 4.0), Waiting(3, 1.0))
    assert [lease.at_a_time for lease in (*sample.running, *sample.finished)] == [0, 0]


def test_tasks_of_a_paused_queue_are_held_unless_all_are_paused() -> None:
    paused, free = a_sample(ages=(50.0, 40.0), paused=True), a_sample(ages=(2.0,))
    sample = merged([paused, free])
    assert (sample.ready, sample.held, sample.paused, sample.oldest_seconds) == (1, 2, False, 2.0)
    assert sample.held_by == "the pause of a queue"
    whole = merged([paused, a_sample(ages=(2.0,), paused=True)])
    assert (whole.ready, whole.held, whole.paused) == (3, 0, True)


def test_a_worker_is_as_present_as_at_the_queue_that_it_called_last() -> None:
    one = a_sample(presence={"w": PresentWorker("w", 7.0, waits=True)}, first_seen_seconds_ago={"w": 9.0})
    other = a_sample(presence={"w": PresentWorker("w", 1.0)}, first_seen_seconds_ago={"w": 4.0, "v": 1.0})
    sample = merged([one, other])
    assert sample.presence == {"w": PresentWorker("w", 1.0, waits=True)}
    assert sample.first_seen_seconds_ago == {"w": 9.0, "v": 1.0}


def test_a_source_takes_the_queues_of_a_pool_together_and_one_that_is_missing_for_empty() -> None:
    clock = ManualClock()
    queues = LocalQueues(QueueService(open_store("memory:"), clock=clock, jitter=lambda: 0.0))
    queues.put_queue(QueueSpec("default", lease_seconds=60))
    pool = a_pool(queue="default", **SHOP)
    source = QueueSource(queues)

    def sample() -> QueueSample:
        return source.sample(pool, workers=["w1"], now=NOW)

    queues.queue("default").add(b"first")
    assert sample().ready == 1
    queues.put_queue(QueueSpec("my--5fimages", lease_seconds=60))
    clock.advance(5)
    queues.queue("my--5fimages").add([NewTask(b"second"), NewTask(b"third")])
    assert source.wait_for_arrival([pool], timeout_seconds=0) == "resize"
    leases = [*queues.queue("default").lease(worker="w1"), *queues.queue("my--5fimages").lease(worker="w1")]
    clock.advance(1)
    found = sample()
    assert (found.ready, found.in_flight) == (1, 2)
    assert {one.queue for one in source.held_by("w1", pool)} == {"default", "my--5fimages"}
    assert not source.has_worked("w1", pool)
    queues.queue("my--5fimages").delete(leases[1])
    assert source.has_worked("w1", pool)
    assert [one.outcome for one in sample().finished] == ["deleted"]
    assert sample().finished == ()  # each is told once
    queues.close()

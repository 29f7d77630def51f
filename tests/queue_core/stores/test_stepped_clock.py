"""The wall clock is stepped while tasks are leased: no lease ends early or late, and etas follow the wall clock."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from queue_core.client.local_calls import LocalQueues
from queue_core.clock import ManualClock, SteadyClock, after, seconds_between
from queue_core.stores.memory.store import MemoryStore
from queue_core.stores.sqlite.store import SqliteStore
from queue_core.task import NewTask, QueueSpec
from queue_core.unit.service import QueueService
from tests.support.stepped_chaos import SteppedChaos

STEPS = pytest.mark.parametrize("step", [5.0, 20.0, 3_600.0, -5.0, -20.0, -3_600.0])
LEASE_SECONDS = 60.0


def a_queues(store: MemoryStore | SqliteStore) -> LocalQueues:
    queues = LocalQueues(QueueService(store, jitter=lambda: 0.0))
    queues.put_queue(QueueSpec("q", lease_seconds=LEASE_SECONDS, retry_min_seconds=0.0, retry_max_seconds=0.0))
    return queues


@pytest.fixture
def host() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["memory", "sqlite"])
def opened(request: pytest.FixtureRequest, tmp_path: Path, host: ManualClock) -> Callable[[], LocalQueues]:
    """Return a function that opens the store as another process on this host does."""
    if request.param == "memory":
        memory = MemoryStore()
        memory.clock = SteadyClock(host, boot="this")
        return lambda: a_queues(memory)
    return lambda: a_queues(SqliteStore(tmp_path / "q.db", clock=SteadyClock(host, boot="this")))


@STEPS
def test_a_lease_keeps_nine_tenths_of_its_length_and_gains_no_more_than_a_tenth(
    opened: Callable[[], LocalQueues], host: ManualClock, step: float
) -> None:
    with closing(opened()) as queues:
        queue = queues.queue("q")
        queue.add(NewTask(b"work"))
        assert len(queue.lease()) == 1
        host.advance(1.0)
        host.step(step)
        host.advance(0.9 * LEASE_SECONDS - 1.0)
        assert queue.lease() == []
        host.advance(0.2 * LEASE_SECONDS)
        assert len(queue.lease()) == 1


@STEPS
def test_the_next_process_follows_the_same_course(tmp_path: Path, host: ManualClock, step: float) -> None:
    path = tmp_path / "q.db"
    with closing(a_queues(SqliteStore(path, clock=SteadyClock(host, boot="this")))) as queues:
        queues.queue("q").add(NewTask(b"work"))
        assert len(queues.queue("q").lease()) == 1
    host.step(step)  # no process has the store open
    host.advance(0.9 * LEASE_SECONDS)
    reader = LocalQueues(QueueService(SqliteStore(path, clock=SteadyClock(host, boot="this"))))
    with closing(reader):
        assert reader.queue("q").stats().in_flight == 1
    with (
        closing(a_queues(SqliteStore(path, clock=SteadyClock(host, boot="this")))) as one,
        closing(a_queues(SqliteStore(path, clock=SteadyClock(host, boot="this")))) as other,
    ):
        assert one.queue("q").stats().in_flight == 1
        assert one.queue("q").lease() == other.queue("q").lease() == []
        host.advance(0.2 * LEASE_SECONDS)
        assert len([*one.queue("q").lease(), *other.queue("q").lease()]) == 1


def test_two_processes_notice_a_step_once(tmp_path: Path, host: ManualClock) -> None:
    clocks = [SteadyClock(host, boot="this") for _ in range(2)]
    one, other = (a_queues(SqliteStore(tmp_path / "q.db", clock=clock)) for clock in clocks)
    with closing(one), closing(other):
        host.step(20.0)
        one.queue("q").add(NewTask(b"1"))
        host.advance(10.0)
        other.queue("q").add(NewTask(b"2"))
        assert clocks[0].course == clocks[1].course
        assert clocks[0].course.steps == 1
        assert clocks[0].now() == clocks[1].now()


def test_after_a_reboot_the_wall_clock_is_all_there_is_for_a_store(tmp_path: Path, host: ManualClock) -> None:
    with closing(a_queues(SqliteStore(tmp_path / "q.db", clock=SteadyClock(host, boot="this")))):
        host.step(20.0)
    clock = SteadyClock(host, boot="next")
    with closing(a_queues(SqliteStore(tmp_path / "q.db", clock=clock))):
        assert clock.now() == host.now()
        assert clock.course.steps == 0


def test_a_lag_is_slewed_until_none_is_left(host: ManualClock) -> None:
    clock = SteadyClock(host, boot="this")
    host.step(20.0)
    course = clock.next_course()
    assert course is not None
    clock.adopt(course)
    assert clock.lag_seconds == pytest.approx(20.0)
    host.advance(125.0)
    assert clock.lag_seconds == pytest.approx(10.0)
    host.advance(1_000.0)
    assert clock.now() == host.now()
    assert clock.next_course() is None


def test_a_time_servers_slew_is_no_step(host: ManualClock) -> None:
    clock = SteadyClock(host, boot="this")
    host.step(0.05)
    assert not clock.is_stepped()
    host.step(0.06)
    assert clock.is_stepped()


def test_an_eta_that_the_wall_clock_has_reached_is_due(opened: Callable[[], LocalQueues], host: ManualClock) -> None:
    with closing(opened()) as queues:
        queue = queues.queue("q")
        queue.add(NewTask(b"at one", eta=after(host.now(), 3_600.0)))
        queue.add(NewTask(b"at two", eta=after(host.now(), 7_200.0)))
        queue.add(NewTask(b"leased"))
        assert [lease.payload for lease in queue.lease()] == [b"leased"]
        host.step(3_600.0)
        host.advance(1.0)
        (lease,) = queue.lease(5)
        assert lease.payload == b"at one"
        assert lease.waited_seconds < 1.0


@pytest.mark.parametrize("seed", range(4))
def test_random_steps_make_no_double_lease_and_lose_nothing(tmp_path: Path, host: ManualClock, seed: int) -> None:
    def process() -> LocalQueues:
        return a_queues(SqliteStore(tmp_path / "q.db", durability="relaxed", clock=SteadyClock(host, boot="this")))

    chaos = SteppedChaos(process, host, Random(seed), lease_seconds=LEASE_SECONDS)
    chaos.run(calls=1_500, steps=60)
    assert len(chaos.done) == chaos.added > 0


def test_a_clock_that_was_never_stepped_is_the_hosts(host: ManualClock) -> None:
    clock = SteadyClock(host, boot="this")
    host.advance(86_400.0)
    assert seconds_between(host.now(), clock.now()) == 0.0

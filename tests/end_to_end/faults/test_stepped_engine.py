"""The clock of a shared engine is stepped: two processes and one that opens the store later go on alike."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from random import Random

import pytest

from queue_core.client.local_calls import LocalQueues
from queue_core.clock import MICROSECONDS, Instant, microseconds_since_boot
from queue_core.stores.postgres.store import PostgresStore
from queue_core.stores.redis.store import RedisStore
from queue_core.stores.remote_clock import STALE_SECONDS, ClockRecord, RemoteClock
from queue_core.task import NewTask, QueueSpec
from queue_core.unit.service import QueueService
from tests.support.stepped_chaos import SteppedChaos
from tests.support.stores.engines import EngineUnavailableError
from tests.support.stores.shared_engines import SharedEngines

LEASE_SECONDS = 60.0


@dataclass
class Machines:
    """The engine's machine, whose wall clock is stepped, and that of our processes; time passes at once on both."""

    passed: int = 0
    stepped: int = 0

    def advance(self, seconds: float) -> None:
        self.passed += round(seconds * MICROSECONDS)

    def monotonic(self) -> float:
        return self.passed / MICROSECONDS

    def step(self, seconds: float) -> None:
        self.stepped += round(seconds * MICROSECONDS)


class SteppedEngineClock(RemoteClock):
    """The store's clock as it is when the engine's machine is stepped."""

    def __init__(self, machines: Machines) -> None:
        super().__init__(since_boot=lambda: microseconds_since_boot() + machines.passed)
        self._machines = machines

    def observe(self, store_now: Instant, *, sent_at: int, received_at: int, record: ClockRecord | None = None) -> None:
        told = Instant(store_now + self._machines.passed + self._machines.stepped)
        super().observe(told, sent_at=sent_at, received_at=received_at, record=record)


Opened = Callable[[], LocalQueues]


@pytest.fixture
def machines() -> Machines:
    return Machines()


@pytest.fixture(params=["postgresql", "redis"])
def opened(request: pytest.FixtureRequest, shared_engines: SharedEngines, machines: Machines) -> Opened:
    """Return a function that opens the store as another process does."""
    try:
        url = shared_engines.new_url(request.param)
    except EngineUnavailableError as error:
        pytest.skip(str(error))

    def open_it() -> LocalQueues:
        clock = SteppedEngineClock(machines)
        store = PostgresStore(url, clock=clock) if url.startswith("postgres") else RedisStore(url, clock=clock)
        queues = LocalQueues(QueueService(store, jitter=lambda: 0.0))
        queues.put_queue(QueueSpec("q", lease_seconds=LEASE_SECONDS, retry_min_seconds=0.0, retry_max_seconds=0.0))
        return queues

    return open_it


@contextmanager
def _two(opened: Opened) -> Iterator[tuple[LocalQueues, LocalQueues]]:
    with closing(opened()) as one, closing(opened()) as other:
        yield one, other


@pytest.mark.parametrize("step", [5.0, 20.0, 3_600.0, -3_600.0])
def test_a_lease_keeps_its_length_for_processes_of_before_and_after_the_step(
    opened: Opened, machines: Machines, step: float
) -> None:
    with _two(opened) as (one, other):
        one.queue("q").add(NewTask(b"work"))
        (lease,) = one.queue("q").lease()
        machines.step(step)
        machines.advance(STALE_SECONDS + 1.0)
        assert one.queue("q").lease() == other.queue("q").lease() == []
        with closing(opened()) as late:
            assert late.queue("q").lease() == []
            machines.advance(0.9 * LEASE_SECONDS - STALE_SECONDS - 1.0)
            assert [each.queue("q").lease() for each in (late, one, other)] == [[], [], []]
            machines.advance(0.2 * LEASE_SECONDS)
            (again,) = late.queue("q").lease()
            assert again.name == lease.name
            assert one.queue("q").lease() == other.queue("q").lease() == []


def test_the_store_keeps_the_step_after_every_process_has_ended(opened: Opened, machines: Machines) -> None:
    with closing(opened()) as one:
        one.queue("q").add(NewTask(b"work"))
        assert len(one.queue("q").lease(seconds=600.0)) == 1
        machines.step(3_600.0)
        machines.advance(STALE_SECONDS + 1.0)
        assert one.queue("q").stats().in_flight == 1
    with closing(opened()) as later:
        assert later.queue("q").stats().in_flight == 1
        assert later.queue("q").lease() == []


def test_random_steps_make_no_double_lease_and_lose_nothing(opened: Opened, machines: Machines) -> None:
    chaos = SteppedChaos(opened, machines, Random(1), lease_seconds=LEASE_SECONDS)
    chaos.run(calls=1_000, steps=40)
    assert len(chaos.done) == chaos.added > 0

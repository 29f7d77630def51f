"""A server whose host's clock is stepped: leases go on, etas follow the wall clock, and the step is told."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from urllib.request import urlopen

import pytest
from structlog.testing import capture_logs

from queue_core.clock import SteadyClock, after
from queue_core.stores.memory.store import MemoryStore
from queue_core.stores.sqlite.store import SqliteStore
from queue_core.task import NewTask
from tests.support.eventually import eventually
from tests.support.servers import QUEUE, a_server
from tests.support.stepped_host import SteppedHost

SOON_SECONDS = 20.0
STEPS = pytest.mark.parametrize("step", [5.0, 20.0, 3_600.0, -3_600.0])


@pytest.fixture
def host() -> SteppedHost:
    return SteppedHost()


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path, host: SteppedHost) -> Iterator[MemoryStore | SqliteStore]:
    clock = SteadyClock(host, boot="this")
    if request.param == "memory":
        memory = MemoryStore()
        memory.clock = clock
        yield memory
        return
    with closing(SqliteStore(tmp_path / "q.db", clock=clock)) as file:
        yield file


@STEPS
def test_a_lease_outlives_a_step(store: MemoryStore | SqliteStore, host: SteppedHost, step: float) -> None:
    with a_server(store) as server, closing(server.queues()) as queues:
        queue = queues.queue(QUEUE)
        queue.add(NewTask(b"work"))
        (lease,) = queue.lease(seconds=600.0)
        host.step(step)
        assert queue.lease() == []
        queue.renew([lease], seconds=600.0)
        host.step(step)
        assert queue.lease() == []
        queue.delete([lease])
        assert queue.stats().in_flight == 0


def test_a_caller_that_waits_gets_a_task_whose_eta_the_wall_clock_was_stepped_over(
    store: MemoryStore | SqliteStore, host: SteppedHost
) -> None:
    with a_server(store) as server, closing(server.queues()) as queues, ThreadPoolExecutor(1) as pool:
        queue = queues.queue(QUEUE)
        queue.add(NewTask(b"later", eta=after(host.now(), 1_800.0)))
        call = pool.submit(queue.lease, wait_seconds=SOON_SECONDS)
        eventually(lambda: server.waiting() == 1)
        host.step(3_600.0)
        (lease,) = call.result(SOON_SECONDS)
        assert lease.payload == b"later"
        assert lease.waited_seconds < SOON_SECONDS


def test_a_step_is_told_while_nobody_calls(store: MemoryStore | SqliteStore, host: SteppedHost) -> None:
    with capture_logs() as told, a_server(store) as server:
        host.step(3_600.0)

        def event() -> bool:
            return any(each["event"] == "clock.stepped" for each in told)

        eventually(event)
        (entry,) = [each for each in told if each["event"] == "clock.stepped"]
        assert entry["step_seconds"] == pytest.approx(3_600.0, abs=1.0)
        assert entry["log_level"] == "warning"
        assert entry["sentence"].startswith("The clock was stepped forward by 1 h: the store's time is 1 h behind it")
        with urlopen(f"{server.url}/metrics") as answer:
            text = answer.read().decode()
    assert "towline_clock_steps_total 1.0" in text
    assert "towline_clock_lag_seconds 3" in text

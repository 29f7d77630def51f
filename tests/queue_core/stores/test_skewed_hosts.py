"""A host whose clock is an hour off: the store's clock decides, and nothing the host does or tells is different."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import cast

import pytest

from orchestrator.base.clock import SystemMonotonicClock as FleetClock
from orchestrator.sources.pull_queue import QueueSource
from queue_core.client.local_calls import LocalQueues
from queue_core.client.queue import Queue, Queues
from queue_core.clock import Instant, SystemClock, after, seconds_between
from queue_core.stores.memory.store import MemoryStore
from queue_core.task import Lease, NewTask, QueueSpec
from queue_core.unit.service import QueueService
from queue_core.verbs import Renewal
from queue_core.worker.app import App
from queue_core.worker.context import Task
from tests.support.commands import Commands
from tests.support.eventually import eventually
from tests.support.fleet.fleet_builders import a_pool
from tests.support.fleet.workers import running_worker
from tests.support.servers import QUEUE, a_server
from tests.support.stores.remote_memory import RemoteMemory

HOUR_SECONDS = 3600.0
SOON_SECONDS = 20.0


class StoreClock(SystemClock):
    """The store's clock, seen from a host whose own is an hour off."""

    def __init__(self, ahead_seconds: float) -> None:
        self._ahead_seconds = ahead_seconds

    def now(self) -> Instant:
        return after(super().now(), self._ahead_seconds)


@pytest.fixture(params=[HOUR_SECONDS, -HOUR_SECONDS], ids=["host behind", "host ahead"])
def store(request: pytest.FixtureRequest) -> RemoteMemory:
    memory = MemoryStore()
    memory.clock = StoreClock(request.param)
    return RemoteMemory(memory)


@contextmanager
def _queues(store: RemoteMemory, way: str) -> Iterator[Queues]:
    if way == "library":
        queues = LocalQueues(QueueService(store))
        queues.put_queue(QueueSpec(QUEUE))
        yield queues
        return
    with a_server(store) as server, closing(server.queues()) as over_http:
        yield over_http


ways = pytest.mark.parametrize("way", ["server", "library"])


@ways
def test_an_eta_ends_a_wait_when_the_store_says_so(store: RemoteMemory, way: str) -> None:
    with _queues(store, way) as queues, ThreadPoolExecutor(1) as pool:
        queue = queues.queue(QUEUE)
        call = pool.submit(queue.lease, wait_seconds=SOON_SECONDS)
        queue.add(NewTask(b"later", delay_seconds=0.2))
        (lease,) = call.result(SOON_SECONDS)
        assert lease.leased_at >= lease.ready_at
        assert lease.waited_seconds < SOON_SECONDS


def test_a_worker_renews_its_leases(store: RemoteMemory) -> None:
    app = App()
    with _queues(store, "library") as queues:
        queues.put_queue(QueueSpec("q", lease_seconds=0.4, max_lease_seconds=HOUR_SECONDS))
        queue = queues.queue("q")
        renewals: list[float] = []

        class Counting:
            def __getattr__(self, verb: str) -> object:
                return getattr(queue, verb)

            def renew(self, leases: list[str], **settings: object) -> object:
                renewals.append(cast("float", settings["seconds"]))
                return queue.renew(leases, **settings)  # type: ignore[arg-type]

        @app.task(queue="q")
        def work(task: Task) -> None:
            eventually(lambda: task.check() or len(renewals) > 4)

        queue.add(b"x")
        with running_worker(app, lambda _name: cast("Queue", Counting())):
            eventually(lambda: queue.stats().deleted_total == 1)
        assert set(renewals) == {0.4}
        assert (queue.stats().leased_total, queue.stats().expired_total) == (1, 0)


class LaggingClock(SystemClock):
    """Tells once what time it was a while ago, as if the call that asked had been under way since."""

    def __init__(self) -> None:
        self.lag_seconds = 0.0

    def now(self) -> Instant:
        lag_seconds, self.lag_seconds = self.lag_seconds, 0.0
        return after(super().now(), -lag_seconds)


@ways
@pytest.mark.parametrize("lag_seconds", [HOUR_SECONDS / 2, 2 * HOUR_SECONDS], ids=["half over", "expired"])
def test_a_lease_that_is_told_long_after_it_was_granted_has_its_whole_time_ahead(way: str, lag_seconds: float) -> None:
    clock = LaggingClock()
    memory = MemoryStore()
    memory.clock = clock
    with _queues(RemoteMemory(memory), way) as queues:
        queue = queues.queue(QUEUE)
        queue.add(b"x")
        clock.lag_seconds = lag_seconds
        (lease,) = queue.lease(seconds=HOUR_SECONDS)
        assert seconds_between(clock.now(), lease.expires_at) > HOUR_SECONDS - SOON_SECONDS
        assert queue.stats().in_flight == 1
        queue.delete(lease)


@ways
def test_a_supervisor_sees_true_ages(store: RemoteMemory, way: str) -> None:
    with _queues(store, way) as queues:
        queue = queues.queue(QUEUE)
        queue.add([NewTask(b"held"), NewTask(b"waits")])
        queue.lease(worker="w")
        sample = QueueSource(queues).sample(a_pool(queue=QUEUE), workers=["w"], now=FleetClock().monotonic())
        assert [lease.held_seconds < SOON_SECONDS for lease in sample.running] == [True]
        assert [task.age_seconds < SOON_SECONDS for task in sample.waiting] == [True]
        assert sample.first_seen_seconds_ago["w"] < SOON_SECONDS


def test_a_command_tells_true_ages(
    store: RemoteMemory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: object
) -> None:
    with a_server(store) as server:
        queue = server.queue()
        queue.add(b"x")
        queue.close()
        told = Commands(tmp_path, capsys)("stats", QUEUE, "--url", server.url, "--json")  # type: ignore[arg-type]
        assert cast("dict[str, float]", told.json)["oldest_ready_seconds"] < SOON_SECONDS


def test_a_lease_of_unknown_length_is_renewed_at_once() -> None:
    queues = LocalQueues(QueueService(MemoryStore()))
    queues.put_queue(QueueSpec("q", lease_seconds=0.5, max_lease_seconds=HOUR_SECONDS))
    queue = queues.queue("q")
    asked: list[float] = []

    class SteppedBack:
        """The store's clock went back an hour between two grants of a task, whose tokens rise nevertheless."""

        def __getattr__(self, verb: str) -> object:
            return getattr(queue, verb)

        def exchange(self, *arguments: object, **settings: object) -> tuple[list[Lease], tuple[str, ...]]:
            leases, lost = queue.exchange(*arguments, **settings)  # type: ignore[arg-type]
            return [replace(lease, expires_at=after(lease.leased_at, -HOUR_SECONDS)) for lease in leases], lost

        def renew(self, leases: list[str | Renewal], **settings: object) -> object:
            asked.extend(one.seconds or 0.0 for one in leases if isinstance(one, Renewal))
            asked.extend([cast("float", settings["seconds"])] if "seconds" in settings else [])
            return queue.renew(leases, **settings)  # type: ignore[arg-type]

    app = App()

    @app.task(queue="q")
    def work(task: Task) -> None:
        eventually(lambda: task.check() or asked)

    queue.add(b"x")
    with running_worker(app, lambda _name: cast("Queue", SteppedBack())):
        eventually(lambda: queue.stats().deleted_total == 1)
    assert asked[0] >= 1.0
    assert queue.stats().expired_total == 0

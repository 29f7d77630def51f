"""The loop of async handlers: when it is ended, blocked or closed, its worker gives back what it holds and ends."""

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest
from structlog.testing import capture_logs

from queue_core.client.local_calls import LocalQueue, LocalQueues
from queue_core.task import NewTask
from queue_core.worker import events
from queue_core.worker.app import App
from queue_core.worker.context import Task
from queue_core.worker.lifecycle import EXIT_HUNG, EXIT_LOOP_ENDED
from tests.support.eventually import eventually, eventually_async
from tests.support.fleet.workers import memory_queues, running_worker


@pytest.fixture
def store() -> Iterator[tuple[LocalQueues, LocalQueue]]:
    queues, queue = memory_queues(lease_seconds=0.6, max_lease_seconds=3600.0)
    yield queues, queue
    queues.close()


async def in_a_bare_task(error: type[BaseException]) -> None:
    child = asyncio.create_task(raises(error))
    await asyncio.sleep(3600)
    await child


async def in_a_task_group(error: type[BaseException]) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(raises(error))
        await asyncio.sleep(3600)


async def in_a_callback(error: type[BaseException]) -> None:
    def fail() -> None:
        raise error

    asyncio.get_running_loop().call_soon(fail)
    await asyncio.sleep(3600)


async def raises(error: type[BaseException]) -> None:
    await asyncio.sleep(0)
    raise error("secret of a payload")


@pytest.mark.parametrize("how", [in_a_bare_task, in_a_task_group, in_a_callback])
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_a_worker_whose_loop_a_child_task_ended_gives_its_leases_back_and_ends(
    store: tuple[LocalQueues, LocalQueue],
    how: Callable[[type[BaseException]], "asyncio.Future[None]"],
    error: type[BaseException],
) -> None:
    queues, queue = store
    app, started = App(), threading.Semaphore(0)

    @app.task(queue="q")
    async def handle(task: Task) -> None:
        started.release()
        await asyncio.sleep(3600)

    @app.task(queue="q", tag="bad")
    async def end_the_loop(task: Task) -> None:
        await how(error)

    good = [added.name for added in queue.add([NewTask(b"x") for _ in range(3)])]
    with capture_logs() as logs, running_worker(app, queues.queue, concurrency=4) as worker:
        for _ in good:
            assert started.acquire(timeout=5)
        queue.add([NewTask(b"secret of a payload", name="bad", tag="bad")])
        assert worker.wait() == EXIT_LOOP_ENDED
    assert not worker.runner.is_abandoned
    numbers = {lease.name: lease.lease_number for lease in queue.lease(count=10)}
    assert numbers == {"bad": 2, **dict.fromkeys(good, 1)}
    (failure,) = [entry for entry in logs if entry["event"] == events.LOOP_FAILED and entry["log_level"] == "error"]
    assert error.__name__ in failure["reason"]
    assert "end_the_loop" in failure["reason"]
    assert "test_loop.py" in failure["traceback"]
    assert "secret" not in str(logs)


def test_the_other_handlers_of_a_loop_that_was_ended_clean_up(store: tuple[LocalQueues, LocalQueue]) -> None:
    queues, queue = store
    app, ends, started = App(), [], threading.Event()

    @app.task(queue="q")
    async def handle(task: Task) -> None:
        started.set()
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0.01)
            ends.append("cleaned up")

    @app.task(queue="q", tag="bad")
    async def end_the_loop(task: Task) -> None:
        await in_a_bare_task(SystemExit)

    queue.add(b"x")
    with running_worker(app, queues.queue, concurrency=2) as worker:
        assert started.wait(5)
        queue.add([NewTask(b"x", tag="bad")])
        assert worker.wait() == EXIT_LOOP_ENDED
    assert ends == ["cleaned up"]


def test_a_loop_that_a_handler_stops_goes_on(store: tuple[LocalQueues, LocalQueue]) -> None:
    queues, queue = store
    app = App()

    @app.task(queue="q")
    async def handle(task: Task) -> None:
        asyncio.get_running_loop().stop()
        await asyncio.sleep(0.01)

    queue.add([NewTask(b"x"), NewTask(b"y")])
    with capture_logs() as logs, running_worker(app, queues.queue):
        eventually(lambda: queue.stats().deleted_total == 2)
    assert events.LOOP_STOPPED in [entry["event"] for entry in logs]


def test_a_worker_whose_loop_is_blocked_says_where_gives_its_leases_back_and_ends(
    store: tuple[LocalQueues, LocalQueue],
) -> None:
    queues, queue = store
    app, blocked, finish = App(), threading.Event(), threading.Event()

    @app.task(queue="q")
    async def waits(task: Task) -> None:
        await asyncio.sleep(3600)

    @app.task(queue="q", tag="blocks")
    async def blocks(task: Task) -> None:
        blocked.set()
        finish.wait(20)

    queue.add([NewTask(b"x", name="good")])
    with capture_logs() as logs, running_worker(app, queues.queue, concurrency=2, blocked_seconds=0.7) as worker:
        eventually(lambda: queue.stats().in_flight == 1)
        queue.add([NewTask(b"x", name="bad", tag="blocks")])
        assert blocked.wait(5)
        assert worker.wait() == EXIT_HUNG
        assert worker.runner.is_abandoned
        finish.set()
    assert {lease.name: lease.lease_number for lease in queue.lease(count=10)} == {"good": 1, "bad": 2}
    told = [entry for entry in logs if entry["event"] == events.LOOP_BLOCKED]
    assert [entry["log_level"] for entry in told] == ["warning", "error", "info"]
    assert "in blocks" in told[0]["stack"]
    assert told[1]["tasks"] == ["bad"]


def test_a_loop_that_stands_for_less_than_its_lease_is_left_alone(store: tuple[LocalQueues, LocalQueue]) -> None:
    queues, queue = store
    app = App()

    @app.task(queue="q")
    async def blocks(task: Task) -> None:
        eventually(lambda: events.LOOP_BLOCKED in [entry["event"] for entry in logs])  # blocks the loop meanwhile

    queue.add(b"x")
    with capture_logs() as logs, running_worker(app, queues.queue, blocked_seconds=0.1):
        eventually(lambda: queue.stats().deleted_total == 1)
    assert [entry["log_level"] for entry in logs if entry["event"] == events.LOOP_BLOCKED] == ["warning"]
    assert queue.stats().leased_total == 1


def test_a_plain_handler_that_takes_its_time_is_no_blocked_loop(store: tuple[LocalQueues, LocalQueue]) -> None:
    queues, queue = store
    app, turns = App(), []

    @app.task(queue="q", tag="plain")
    def plain(task: Task) -> None:
        eventually(lambda: len(turns) > 100 or sum(range(10_000)) < 0)

    @app.task(queue="q")
    async def turning(task: Task) -> None:
        while len(turns) <= 100:
            turns.append(None)
            await asyncio.sleep(0.01)

    queue.add([NewTask(b"x", tag="plain"), NewTask(b"x")])
    with capture_logs() as logs, running_worker(app, queues.queue, concurrency=2, blocked_seconds=0.7):
        eventually(lambda: queue.stats().deleted_total == 2)
    assert events.LOOP_BLOCKED not in [entry["event"] for entry in logs]


def test_an_async_handler_is_cancelled_once_at_the_end_of_the_grace_and_may_clean_up(
    store: tuple[LocalQueues, LocalQueue],
) -> None:
    queues, queue = store
    app, ends, started = App(), [], threading.Event()

    @app.task(queue="q")
    async def handle(task: Task) -> None:
        started.set()
        try:
            await asyncio.sleep(3600)
        finally:
            for step in range(5):
                await asyncio.sleep(0.01)
                ends.append(step)

    queue.add(b"x")
    with running_worker(app, queues.queue, grace_seconds=0.05) as worker:
        assert started.wait(5)
        worker.runner.drain("SIGTERM")
        assert worker.wait() == 0
    assert ends == [0, 1, 2, 3, 4]
    assert not worker.runner.is_abandoned


def test_a_clean_up_that_takes_too_long_is_cut_and_logged(store: tuple[LocalQueues, LocalQueue]) -> None:
    queues, queue = store
    app, started, finish = App(), threading.Event(), threading.Event()

    @app.task(queue="q")
    async def handle(task: Task) -> None:
        started.set()
        try:
            await asyncio.sleep(3600)
        finally:
            await eventually_async(finish.is_set)

    queue.add(b"x")
    with capture_logs() as logs, running_worker(app, queues.queue, grace_seconds=0.05) as worker:
        assert started.wait(5)
        worker.runner.drain("SIGTERM")
        assert worker.wait() == 0
        assert worker.runner.is_abandoned
        finish.set()
    (stuck,) = [entry for entry in logs if entry["event"] == events.HANDLER_STUCK]
    assert "handle" in stuck["handlers"][0]

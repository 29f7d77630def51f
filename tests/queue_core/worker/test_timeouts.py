"""Handlers that run beyond their timeout: cancelled, or left with their worker replaced; their tasks come back."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from queue_core.client.local_calls import LocalQueue, LocalQueues
from queue_core.clock import ManualClock
from queue_core.log import get_logger
from queue_core.task import ANY, NewTask, QueueSpec, StoredTask, TaskState
from queue_core.testing import MemoryQueues, run_until_empty
from queue_core.worker import events
from queue_core.worker.app import App
from queue_core.worker.context import Backoff, Dead, Retry, Task, Timeout
from queue_core.worker.invocation import Invocation
from queue_core.worker.lease_client import LeaseClient, QueueClients
from queue_core.worker.lifecycle import EXIT_TIMED_OUT, WorkerLifecycle
from queue_core.worker.log_context import LogContext
from queue_core.worker.renewals import Renewals
from queue_core.worker.settings import WorkerSettings
from queue_core.worker.timeouts import Timeouts
from tests.support.eventually import eventually, eventually_async
from tests.support.fleet.worker_process import worker_on_one_task
from tests.support.fleet.workers import memory_queues, running_worker

HERE = "tests/queue_core/worker/test_timeouts.py"
SOON = 0.05
"""A timeout that a handler which never ends soon reaches."""


@pytest.fixture
def store() -> Iterator[tuple[LocalQueues, LocalQueue]]:
    queues, queue = memory_queues(retry_min_seconds=3600.0, retry_max_seconds=3600.0)
    yield queues, queue
    queues.close()


def the_task(queue: LocalQueue, name: str) -> StoredTask:
    (task,) = [task for task in queue.peek(states=frozenset(TaskState)).tasks if task.name == name]
    return task


def test_an_async_handler_is_cancelled_and_its_worker_goes_on(store: tuple[LocalQueues, LocalQueue]) -> None:
    queues, queue = store
    app, ends = App(), []

    async def wait_long() -> None:
        await asyncio.sleep(3600)

    @app.task(queue="q", timeout=SOON)
    async def handle(task: Task) -> None:
        if task.tag is None:
            try:
                await wait_long()
            finally:
                ends.append("cleaned up")

    queue.add([NewTask(name="slow")])
    with capture_logs() as logs, running_worker(app, queues.queue):
        eventually(lambda: queue.stats().delayed == 1)
        queue.add([NewTask(name="next", tag="quick")])
        eventually(lambda: queue.stats().deleted_total == 1)
    (attempt,) = the_task(queue, "slow").attempts
    assert (attempt.outcome, attempt.error) == ("timed_out", "Timeout")
    assert attempt.message.startswith(f"it ran for more than {SOON:g} s, it was at {HERE}:")
    assert "in wait_long <" in attempt.message
    assert attempt.place == f"{HERE}:{wait_long.__code__.co_firstlineno + 1}"
    assert attempt.error_path == f"{Timeout.__module__}.Timeout"
    stack = attempt.traceback.splitlines()
    assert stack[0] == "Traceback (most recent call last):"
    assert (HERE in stack[1], stack[1].endswith("in handle")) == (True, True)
    assert any(line.endswith(f"line {wait_long.__code__.co_firstlineno + 1}, in wait_long") for line in stack)
    assert stack[-1] == f"{attempt.error_path}: it ran for more than {SOON:g} s"
    assert ends == ["cleaned up"]
    (logged,) = [entry for entry in logs if entry["event"] == events.HANDLER_TIMED_OUT]
    assert (logged["log_level"], logged["task"], logged["place"]) == ("error", "slow", attempt.place)


@pytest.mark.parametrize("how", ["returns", "raises", "lets it out"])
def test_however_a_cancelled_handler_ends_it_timed_out(store: tuple[LocalQueues, LocalQueue], how: str) -> None:
    queues, queue = store
    app = App()

    @app.task(queue="q", timeout=SOON, on={Timeout: Dead("too slow")})
    async def handle(task: Task) -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            if how == "raises":
                raise ValueError("of the clean-up") from None
            if how == "lets it out":
                raise

    queue.add([NewTask(name="slow")])
    with running_worker(app, queues.queue):
        eventually(lambda: queue.stats().dead == 1)
    task = the_task(queue, "slow")
    assert (task.reason, [one.outcome for one in task.attempts]) == ("too slow", ["timed_out"])


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_timeout_may_have_its_own_retry(store: tuple[LocalQueues, LocalQueue], kind: str) -> None:
    queues, queue = store
    app, finish = App(), threading.Event()

    def plain(task: Task) -> None:
        finish.wait(30)

    async def handle(task: Task) -> None:
        await asyncio.sleep(3600)

    app.task(queue="q", timeout=SOON, on={Timeout: Retry("2h")})(plain if kind == "plain" else handle)
    queue.add([NewTask(name="slow")])
    with capture_logs() as logs, running_worker(app, queues.queue):
        eventually(lambda: queue.stats().delayed == 1)
        finish.set()
    task = the_task(queue, "slow")
    assert (task.eta - task.attempts[0].ended_at, task.leases) == (7_200_000_000, 0)
    assert [one.outcome for one in task.attempts] == ["timed_out"]
    timed_out = [entry for entry in logs if entry["event"] == events.HANDLER_TIMED_OUT]
    assert {entry["log_level"] for entry in timed_out} == {"info"}
    assert [entry["again_seconds"] for entry in timed_out if "task" in entry] == [7200.0]


def test_all_tasks_of_a_batch_time_out_and_back_off_as_their_handler_says(
    store: tuple[LocalQueues, LocalQueue],
) -> None:
    queues, queue = store
    app = App()

    @app.task(queue="q", batch=3, timeout=SOON, retry=Backoff(0, 0, attempts=1))
    async def handle(tasks: list[Task]) -> None:
        await asyncio.sleep(3600)

    queue.add([NewTask(b"x") for _ in range(3)])
    with running_worker(app, queues.queue):
        eventually(lambda: queue.stats().dead == 3)
    tasks = queue.peek(states=frozenset({TaskState.DEAD})).tasks
    assert {one.outcome for task in tasks for one in task.attempts} == {"timed_out"}
    assert {task.reason for task in tasks} == {tasks[0].attempts[0].text}


def stand(finish: threading.Event) -> None:
    finish.wait(30)


def test_a_plain_handler_is_left_and_its_worker_ends(store: tuple[LocalQueues, LocalQueue]) -> None:
    queues, queue = store
    app, finish, ends = App(), threading.Event(), []

    @app.task(queue="q", timeout=SOON)
    def handle(task: Task) -> NewTask:
        stand(finish)
        ends.append(task.lost)
        return NewTask(b"too late")

    queue.add([NewTask(name="slow"), NewTask(name="waits")])
    with capture_logs() as logs, running_worker(app, queues.queue) as worker:
        assert worker.wait() == EXIT_TIMED_OUT
        assert worker.runner.is_abandoned
        (attempt,) = the_task(queue, "slow").attempts
        finish.set()
        eventually(lambda: ends == [True])
    assert (attempt.outcome, attempt.error) == ("timed_out", "Timeout")
    assert attempt.place == f"{HERE}:{stand.__code__.co_firstlineno + 1}"
    assert the_task(queue, "waits").leases == 0
    assert (queue.stats().added_total, queue.stats().deleted_total) == (2, 0)
    ended = [entry for entry in logs if entry["event"] == events.HANDLER_TIMED_OUT]
    assert [entry["log_level"] for entry in ended] == ["error", "info"]
    assert attempt.place in ended[1]["reason"]
    assert events.LEASE_LOST not in [entry["event"] for entry in logs]


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_the_other_tasks_of_a_worker_that_is_replaced_are_finished(
    store: tuple[LocalQueues, LocalQueue], kind: str
) -> None:
    queues, queue = store
    app, finish, go_on = App(), threading.Event(), threading.Event()

    @app.task(queue="q", tag="slow", timeout=SOON)
    def slow(task: Task) -> None:
        finish.wait(30)

    @app.task(queue="q")
    def other(task: Task) -> None:
        go_on.wait(30)

    async def slow_async(task: Task) -> None:
        while not finish.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await eventually_async(finish.is_set, seconds=30)

    async def other_async(task: Task) -> None:
        await eventually_async(go_on.is_set, seconds=30)

    if kind == "async":
        app = App()
        app.task(queue="q", tag="slow", timeout=SOON)(slow_async)
        app.task(queue="q")(other_async)
    queue.add([NewTask(name="good"), NewTask(name="slow", tag="slow")])
    with running_worker(app, queues.queue, concurrency=2, clean_up_seconds=SOON) as worker:
        eventually(lambda: queue.stats().delayed == 1)
        queue.add([NewTask(name="next")])
        assert (queue.stats().in_flight, worker.code) == (1, None)
        go_on.set()
        assert worker.wait() == EXIT_TIMED_OUT
        assert worker.runner.is_abandoned
        assert queue.stats().deleted_total == 1
        finish.set()
    assert [one.outcome for one in the_task(queue, "slow").attempts] == ["timed_out"]
    assert the_task(queue, "next").leases == 0


def test_a_call_is_ended_at_its_timeout_not_before(store: tuple[LocalQueues, LocalQueue]) -> None:
    _, queue = store
    app, clock = App(), ManualClock()
    app.task(queue="q", timeout="30s")(print)
    queue.add(b"x")
    lifecycle = WorkerLifecycle(WorkerSettings("tests:app"), queue="q", clock=clock, log=get_logger())
    renewals = Renewals(queue, lifecycle)
    clients = QueueClients(queue)
    timeouts = Timeouts(lifecycle, renewals, lambda: LeaseClient(clients, lifecycle, tags=ANY))
    handler = app.handler("q", None)
    assert handler is not None
    invocation = Invocation(handler, queue.lease(seconds=60.0), started_at=clock.monotonic())
    timeouts.track(invocation)
    clock.advance(29.9)
    timeouts.end_due()
    assert (timeouts.left(), queue.stats().in_flight) == (0, 1)
    clock.advance(0.1)
    with capture_logs():
        timeouts.end_due()
    assert (timeouts.left(), timeouts.unreleased(), queue.stats().in_flight) == (1, 0, 0)
    assert timeouts.untrack(invocation)
    assert timeouts.left() == 0


def test_a_call_that_ended_in_time_is_left_alone(store: tuple[LocalQueues, LocalQueue]) -> None:
    _, queue = store
    app, clock = App(), ManualClock()
    app.task(queue="q", timeout="30s")(print)
    queue.add(b"x")
    lifecycle = WorkerLifecycle(WorkerSettings("tests:app"), queue="q", clock=clock, log=get_logger())
    timeouts = Timeouts(lifecycle, Renewals(queue, lifecycle), lambda: pytest.fail("nothing is to be released"))
    handler = app.handler("q", None)
    assert handler is not None
    invocation = Invocation(handler, queue.lease(seconds=60.0), started_at=clock.monotonic())
    timeouts.track(invocation)
    assert not timeouts.untrack(invocation)
    clock.advance(3600.0)
    timeouts.end_due()
    assert invocation.returned(invocation.run(LogContext("w")))[0].task is invocation.tasks[0]


def test_a_call_whose_lease_ended_before_its_timeout_is_left_too(store: tuple[LocalQueues, LocalQueue]) -> None:
    _, queue = store
    app, clock = App(), ManualClock()
    app.task(queue="q", timeout="30s")(print)
    queue.add(b"x")
    lifecycle = WorkerLifecycle(WorkerSettings("tests:app"), queue="q", clock=clock, log=get_logger())
    timeouts = Timeouts(lifecycle, Renewals(queue, lifecycle), lambda: pytest.fail("nothing is to be released"))
    handler = app.handler("q", None)
    assert handler is not None
    invocation = Invocation(handler, queue.lease(seconds=60.0), started_at=clock.monotonic())
    timeouts.track(invocation)
    invocation.tasks[0].mark_lost("it reached the queue's max_lease")
    clock.advance(30.0)
    with capture_logs() as logs:
        timeouts.end_due()
    assert (timeouts.left(), timeouts.unreleased()) == (1, 0)
    ending = lifecycle.next_end_request(timeout_seconds=0.0)
    assert ending is not None
    assert ending.code == EXIT_TIMED_OUT
    assert [entry["event"] for entry in logs] == [events.HANDLER_TIMED_OUT]


def test_no_hook_waits_for_a_loop_that_is_blocked(store: tuple[LocalQueues, LocalQueue]) -> None:
    queues, queue = store
    app, finish, ends = App(), threading.Event(), []

    @app.task(queue="q", timeout=SOON)
    async def block(task: Task) -> None:
        finish.wait(30)

    @app.on_stop
    async def say_goodbye() -> None:
        ends.append("never")

    @app.on_stop
    def count() -> None:
        ends.append("counted")

    queue.add([NewTask(name="slow")])
    with (
        capture_logs() as logs,
        running_worker(app, queues.queue, clean_up_seconds=SOON, grace_seconds=3600.0) as worker,
    ):
        assert worker.wait() == EXIT_TIMED_OUT
        finish.set()
    assert ends == ["counted"]
    assert [(entry["hook"], entry["error"]) for entry in logs if entry["event"] == events.HOOK_FAILED] == [
        (f"on_stop {say_goodbye.__qualname__}", "TimeoutError")
    ]


def test_the_process_ends_although_the_handler_that_was_left_still_runs(tmp_path: Path) -> None:
    program = (
        "import time\nfrom queue_core import App, Task\napp = App()\n"
        f"@app.task(queue='q', timeout={SOON})\ndef handle(task: Task) -> None:\n    time.sleep(3600)\n"
    )
    done = worker_on_one_task(tmp_path, program, code=EXIT_TIMED_OUT)
    assert "tasks.py:6" in done.stderr


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_test_sees_the_timeout_as_the_error_of_the_task(kind: str) -> None:
    app, tried = App(), []

    def plain(task: Task) -> str:
        tried.append(None)
        eventually(lambda: task.lost)
        return "too late"

    async def handle(task: Task) -> None:
        tried.append(None)
        await asyncio.sleep(3600)

    app.task(queue="q", timeout=SOON)(plain if kind == "plain" else handle)
    queues = MemoryQueues(QueueSpec("q", max_leases=2))
    (outcome,) = run_until_empty(app, b"x", queues=queues)
    assert (type(outcome.error), outcome.result, outcome.attempts, len(tried)) == (Timeout, None, 2, 2)

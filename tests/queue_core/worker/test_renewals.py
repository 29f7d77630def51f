"""Leases of running handlers: renewed while they live, and told when they are lost."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from queue_core.attempts.failures import this_program
from queue_core.client.local_calls import LocalQueue, LocalQueues
from queue_core.clock import ManualClock
from queue_core.errors import LeaseLostError
from queue_core.log import get_logger
from queue_core.stats import OVERRAN
from queue_core.task import NewTask, QueueSpec
from queue_core.worker import events
from queue_core.worker.app import App
from queue_core.worker.context import Task
from queue_core.worker.invocation import Invocation
from queue_core.worker.lifecycle import EXIT_HUNG, WorkerLifecycle
from queue_core.worker.renewals import Renewals
from queue_core.worker.settings import WorkerSettings
from tests.support.eventually import eventually, eventually_async
from tests.support.fleet.workers import FaultyQueue, both_kinds, memory_queues, running_worker, unavailable


@pytest.fixture
def store() -> Iterator[tuple[LocalQueues, LocalQueue]]:
    queues, queue = memory_queues(lease_seconds=0.6, max_lease_seconds=3600.0)
    yield queues, queue
    queues.close()


def handler_until(kind: str, done: Callable[[Task], bool], ends: list[str]) -> Callable[[Task], object]:
    """A handler that works until `done`, checking its lease; notes how it ended."""

    def handle(task: Task) -> None:
        try:
            eventually(lambda: task.check() or done(task), seconds=20)
        except LeaseLostError:
            ends.append("lost")
            raise
        ends.append("done")

    async def handle_async(task: Task) -> None:
        try:
            await eventually_async(lambda: done(task), seconds=20)
        except asyncio.CancelledError:
            ends.append("lost")
            raise
        ends.append("done")

    return handle if kind == "plain" else handle_async


@both_kinds
def test_a_lease_is_renewed_while_its_handler_lives(store: tuple[LocalQueues, LocalQueue], kind: str) -> None:
    _, queue = store
    faulty, app, ends = FaultyQueue(queue), App(), []
    app.task(queue="q")(handler_until(kind, lambda task: faulty.calls.count("renew") >= 5, ends))
    queue.add(b"x")
    with running_worker(app, lambda name: faulty):
        eventually(lambda: queue.stats().deleted_total == 1)
    assert ends == ["done"]
    assert (queue.stats().leased_total, queue.stats().expired_total) == (1, 0)


@both_kinds
def test_one_renewal_covers_all_slots(store: tuple[LocalQueues, LocalQueue], kind: str) -> None:
    _, queue = store
    renewed, app, ends = [], App(), []

    class Watched(FaultyQueue):
        def renew(self, leases: list[str], **settings: object) -> object:
            renewed.append(len(leases))
            return queue.renew(leases, **settings)

    app.task(queue="q")(handler_until(kind, lambda task: sum(renewed) >= 8, ends))
    queue.add([NewTask(b"x") for _ in range(4)])
    with running_worker(app, lambda name: Watched(queue), concurrency=4):
        eventually(lambda: queue.stats().deleted_total == 4)
    assert max(renewed) > 1


@both_kinds
def test_a_refused_renewal_reaches_the_handler(store: tuple[LocalQueues, LocalQueue], kind: str) -> None:
    queues, queue = store
    app, ends = App(), []
    app.task(queue="q")(handler_until(kind, lambda task: False, ends))
    queue.add([NewTask(b"x", name="gone")])
    with capture_logs() as logs, running_worker(app, queues.queue):
        eventually(lambda: queue.stats().in_flight == 1)
        assert queue.delete_by_name("gone") == ["deleted"]
        eventually(lambda: ends == ["lost"])
        queue.add([NewTask(b"y", name="next")])  # the slot is free again
        eventually(lambda: queue.stats().in_flight == 1)
        queue.delete_by_name("next")
        eventually(lambda: ends == ["lost", "lost"])
    lost = [entry for entry in logs if entry["event"] == events.LEASE_LOST]
    assert [(entry["task"], entry["reason"].partition(": ")[0]) for entry in lost] == [
        ("gone", "the task was deleted while it was running"),
        ("next", "the task was deleted while it was running"),
    ]
    assert all(entry["reason"].endswith(f": deleted by {this_program()}") for entry in lost)
    assert events.HANDLER_FAILED not in {entry["event"] for entry in logs if entry["log_level"] == "error"}
    assert queue.stats().released_total == 0


@both_kinds
def test_a_renewal_that_is_not_answered_is_repeated(store: tuple[LocalQueues, LocalQueue], kind: str) -> None:
    _, queue = store
    faulty, app, ends = FaultyQueue(queue), App(), []
    failures = iter([True, True])

    def fail_twice() -> None:
        if next(failures, False):
            unavailable()

    faulty.faults["renew"] = fail_twice
    app.task(queue="q")(handler_until(kind, lambda task: faulty.calls.count("renew") >= 5, ends))
    queue.add(b"x")
    with running_worker(app, lambda name: faulty):
        eventually(lambda: queue.stats().deleted_total == 1)
    assert ends == ["done"]
    assert queue.stats().leased_total == 1


@both_kinds
def test_a_lease_that_cannot_be_renewed_is_lost_at_its_end(store: tuple[LocalQueues, LocalQueue], kind: str) -> None:
    _, queue = store
    faulty, app, ends = FaultyQueue(queue), App(), []
    faulty.faults["renew"] = unavailable
    app.task(queue="q")(handler_until(kind, lambda task: task.lease_number > 1, ends))
    queue.add(b"x")
    with capture_logs() as logs, running_worker(app, lambda name: faulty):
        eventually(lambda: ends == ["lost", "done"])
        eventually(lambda: queue.stats().deleted_total == 1)
    reasons = [entry["reason"] for entry in logs if entry["event"] == events.LEASE_LOST]
    assert reasons == ["it could not be renewed in time"]


@both_kinds
def test_a_lease_is_not_renewed_beyond_the_queues_max_lease(store: tuple[LocalQueues, LocalQueue], kind: str) -> None:
    queues, queue = store
    queues.put_queue(QueueSpec("q", lease_seconds=1.0, max_lease_seconds=2.2, max_leases=1))
    app, ends = App(), []
    app.task(queue="q")(handler_until(kind, lambda task: False, ends))
    queue.add([NewTask(b"x"), NewTask(b"y")])
    with capture_logs() as logs, running_worker(app, queues.queue, concurrency=2):
        eventually(lambda: ends == ["lost", "lost"])
        eventually(lambda: queue.stats().dead == 2)
    reasons = [entry["reason"] for entry in logs if entry["event"] == events.LEASE_LOST]
    assert reasons == ["it reached the queue's max_lease"] * 2


@both_kinds
def test_a_lease_that_reaches_max_lease_is_given_back_with_the_line_its_handler_is_at(
    store: tuple[LocalQueues, LocalQueue], kind: str
) -> None:
    queues, queue = store
    queues.put_queue(QueueSpec("q", lease_seconds=1.0, max_lease_seconds=1.2, max_leases=2))
    app, ends = App(), []
    app.task(queue="q")(handler_until(kind, lambda task: task.lease_number == 2 and task.lost, ends))
    queue.add([NewTask(b"a payload", name="long")])
    with capture_logs(), running_worker(app, queues.queue):
        eventually(lambda: queue.stats().dead == 1)
    (task,) = queue.peek(names=["long"]).tasks
    assert [attempt.outcome for attempt in task.attempts] == ["timed_out"] * 2
    for attempt in task.attempts:
        assert attempt.error == OVERRAN
        assert "as long as the queue's max_lease allows" in attempt.message
        assert attempt.place
        assert Path(__file__).name in attempt.message
        assert attempt.host
    assert task.reason == task.attempts[-1].text
    assert "payload" not in task.reason
    stack = task.attempts[-1].traceback.splitlines()
    assert Path(__file__).name in stack[1], "the user's first call is the first one"
    assert stack[-1].startswith(f"{OVERRAN}: its handler ran on for")
    assert queue.stats().expired_total == 0


def test_a_lease_at_max_lease_that_cannot_be_given_back_expires(store: tuple[LocalQueues, LocalQueue]) -> None:
    queues, queue = store
    queues.put_queue(QueueSpec("q", lease_seconds=1.0, max_lease_seconds=1.2))
    faulty, app, ends = FaultyQueue(queue), App(), []
    faulty.faults["release"] = unavailable
    app.task(queue="q")(handler_until("plain", lambda task: task.lease_number > 1, ends))
    queue.add([NewTask(b"x", name="long")])
    with capture_logs(), running_worker(app, lambda name: faulty):
        eventually(lambda: queue.stats().deleted_total == 1)
    assert ends == ["lost", "done"]
    assert queue.stats().expired_total == 1


def test_a_worker_does_not_wait_a_second_time_for_a_call_that_hangs(store: tuple[LocalQueues, LocalQueue]) -> None:
    _, queue = store
    app, clock = App(), ManualClock()
    app.task(queue="q")(print)
    queue.add(b"x")
    (lease,) = queue.lease(seconds=30.0)
    settings = WorkerSettings("tests:app", grace_seconds=10.0)
    lifecycle = WorkerLifecycle(settings, queue="q", clock=clock, log=get_logger())
    renewals = Renewals(queue, lifecycle)
    handler = app.handler("q", None)
    assert handler is not None
    invocation = Invocation(handler, [lease], started_at=clock.monotonic())
    renewals.track(invocation)
    clock.advance(30.0)
    with capture_logs():
        renewals.renew_due()
        assert renewals.stuck() == 0
        clock.advance(10.0)
        renewals.renew_due()
    assert renewals.stuck() == 1
    ending = lifecycle.next_end_request(timeout_seconds=0.0)
    assert ending is not None
    assert ending.code == EXIT_HUNG
    assert ending.reason == f"print hung: it ran for 40 s, 10 s longer than the lease of its task {lease.name}"
    renewals.untrack(invocation)
    assert renewals.stuck() == 0


def test_only_the_lost_tasks_of_a_batch_are_left_out(store: tuple[LocalQueues, LocalQueue]) -> None:
    queues, queue = store
    app, lost = App(), []

    @app.task(queue="q", batch=3)
    def handle(tasks: list[Task]) -> None:
        queue.delete_by_name(tasks[1].name)
        eventually(lambda: any(task.lost for task in tasks))
        lost.append([task.lost for task in tasks])

    queue.add([NewTask(b"x") for _ in range(3)])
    with capture_logs() as logs, running_worker(app, queues.queue):
        eventually(lambda: queue.stats().deleted_total == 2)
    assert lost == [[False, True, False]]
    assert [entry["count"] for entry in logs if entry["event"] == events.LEASE_LOST] == [3]


@both_kinds
def test_a_handler_that_never_returns_costs_the_worker_its_life(
    store: tuple[LocalQueues, LocalQueue], kind: str
) -> None:
    queues, queue = store
    app, finish = App(), threading.Event()

    @app.task(queue="q")
    def never_returns(task: Task) -> None:
        finish.wait(30)

    async def never_returns_async(task: Task) -> None:
        while not finish.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await eventually_async(finish.is_set, seconds=30)

    if kind == "async":
        app = App()
        app.task(queue="q")(never_returns_async)
    queue.add([NewTask(b"x", name="stuck")])
    with capture_logs() as logs, running_worker(app, queues.queue, grace_seconds=0.2) as worker:
        eventually(lambda: queue.stats().in_flight == 1)
        queue.delete_by_name("stuck")
        assert worker.wait() == EXIT_HUNG
        assert worker.runner.is_abandoned
        finish.set()
    (stuck,) = [entry for entry in logs if entry["event"] == events.HANDLER_STUCK and entry["log_level"] == "warning"]
    assert stuck["task"] == "stuck"
    assert f"{__file__}:" in stuck["where"]
    assert "never_returns" in stuck["where"]


@pytest.mark.parametrize(
    ("clock_seconds", "is_lost"), [pytest.param(29.9, False, id="before its end"), pytest.param(30.0, True, id="at it")]
)
def test_the_end_of_a_renewed_lease_is_counted_from_when_the_renewal_was_sent(
    store: tuple[LocalQueues, LocalQueue], clock_seconds: float, *, is_lost: bool
) -> None:
    _, queue = store
    faulty, app, clock = FaultyQueue(queue), App(), ManualClock()
    app.task(queue="q")(print)
    queue.add(b"x")
    (lease,) = queue.lease(seconds=30.0)
    lifecycle = WorkerLifecycle(WorkerSettings("tests:app"), queue="q", clock=clock, log=get_logger())
    renewals = Renewals(faulty, lifecycle)
    handler = app.handler("q", None)
    assert handler is not None
    invocation = Invocation(handler, [lease], started_at=clock.monotonic())
    renewals.track(invocation)
    clock.advance(10.0)
    sent_at = clock.monotonic()
    faulty.faults["renew"] = lambda: clock.advance(15.0)  # the answer takes its time
    renewals.renew_due()
    faulty.faults["renew"] = unavailable
    clock.advance(sent_at + clock_seconds - clock.monotonic())
    with capture_logs():
        renewals.renew_due()
    assert invocation.tasks[0].lost == is_lost

"""Handlers that fail: their tasks are leased again after a while, or are dead, and their worker goes on."""

import asyncio
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from queue_core.client.local_calls import LocalQueue, LocalQueues
from queue_core.errors import LeaseLostError
from queue_core.task import NewTask, QueueSpec, TaskState
from queue_core.worker import events
from queue_core.worker.app import App
from queue_core.worker.context import Dead, Retry, Task
from tests.support.eventually import eventually
from tests.support.fleet.workers import both_kinds, memory_queues, plain_or_async, running_worker


@pytest.fixture
def store() -> Iterator[tuple[LocalQueues, LocalQueue]]:
    queues, queue = memory_queues()
    yield queues, queue
    queues.close()


@both_kinds
def test_a_task_whose_handler_raises_is_leased_again_after_the_back_off(
    store: tuple[LocalQueues, LocalQueue], kind: str
) -> None:
    queues, queue = store
    app, numbers = App(), []

    def handle(task: Task) -> None:
        numbers.append(task.lease_number)
        if task.lease_number < 3:
            raise ValueError("not yet")

    app.task(queue="q")(plain_or_async(kind, handle))
    queue.add(b"x")
    with capture_logs() as logs, running_worker(app, queues.queue):
        eventually(lambda: queue.stats().deleted_total == 1)
    assert numbers == [1, 2, 3]
    failures = [entry for entry in logs if entry["event"] == events.HANDLER_FAILED]
    assert [(entry["lease_number"], entry["error"], entry["log_level"]) for entry in failures] == [
        (1, "ValueError", "error"),
        (2, "ValueError", "error"),
    ]
    assert failures[0]["worker"] == "w-1"
    assert "not yet" in failures[0]["traceback"]


def test_a_failure_is_logged_without_its_payload(store: tuple[LocalQueues, LocalQueue]) -> None:
    queues, queue = store
    app = App()

    @app.task(queue="q")
    def handle(task: Task) -> None:
        try:
            int(task.text)
        except ValueError as error:
            raise Dead("not a number") if task.lease_number > 1 else RuntimeError(task.payload) from error

    queue.add(b"card 4711\n")
    with capture_logs() as logs, running_worker(app, queues.queue):
        eventually(lambda: queue.stats().dead == 1)
    assert "<payload>" in str(logs)
    assert "4711" not in str(logs)


def test_a_handler_may_say_when_to_retry(store: tuple[LocalQueues, LocalQueue]) -> None:
    queues, queue = store
    app = App()

    @app.task(queue="q")
    def handle(task: Task) -> None:
        raise Retry(3600)

    queue.add(b"x")
    with capture_logs() as logs, running_worker(app, queues.queue):
        eventually(lambda: queue.stats().delayed == 1)
    (task,) = queue.peek().tasks
    assert 3590 < (task.eta - task.leased_at) / 1_000_000 < 3610
    assert events.HANDLER_FAILED not in {entry["event"] for entry in logs}


class TooManyRequestsError(Exception):
    """What a client raises whose server wants fewer requests."""


@both_kinds
@pytest.mark.parametrize("said", ["raised", "registered"])
def test_a_retry_spends_no_attempt(store: tuple[LocalQueues, LocalQueue], kind: str, said: str) -> None:
    queues, queue = store
    queues.put_queue(QueueSpec("q", max_leases=1))
    app, numbers = App(), list[int]()

    def handle(task: Task) -> None:
        numbers.append(task.lease_number)
        if len(numbers) < 3:
            raise Retry(0) if said == "raised" else TooManyRequestsError

    app.task(queue="q", on={KeyError: Dead("no"), TooManyRequestsError: Retry(0)})(plain_or_async(kind, handle))
    queue.add(b"x")
    with capture_logs() as logs, running_worker(app, queues.queue):
        eventually(lambda: queue.stats().deleted_total == 1)
    assert numbers == [1] * 3
    assert events.HANDLER_FAILED not in {entry["event"] for entry in logs}


def test_a_retry_that_spends_no_attempt_waits_for_a_second() -> None:
    assert [Retry(0).delay_seconds, Retry("5s").delay_seconds] == [1.0, 5.0]
    assert Retry(0, charge="counted").delay_seconds == 0.0


def test_a_retry_may_spend_one(store: tuple[LocalQueues, LocalQueue]) -> None:
    queues, queue = store
    queues.put_queue(QueueSpec("q", max_leases=2))
    app = App()

    @app.task(queue="q")
    def handle(task: Task) -> None:
        raise Retry(0, charge="counted")

    queue.add(b"x")
    with running_worker(app, queues.queue):
        eventually(lambda: queue.stats().dead == 1)


def test_a_handler_may_give_a_task_up_for_dead(store: tuple[LocalQueues, LocalQueue]) -> None:
    queues, queue = store
    app = App()

    @app.task(queue="q")
    def handle(task: Task) -> None:
        raise Dead("not an image")

    queue.add(b"x")
    with running_worker(app, queues.queue):
        eventually(lambda: queue.stats().dead == 1)
    (task,) = queue.peek(states=frozenset({TaskState.DEAD})).tasks
    assert task.reason == "not an image"


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, asyncio.CancelledError, LeaseLostError])
@both_kinds
def test_a_slot_outlives_whatever_a_handler_raises(
    store: tuple[LocalQueues, LocalQueue], kind: str, error: type[BaseException]
) -> None:
    queues, queue = store
    app = App()

    def handle(task: Task) -> None:
        if task.lease_number == 1:
            raise error("by the handler")

    app.task(queue="q")(plain_or_async(kind, handle))
    queue.add(b"x")
    with running_worker(app, queues.queue):
        eventually(lambda: queue.stats().deleted_total == 1)
    assert queue.stats().released_total == 1


@pytest.mark.parametrize(
    ("returned", "error"),
    [
        pytest.param(3, "TypeError", id="a number"),
        pytest.param([NewTask(b"x"), "y"], "TypeError", id="a list with something else"),
        pytest.param(NewTask(b"x", queue="nowhere"), "UnknownQueueError", id="a queue that is not there"),
        pytest.param(NewTask(b"x" * (1 << 20) + b"y"), "TaskTooLargeError", id="a payload beyond the limit"),
        pytest.param([NewTask(b"x")] * 1001, "TooManyTasksError", id="a batch beyond the limit"),
        pytest.param(NewTask(b"x", delay_seconds=10**9), "InvalidEtaError", id="an eta beyond the limit"),
    ],
)
@both_kinds
def test_what_cannot_be_added_is_a_failure_of_the_handler(
    store: tuple[LocalQueues, LocalQueue], kind: str, returned: object, error: str
) -> None:
    queues, queue = store
    app = App()
    app.task(queue="q")(plain_or_async(kind, lambda task: returned if task.lease_number == 1 else None))
    queue.add(b"x")
    with capture_logs() as logs, running_worker(app, queues.queue):
        eventually(lambda: queue.stats().deleted_total == 1)
    assert [entry["error"] for entry in logs if entry["event"] == events.HANDLER_FAILED] == [error]
    assert (queue.stats().added_total, queue.stats().released_total) == (1, 1)


def test_a_plain_handler_that_returns_a_coroutine_is_told_so(store: tuple[LocalQueues, LocalQueue]) -> None:
    queues, queue = store
    app = App()

    async def work() -> None: ...

    @app.task(queue="q")
    def handle(task: Task) -> object:
        return work() if task.lease_number == 1 else None

    queue.add(b"x")
    with capture_logs() as logs, running_worker(app, queues.queue):
        eventually(lambda: queue.stats().deleted_total == 1)
    assert "got coroutine" in next(entry["traceback"] for entry in logs if entry["event"] == events.HANDLER_FAILED)

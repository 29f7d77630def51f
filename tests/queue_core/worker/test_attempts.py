"""A worker leaves with an unfinished task why it did not finish it, and where in the code."""

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from queue_core.client.local_calls import LocalQueue, LocalQueues
from queue_core.task import NewTask, StoredTask, TaskState
from queue_core.worker import events
from queue_core.worker.app import App
from queue_core.worker.context import Backoff, Dead, Retry, Task
from queue_core.worker.invocation import InvocationFailed
from tests.support.eventually import eventually
from tests.support.fleet.workers import both_kinds, memory_queues, plain_or_async, running_worker

HERE = "tests/queue_core/worker/test_attempts.py"


@pytest.fixture
def store() -> Iterator[tuple[LocalQueues, LocalQueue]]:
    queues, queue = memory_queues(retry_min_seconds=3600.0, retry_max_seconds=3600.0)
    yield queues, queue
    queues.close()


def released(store: tuple[LocalQueues, LocalQueue], app: App, **settings: object) -> StoredTask:
    """Run a worker until its only task was released once, and return the task."""
    queues, queue = store
    queue.add([NewTask(b"card 4711", name="t")])
    with running_worker(app, queues.queue, **settings):
        eventually(lambda: queue.stats().delayed + queue.stats().dead == 1)
    (task,) = queue.peek(states=frozenset({TaskState.DELAYED, TaskState.DEAD})).tasks
    return task


def line_with(mark: str) -> str:
    """The place of the line of this file that ends with a mark."""
    lines = Path(__file__).read_text().splitlines()
    numbers = [number for number, line in enumerate(lines, start=1) if line.endswith(f"# {mark}")]
    return f"{HERE}:{numbers[0]}"


def fail(task: Task) -> None:
    raise ValueError(f"no width in {task.text}, password=hunter2")  # raised


@both_kinds
def test_an_error_is_kept_with_its_place_and_without_payload_and_secrets(
    store: tuple[LocalQueues, LocalQueue], kind: str
) -> None:
    app = App()
    app.task(queue="q")(plain_or_async(kind, fail))
    with capture_logs() as logs:
        (attempt,) = released(store, app).attempts
    assert (attempt.lease_number, attempt.worker, attempt.outcome) == (1, "w-1", "raised")
    assert attempt.text == f"ValueError: no width in <payload>, password=*** ({line_with('raised')})"
    assert attempt.host != ""
    (logged,) = [entry for entry in logs if entry["event"] == events.HANDLER_FAILED]
    assert (logged["place"], logged["message"]) == (attempt.place, attempt.message)
    assert "hunter2" not in str(logs)


def no_route() -> None:
    raise OSError("no route")  # cause


def test_what_a_handler_answers_its_own_error_with_is_kept_with_that_error(
    store: tuple[LocalQueues, LocalQueue],
) -> None:
    app = App()

    @app.task(queue="q")
    def handle(task: Task) -> None:
        try:
            no_route()
        except OSError:
            if task.tag is None:
                raise Retry(3600)  # noqa: B904  as most people write it
            raise Retry(60) from None

    @app.task(queue="q", tag="linked")
    def linked(task: Task) -> None:
        raise Dead("not an image") from OSError("no route")

    queues, queue = store
    queue.add([NewTask(name="implied"), NewTask(name="linked", tag="linked"), NewTask(name="cut", tag="other")])
    with running_worker(app, queues.queue):
        eventually(lambda: queue.stats().delayed + queue.stats().dead == 3)
    tasks = {task.name: task for task in queue.peek(states=frozenset(TaskState)).tasks}
    texts = {name: [(one.outcome, one.error, one.message) for one in task.attempts] for name, task in tasks.items()}
    assert texts == {
        "implied": [("raised", "OSError", "no route")],
        "linked": [("raised", "OSError", "no route")],
        "cut": [("given_back", "Retry", "retry in 60 s")],
    }
    assert tasks["implied"].attempts[0].place == line_with("cause")
    assert (tasks["linked"].state, tasks["linked"].reason) == (TaskState.DEAD, "not an image")


def give_up(task: Task) -> None:
    raise Dead(f"no such picture: {task.text}")  # given up


@both_kinds
def test_a_task_given_up_is_logged_with_its_reason_and_without_its_payload(
    store: tuple[LocalQueues, LocalQueue], kind: str
) -> None:
    app = App()
    app.task(queue="q")(plain_or_async(kind, give_up))
    with capture_logs() as logs:
        task = released(store, app)
    assert task.reason == "no such picture: <payload>"
    (logged,) = [entry for entry in logs if entry["event"] == events.HANDLER_GAVE_UP]
    assert (logged["reason"], logged["place"], logged["task"]) == (task.reason, line_with("given up"), "t")


def test_an_error_that_is_mapped_is_kept_itself(store: tuple[LocalQueues, LocalQueue]) -> None:
    app = App()
    app.task(queue="q", on={ValueError: Dead("no such width")})(fail)
    task = released(store, app)
    assert task.reason == "no such width"
    assert [(one.outcome, one.error) for one in task.attempts] == [("raised", "ValueError")]


@pytest.mark.parametrize(
    ("returned", "error"),
    [
        pytest.param(3, "TypeError", id="no tasks"),
        pytest.param(NewTask(queue="nowhere"), "UnknownQueueError", id="refused"),
    ],
)
def test_a_follow_up_that_cant_be_added_is_kept_with_the_handlers_place(
    store: tuple[LocalQueues, LocalQueue], returned: object, error: str
) -> None:
    app = App()

    @app.task(queue="q")
    def handle(task: Task) -> object:
        return returned

    (attempt,) = released(store, app).attempts
    assert (attempt.outcome, attempt.error) == ("raised", error)
    assert attempt.place == f"{HERE}:{handle.__code__.co_firstlineno}"
    assert ("follow-up" in attempt.message) == (error == "UnknownQueueError")


def test_a_worker_that_is_asked_to_stop_says_so(store: tuple[LocalQueues, LocalQueue]) -> None:
    queues, queue = store
    app, started = App(), threading.Event()

    @app.task(queue="q")
    async def handle(task: Task) -> None:
        task.checkpoint(b"page 3")
        started.set()
        await asyncio.sleep(3600)

    queue.add(b"x")
    with running_worker(app, queues.queue, grace_seconds=0.01) as worker:
        assert started.wait(5)
        worker.runner.drain("SIGTERM")
        assert worker.wait() == 0
    (task,) = queue.peek().tasks
    assert [(one.outcome, one.message) for one in task.attempts] == [
        ("given_back", "its worker was asked to stop: SIGTERM")
    ]
    assert (task.leases, task.checkpoint) == (0, b"page 3")


async def end_the_loop() -> None:
    raise SystemExit(3)  # ends


def test_a_handler_that_ends_the_loop_is_named_as_the_cause(store: tuple[LocalQueues, LocalQueue]) -> None:
    app = App()

    @app.task(queue="q")
    async def handle(task: Task) -> None:
        child = asyncio.create_task(end_the_loop())
        await asyncio.sleep(3600)
        await child

    (attempt,) = released(store, app).attempts
    assert (attempt.outcome, attempt.error, attempt.place) == ("raised", "SystemExit", line_with("ends"))
    assert "ended the event loop" in attempt.message


def test_the_handlers_back_off_takes_the_place_of_the_queues(store: tuple[LocalQueues, LocalQueue]) -> None:
    app = App()
    app.task(queue="q", retry=Backoff("1d", "2d", attempts=2))(fail)
    task = released(store, app)
    assert 0.9 * 86_400 <= (task.eta - task.attempts[0].ended_at) / 1_000_000 <= 86_400


def test_the_handlers_last_attempt_is_the_tasks_last(store: tuple[LocalQueues, LocalQueue]) -> None:
    app = App()
    app.task(queue="q", retry=Backoff(0, 0, attempts=3))(fail)
    task = released(store, app)
    assert (task.state, len(task.attempts)) == (TaskState.DEAD, 3)
    assert task.reason == task.attempts[-1].text
    assert "ValueError: no width" in task.reason


def test_each_task_of_a_batch_backs_off_by_its_own_number(store: tuple[LocalQueues, LocalQueue]) -> None:
    _, queue = store
    queue.add([NewTask(name="old"), NewTask(name="new")])
    old, new = queue.lease(2, seconds=60)
    tasks = [Task(replace(old, lease_number=3)), Task(new)]
    failed = InvocationFailed(tuple(tasks), backoff=Backoff(10, 25, attempts=4))
    assert [(one.tasks, one.delay_seconds, one.dead_reason) for one in failed.releases(jitter=0.0)] == [
        ((tasks[0],), 25.0, ""),
        ((tasks[1],), 10.0, ""),
    ]
    assert [one.delay_seconds for one in failed.releases(jitter=0.5)] == [23.75, 9.5]
    last = InvocationFailed(tuple(tasks), backoff=Backoff(10, 25, attempts=3)).releases(jitter=0.0)
    assert [(one.delay_seconds, bool(one.dead_reason)) for one in last] == [(None, True), (10.0, False)]

"""A worker at work on a queue: what becomes of tasks when handlers return, raise, hand on and fill batches."""

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest
from structlog.testing import capture_logs

from queue_core.errors import AppError, LeaseLostError
from queue_core.pull_queue import PullQueue, PullQueues
from queue_core.store import Deletion
from queue_core.task import NewTask, QueueSpec, TaskState
from queue_core.worker import events
from queue_core.worker.app import App
from queue_core.worker.held import Dead, HeldTask, Retry
from queue_core.worker.runner import Runner
from queue_core.worker.settings import WorkerSettings
from tests.support.eventually import eventually, eventually_async
from tests.support.workers import memory_queues, running_worker


@pytest.fixture
def store() -> Iterator[tuple[PullQueues, PullQueue]]:
    queues, queue = memory_queues()
    yield queues, queue
    queues.close()


def plain_or_async(kind: str, function: Callable[[HeldTask], object]) -> Callable[[HeldTask], object]:
    """The function as a plain handler, or as an async one."""
    if kind == "plain":
        return function

    async def handler(task: HeldTask) -> object:
        await asyncio.sleep(0)
        return function(task)

    return handler


both_kinds = pytest.mark.parametrize("kind", ["plain", "async"])


@both_kinds
def test_a_task_whose_handler_returns_is_deleted(store: tuple[PullQueues, PullQueue], kind: str) -> None:
    queues, queue = store
    app, seen = App(), []

    def handle(task: HeldTask) -> None:
        seen.append((task.queue, task.name, task.tag, task.payload, task.text, task.json(), task.lease_number))

    app.task(queue="q")(plain_or_async(kind, handle))
    queue.add([NewTask(b'{"width": 3}', name="first", tag="resize")])
    with running_worker(app, queues.queue):
        eventually(lambda: queue.stats().deleted_total == 1)
    assert seen == [("q", "first", "resize", b'{"width": 3}', '{"width": 3}', {"width": 3}, 1)]


@both_kinds
def test_every_task_is_handled_once_by_as_many_slots_as_asked_for(
    store: tuple[PullQueues, PullQueue], kind: str
) -> None:
    queues, queue = store
    app, seen, together = App(), [], threading.Barrier(4, timeout=5)

    async def handle_async(task: HeldTask) -> None:
        seen.append(task.name)
        await eventually_async(lambda: len(seen) >= 4)  # the first four are at work at the same time

    def handle(task: HeldTask) -> None:
        seen.append(task.name)
        if len(seen) <= 4:
            together.wait()

    app.task(queue="q")(handle if kind == "plain" else handle_async)
    added = [added.name for added in queue.add([NewTask(b"x") for _ in range(100)])]
    with running_worker(app, queues.queue, concurrency=4):
        eventually(lambda: queue.stats().deleted_total == 100)
    assert sorted(seen) == sorted(added)


@both_kinds
def test_no_task_is_leased_ahead_of_a_free_slot(store: tuple[PullQueues, PullQueue], kind: str) -> None:
    queues, queue = store
    app, busy, finish = App(), threading.Semaphore(0), threading.Event()

    async def handle_async(task: HeldTask) -> None:
        busy.release()
        await eventually_async(finish.is_set)

    def handle(task: HeldTask) -> None:
        busy.release()
        finish.wait(5)

    app.task(queue="q")(handle if kind == "plain" else handle_async)
    queue.add([NewTask(b"x") for _ in range(5)])
    with running_worker(app, queues.queue, concurrency=2):
        assert busy.acquire(timeout=5)
        assert busy.acquire(timeout=5)
        stats = queue.stats()
        assert (stats.ready, stats.in_flight) == (3, 2)
        finish.set()
        eventually(lambda: queue.stats().deleted_total == 5)


@both_kinds
def test_a_task_whose_handler_raises_is_leased_again_after_the_back_off(
    store: tuple[PullQueues, PullQueue], kind: str
) -> None:
    queues, queue = store
    app, numbers = App(), []

    def handle(task: HeldTask) -> None:
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


def test_a_failure_is_logged_without_its_payload(store: tuple[PullQueues, PullQueue]) -> None:
    queues, queue = store
    app = App()

    @app.task(queue="q")
    def handle(task: HeldTask) -> None:
        try:
            int(task.text)
        except ValueError as error:
            raise Dead("not a number") if task.lease_number > 1 else RuntimeError(task.payload) from error

    queue.add(b"card 4711\n")
    with capture_logs() as logs, running_worker(app, queues.queue):
        eventually(lambda: queue.stats().dead == 1)
    assert "<payload>" in str(logs)
    assert "4711" not in str(logs)


def test_a_handler_may_say_when_to_retry(store: tuple[PullQueues, PullQueue]) -> None:
    queues, queue = store
    app = App()

    @app.task(queue="q")
    def handle(task: HeldTask) -> None:
        raise Retry(3600)

    queue.add(b"x")
    with capture_logs() as logs, running_worker(app, queues.queue):
        eventually(lambda: queue.stats().delayed == 1)
    (task,) = queue.peek().tasks
    assert 3590 < (task.eta - task.leased_at) / 1_000_000 < 3610
    assert events.HANDLER_FAILED not in {entry["event"] for entry in logs}


def test_a_handler_may_give_a_task_up_for_dead(store: tuple[PullQueues, PullQueue]) -> None:
    queues, queue = store
    app = App()

    @app.task(queue="q")
    def handle(task: HeldTask) -> None:
        raise Dead("not an image")

    queue.add(b"x")
    with running_worker(app, queues.queue):
        eventually(lambda: queue.stats().dead == 1)
    (task,) = queue.peek(states=frozenset({TaskState.DEAD})).tasks
    assert task.reason == "not an image"


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, asyncio.CancelledError, LeaseLostError])
@both_kinds
def test_a_slot_outlives_whatever_a_handler_raises(
    store: tuple[PullQueues, PullQueue], kind: str, error: type[BaseException]
) -> None:
    queues, queue = store
    app = App()

    def handle(task: HeldTask) -> None:
        if task.lease_number == 1:
            raise error("by the handler")

    app.task(queue="q")(plain_or_async(kind, handle))
    queue.add(b"x")
    with running_worker(app, queues.queue):
        eventually(lambda: queue.stats().deleted_total == 1)
    assert queue.stats().released_total == 1


@both_kinds
def test_what_a_handler_returns_is_added_as_its_task_is_deleted(store: tuple[PullQueues, PullQueue], kind: str) -> None:
    queues, queue = store
    queues.put_queue(QueueSpec("next"))
    app = App()

    def handle(task: HeldTask) -> object:
        if task.text == "one":
            return NewTask(b"a", queue="next")
        return [NewTask(b"b", queue="next"), NewTask(b"c", queue="next")]

    app.task(queue="q")(plain_or_async(kind, handle))
    queue.add([NewTask(b"one"), NewTask(b"two")])
    with running_worker(app, queues.queue):
        eventually(lambda: queue.stats().deleted_total == 2)
    handed_on = queues.queue("next").peek(payload_bytes=10).tasks
    assert sorted(task.payload for task in handed_on) == [b"a", b"b", b"c"]


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
    store: tuple[PullQueues, PullQueue], kind: str, returned: object, error: str
) -> None:
    queues, queue = store
    app = App()
    app.task(queue="q")(plain_or_async(kind, lambda task: returned if task.lease_number == 1 else None))
    queue.add(b"x")
    with capture_logs() as logs, running_worker(app, queues.queue):
        eventually(lambda: queue.stats().deleted_total == 1)
    assert [entry["error"] for entry in logs if entry["event"] == events.HANDLER_FAILED] == [error]
    assert (queue.stats().added_total, queue.stats().released_total) == (1, 1)


def test_a_plain_handler_that_returns_a_coroutine_is_told_so(store: tuple[PullQueues, PullQueue]) -> None:
    queues, queue = store
    app = App()

    async def work() -> None: ...

    @app.task(queue="q")
    def handle(task: HeldTask) -> object:
        return work() if task.lease_number == 1 else None

    queue.add(b"x")
    with capture_logs() as logs, running_worker(app, queues.queue):
        eventually(lambda: queue.stats().deleted_total == 1)
    assert "got coroutine" in next(entry["traceback"] for entry in logs if entry["event"] == events.HANDLER_FAILED)


@both_kinds
def test_a_batch_has_one_tag_and_at_most_its_size(store: tuple[PullQueues, PullQueue], kind: str) -> None:
    queues, queue = store
    app, batches = App(), []

    def handle(tasks: list[HeldTask]) -> None:
        batches.append((tasks[0].tag, [task.text for task in tasks]))
        assert len({task.tag for task in tasks}) == 1

    app.task(queue="q", batch=3)(plain_or_async(kind, handle))
    queue.add([NewTask(str(n).encode(), tag="even" if n % 2 == 0 else None) for n in range(10)])
    with running_worker(app, queues.queue):
        eventually(lambda: queue.stats().deleted_total == 10)
    assert batches == [("even", ["0", "2", "4"]), (None, ["1", "3", "5"]), ("even", ["6", "8"]), (None, ["7", "9"])]


@both_kinds
def test_a_batch_handler_beside_others_gets_its_batch_filled_up(store: tuple[PullQueues, PullQueue], kind: str) -> None:
    queues, queue = store
    app, batches, singles = App(), [], []
    app.task(queue="q", tag="many", batch=10)(
        plain_or_async(kind, lambda tasks: batches.append([task.text for task in tasks]))
    )
    app.task(queue="q")(plain_or_async(kind, lambda task: singles.append(task.text)))
    queue.add([NewTask(str(n).encode(), tag="many" if n % 2 == 0 else None) for n in range(10)])
    with running_worker(app, queues.queue):
        eventually(lambda: queue.stats().deleted_total == 10)
    assert batches == [["0", "2", "4", "6", "8"]]
    assert singles == ["1", "3", "5", "7", "9"]


def test_a_batch_may_hand_on_for_each_of_its_tasks(store: tuple[PullQueues, PullQueue]) -> None:
    queues, queue = store
    queues.put_queue(QueueSpec("next"))
    app = App()

    @app.task(queue="q", batch=3)
    def handle(tasks: list[HeldTask]) -> object:
        if tasks[0].lease_number == 1:
            return [None]  # one entry for three tasks: refused
        return [None, NewTask(b"b", queue="next"), [NewTask(b"c", queue="next")] * 2]

    queue.add([NewTask(b"x") for _ in range(3)])
    with capture_logs() as logs, running_worker(app, queues.queue):
        eventually(lambda: queue.stats().deleted_total == 3)
    assert queues.queue("next").stats().ready == 3
    (failure,) = [entry for entry in logs if entry["event"] == events.HANDLER_FAILED]
    assert (failure["count"], failure["error"]) == (3, "TypeError")


def test_plain_and_async_handlers_may_share_a_worker(store: tuple[PullQueues, PullQueue]) -> None:
    queues, queue = store
    app, threads = App(), {}

    @app.task(queue="q", tag="plain")
    def plain(task: HeldTask) -> None:
        threads["plain"] = threading.current_thread().name

    @app.task(queue="q", tag="async")
    async def in_the_loop(task: HeldTask) -> None:
        threads["async"] = threading.current_thread().name

    queue.add([NewTask(b"x", tag="plain"), NewTask(b"y", tag="async")])
    with running_worker(app, queues.queue, concurrency=2):
        eventually(lambda: queue.stats().deleted_total == 2)
    assert threads["plain"].startswith("towline-slot-")
    assert threads["async"] == "towline-handlers"


def test_the_steady_state_is_one_call_per_task(store: tuple[PullQueues, PullQueue]) -> None:
    _, queue = store
    calls: list[tuple[int, int]] = []

    class Counting:
        def __getattr__(self, verb: str) -> object:
            return getattr(queue, verb)

        def exchange(self, deletions: list[Deletion], **settings: object) -> object:
            calls.append((len(deletions), settings["count"]))
            return queue.exchange(deletions, **settings)

    app = App()
    app.task(queue="q")(lambda task: None)
    queue.add([NewTask(b"x") for _ in range(5)])
    with running_worker(app, lambda name: Counting()):
        eventually(lambda: queue.stats().deleted_total == 5)
    assert calls[:6] == [(0, 1), (1, 1), (1, 1), (1, 1), (1, 1), (1, 1)]


def test_an_app_for_several_queues_needs_one_named() -> None:
    app = App()
    app.task(queue="a")(print)
    app.task(queue="b")(print)
    with pytest.raises(AppError, match=r"which queue\? .*: a, b"):
        Runner(app, WorkerSettings(app="x"), open_queue=lambda name: None)

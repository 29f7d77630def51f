"""A worker at work on a queue: what becomes of tasks when handlers return, hand on and fill batches."""

import threading
from collections.abc import Iterator
from contextvars import ContextVar

import pytest
from structlog.testing import capture_logs

from queue_core.client.local_calls import LocalQueue, LocalQueues
from queue_core.errors import AppError
from queue_core.task import NewTask, QueueSpec
from queue_core.verbs import Deletion
from queue_core.worker import events
from queue_core.worker.app import App
from queue_core.worker.context import Task
from queue_core.worker.runner import Runner
from queue_core.worker.settings import WorkerSettings
from tests.support.eventually import eventually, eventually_async
from tests.support.fleet.workers import both_kinds, memory_queues, plain_or_async, running_worker


@pytest.fixture
def store() -> Iterator[tuple[LocalQueues, LocalQueue]]:
    queues, queue = memory_queues()
    yield queues, queue
    queues.close()


@both_kinds
def test_a_task_whose_handler_returns_is_deleted(store: tuple[LocalQueues, LocalQueue], kind: str) -> None:
    queues, queue = store
    app, seen = App(), []

    def handle(task: Task) -> None:
        seen.append((task.queue, task.name, task.tag, task.payload, task.text, task.json(), task.lease_number))

    app.task(queue="q")(plain_or_async(kind, handle))
    queue.add([NewTask(b'{"width": 3}', name="first", tag="resize")])
    with running_worker(app, queues.queue):
        eventually(lambda: queue.stats().deleted_total == 1)
    assert seen == [("q", "first", "resize", b'{"width": 3}', '{"width": 3}', {"width": 3}, 1)]


@both_kinds
def test_every_task_is_handled_once_by_as_many_slots_as_asked_for(
    store: tuple[LocalQueues, LocalQueue], kind: str
) -> None:
    queues, queue = store
    app, seen, together = App(), [], threading.Barrier(4, timeout=5)

    async def handle_async(task: Task) -> None:
        seen.append(task.name)
        await eventually_async(lambda: len(seen) >= 4)  # the first four are at work at the same time

    def handle(task: Task) -> None:
        seen.append(task.name)
        if len(seen) <= 4:
            together.wait()

    app.task(queue="q")(handle if kind == "plain" else handle_async)
    added = [added.name for added in queue.add([NewTask(b"x") for _ in range(100)])]
    with running_worker(app, queues.queue, concurrency=4):
        eventually(lambda: queue.stats().deleted_total == 100)
    assert sorted(seen) == sorted(added)


@both_kinds
def test_no_task_is_leased_ahead_of_a_free_slot(store: tuple[LocalQueues, LocalQueue], kind: str) -> None:
    queues, queue = store
    app, busy, finish = App(), threading.Semaphore(0), threading.Event()

    async def handle_async(task: Task) -> None:
        busy.release()
        await eventually_async(finish.is_set)

    def handle(task: Task) -> None:
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
def test_what_a_handler_returns_is_added_as_its_task_is_deleted(
    store: tuple[LocalQueues, LocalQueue], kind: str
) -> None:
    queues, queue = store
    queues.put_queue(QueueSpec("next"))
    app = App()

    def handle(task: Task) -> object:
        if task.text == "one":
            return NewTask(b"a", queue="next")
        return [NewTask(b"b", queue="next"), NewTask(b"c", queue="next")]

    app.task(queue="q")(plain_or_async(kind, handle))
    queue.add([NewTask(b"one"), NewTask(b"two")])
    with running_worker(app, queues.queue):
        eventually(lambda: queue.stats().deleted_total == 2)
    handed_on = queues.queue("next").peek(payload_bytes=10).tasks
    assert sorted(task.payload for task in handed_on) == [b"a", b"b", b"c"]


@both_kinds
def test_a_handler_may_delete_its_task_itself_and_no_lease_counts_as_lost(
    store: tuple[LocalQueues, LocalQueue], kind: str
) -> None:
    queues, queue = store
    app = App()

    def handle(task: Task) -> None:
        if task.text == "by hand":
            queue.delete(task.lease, then=[NewTask(b"by its worker")])

    app.task(queue="q")(plain_or_async(kind, handle))
    queue.add(b"by hand")
    with capture_logs() as logs:
        with running_worker(app, queues.queue):
            eventually(lambda: queue.stats().deleted_total == 2)
        assert events.LEASE_LOST not in [entry["event"] for entry in logs]


@both_kinds
def test_a_batch_has_one_tag_and_at_most_its_size(store: tuple[LocalQueues, LocalQueue], kind: str) -> None:
    queues, queue = store
    app, batches = App(), []

    def handle(tasks: list[Task]) -> None:
        batches.append((tasks[0].tag, [task.text for task in tasks]))
        assert len({task.tag for task in tasks}) == 1

    app.task(queue="q", batch=3)(plain_or_async(kind, handle))
    queue.add([NewTask(str(n).encode(), tag="even" if n % 2 == 0 else None) for n in range(10)])
    with running_worker(app, queues.queue):
        eventually(lambda: queue.stats().deleted_total == 10)
    assert batches == [("even", ["0", "2", "4"]), (None, ["1", "3", "5"]), ("even", ["6", "8"]), (None, ["7", "9"])]


@both_kinds
def test_a_batch_handler_beside_others_gets_its_batch_filled_up(
    store: tuple[LocalQueues, LocalQueue], kind: str
) -> None:
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


def test_a_batch_may_hand_on_for_each_of_its_tasks(store: tuple[LocalQueues, LocalQueue]) -> None:
    queues, queue = store
    queues.put_queue(QueueSpec("next"))
    app = App()

    @app.task(queue="q", batch=3)
    def handle(tasks: list[Task]) -> object:
        if tasks[0].lease_number == 1:
            return [None]  # one entry for three tasks: refused
        return [None, NewTask(b"b", queue="next"), [NewTask(b"c", queue="next")] * 2]

    queue.add([NewTask(b"x") for _ in range(3)])
    with capture_logs() as logs, running_worker(app, queues.queue):
        eventually(lambda: queue.stats().deleted_total == 3)
    assert queues.queue("next").stats().ready == 3
    (failure,) = [entry for entry in logs if entry["event"] == events.HANDLER_FAILED]
    assert (failure["count"], failure["error"]) == (3, "TypeError")


TENANT: ContextVar[str] = ContextVar("TENANT", default="nobody")


@both_kinds
def test_no_task_sees_the_context_variables_of_the_one_before(store: tuple[LocalQueues, LocalQueue], kind: str) -> None:
    queues, queue = store
    app, seen = App(), []

    def handle(task: Task) -> None:
        seen.append(TENANT.get())
        TENANT.set(task.text)

    app.task(queue="q")(plain_or_async(kind, handle))
    queue.add([NewTask(b"a"), NewTask(b"b")])
    with running_worker(app, queues.queue):
        eventually(lambda: queue.stats().deleted_total == 2)
    assert seen == ["nobody", "nobody"]


def test_plain_and_async_handlers_may_share_a_worker(store: tuple[LocalQueues, LocalQueue]) -> None:
    queues, queue = store
    app, threads = App(), {}

    @app.task(queue="q", tag="plain")
    def plain(task: Task) -> None:
        threads["plain"] = threading.current_thread().name

    @app.task(queue="q", tag="async")
    async def in_the_loop(task: Task) -> None:
        threads["async"] = threading.current_thread().name

    queue.add([NewTask(b"x", tag="plain"), NewTask(b"y", tag="async")])
    with running_worker(app, queues.queue, concurrency=2):
        eventually(lambda: queue.stats().deleted_total == 2)
    assert threads["plain"].startswith("towline-executor-")
    assert threads["async"] == "towline-handlers"


def test_the_steady_state_is_one_call_per_task(store: tuple[LocalQueues, LocalQueue]) -> None:
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

"""A worker whose queue is moved to another store: it says so, finishes what it has in hand, and ends."""

import threading
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from queue_core.client.local_calls import LocalQueue, LocalQueues
from queue_core.store import Store
from queue_core.task import NewTask, QueueSpec
from queue_core.worker import events
from queue_core.worker.app import App
from queue_core.worker.context import Task
from queue_core.worker.lifecycle import EXIT_MISCONFIGURED
from tests.support.eventually import eventually
from tests.support.fleet.workers import memory_queues, running_worker

ELSEWHERE = "postgresql://db.example/work"


@pytest.fixture
def store() -> Iterator[tuple[LocalQueues, LocalQueue]]:
    queues, queue = memory_queues()
    yield queues, queue
    queues.close()


def opened_store(queues: LocalQueues) -> Store:
    return queues._service.store


def fence(queues: LocalQueues, to: str = ELSEWHERE) -> None:
    with opened_store(queues).begin() as transaction:
        transaction.set_moved("q", to)


def test_an_idle_worker_ends_and_says_where_its_queue_is(store: tuple[LocalQueues, LocalQueue]) -> None:
    queues, _ = store
    app = App()
    app.task(queue="q")(lambda task: None)
    with capture_logs() as logs, running_worker(app, queues.queue) as worker:
        eventually(lambda: events.WORKER_STARTED in [entry["event"] for entry in logs])
        fence(queues)
        assert worker.wait() == EXIT_MISCONFIGURED
    (told,) = [entry for entry in logs if entry["event"] == events.WORKER_REFUSED and "error" in entry]
    assert told["error"] == "QueueMovedError"
    assert ELSEWHERE in str(told["reason"])


@pytest.mark.parametrize("outcome", ["returns", "raises"])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_worker_finishes_what_it_has_in_hand_though_it_can_neither_delete_nor_release_it(
    store: tuple[LocalQueues, LocalQueue], outcome: str, batch: int
) -> None:
    queues, queue = store
    app, started, go = App(), threading.Event(), threading.Event()
    finished: list[str] = []

    @app.task(queue="q", batch=batch)
    def work(tasks: Task | list[Task]) -> None:
        started.set()
        go.wait(20)
        finished.extend(task.name for task in (tasks if isinstance(tasks, list) else [tasks]))
        if outcome == "raises":
            raise ValueError("no such cat")

    queue.add([NewTask(name=f"n-{number}") for number in range(batch)])
    with capture_logs() as logs, running_worker(app, queues.queue) as worker:
        assert started.wait(5)
        fence(queues)
        go.set()
        assert worker.wait() == EXIT_MISCONFIGURED
    assert len(finished) == batch
    lost = [entry for entry in logs if entry["event"] == events.LEASE_LOST]
    assert lost
    assert all(ELSEWHERE in str(entry["reason"]) for entry in lost)
    assert events.WORKER_FAILED not in [entry["event"] for entry in logs]
    assert queue.stats().in_flight == batch


def test_a_worker_that_hands_on_to_a_queue_that_was_moved_gives_its_own_task_back(
    store: tuple[LocalQueues, LocalQueue],
) -> None:
    queues, queue = store
    queues.put_queue(QueueSpec("next"))
    app = App()
    app.task(queue="q")(lambda task: [NewTask(b"x", queue="next")])
    with opened_store(queues).begin() as transaction:
        transaction.set_moved("next", ELSEWHERE)
    queue.add(b"x")
    with capture_logs() as logs, running_worker(app, queues.queue) as worker:
        eventually(lambda: queue.stats().released_total > 0)
        worker.runner.drain("enough")
        assert worker.wait() == 0
    failed = [entry for entry in logs if entry["event"] == events.HANDLER_FAILED]
    assert failed[0]["error"] == "QueueMovedError"


def test_a_handler_is_told_when_its_lease_ends_as_it_cannot_be_renewed(store: tuple[LocalQueues, LocalQueue]) -> None:
    queues, queue = store
    queues.put_queue(QueueSpec("q", lease_seconds=0.5))
    app, started, lost = App(), threading.Event(), threading.Event()

    @app.task(queue="q")
    def work(task: Task) -> None:
        started.set()
        eventually(lambda: task.lost)
        lost.set()

    queue.add(b"x")
    with running_worker(app, queues.queue) as worker:
        assert started.wait(5)
        fence(queues)
        assert lost.wait(5)
        assert worker.wait() == EXIT_MISCONFIGURED

"""How a worker ends: asked to, retired, recycled, orphaned, cut off; and what becomes of the tasks in its hands."""

import fcntl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from queue_core.client.local_calls import LocalQueue, LocalQueues
from queue_core.task import Lease, NewTask
from queue_core.verbs import Deletion
from queue_core.worker import events
from queue_core.worker.app import App
from queue_core.worker.context import Task
from queue_core.worker.settings import RecycleLimits
from tests.support.eventually import eventually, eventually_async
from tests.support.fleet.workers import (
    FaultyQueue,
    both_kinds,
    memory_queues,
    plain_or_async,
    running_worker,
    unavailable,
)


@pytest.fixture
def store() -> Iterator[tuple[LocalQueues, LocalQueue]]:
    queues, queue = memory_queues()
    yield queues, queue
    queues.close()


class Handling:
    """A handler that stays until it is let go, in both kinds."""

    def __init__(self, kind: str) -> None:
        self.app, self.started, self.finish = App(), threading.Event(), threading.Event()
        self.tasks: list[Task] = []
        self.app.task(queue="q")(self.handle if kind == "plain" else self.handle_async)

    def handle(self, task: Task) -> None:
        self.tasks.append(task)
        self.started.set()
        self.finish.wait(20)

    async def handle_async(self, task: Task) -> None:
        self.tasks.append(task)
        self.started.set()
        await eventually_async(self.finish.is_set, seconds=20)


@both_kinds
def test_a_drained_worker_finishes_what_it_holds_and_leases_no_more(
    store: tuple[LocalQueues, LocalQueue], kind: str
) -> None:
    queues, queue = store
    work = Handling(kind)
    queue.add([NewTask(b"x"), NewTask(b"y")])
    with capture_logs() as logs, running_worker(work.app, queues.queue) as worker:
        assert work.started.wait(5)
        worker.runner.drain("SIGTERM")
        eventually(lambda: events.WORKER_DRAINING in [entry["event"] for entry in logs])
        work.finish.set()
        assert worker.wait() == 0
    stats = queue.stats()
    assert (stats.deleted_total, stats.ready, stats.in_flight, stats.released_total) == (1, 1, 0, 0)
    assert [entry["reason"] for entry in logs if entry["event"] == events.WORKER_DRAINED] == ["SIGTERM"]
    assert not worker.runner.is_abandoned


@both_kinds
def test_what_does_not_finish_within_the_grace_is_given_back_in_its_place_uncounted(
    store: tuple[LocalQueues, LocalQueue], kind: str
) -> None:
    queues, queue = store
    work = Handling(kind)
    queue.add(b"x")
    with running_worker(work.app, queues.queue, grace_seconds=0.05) as worker:
        assert work.started.wait(5)
        queue.add(b"came later")
        worker.runner.drain("SIGTERM")
        assert worker.wait() == 0
        (task,) = queue.lease()
        assert (task.payload, task.lease_number) == (b"x", 1)
        assert work.tasks[0].lost
        # A thread can't be ended: its process must be. An async handler was cancelled.
        assert worker.runner.is_abandoned == (kind == "plain")
        work.finish.set()


@both_kinds
def test_a_second_request_gives_back_at_once(store: tuple[LocalQueues, LocalQueue], kind: str) -> None:
    queues, queue = store
    work = Handling(kind)
    queue.add(b"x")
    with running_worker(work.app, queues.queue, grace_seconds=3600.0) as worker:
        assert work.started.wait(5)
        worker.runner.drain("SIGINT")
        worker.runner.release_now("SIGINT again")
        assert worker.wait() == 0
        assert queue.stats().ready == 1
        work.finish.set()


def test_a_lease_granted_while_draining_is_given_back_in_its_place_uncounted(
    store: tuple[LocalQueues, LocalQueue],
) -> None:
    _, queue = store
    asked, drained = threading.Event(), threading.Event()

    class Late(FaultyQueue):
        """Grants only once the drain has begun, as a server whose answer is under way would."""

        def exchange(self, deletions: list[Deletion], **settings: object) -> tuple[list[Lease], tuple[str, ...]]:
            asked.set()
            assert drained.wait(5)
            return queue.exchange(deletions, **settings)

    app, seen = App(), []
    app.task(queue="q")(seen.append)
    queue.add([NewTask(b"x"), NewTask(b"came later")])
    with capture_logs() as logs, running_worker(app, lambda name: Late(queue)) as worker:
        assert asked.wait(5)
        worker.runner.drain("SIGTERM")
        eventually(lambda: events.WORKER_DRAINING in [entry["event"] for entry in logs])
        drained.set()
        assert worker.wait() == 0
    assert seen == []
    assert [entry["count"] for entry in logs if entry["event"] == events.LEASES_RELEASED] == [1]
    (task,) = queue.lease()
    assert (task.payload, task.lease_number) == (b"x", 1)


def test_a_drain_cuts_a_wait_short_where_the_queue_can(store: tuple[LocalQueues, LocalQueue]) -> None:
    queues, queue = store
    interrupted, waits = threading.Event(), []

    class Waiting(FaultyQueue):
        """Waits until it is interrupted; then the connection is gone."""

        def exchange(self, deletions: list[Deletion], **settings: object) -> tuple[list[Lease], tuple[str, ...]]:
            waits.append(settings["wait_seconds"])
            assert interrupted.wait(20)
            unavailable()

        def close(self) -> None:
            interrupted.set()

    app = App()
    app.task(queue="q")(print)
    with (
        capture_logs() as logs,
        running_worker(app, queues.queue, open_waiting=lambda name: Waiting(queue), wait_seconds=20.0) as worker,
    ):
        eventually(lambda: waits == [20.0])
        worker.runner.drain("SIGTERM")
        assert worker.wait() == 0
    assert events.QUEUE_UNREACHED not in [entry["event"] for entry in logs]


@both_kinds
def test_a_retired_worker_ends_by_itself(store: tuple[LocalQueues, LocalQueue], kind: str) -> None:
    queues, queue = store
    work = Handling(kind)
    with capture_logs() as logs, running_worker(work.app, queues.queue) as worker:
        eventually(lambda: queues.retire_worker("w-1"))
        assert worker.wait() == 0
    assert events.WORKER_RETIRED in [entry["event"] for entry in logs]
    queue.add(b"x")
    assert queue.stats().ready == 1


@both_kinds
def test_a_worker_that_is_retired_at_work_takes_as_long_as_it_needs(kind: str) -> None:
    queues, queue = memory_queues(lease_seconds=2.0)
    work, watched = Handling(kind), FaultyQueue(queue)
    queue.add(b"x")
    with (
        capture_logs() as logs,
        running_worker(work.app, lambda name: watched, grace_seconds=0.01, concurrency=2) as worker,
    ):
        assert work.started.wait(5)
        assert not queues.retire_worker("w-1", busy="finish")
        eventually(lambda: events.WORKER_RETIRED in [entry["event"] for entry in logs])  # its free slot was told
        queue.add(b"another's")
        renewed = watched.calls.count("renew")
        eventually(lambda: watched.calls.count("renew") >= renewed + 2)
        work.finish.set()
        assert worker.wait() == 0
    stats = queue.stats()
    assert (stats.deleted_total, stats.ready, stats.released_total, stats.expired_total) == (1, 1, 0, 0)
    queues.close()


def test_a_worker_that_is_recycled_gives_no_task_back() -> None:
    queues, queue = memory_queues(lease_seconds=2.0)
    watched, app, finish = FaultyQueue(queue), App(), threading.Event()

    @app.task(queue="q")
    def handle(task: Task) -> None:
        if task.payload == b"long":
            finish.wait(20)

    queue.add([NewTask(b"long"), NewTask(b"short")])
    recycle = RecycleLimits(tasks=2)
    with running_worker(app, lambda name: watched, grace_seconds=0.01, concurrency=2, recycle=recycle) as worker:
        eventually(lambda: queue.stats().deleted_total == 1)
        renewed = watched.calls.count("renew")
        eventually(lambda: watched.calls.count("renew") >= renewed + 2)
        finish.set()
        assert worker.wait() == 0
    assert (queue.stats().deleted_total, queue.stats().released_total) == (2, 0)
    queues.close()


@pytest.mark.parametrize("why", ["it is asked to end", "its supervisor is lost"])
def test_a_worker_that_takes_its_time_to_finish_is_held_to_its_grace(
    store: tuple[LocalQueues, LocalQueue], tmp_path: Path, why: str
) -> None:
    queues, queue = store
    work, lock = Handling("plain"), tmp_path / "lock"
    queue.add(b"x")
    supervisor = lock.open("w")
    fcntl.flock(supervisor, fcntl.LOCK_EX)
    orphan = {"supervisor_lock": lock, "orphan_grace_seconds": 0.1}
    with (
        capture_logs() as logs,
        running_worker(work.app, queues.queue, grace_seconds=0.05, concurrency=2, **orphan) as worker,
    ):
        assert work.started.wait(5)
        assert not queues.retire_worker("w-1", busy="finish")
        eventually(lambda: events.WORKER_RETIRED in [entry["event"] for entry in logs])
        if why == "it is asked to end":
            worker.runner.drain("SIGTERM")
        else:
            supervisor.close()
        assert worker.wait() == 0
        assert (queue.stats().ready, queue.stats().released_total) == (1, 1)
        work.finish.set()
    supervisor.close()


def test_a_worker_is_recycled_after_its_number_of_tasks(store: tuple[LocalQueues, LocalQueue]) -> None:
    queues, queue = store
    app = App()
    app.task(queue="q")(lambda task: None)
    queue.add([NewTask(b"x") for _ in range(5)])
    with capture_logs() as logs, running_worker(app, queues.queue, recycle=RecycleLimits(tasks=3)) as worker:
        assert worker.wait() == 0
    assert (queue.stats().deleted_total, queue.stats().ready) == (3, 2)
    assert [entry["reason"] for entry in logs if entry["event"] == events.WORKER_RECYCLED] == [
        "3 tasks done, at most 3"
    ]


@both_kinds
@pytest.mark.parametrize(
    ("concurrency", "batches"),
    [
        pytest.param(4, {}, id="one by one"),
        pytest.param(2, {None: 3}, id="batches"),
        pytest.param(2, {"b": 4}, id="both"),
    ],
)
def test_a_worker_leases_no_more_than_its_number_of_tasks(
    store: tuple[LocalQueues, LocalQueue], kind: str, concurrency: int, batches: dict[str | None, int]
) -> None:
    queues, queue = store
    app = App()
    for tag in {None, *batches}:
        app.task(queue="q", tag=tag, batch=batches.get(tag))(plain_or_async(kind, lambda task: None))
    queue.add([NewTask(b"x", tag="b" if number % 2 else None) for number in range(40)])
    recycle = RecycleLimits(tasks=7)
    with running_worker(app, queues.queue, recycle=recycle, concurrency=concurrency, grace_seconds=0.0) as worker:
        assert worker.wait() == 0
    stats = queue.stats()
    assert (stats.deleted_total, stats.leased_total, stats.ready) == (7, 7, 33)


@pytest.mark.parametrize("recycle", [RecycleLimits(age_seconds=0.01), RecycleLimits(memory_bytes=1)])
def test_an_idle_worker_is_recycled_by_its_age_and_memory(
    store: tuple[LocalQueues, LocalQueue], recycle: RecycleLimits
) -> None:
    queues, _ = store
    app = App()
    app.task(queue="q")(lambda task: None)
    with capture_logs() as logs, running_worker(app, queues.queue, recycle=recycle) as worker:
        assert worker.wait() == 0
    assert events.WORKER_RECYCLED in [entry["event"] for entry in logs]


def test_a_worker_without_its_supervisor_drains_after_the_grace(
    store: tuple[LocalQueues, LocalQueue], tmp_path: Path
) -> None:
    queues, queue = store
    app, lock = App(), tmp_path / "lock"
    app.task(queue="q")(lambda task: None)
    supervisor = lock.open("w")
    fcntl.flock(supervisor, fcntl.LOCK_EX)
    with (
        capture_logs() as logs,
        running_worker(app, queues.queue, supervisor_lock=lock, orphan_grace_seconds=0.1) as worker,
    ):
        queue.add(b"x")
        eventually(lambda: queue.stats().deleted_total == 1)
        assert worker.thread.is_alive()
        supervisor.close()
        assert worker.wait() == 0
    assert events.WORKER_ORPHANED in [entry["event"] for entry in logs]


def test_a_queue_that_does_not_answer_is_asked_again_until_it_does(store: tuple[LocalQueues, LocalQueue]) -> None:
    _, queue = store
    faulty = FaultyQueue(queue)
    faulty.faults["exchange"] = unavailable
    app = App()
    app.task(queue="q")(lambda task: None)
    queue.add(b"x")
    with capture_logs() as logs, running_worker(app, lambda name: faulty):
        eventually(lambda: faulty.calls.count("exchange") >= 3)
        faulty.faults.clear()
        eventually(lambda: queue.stats().deleted_total == 1)
    reach = [entry["event"] for entry in logs if entry["event"].startswith("queue.")]
    assert reach == [events.QUEUE_UNREACHED, events.QUEUE_REACHED]


def test_a_deletion_that_was_not_answered_is_repeated_without_alarm(store: tuple[LocalQueues, LocalQueue]) -> None:
    _, queue = store
    answers = []

    class Forgetful(FaultyQueue):
        """Does what it is asked, but the first answer to a deletion is lost."""

        def exchange(self, deletions: list[Deletion], **settings: object) -> tuple[list[Lease], tuple[str, ...]]:
            answer = queue.exchange(deletions, **{**settings, "count": 1})
            if deletions:
                answers.append(answer)
                if len(answers) == 1:
                    unavailable()
            return answer

    app = App()
    app.task(queue="q")(lambda task: None)
    queue.add(b"x")
    with capture_logs() as logs, running_worker(app, lambda name: Forgetful(queue)):
        eventually(lambda: len(answers) >= 2)
    assert answers[0][1] == ()
    assert len(answers[1][1]) == 1
    assert events.LEASE_LOST not in [entry["event"] for entry in logs]


def test_a_worker_gives_up_a_queue_that_stays_away(store: tuple[LocalQueues, LocalQueue]) -> None:
    _, queue = store
    faulty = FaultyQueue(queue)
    faulty.faults["exchange"] = unavailable
    app = App()
    app.task(queue="q")(lambda task: None)
    with running_worker(app, lambda name: faulty, unreachable_seconds=0.2) as worker:
        assert worker.wait() == 75


def test_a_worker_of_a_queue_that_is_not_there_is_misconfigured(store: tuple[LocalQueues, LocalQueue]) -> None:
    queues, _ = store
    app = App()
    app.task(queue="q")(lambda task: None)
    queues.delete_queue("q")
    with capture_logs() as logs, running_worker(app, queues.queue) as worker:
        assert worker.wait() == 78
    (refusal,) = [entry for entry in logs if entry["event"] == events.WORKER_REFUSED and entry["log_level"] == "error"]
    assert refusal["error"] == "UnknownQueueError"


def test_an_error_of_our_own_ends_the_worker_and_shows_no_payload(store: tuple[LocalQueues, LocalQueue]) -> None:
    _, queue = store

    class Broken(FaultyQueue):
        """Answers with what no queue answers."""

        def exchange(self, deletions: list[Deletion], **settings: object) -> tuple[list[Lease], tuple[str, ...]]:
            answer = queue.exchange(deletions, **settings)
            raise RuntimeError(f"{len(answer)} parts")

    app = App()
    app.task(queue="q")(lambda task: None)
    queue.add(b"a secret")
    with capture_logs() as logs, running_worker(app, lambda name: Broken(queue)) as worker:
        assert worker.wait() == 70
    (failure,) = [entry for entry in logs if entry["event"] == events.WORKER_FAILED and entry["log_level"] == "error"]
    assert "RuntimeError: 2 parts" in failure["traceback"]
    assert "a secret" not in str(logs)


def test_finished_work_reaches_the_queue_even_when_it_comes_back_during_the_drain(
    store: tuple[LocalQueues, LocalQueue],
) -> None:
    _, queue = store
    work, faulty = Handling("plain"), FaultyQueue(queue)
    queue.add(b"x")
    with running_worker(work.app, lambda name: faulty) as worker:
        assert work.started.wait(5)
        faulty.faults.update(exchange=unavailable, delete=unavailable)
        worker.runner.drain("SIGTERM")
        work.finish.set()
        eventually(lambda: faulty.calls.count("delete") >= 2)
        faulty.faults.clear()
        assert worker.wait() == 0
    assert queue.stats().deleted_total == 1

"""Progress and checkpoints of a handler: sent with its lease's renewals, and kept for the task's next lease."""

import threading
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from queue_core.client.local_calls import LocalQueue, LocalQueues
from queue_core.clock import ManualClock
from queue_core.errors import InvalidRequestError
from queue_core.log import get_logger
from queue_core.task import NewTask, Progress, QueueSpec, StoredTask, TaskState
from queue_core.worker import events
from queue_core.worker.app import App
from queue_core.worker.context import Task
from queue_core.worker.invocation import Invocation
from queue_core.worker.lifecycle import WorkerLifecycle
from queue_core.worker.renewals import Renewals
from queue_core.worker.settings import WorkerSettings
from tests.support.eventually import eventually
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
    queues, queue = memory_queues(lease_seconds=60.0)
    yield queues, queue
    queues.close()


class ReportingTask:
    """A leased task under renewal, with a clock that only the test moves, and the queue's calls."""

    def __init__(self, queue: LocalQueue) -> None:
        self.clock = ManualClock()
        self.faulty = FaultyQueue(queue)
        self._queue = queue
        app = App()
        app.task(queue="q")(print)
        lifecycle = WorkerLifecycle(WorkerSettings("tests:app"), queue="q", clock=self.clock, log=get_logger())
        self.renewals = Renewals(self.faulty, lifecycle)
        handler = app.handler("q", None)
        assert handler is not None
        invocation = Invocation(handler, queue.lease(), started_at=self.clock.monotonic())
        self.renewals.track(invocation)
        (self.task,) = invocation.tasks

    def pass_seconds(self, seconds: float) -> int:
        """Let time pass and renew; return how many renewals there were until now."""
        self.clock.advance(seconds)
        with capture_logs():
            self.renewals.renew_due()
        return self.faulty.calls.count("renew")

    def stored(self) -> StoredTask:
        (task,) = self._queue.peek().tasks
        return task


@pytest.fixture
def reporting(store: tuple[LocalQueues, LocalQueue]) -> ReportingTask:
    _, queue = store
    queue.add(b"x")
    return ReportingTask(queue)


def test_reports_are_sent_within_a_second_and_never_more_often(reporting: ReportingTask) -> None:
    task = reporting.task
    task.progress(0.1)
    task.progress(0.2, "page 6 of 30")
    task.checkpoint(b"6")
    assert reporting.pass_seconds(0.9) == 0  # a short handler costs no renewal
    assert reporting.pass_seconds(0.1) == 1
    assert (reporting.stored().progress, reporting.stored().checkpoint) == (Progress(0.2, "page 6 of 30"), b"6")
    assert reporting.pass_seconds(5.0) == 1  # no news
    for number in range(7, 27):
        task.progress(number / 30)
        reporting.pass_seconds(0.1)
    assert reporting.faulty.calls.count("renew") == 3
    assert reporting.stored().checkpoint == b"6"


def test_a_report_of_a_lease_whose_renewal_got_no_reply_is_sent_with_the_next(reporting: ReportingTask) -> None:
    reporting.faulty.faults["renew"] = unavailable
    reporting.task.checkpoint(b"1")
    assert reporting.pass_seconds(1.0) == 1
    del reporting.faulty.faults["renew"]
    assert reporting.stored().checkpoint is None
    assert reporting.pass_seconds(5.0) == 2
    assert reporting.stored().checkpoint == b"1"


def test_a_regular_renewal_carries_what_is_new(reporting: ReportingTask) -> None:
    assert reporting.pass_seconds(20.0) == 1
    reporting.task.progress(1)
    assert reporting.pass_seconds(20.0) == 2
    assert reporting.stored().progress == Progress(1.0)
    assert reporting.task.news() is None


def test_a_task_that_ended_sends_nothing(reporting: ReportingTask) -> None:
    task = reporting.task
    reporting.renewals.abandon()
    task.progress(0.5)
    assert reporting.pass_seconds(10.0) == 0


@pytest.mark.parametrize(
    ("fraction", "text", "stored"),
    [
        pytest.param(1.1, "", Progress(1.0), id="beyond the end"),
        pytest.param(-1, "", Progress(0.0), id="before the beginning"),
        pytest.param(10**400, "", Progress(0.25), id="too large for a float"),
        pytest.param(float("nan"), "a", Progress(0.25, "a"), id="no number"),
        pytest.param(None, "a", Progress(0.25, "a"), id="nothing"),
        pytest.param(0.5, "x" * 201, Progress(0.5, "x" * 200), id="a long text"),
        pytest.param(0.5, "a\0b\ud800", Progress(0.5, "a b?"), id="a text that no store holds"),
        pytest.param(0.5, 7, Progress(0.5, "7"), id="no text"),
    ],
)
def test_no_progress_fails_a_task(reporting: ReportingTask, fraction: float, text: str, stored: Progress) -> None:
    task = reporting.task
    task.progress(0.25)
    task.progress(fraction, text)
    reporting.pass_seconds(1.0)
    assert reporting.stored().progress == stored


@pytest.mark.parametrize(
    ("report", "message"),
    [
        pytest.param(lambda task: task.checkpoint("text"), "must be bytes", id="text"),
        pytest.param(lambda task: task.checkpoint(b"x" * 16_385), "at most 16384 bytes", id="too large"),
    ],
)
def test_a_report_beyond_its_limits_is_an_error_at_once(reporting: ReportingTask, report: object, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        report(reporting.task)
    assert reporting.task.news() is None


@both_kinds
def test_the_next_lease_begins_where_a_failed_one_stopped(store: tuple[LocalQueues, LocalQueue], kind: str) -> None:
    queues, queue = store
    app, seen = App(), []

    def handle(task: Task) -> None:
        seen.append((task.last_checkpoint, dict(task.headers)))
        if len(seen) == 1:
            thread = threading.Thread(target=task.checkpoint, args=(b"page 3",))
            thread.start()
            thread.join()
            assert task.last_checkpoint == b"page 3"
            raise ValueError("the rest is unreadable")

    app.task(queue="q")(plain_or_async(kind, handle))
    queue.add([NewTask(headers={"locale": "de"}), NewTask(delay_seconds=3600)])
    with running_worker(app, queues.queue):
        eventually(lambda: queue.stats().deleted_total == 1)
    assert seen == [(None, {"locale": "de"}), (b"page 3", {"locale": "de"})]


def test_the_unsent_checkpoint_of_a_task_that_is_done_is_dropped(store: tuple[LocalQueues, LocalQueue]) -> None:
    _, queue = store
    faulty, app = FaultyQueue(queue), App()
    app.task(queue="q")(lambda task: task.checkpoint(b"done"))
    queue.add(b"x")
    with running_worker(app, lambda name: faulty):
        eventually(lambda: queue.stats().deleted_total == 1)
    assert "renew" not in faulty.calls


@pytest.mark.parametrize(
    ("max_lease_seconds", "kept"), [pytest.param(60.0, b"1", id="not near"), pytest.param(5.0, None, id="near")]
)
def test_a_checkpoint_near_the_max_lease_is_lost_and_logged(
    store: tuple[LocalQueues, LocalQueue], max_lease_seconds: float, kept: bytes | None
) -> None:
    queues, queue = store
    queues.put_queue(QueueSpec("q", lease_seconds=max_lease_seconds, max_lease_seconds=max_lease_seconds, max_leases=1))
    app = App()

    @app.task(queue="q")
    def handle(task: Task) -> None:
        task.checkpoint(b"1")
        raise ValueError("bad")

    queue.add(b"x")
    with capture_logs() as logs, running_worker(app, queues.queue):
        eventually(lambda: queue.stats().dead == 1)
    (task,) = queue.peek(states=frozenset({TaskState.DEAD})).tasks
    assert (task.checkpoint, task.attempts[0].error) == (kept, "ValueError")
    assert (events.CHECKPOINT_LOST in [entry["event"] for entry in logs]) == (kept is None)


def test_a_task_without_headers_has_an_empty_map(reporting: ReportingTask) -> None:
    assert dict(reporting.task.headers) == {}

"""Leases whose answer came late: renewed before their handler begins, or not begun at all."""

from collections.abc import Iterator, Sequence

import pytest
from structlog.testing import capture_logs

from queue_core.client.local_calls import LocalQueue, LocalQueues
from queue_core.clock import ManualClock
from queue_core.log import get_logger
from queue_core.task import ANY, Lease, NewTask
from queue_core.verbs import Deletion
from queue_core.worker import events
from queue_core.worker.app import App
from queue_core.worker.context import Task
from queue_core.worker.event_loop import HandlerEventLoop
from queue_core.worker.invocation import Invocation, InvocationFailed
from queue_core.worker.lease_client import LeaseClient, QueueClients
from queue_core.worker.lifecycle import WorkerLifecycle
from queue_core.worker.renewals import Renewals
from queue_core.worker.settings import RecycleLimits, WorkerSettings
from tests.support.eventually import eventually
from tests.support.fleet.workers import FaultyQueue, both_kinds, memory_queues, plain_or_async, running_worker

LEASE_SECONDS = 30.0


@pytest.fixture
def store() -> Iterator[tuple[LocalQueues, LocalQueue]]:
    queues, queue = memory_queues(lease_seconds=LEASE_SECONDS, max_lease_seconds=3600.0)
    yield queues, queue
    queues.close()


class Delayed(FaultyQueue):
    """A queue whose first answer to a lease call stays away until the lease has ended, and another has the task."""

    def __init__(self, queue: LocalQueue) -> None:
        super().__init__(queue)
        self.others: list[Lease] = []

    def exchange(self, deletions: Sequence[Deletion], **settings: object) -> tuple[list[Lease], tuple[str, ...]]:
        leases, refused = self._queue.exchange(deletions, **settings)
        if leases and not self.others:
            eventually(lambda: self._queue.stats().ready == len(leases))
            self.others = self._queue.lease(len(leases), seconds=60.0, worker="another")
        return leases, refused


@both_kinds
@pytest.mark.parametrize("recycle", [None, 1], ids=["lives-on", "recycled-after-one-task"])
def test_a_lease_that_ended_before_its_answer_was_read_is_not_begun(kind: str, recycle: int | None) -> None:
    queues, queue = memory_queues(lease_seconds=0.1, max_lease_seconds=3600.0)
    delayed, app, seen = Delayed(queue), App(), []

    def handle(task: Task) -> None:
        seen.append(task.name)

    app.task(queue="q")(plain_or_async(kind, handle))
    queue.add([NewTask(b"x", name="lost")])
    with (
        capture_logs() as logs,
        running_worker(app, lambda name: delayed, recycle=RecycleLimits(tasks=recycle)) as worker,
    ):
        eventually(lambda: [entry for entry in logs if entry["event"] == events.LEASE_LOST])
        queue.delete(delayed.others)
        queue.add([NewTask(b"x", name="next")])
        eventually(lambda: queue.stats().deleted_total == 2)
        if recycle:
            assert worker.wait() == 0
    assert seen == ["next"]
    (lost,) = [entry for entry in logs if entry["event"] == events.LEASE_LOST]
    assert (lost["task"], lost["lease_number"]) == ("lost", 1)
    queues.close()


@pytest.mark.parametrize(
    ("seconds", "is_renewed"),
    [pytest.param(15.0, False, id="at-half-of-the-lease"), pytest.param(15.000001, True, id="later")],
)
def test_a_lease_whose_answer_took_more_than_half_of_it_is_renewed_first(
    store: tuple[LocalQueues, LocalQueue], seconds: float, *, is_renewed: bool
) -> None:
    _, queue = store
    client, faulty, clock = _client(queue)
    queue.add([NewTask(b"x") for _ in range(3)])
    faulty.faults["exchange"] = lambda: clock.advance(seconds)
    leases = client.exchange(count=3, wait="poll")
    assert len(leases) == 3
    assert faulty.calls == (["exchange", "renew"] if is_renewed else ["exchange"])


def test_of_many_late_leases_those_that_ended_are_left_out(store: tuple[LocalQueues, LocalQueue]) -> None:
    _, queue = store
    client, faulty, clock = _client(queue)
    queue.add([NewTask(b"x", name=name) for name in ("gone", "held")])

    def end_one() -> None:
        queue.delete_by_name("gone")

    faulty.faults["exchange"] = lambda: clock.advance(20.0)
    faulty.faults["renew"] = end_one
    with capture_logs() as logs:
        leases = client.exchange(count=2, wait="poll")
    assert [lease.name for lease in leases] == ["held"]
    assert [entry["task"] for entry in logs if entry["event"] == events.LEASE_LOST] == ["gone"]


def test_late_leases_that_allow_no_renewal_are_given_back_and_leased_again_uncounted() -> None:
    queues, queue = memory_queues(lease_seconds=LEASE_SECONDS, max_lease_seconds=LEASE_SECONDS)
    client, faulty, clock = _client(queue)
    queue.add([NewTask(b"x"), NewTask(b"y")])
    faulty.faults["exchange"] = lambda: clock.advance(20.0)
    assert client.exchange(count=2, wait="poll") == []
    assert faulty.calls == ["exchange", "renew", "release"]
    del faulty.faults["exchange"]
    assert [lease.lease_number for lease in client.exchange(count=2, wait="poll")] == [1, 1]
    queues.close()


def test_leases_whose_renewals_are_late_too_are_given_back(store: tuple[LocalQueues, LocalQueue]) -> None:
    _, queue = store
    client, faulty, clock = _client(queue)
    queue.add(b"x")
    faulty.faults["exchange"] = faulty.faults["renew"] = lambda: clock.advance(20.0)
    with capture_logs() as logs:
        assert client.exchange(count=1, wait="poll") == []
    assert faulty.calls == ["exchange", *["renew"] * 3, "release"]
    assert queue.stats().ready == 1
    (released,) = [entry for entry in logs if "reason" in entry]
    assert released["event"] == events.LEASES_RELEASED
    assert released["reason"] == (
        "the queue answers after 20.0 s, which is too late for leases of 30 s: give the queue a longer `lease`"
    )
    (task,) = queue.peek().tasks
    assert task.attempts[-1].message == released["reason"]


def test_a_batch_is_not_begun_when_its_leases_ended_while_it_was_filled_up() -> None:
    queues, queue = memory_queues(lease_seconds=0.1, max_lease_seconds=3600.0)
    app, seen = App(), []
    faulty = FaultyQueue(queue)
    names = iter(["first", "second"])

    @app.task(queue="q", tag="t", batch=2)
    def handle(tasks: list[Task]) -> None:
        seen.append([task.name for task in tasks])

    @app.task(queue="q", tag="other")
    def other(task: Task) -> None:
        """Makes the app of several tags, so that a batch is filled up."""

    def let_it_end() -> None:
        if next(names, None) == "first":
            eventually(lambda: queue.stats().ready == 1)
            queue.delete(queue.lease(worker="another", seconds=60.0))

    faulty.faults["lease"] = let_it_end
    queue.add([NewTask(b"x", name="ended", tag="t")])
    with capture_logs() as logs, running_worker(app, lambda name: faulty):
        eventually(lambda: [entry for entry in logs if entry["event"] == events.LEASE_LOST])
        queue.add([NewTask(b"x", name="next", tag="t")])
        eventually(lambda: queue.stats().deleted_total == 2)
    assert seen == [["next"]]
    queues.close()


@pytest.mark.parametrize(
    ("seconds", "is_begun"), [pytest.param(29.999999, True, id="before-its-end"), pytest.param(30.0, False, id="at-it")]
)
def test_a_handler_begins_only_while_its_lease_is_sure_to_hold(
    store: tuple[LocalQueues, LocalQueue], seconds: float, *, is_begun: bool
) -> None:
    _, queue = store
    app, clock = App(), ManualClock()
    app.task(queue="q")(print)
    queue.add(b"x")
    leases = queue.lease()
    lifecycle = _lifecycle(clock)
    renewals, handler = Renewals(queue, lifecycle), app.handler("q", None)
    assert handler is not None
    requested_at = clock.monotonic()
    clock.advance(10.0)
    invocation = Invocation(handler, leases, started_at=clock.monotonic())
    renewals.track(invocation, requested_at=requested_at)
    clock.advance(seconds - 10.0)
    with capture_logs() as logs:
        outcome = invocation.not_begun()
    assert (outcome is None) == is_begun
    assert [entry["event"] for entry in logs] == ([] if is_begun else [events.LEASE_LOST])
    renewals.renew_due()
    if is_begun:
        clock.advance(29.9)
        assert invocation.not_begun() is None


def test_an_async_handler_whose_turn_comes_after_its_lease_may_have_ended_is_not_begun(
    store: tuple[LocalQueues, LocalQueue],
) -> None:
    _, queue = store
    app, clock, seen = App(), ManualClock(), []
    app.task(queue="q")(plain_or_async("async", seen.append))
    queue.add(b"x")
    lifecycle, handler = _lifecycle(clock), app.handler("q", None)
    assert handler is not None
    invocation = Invocation(handler, queue.lease(), started_at=clock.monotonic())
    Renewals(queue, lifecycle).track(invocation)
    clock.advance(LEASE_SECONDS)
    loop = HandlerEventLoop(lifecycle)
    loop.start()
    with capture_logs():
        outcome = loop.result(invocation)
    assert isinstance(outcome, InvocationFailed)
    assert (outcome.tasks, outcome.charge) == (invocation.tasks, "uncounted")
    assert seen == []
    assert loop.close(timeout_seconds=10)


def _lifecycle(clock: ManualClock) -> WorkerLifecycle:
    return WorkerLifecycle(WorkerSettings("tests:app"), queue="q", clock=clock, log=get_logger())


def _client(queue: LocalQueue) -> tuple[LeaseClient, FaultyQueue, ManualClock]:
    faulty, clock = FaultyQueue(queue), ManualClock()
    return LeaseClient(QueueClients(faulty), _lifecycle(clock), tags=ANY), faulty, clock

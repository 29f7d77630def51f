"""Solo workers: their names, and the one task they get."""

import pytest

from queue_core.client.local_calls import LocalQueue, LocalQueues
from queue_core.clock import START, Instant, ManualClock, after
from queue_core.errors import WorkerRetiredError
from queue_core.stores.memory.store import MemoryStore
from queue_core.task import NewTask, QuarantinedTask, QueueSpec, TagFilter, quarantined_task_of
from queue_core.unit.service import QueueService
from queue_core.verbs import Deletion

NAME = "resize-7f3k2q.alone.16.1766370000123456"


@pytest.mark.parametrize(
    ("worker", "quarantined"),
    [
        pytest.param(NAME, QuarantinedTask(16, Instant(1766370000123456)), id="a solo worker"),
        pytest.param("a.alone.1.2.alone.3.4", QuarantinedTask(3, Instant(4)), id="the last one counts"),
        pytest.param("resize-7f3k2q", None, id="any worker"),
        pytest.param("", None, id="nobody"),
        pytest.param(".alone.16.17", None, id="without a name of its own"),
        pytest.param("host.alone.example", None, id="a host that is called so"),
        pytest.param("w.alone.16", None, id="no eta"),
        pytest.param("w.alone.16.17.18", None, id="one number too many"),
        pytest.param("w.alone.16.1234567890123456789", None, id="too long a number"),
        pytest.param("w.alone.16.\u0661", None, id="another script's digits"),
    ],
)
def test_a_solo_workers_name_tells_its_task(worker: str, quarantined: QuarantinedTask | None) -> None:
    assert quarantined_task_of(worker) == quarantined


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def queue(clock: ManualClock) -> LocalQueue:
    queues = LocalQueues(QueueService(MemoryStore(), clock=clock))
    queues.put_queue(QueueSpec("thumbs"))
    return queues.queue("thumbs")


def held_back(queue: LocalQueue, name: str = "poison") -> str:
    """A worker that is there for a task of this name, which is held back for it."""
    queue.add([NewTask(b"x", name=name)])
    (lease,) = queue.lease(worker="w")
    (finished,) = queue.release(lease, delay_seconds=60)
    (task,) = queue.peek(names=[name]).tasks
    assert task.eta == after(finished.ended_at, 60)
    return f"w-2.alone.{task.id}.{task.eta}"


def test_it_gets_its_task_and_no_other(queue: LocalQueue) -> None:
    worker = held_back(queue)
    queue.add([NewTask(b"other", name="innocent")])
    (lease,) = queue.lease(10, worker=worker, tags=TagFilter.of("whatever"))
    assert (lease.name, lease.lease_number, lease.worker) == ("poison", 2, worker)
    with pytest.raises(WorkerRetiredError):
        queue.lease(worker=worker, wait_seconds=30)


def test_when_it_has_done_it_that_counts_and_it_is_told_to_go(queue: LocalQueue) -> None:
    worker = held_back(queue)
    (lease,) = queue.lease(worker=worker)
    with pytest.raises(WorkerRetiredError):
        queue.exchange([Deletion(lease.token)], worker=worker)
    assert queue.peek().tasks == ()


def test_too_late_it_gets_nothing(queue: LocalQueue, clock: ManualClock) -> None:
    worker = held_back(queue)
    clock.advance(60)
    with pytest.raises(WorkerRetiredError):
        queue.lease(worker=worker)
    assert len(queue.lease(worker="anybody")) == 1


def test_while_the_queue_is_paused_it_gets_nothing_and_may_wait(queue: LocalQueue, clock: ManualClock) -> None:
    worker = held_back(queue)
    queue.pause()
    assert queue.lease(worker=worker) == []
    queue.resume()
    clock.advance(1)
    assert len(queue.lease(worker=worker)) == 1


def test_nobody_else_gets_what_is_held_back(queue: LocalQueue) -> None:
    held_back(queue)
    assert queue.lease(worker="w") == []
    with pytest.raises(WorkerRetiredError):
        queue.lease(worker=f"w-3.alone.1.{START + 1}")

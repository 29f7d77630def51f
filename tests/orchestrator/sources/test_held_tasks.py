"""What a dead worker holds, and how it is held back, made dead and let go again: over a real queue."""

from dataclasses import replace

import pytest

from orchestrator.base.clock import Monotonic
from orchestrator.fleet.exits import DeathNotice
from orchestrator.fleet.quarantine import (
    DeathRecord,
    IsolatedTask,
    SuspectedTask,
    TaskVerdict,
    Verdict,
    solo_worker_name,
)
from orchestrator.sources.held_tasks import apply_verdicts, failure_of_death, give_back, held_by, recall
from queue_core.attempts.attempt import Failure
from queue_core.attempts.failures import host_name
from queue_core.client.local_calls import LocalQueue, LocalQueues
from queue_core.clock import ManualClock
from queue_core.errors import WorkerRetiredError
from queue_core.stores.memory.store import MemoryStore
from queue_core.task import NewTask, QueueSpec, TaskState
from queue_core.unit.service import QueueService

NOTICE = DeathNotice("SIGSEGV", "ended by SIGSEGV; see `towline why-died w1`", is_on_this_host=True)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def queues(clock: ManualClock) -> LocalQueues:
    queues = LocalQueues(QueueService(MemoryStore(), clock=clock))
    queues.put_queue(QueueSpec("thumbs", max_leases=5))
    queues.put_queue(QueueSpec("other"))
    return queues


@pytest.fixture
def queue(queues: LocalQueues) -> LocalQueue:
    return queues.queue("thumbs")


def a_fate(task: SuspectedTask, verdict: Verdict, **more: object) -> TaskVerdict:
    return replace(TaskVerdict(task, verdict, DeathRecord(2, 0, 1.0)), **more)  # type: ignore[arg-type]


def a_suspect(task: SuspectedTask, mark: str) -> IsolatedTask:
    return IsolatedTask(task, mark, Monotonic(0.0), Monotonic(60.0))


def states(queue: LocalQueue) -> dict[str, TaskState]:
    return {task.shown_name: task.state for task in queue.peek().tasks}


def test_only_what_this_worker_holds_in_this_queue_is_found(
    queues: LocalQueues, queue: LocalQueue, clock: ManualClock
) -> None:
    queue.add([NewTask(name="a", tag="x"), NewTask(name="b", max_leases=2), NewTask(name="c"), NewTask(name="d")])
    queues.queue("other").add([NewTask(name="elsewhere")])
    queue.lease(2, worker="w1")
    queue.lease(1, worker="w2")
    queues.queue("other").lease(worker="w1")
    clock.advance(3)
    held = held_by(queues, "thumbs", "w1", cursor=0)
    assert [(one.task, one.tag, one.held_seconds, one.lease_number, one.max_leases) for one in held] == [
        ("a", "x", 3.0, 1, 5),
        ("b", None, 3.0, 1, 2),
    ]
    assert held_by(queues, "thumbs", "w3", cursor=0) == []


def test_each_is_treated_as_it_is_to_be(queues: LocalQueues, queue: LocalQueue) -> None:
    queue.add([NewTask(name="free"), NewTask(name="held"), NewTask(name="spared"), NewTask(name="dead")])
    queue.lease(4, worker="w1")
    free, held, spared, dead = held_by(queues, "thumbs", "w1", cursor=0)
    marks = apply_verdicts(
        queues,
        [
            a_fate(free, "given back"),
            a_fate(held, "held back", hold_seconds=60.0),
            a_fate(spared, "held back", hold_seconds=60.0, charge="uncounted"),
            a_fate(dead, "dead", why="its worker died 3 times " + "x" * 9999),
        ],
        NOTICE,
    )
    assert [bool(mark) for mark in marks] == [False, True, True, False]
    assert states(queue) == {
        "free": TaskState.LEASED,
        "held": TaskState.DELAYED,
        "spared": TaskState.DELAYED,
        "dead": TaskState.DEAD,
    }
    assert {task.shown_name: task.leases for task in queue.peek().tasks} == {
        "free": 1,
        "held": 1,
        "spared": 0,
        "dead": 1,
    }
    (lease,) = queue.lease(worker=solo_worker_name(a_suspect(held, marks[1]), identity="w2"))
    assert (lease.name, lease.lease_number) == ("held", 2)


def test_a_task_that_moved_on_by_itself_is_left_alone(
    queues: LocalQueues, queue: LocalQueue, clock: ManualClock
) -> None:
    queue.add([NewTask(name="a"), NewTask(name="b"), NewTask(name="c")])
    leases = queue.lease(3, seconds=10, worker="w1")
    held = held_by(queues, "thumbs", "w1", cursor=0)
    queue.delete(leases[0])
    clock.advance(10)
    assert apply_verdicts(queues, [a_fate(one, "held back", hold_seconds=60.0) for one in held], NOTICE) == ["", "", ""]
    assert states(queue) == {"b": TaskState.READY, "c": TaskState.READY}
    queues.delete_queue("thumbs")
    assert apply_verdicts(queues, [a_fate(held[0], "dead", why="x")], NOTICE) == [""]
    assert held_by(queues, "thumbs", "w1", cursor=0) == []
    recall(queues, [a_suspect(held[0], "1.99")])


def test_who_is_let_go_is_anybodys_and_uncharged(queues: LocalQueues, queue: LocalQueue, clock: ManualClock) -> None:
    queue.add([NewTask(name="a"), NewTask(name="b")])
    queue.lease(2, worker="w1")
    a, b = held_by(queues, "thumbs", "w1", cursor=0)
    marks = apply_verdicts(
        queues, [a_fate(a, "held back", hold_seconds=60.0), a_fate(b, "held back", hold_seconds=70.0)], NOTICE
    )
    clock.advance(60)  # the first is anybody's by now
    recall(queues, [a_suspect(a, marks[0]), a_suspect(b, marks[1])])
    assert {task.shown_name: (task.state, task.leases) for task in queue.peek().tasks} == {
        "a": (TaskState.READY, 1),
        "b": (TaskState.READY, 1),
    }
    with pytest.raises(WorkerRetiredError):
        queue.lease(worker=solo_worker_name(a_suspect(b, marks[1]), identity="w3"))


def test_each_keeps_how_its_worker_ended(queues: LocalQueues, queue: LocalQueue) -> None:
    queue.add([NewTask(name="held"), NewTask(name="dead"), NewTask(name="stopped")])
    queue.lease(3, worker="w1")
    held, dead, stopped = held_by(queues, "thumbs", "w1", cursor=0)
    verdicts = [a_fate(held, "held back", hold_seconds=60.0), a_fate(dead, "dead", why="its worker died 5 times")]
    apply_verdicts(queues, verdicts, NOTICE)
    give_back(queues, [stopped], NOTICE)
    kept = {task.shown_name: task.attempts for task in queue.peek().tasks}
    for (attempt,) in kept.values():
        assert (attempt.outcome, attempt.error, attempt.message) == ("worker_died", NOTICE.error, NOTICE.message)
        assert (attempt.worker, attempt.host, attempt.lease_number) == ("w1", host_name(), 1)


def test_what_a_task_keeps_of_a_death_is_bounded_and_has_no_secret() -> None:
    notice = DeathNotice("signal 99" * 100, "password=hunter22 " + "x" * 9999)
    failure = failure_of_death(notice)
    assert (len(failure.error), len(failure.message)) == (100, 500)
    assert failure.message.startswith("password=*** x")
    assert (failure.outcome, failure.host) == ("worker_died", "")
    assert failure_of_death(NOTICE) == Failure("worker_died", NOTICE.error, NOTICE.message, host=host_name())

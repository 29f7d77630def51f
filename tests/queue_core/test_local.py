"""The verbs in process: one item or many, clear errors, events once durable, waits that end."""

import threading
from collections.abc import Sequence

import pytest

from queue_core.client.local_calls import LocalQueue, LocalQueues
from queue_core.clock import ManualClock, after
from queue_core.errors import (
    InvalidRequestError,
    InvalidSettingError,
    InvalidTokenError,
    LeaseLostError,
    TaskTooLargeError,
    UnknownQueueError,
    WorkerRetiredError,
)
from queue_core.events import Lifecycle, QueueEvent
from queue_core.stores.memory.store import MemoryStore
from queue_core.task import NewTask, QueueSpec, TagFilter
from queue_core.unit.service import QueueService
from queue_core.unit.unit_of_work import UnitOfWork
from queue_core.verbs import Deletion


class KeptLog:
    """Keeps events for a test to read."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self.lifecycle: Lifecycle = lifecycle
        self.events: list[QueueEvent] = []

    def record(self, events: Sequence[QueueEvent]) -> None:
        self.events.extend(events)

    def names(self) -> list[str]:
        return [event.event for event in self.events]


class Bench:
    """A service over memory with a clock that stands still."""

    def __init__(self, lifecycle: Lifecycle = "task") -> None:
        self.clock = ManualClock()
        self.log = KeptLog(lifecycle)
        self.service = QueueService(MemoryStore(), clock=self.clock, log=self.log, jitter=lambda: 0.0)
        self.queues = LocalQueues(self.service)
        self.queues.put_queue(QueueSpec("thumbs", lease_seconds=30, max_lease_seconds=600, max_leases=2))
        self.queue: LocalQueue = self.queues.queue("thumbs")
        self.log.events.clear()


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_task_is_added_leased_and_deleted(bench: Bench) -> None:
    [added] = bench.queue.add(b"hello")
    [lease] = bench.queue.lease(worker="w-1")
    bench.queue.delete(lease)
    assert (lease.name, lease.payload, lease.lease_number) == (added.name, b"hello", 1)
    assert bench.log.names() == ["task.added", "task.leased", "task.deleted"]
    assert bench.queue.stats().deleted_total == 1


@pytest.mark.parametrize(("seconds", "woken"), [(0.0, 1), (-5.0, 1), (20.0, 0)], ids=["now", "the past", "later"])
def test_a_postponed_task_is_told_of_and_wakes_when_it_is_ready(bench: Bench, seconds: float, woken: int) -> None:
    now = bench.clock.now()
    bench.queue.add(NewTask(b"", name="mine", tag="a", delay_seconds=10))
    bench.log.events.clear()
    wakes: dict[tuple[str, str | None], int] = {}

    def operation(work: UnitOfWork) -> bool:
        moved = work.postpone("thumbs", "mine", expected=after(now, 10), eta=after(now, seconds))
        wakes.update(work.wakes)
        return moved

    assert bench.service.run(operation)
    assert sum(wakes.values()) == wakes.get(("thumbs", "a"), 0) == woken
    assert [(event.event, event.task, event.tag) for event in bench.log.events] == [("task.postponed", "mine", "a")]
    assert not bench.service.run(operation)
    assert len(bench.log.events) == 1


def test_a_lease_lasts_as_long_as_the_queue_says_unless_told_otherwise(bench: Bench) -> None:
    bench.queue.add([NewTask(b"1"), NewTask(b"2")])
    [first] = bench.queue.lease()
    [second] = bench.queue.lease(seconds=5)
    now = bench.clock.now()
    assert (first.expires_at - now, second.expires_at - now) == (30_000_000, 5_000_000)


def test_a_stale_token_is_named_and_the_current_ones_take_effect(bench: Bench) -> None:
    bench.queue.add([NewTask(b"1"), NewTask(b"2")])
    [stale] = bench.queue.lease(seconds=1)
    bench.clock.advance(1)
    [current] = bench.queue.lease(count=1, tags=TagFilter(), seconds=60)
    with pytest.raises(LeaseLostError) as refused:
        bench.queue.delete([stale, current])
    assert refused.value.tokens == (stale.token,)
    assert bench.queue.stats().deleted_total == 1


@pytest.mark.parametrize("verb", ["renew", "release", "delete"])
def test_a_text_that_is_no_token_is_refused_before_anything_changes(bench: Bench, verb: str) -> None:
    bench.queue.add(b"1")
    [lease] = bench.queue.lease()
    with pytest.raises(InvalidTokenError):
        getattr(bench.queue, verb)([lease, "nonsense"])
    assert bench.queue.stats().in_flight == 1


def test_a_pipeline_stage_hands_over_in_one_step(bench: Bench) -> None:
    bench.queues.put_queue(QueueSpec("pages"))
    bench.queue.add(b"1")
    [lease] = bench.queue.lease()
    added = bench.queue.delete(lease, then=[NewTask(b"2", queue="pages"), NewTask(b"3", tag="again")])
    assert [task.status for task in added] == ["added", "added"]
    assert bench.queues.queue("pages").stats().ready == 1
    assert bench.queue.stats(tags=TagFilter.of("again")).ready == 1


def test_a_stale_lease_hands_nothing_over(bench: Bench) -> None:
    bench.queue.add(b"1")
    [lease] = bench.queue.lease(seconds=0.001)
    bench.clock.advance(1)
    with pytest.raises(LeaseLostError):
        bench.queue.delete(lease, then=[NewTask(b"2")])
    assert bench.queue.stats().added_total == 1


def test_handing_over_to_a_queue_that_does_not_exist_deletes_nothing(bench: Bench) -> None:
    bench.queue.add(b"1")
    [lease] = bench.queue.lease()
    with pytest.raises(UnknownQueueError):
        bench.queue.delete(lease, then=[NewTask(b"2", queue="nowhere")])
    assert bench.queue.stats().in_flight == 1


def test_then_goes_with_one_lease(bench: Bench) -> None:
    bench.queue.add([NewTask(b"1"), NewTask(b"2")])
    leases = bench.queue.lease(2)
    with pytest.raises(InvalidRequestError):
        bench.queue.delete(leases, then=[NewTask(b"3")])


def test_exchange_deletes_and_leases_in_one_step(bench: Bench) -> None:
    bench.queue.add([NewTask(b"1"), NewTask(b"2")])
    [first] = bench.queue.lease()
    [second], lost = bench.queue.exchange([Deletion(first.token)])
    assert (second.payload, lost) == (b"2", ())
    none_left, lost = bench.queue.exchange([Deletion(first.token)])
    assert (none_left, lost) == ([], (first.token,))


def test_a_task_that_fails_comes_back_later_each_time_and_then_dies(bench: Bench) -> None:
    bench.queue.add(b"1")
    [lease] = bench.queue.lease()
    bench.queue.release(lease)
    assert bench.queue.stats().delayed == 1
    bench.clock.advance(1)
    [lease] = bench.queue.lease()
    [finished] = bench.queue.release(lease, dead_reason="")
    assert finished.died
    assert bench.queue.stats().dead == 1
    assert bench.log.names()[-2:] == ["lease.released", "task.died"]


def test_dead_tasks_are_redriven_with_all_their_leases(bench: Bench) -> None:
    bench.queue.add([NewTask(b"1"), NewTask(b"2")])
    bench.queue.release(bench.queue.lease(2), dead_reason="poison")
    assert bench.queue.redrive() == 2
    assert [lease.lease_number for lease in bench.queue.lease(2)] == [1, 1]


def test_a_paused_queue_grants_nothing_and_wakes_when_resumed(bench: Bench) -> None:
    bench.queue.add(b"1")
    bench.queue.pause()
    assert bench.queue.lease() == []
    bench.queue.resume()
    assert len(bench.queue.lease()) == 1


def test_a_retired_worker_gets_no_lease_but_its_deletions_take_effect(bench: Bench) -> None:
    bench.queue.add([NewTask(b"1"), NewTask(b"2")])
    [lease] = bench.queue.lease(worker="w-1")
    assert not bench.queues.retire_worker("w-1")
    bench.queue.delete(lease)
    assert bench.queues.retire_worker("w-1")
    with pytest.raises(WorkerRetiredError):
        bench.queue.lease(worker="w-1")


def test_a_dead_workers_tasks_are_given_back_at_once(bench: Bench) -> None:
    bench.queue.add([NewTask(b"1"), NewTask(b"2")])
    bench.queue.lease(2, worker="w-1")
    assert [lease.outcome for lease in bench.queues.release_worker("w-1")] == ["released", "released"]
    assert [lease.lease_number for lease in bench.queue.lease(2, worker="w-2")] == [2, 2]


@pytest.mark.parametrize(
    ("lifecycle", "names"),
    [
        pytest.param("task", ["task.added"] * 3, id="an event per task"),
        pytest.param("batch", ["task.added"], id="one per call"),
        pytest.param("off", [], id="none"),
    ],
)
def test_the_lifecycle_log_has_three_levels(lifecycle: Lifecycle, names: list[str]) -> None:
    bench = Bench(lifecycle)
    bench.queue.add([NewTask(b"1"), NewTask(b"2"), NewTask(b"3")])
    assert bench.log.names() == names
    assert sum(event.count for event in bench.log.events) == (0 if lifecycle == "off" else 3)


def test_no_event_tells_a_payload_or_a_token(bench: Bench) -> None:
    bench.queue.add(b"secret-payload")
    [lease] = bench.queue.lease()
    bench.queue.release(lease)
    shown = repr(bench.log.events)
    assert "secret-payload" not in shown
    assert lease.token not in shown


def test_one_bad_call_leaves_its_neighbours_in_the_transaction_alone(bench: Bench) -> None:
    batch = bench.service.commit(
        [
            lambda work: work.add("thumbs", [NewTask(b"1")]),
            lambda work: work.add("thumbs", [NewTask(bytes((1 << 20) + 1))]),
            lambda work: work.add("nowhere", [NewTask(b"2")]),
            lambda work: work.add("thumbs", [NewTask(b"3")]),
        ]
    )
    assert [type(outcome) for outcome in batch.outcomes] == [list, TaskTooLargeError, UnknownQueueError, list]
    assert bench.queue.stats().ready == 2


def test_nothing_is_told_before_it_is_published(bench: Bench) -> None:
    batch = bench.service.commit([lambda work: work.add("thumbs", [NewTask(b"1")])])
    assert bench.log.events == []
    bench.service.publish(batch.outbox)
    assert bench.log.names() == ["task.added"]


def test_contradicting_settings_are_refused(bench: Bench) -> None:
    with pytest.raises(InvalidSettingError):
        bench.queues.put_queue(QueueSpec("q", lease_seconds=60, max_lease_seconds=30))
    assert [spec.name for spec in bench.queues.queues()] == ["thumbs"]


def test_a_waiting_lease_returns_when_work_is_added() -> None:
    service = QueueService(MemoryStore())
    queues = LocalQueues(service)
    queues.put_queue(QueueSpec("q"))
    queue = queues.queue("q")
    got: list[bytes] = []

    def wait() -> None:
        got.extend(lease.payload for lease in queue.lease(wait_seconds=30))

    waiter = threading.Thread(target=wait)
    waiter.start()
    queue.add(b"now")
    waiter.join(timeout=10)
    assert got == [b"now"]


def test_a_waiting_lease_returns_when_a_delayed_task_is_due() -> None:
    queues = LocalQueues(QueueService(MemoryStore()))
    queues.put_queue(QueueSpec("q"))
    queue = queues.queue("q")
    queue.add(NewTask(b"soon", delay_seconds=0.05))
    assert [lease.payload for lease in queue.lease(wait_seconds=10)] == [b"soon"]


def test_a_wait_that_is_over_returns_nothing() -> None:
    queues = LocalQueues(QueueService(MemoryStore()))
    queues.put_queue(QueueSpec("q"))
    assert queues.queue("q").lease(wait_seconds=0.01) == []


def test_purging_takes_all_but_the_dead_and_keeps_their_names(bench: Bench) -> None:
    bench.queue.add([NewTask(b"1", name="one"), NewTask(b"2"), NewTask(b"3")])
    [lease] = bench.queue.lease()
    bench.queue.release(lease, dead_reason="poison")
    assert bench.queue.purge() == 2
    assert bench.queue.stats().dead == 1
    assert bench.queue.purge(dead="only") == 1
    assert [added.status for added in bench.queue.add(NewTask(b"1", name="one"))] == ["tombstoned"]

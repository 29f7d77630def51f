"""What every store must do with a queue that takes larger payloads, and later etas, than most."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import pytest

from queue_core import limits
from queue_core.client import local_calls
from queue_core.client.local_calls import LocalQueues
from queue_core.clock import Instant
from queue_core.errors import InvalidEtaError, TaskTooLargeError
from queue_core.store import Store
from queue_core.task import ANY, NewTask, TaskState
from queue_core.unit.service import QueueService
from queue_core.unit.unit_of_work import UnitOfWork
from queue_core.verbs import ClientCall, Deletion, PayloadAllowance
from tests.support.stores.task_builders import QUEUE, SPEC, a_queue

T = TypeVar("T")

MIB = 1 << 20
DAY = 86_400.0
LARGE = bytes(range(256)) * (8 * MIB // 256)


def run(store: Store, step: Callable[[UnitOfWork], T]) -> T:
    return QueueService(store, clock=store.clock).run(step, unit="verb")


def payloads_of(store: Store) -> list[bytes]:
    page = run(
        store,
        lambda work: work.peek(
            QUEUE,
            tags=ANY,
            states=frozenset(TaskState),
            names=None,
            after=0,
            limit=1000,
            payload_bytes=limits.LARGEST_PAYLOAD_BYTES,
        ),
    )
    return [task.payload for task in page.tasks]


def test_a_queue_keeps_its_largest_payload_and_its_farthest_eta(store: Store) -> None:
    made = a_queue(store, "big", max_payload_bytes=64 * MIB, max_eta_seconds=3650 * DAY)
    with store.read() as transaction:
        assert transaction.queue("big") == made
        assert transaction.queue(QUEUE) == SPEC
    a_queue(store, "big")
    with store.read() as transaction:
        assert transaction.queue("big") == replace(SPEC, name="big")


def test_a_large_payload_is_added_leased_shown_handed_on_and_kept(store: Store) -> None:
    a_queue(store, max_payload_bytes=8 * MIB)
    queue = LocalQueues(QueueService(store, clock=store.clock)).queue(QUEUE)
    queue.add([NewTask(LARGE, name="large"), NewTask(b"small", name="small")])
    a_queue(store, max_payload_bytes=MIB)  # what is there stays
    with pytest.raises(TaskTooLargeError, match=f"8388608; in queue {QUEUE}: raise its max_payload"):
        queue.add(LARGE)
    assert payloads_of(store) == [LARGE]  # and the next page has the other
    first = run(store, lambda work: work.lease(QUEUE, count=2, seconds=60, call=ClientCall("s", 1)))
    again = run(store, lambda work: work.lease(QUEUE, count=2, seconds=60, call=ClientCall("s", 1, is_repeat=True)))
    assert [one.payload for one in first.leases] == [LARGE, b"small"]
    assert again.leases == first.leases
    a_queue(store, max_payload_bytes=8 * MIB)
    queue.delete(first.leases[0], then=[NewTask(LARGE + b"", name="next")])
    queue.release(first.leases[1])
    assert queue.lease(2, tags=ANY)[0].payload == LARGE
    assert store.check().problems == ()


@pytest.mark.parametrize("then", [False, True], ids=["add", "hand over"])
def test_a_payload_beyond_its_queues_limit_is_refused_before_anything_is_written(store: Store, then: bool) -> None:
    a_queue(store, "big", max_payload_bytes=3 * MIB)
    queue = LocalQueues(QueueService(store, clock=store.clock)).queue("big")
    queue.add(b"first")
    held = queue.lease(1)
    for new in (NewTask(bytes(3 * MIB + 1)), NewTask(bytes(2 * MIB), queue=QUEUE)):
        with pytest.raises(TaskTooLargeError) as refused:
            if then:
                queue.delete(held, then=[NewTask(b"x"), new])
            else:
                queue.add([NewTask(b"x"), new])
        assert f"in queue {new.queue or 'big'}: raise its max_payload" in str(refused.value)
        assert refused.value.most == (MIB if new.queue else 3 * MIB)
    with pytest.raises(TaskTooLargeError, match="elsewhere"):
        queue.add(bytes(64 * MIB + 1))
    assert (queue.stats().added_total, queue.stats().in_flight) == (1, 1)


def test_an_eta_beyond_thirty_days_is_taken_where_the_queue_allows_it(store: Store) -> None:
    a_queue(store, "far", max_eta_seconds=400 * DAY)
    queues = LocalQueues(QueueService(store, clock=store.clock))
    now = store.clock.now()
    eta = Instant(now + int(399 * DAY) * 1_000_000)
    for new in (NewTask(eta=eta), NewTask(delay_seconds=399 * DAY)):
        with pytest.raises(InvalidEtaError, match=f"raise max_eta of queue {QUEUE}"):
            queues.queue(QUEUE).add(new)
        queues.queue("far").add(new)
    with pytest.raises(InvalidEtaError, match="raise max_eta of queue far"):
        queues.queue("far").add(NewTask(delay_seconds=401 * DAY))
    for late in (NewTask(delay_seconds=3651 * DAY), NewTask(eta=Instant(now + int(3651 * DAY) * 1_000_000))):
        with pytest.raises(InvalidEtaError):
            queues.queue("far").add(late)
    far, other = queues.queue("far"), queues.queue(QUEUE)
    assert (far.stats().delayed, other.stats().added_total) == (2, 0)
    with store.read() as transaction:
        assert transaction.next_eta("far", now=now) == eta


def test_a_postponed_eta_is_bounded_by_its_queue_too(store: Store) -> None:
    a_queue(store, "far", max_eta_seconds=60 * DAY)
    queues = LocalQueues(QueueService(store, clock=store.clock))
    now = store.clock.now()
    soon = Instant(now + int(DAY) * 1_000_000)
    late, later = (Instant(now + int(days * DAY) * 1_000_000) for days in (59, 61))
    for name in ("far", QUEUE):
        queues.queue(name).add(NewTask(name="n", eta=soon))
    assert run(store, lambda work: work.postpone("far", "n", expected=soon, eta=late))
    for name, eta in (("far", later), (QUEUE, late)):
        with pytest.raises(InvalidEtaError, match=f"raise max_eta of queue {name}"):
            run(store, lambda work, name=name, eta=eta: work.postpone(name, "n", expected=soon, eta=eta))  # type: ignore[misc]


def test_a_lease_without_a_server_is_bounded_in_bytes_and_grants_one_at_least(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_calls, "ROOM", PayloadAllowance(10_000))
    queue = LocalQueues(QueueService(store, clock=store.clock)).queue(QUEUE)
    queue.add([NewTask(bytes(size)) for size in (20_000, 4000, 4000, 4000, 10)])
    assert [len(held.payload) for held in queue.lease(1000)] == [20_000]
    leases, _ = queue.exchange([Deletion("1.1")], count=1000)
    assert [len(held.payload) for held in leases] == [4000, 4000]
    assert [len(held.payload) for held in queue.lease(1000)] == [4000, 10]

"""What every store must do with a task's own bound of leases, and with the settings that it only keeps."""

import pytest

from queue_core.attempts.attempt import WORDS
from queue_core.clock import START, Instant
from queue_core.store import Store
from queue_core.task import ANY, NewTask, QueueSpec, TagFilter, TaskState
from queue_core.verbs import Deletion, Release
from tests.support.stores import changes
from tests.support.stores.restored_tasks import a_leased_task, a_task, opened_again, peek, restore
from tests.support.stores.task_builders import QUEUE, a_queue, add, at, lease, names, stats

LEASES = [
    pytest.param(None, 2, 2, id="of its own where the queue has none"),
    pytest.param(5, 2, 2, id="of its own, below the queue's"),
    pytest.param(1, 3, 3, id="of its own, above the queue's"),
    pytest.param(2, None, 2, id="the queue's where it has none"),
]


def release(store: Store, token: str, *, now: Instant = START) -> None:
    with store.begin() as transaction:
        transaction.release(QUEUE, [Release(token, 0)], now=now)


@pytest.mark.parametrize("how", ["released", "expired"])
@pytest.mark.parametrize("name", [pytest.param("bad", id="with a name"), pytest.param(None, id="without")])
@pytest.mark.parametrize(("of_queue", "own", "granted"), LEASES)
def test_a_task_is_leased_as_often_as_its_bound_says(
    store: Store, how: str, name: str | None, of_queue: int | None, own: int | None, granted: int
) -> None:
    a_queue(store, max_leases=of_queue)
    add(store, NewTask(b"bad", name=name, max_leases=own))
    now, numbers = START, []
    while held := lease(store, seconds=10, now=now):
        numbers.append(held[0].lease_number)
        if how == "released":
            release(store, held[0].token, now=now)
        else:
            now = held[0].expires_at
    assert numbers == list(range(1, granted + 1))
    found = stats(store, now=now)
    assert (found.ready, found.dead, found.died_total) == (0, 1, 1)
    assert [(task.reason, task.max_leases) for task in peek(store, now=now)] == [
        (WORDS["given_back" if how == "released" else "expired"], own)
    ]


def test_an_expiry_that_nobody_settled_counts_by_each_tasks_own_bound(store: Store) -> None:
    bounds = {"once": 1, "twice": 2, "ever": None}
    add(store, *[NewTask(name=name, tag="a", max_leases=bound) for name, bound in bounds.items()])
    lease(store, 3, seconds=10)
    with store.read() as transaction:
        found = transaction.stats(QUEUE, ANY, now=at(10))
        of_tag = transaction.stats(QUEUE, TagFilter.of("a"), now=at(10))
        waiting = transaction.waiting(QUEUE, TagFilter.oldest(), now=at(10))
        ready = transaction.peek(QUEUE, ANY, frozenset({TaskState.READY}), limit=9, payload_bytes=0, now=at(10))
        dead = transaction.peek(QUEUE, ANY, frozenset({TaskState.DEAD}), limit=9, payload_bytes=0, now=at(10))
    assert (found.ready, found.in_flight, found.dead, found.oldest_ready_at) == (2, 0, 1, at(10))
    assert (of_tag.ready, of_tag.dead, of_tag.died_total) == (2, 1, 1)
    assert [(one.position, one.ready_at) for one in waiting] == [(1, at(10)), (2, at(10))]
    assert [task.name for task in ready.tasks] == ["twice", "ever"]
    assert [task.name for task in dead.tasks] == ["once"]
    assert names(lease(store, 3, tags=TagFilter.oldest(), seconds=10, now=at(10))) == ["twice", "ever"]
    assert stats(store, now=at(20)).died_total == 2


def test_a_task_of_an_own_bound_is_deleted_where_the_queue_says_so(store: Store) -> None:
    a_queue(store, on_exhausted="delete")
    add(store, NewTask(name="gone", max_leases=1), NewTask(name="kept"))
    lease(store, 2, seconds=10)
    found = stats(store, now=at(10))
    assert (found.ready, found.in_flight, found.dead, found.died_total) == (1, 0, 0, 1)
    with store.begin() as transaction:  # each settles by a way of its own
        assert transaction.delete_by_name(QUEUE, ["gone"], now=at(10)) == ["tombstoned"]
    assert [task.name for task in peek(store, now=at(10))] == ["kept"]


def test_a_dead_workers_leases_end_by_each_tasks_own_bound(store: Store) -> None:
    add(store, NewTask(name="once", max_leases=1), NewTask(name="ever"))
    lease(store, 2, worker="w1")
    with store.begin() as transaction:
        released = transaction.release_worker("w1", now=START)
    assert sorted((one.name, one.died) for one in released) == [("ever", False), ("once", True)]


def test_a_redriven_task_keeps_its_own_bound(store: Store) -> None:
    add(store, NewTask(name="bad", max_leases=1))
    for _ in range(2):
        (held,) = lease(store)
        release(store, held.token)
        assert stats(store).dead == 1
        with store.begin() as transaction:
            (redriven,) = changes.redrive(transaction, QUEUE, None, ANY, limit=5, now=START)
        assert (redriven.leases, redriven.max_leases) == (0, 1)


@pytest.mark.parametrize("tags", [ANY, TagFilter.of("a", "b")], ids=["any", "tags"])
def test_redriven_tasks_are_returned_in_the_order_of_their_ids(store: Store, tags: TagFilter) -> None:
    added = [("1", "a", 0), ("2", "b", 0), ("3", "a", 0), ("4", "b", 9)]
    add(store, *[NewTask(name=name, tag=tag, max_leases=1, priority=priority) for name, tag, priority in added])
    for second, held in enumerate(sorted(lease(store, 4), key=lambda one: one.name, reverse=True)):
        release(store, held.token, now=at(second))  # the last one dies first
    with store.begin() as transaction:
        redriven = changes.redrive(transaction, QUEUE, None, tags, limit=5, now=at(5))
    assert [task.shown_name for task in redriven] == ["1", "2", "3", "4"]


def test_an_uncounted_lease_is_not_held_against_the_own_bound(store: Store) -> None:
    add(store, NewTask(max_leases=1))
    for _ in range(3):
        (held,) = lease(store)
        with store.begin() as transaction:
            transaction.release(QUEUE, [Release(held.token, charge="uncounted")], now=START)
    assert stats(store).ready == 1


@pytest.mark.parametrize("payload", [b"", b"x" * 2048, b"x" * 2049], ids=["empty", "inline", "long"])
def test_what_a_deletion_adds_has_its_own_bound_too(store: Store, payload: bytes) -> None:
    add(store, NewTask())
    (held,) = lease(store)
    then = NewTask(payload, name="next", tag="é", delay_seconds=5, max_leases=7)
    with store.begin() as transaction:
        transaction.delete(QUEUE, [Deletion(held.token, (then, NewTask(payload)))], now=START)
    first, second = peek(store)
    assert (first.payload, first.name, first.tag, first.max_leases) == (payload, "next", "é", 7)
    assert (second.payload, second.max_leases) == (payload, None)
    assert [one.payload for one in lease(store, 2, now=at(5))] == [payload, payload]


def test_a_task_from_another_store_brings_its_own_bound(store: Store) -> None:
    restore(store, a_task(1, name="waiting", max_leases=3), a_leased_task(2, name="leased", max_leases=2))
    assert sorted((task.shown_name, task.max_leases) for task in peek(store)) == [("leased", 2), ("waiting", 3)]
    assert [(task.name, task.state) for task in peek(store, now=at(10))] == [
        ("waiting", TaskState.READY),
        ("leased", TaskState.DEAD),
    ]


def test_settings_that_a_store_only_keeps_come_back_as_they_were(store: Store) -> None:
    spec = QueueSpec(
        "kept", lease_calls_per_second=10, user_emails=("a@example.org", "ü@example.org"), writer_emails=("w@x",)
    )
    with store.begin() as transaction:
        assert transaction.put_queue(spec, now=START)
        assert transaction.queue("kept") == spec
    with store.begin() as transaction:
        assert not transaction.put_queue(spec, now=START)
        assert transaction.queues()[0] == spec
        assert transaction.queue(QUEUE).user_emails == ()
    if store.url != "memory:":
        again = opened_again(store)
        with again.read() as transaction:
            assert transaction.queue("kept") == spec
        again.close()
    with store.begin() as transaction:
        assert not transaction.put_queue(QueueSpec("kept"), now=START)
        assert transaction.set_paused("kept", "paused")
        assert transaction.queue("kept") == QueueSpec("kept")

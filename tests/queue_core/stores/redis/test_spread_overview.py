"""A queue that is spread over shards, to administrators and supervisors: they see, set and clear all of it at once."""

from collections.abc import Iterator

import pytest

from queue_core.clock import START
from queue_core.errors import QueueMovedError, WorkerRetiredError
from queue_core.store import Store
from queue_core.task import ANY, NewTask, QueueSpec, TagFilter, TaskState
from queue_core.verbs import HeldName, Release
from tests.support.stores.redis_stores import a_sharded_store, take_all
from tests.support.stores.stores import new_url
from tests.support.stores.task_builders import QUEUE, add, at, delete, grant, lease, names, samples, stats


@pytest.fixture
def store() -> Iterator[Store]:
    with a_sharded_store(new_url("redis")) as opened:
        yield opened
        assert opened.check().problems == ()


def test_dead_tasks_are_redriven_and_purged_on_all_shards(store: Store) -> None:
    for number in range(6):
        add(store, NewTask(b"%d" % number, name=f"n{number}" if number < 3 else None))
    with store.begin() as transaction:
        for held in take_all(store):
            transaction.release(QUEUE, [Release(held.token, dead_reason="broken")], now=START)
        assert transaction.stats(QUEUE, ANY, now=START).dead == 6
        named = transaction.redrive(QUEUE, ["n0", "n2", "n9"], ANY, limit=9, now=START)
        assert sorted(task.payload for task in named) == [b"0", b"2"]
        assert len(transaction.redrive(QUEUE, None, ANY, limit=2, now=START)) == 2
        assert transaction.purge_dead(QUEUE, ANY, limit=1, now=START) == 1
        assert transaction.purge_dead(QUEUE, ANY, limit=9, now=START) == 1
        assert transaction.purge(QUEUE, ANY, limit=9, now=START) == 4
    assert take_all(store) == []


def test_pausing_and_fencing_are_for_all_shards(store: Store) -> None:
    for _ in range(4):
        add(store, NewTask())
    with store.begin() as transaction:
        assert transaction.set_paused(QUEUE, "paused")
        assert take_all(store) == []
        assert transaction.set_paused(QUEUE, "running")
        transaction.set_moved(QUEUE, "elsewhere")
        assert transaction.queue(QUEUE).moved_to == "elsewhere"
        with pytest.raises(QueueMovedError):
            add(store, NewTask())
        transaction.set_moved(QUEUE, "")


def test_statistics_and_pages_are_those_of_one_queue(store: Store) -> None:
    for number in range(20):
        add(store, NewTask(b"x", tag="ab"[number % 2] if number % 5 else None), now=at(number))
    lease(store, 2, tags=TagFilter.of("a"), seconds=50, now=at(20))
    found = stats(store, now=at(20))
    assert (found.queue, found.ready, found.in_flight, found.added_total) == (QUEUE, 18, 2, 20)
    with store.read() as transaction:
        tags = transaction.tag_stats(QUEUE, after=None, limit=2, now=at(20))
        rest = transaction.tag_stats(QUEUE, after="a", limit=2, now=at(20))
        waiting = transaction.waiting(QUEUE, ANY, now=at(20))
        live = transaction.live_leases(QUEUE, limit=9, now=at(20))
        assert transaction.next_eta(QUEUE, now=at(20)) == at(70)
        shown, after = [], 0
        while True:
            page = transaction.peek(QUEUE, ANY, frozenset(TaskState), after=after, limit=3, payload_bytes=1, now=at(20))
            shown += page.tasks
            if page.next_after is None:
                break
            after = page.next_after
        named = transaction.peek(
            QUEUE, ANY, frozenset(TaskState), names=[shown[4].shown_name], limit=3, payload_bytes=1, now=at(20)
        )
    assert [(each.tag, each.stats.ready + each.stats.in_flight) for each in (*tags, *rest)] == [
        (None, 4),
        ("a", 8),
        ("b", 8),
    ]
    assert [each.position for each in waiting] == [1, 3, 5, 8, 10, 13, 15, 18]
    assert waiting[-1].ready_at == at(19)
    assert {each.name for each in live} == {task.shown_name for task in shown if task.state is TaskState.LEASED}
    assert len({task.id for task in shown}) == 20
    assert [task.id for task in shown] == sorted(task.id for task in shown)
    assert named.tasks == (shown[4],)


def test_samples_go_on_where_the_cursor_stands(store: Store) -> None:
    for _ in range(9):
        add(store, NewTask())
    taken = take_all(store)
    delete(store, *taken[:5])
    first = samples(store)
    assert samples(store, after=first.cursor).finished == ()
    delete(store, *taken[5:])
    rest = samples(store, after=first.cursor)
    assert sorted(each.name for each in (*first.finished, *rest.finished)) == sorted(names(taken))
    assert not rest.missed
    assert samples(store, after=12345).missed


def test_a_worker_is_known_retired_and_released_on_all_shards(store: Store) -> None:
    for _ in range(6):
        add(store, NewTask())
    held = lease(store, 6, worker="w1")
    with store.begin() as transaction:
        assert set(transaction.workers_seen(["w1", "w2"])) == {"w1"}
        assert not transaction.retire_worker("w1", now=START)
        finished = transaction.release_worker("w1", now=START)
    assert sorted(each.name for each in finished) == sorted(names(held))
    assert {each.queue for each in finished} == {QUEUE}
    with pytest.raises(WorkerRetiredError):
        grant(store, worker="w1")
    assert len(take_all(store)) == 6


def test_names_that_are_held_are_listed_in_order_and_held_anew(store: Store) -> None:
    add(store, *[NewTask(name=f"n{number}") for number in range(6)])
    delete(store, *take_all(store))
    with store.begin() as transaction:
        first = transaction.held_names(QUEUE, after=None, limit=4, now=at(1))
        rest = transaction.held_names(QUEUE, after=first[-1].name, limit=4, now=at(1))
        transaction.hold_names(QUEUE, [HeldName("m1", at(50)), HeldName("m2", at(50))], now=at(1))
    assert [held.name for held in (*first, *rest)] == [f"n{number}" for number in range(6)]
    assert {each.status for each in add(store, NewTask(name="m1"), NewTask(name="m2"), now=at(2))} == {"tombstoned"}


def test_tasks_of_another_store_are_taken_up(store: Store) -> None:
    add(store, *[NewTask(b"%d" % number, name=f"n{number}" if number % 2 else None) for number in range(6)])
    with store.begin() as transaction:
        page = transaction.peek(QUEUE, ANY, frozenset(TaskState), limit=9, payload_bytes=9, now=START)
        transaction.delete_queue(QUEUE)
        transaction.put_queue(QueueSpec(QUEUE), now=START)
        added = transaction.restore(QUEUE, page.tasks, now=START)
    assert [each.status for each in added] == ["added"] * 6
    assert sorted(held.payload for held in take_all(store)) == [b"%d" % number for number in range(6)]

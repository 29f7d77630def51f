"""What every store must do for people and supervisors: purge, peek, statistics, workers."""

import pytest

from queue_core.clock import START
from queue_core.errors import (
    UnknownQueueError,
    WorkerRetiredError,
)
from queue_core.stats import Samples
from queue_core.store import Store
from queue_core.task import ANY, UNTAGGED, NewTask, QueueSpec, TagFilter, TaskState
from queue_core.verbs import Deletion, LeaseRequest, Release, Renewal
from tests.support.stores.task_builders import (
    MICROSECOND,
    QUEUE,
    a_queue,
    add,
    at,
    delete,
    grant,
    lease,
    samples,
    stats,
)

SECOND = 1_000_000
BEFORE, AFTER = -MICROSECOND, MICROSECOND


# -- administrators ---------------------------------------------------------------------------------------------------


def test_a_paused_queue_grants_nothing_but_lets_holders_finish(store: Store) -> None:
    add(store, NewTask(), NewTask())
    (held,) = lease(store)
    with store.begin() as transaction:
        assert transaction.set_paused(QUEUE, "paused")
        assert not transaction.set_paused(QUEUE, "paused")
    assert lease(store) == []
    assert stats(store).paused
    assert delete(store, held)[0] is not None
    a_queue(store)  # setting a queue anew does not resume it
    with store.begin() as transaction:
        assert transaction.set_paused(QUEUE, "running")
    assert len(lease(store)) == 1


def test_purging_spares_the_dead_and_is_bounded_by_its_limit(store: Store) -> None:
    a_queue(store, max_leases=1)
    add(store, *[NewTask(tag="a", name=f"a{index}") for index in range(4)])
    (held,) = lease(store)
    with store.begin() as transaction:
        transaction.release(QUEUE, [Release(held.token)], now=START)
    add(store, NewTask(tag="b"), NewTask(tag="a", delay_seconds=9))
    lease(store)
    counts = []
    for _ in range(4):
        with store.begin() as transaction:
            counts.append(transaction.purge(QUEUE, TagFilter.of("a"), limit=2, now=START))
    assert counts == [2, 2, 0, 0]
    assert stats(store).dead == 1
    assert add(store, NewTask(name="a1"))[0].status == "tombstoned"
    with store.begin() as transaction:
        assert transaction.purge_dead(QUEUE, ANY, limit=10, now=START) == 1
    found = stats(store)
    assert (found.ready, found.delayed, found.in_flight, found.dead) == (1, 0, 0, 0)


def test_deleting_by_name_asks_for_no_token(store: Store) -> None:
    add(store, NewTask(name="given"), NewTask(), NewTask(delay_seconds=5), NewTask(name="kept"))
    lease(store, 2)
    with store.begin() as transaction:
        outcomes = transaction.delete_by_name(QUEUE, ["given", "_2", "_3", "_4", "_9", "given", "x"], now=START)
    assert outcomes == ["deleted", "deleted", "deleted", "unknown", "unknown", "tombstoned", "unknown"]
    assert stats(store).deleted_total == 0


def test_peek_shows_settled_states_in_pages(store: Store) -> None:
    add(store, NewTask(name="ready"), NewTask(name="later", delay_seconds=5), NewTask(name="held"))
    lease(store, 1, seconds=3)
    with store.read() as transaction:
        first = transaction.peek(QUEUE, ANY, frozenset(TaskState), limit=2, payload_bytes=9, now=at(3))
        rest = transaction.peek(
            QUEUE, ANY, frozenset(TaskState), after=first.next_after or 0, limit=2, payload_bytes=9, now=at(3)
        )
        ready = transaction.peek(QUEUE, ANY, frozenset({TaskState.READY}), limit=9, payload_bytes=9, now=at(5))
        named = transaction.peek(
            QUEUE, ANY, frozenset(TaskState), names=["held", "later"], limit=9, payload_bytes=9, now=at(3)
        )
    assert [(task.name, task.state.name) for task in first.tasks] == [("ready", "READY"), ("later", "DELAYED")]
    assert [task.name for task in rest.tasks] == ["held"]
    assert rest.next_after is None
    assert [task.name for task in ready.tasks] == ["ready", "later", "held"]
    assert [task.name for task in named.tasks] == ["later", "held"]


def test_dropping_a_queue_takes_its_tasks_and_names_with_it(store: Store) -> None:
    add(store, NewTask(b"x" * 5000, name="big", tag="a"), NewTask(delay_seconds=5), NewTask())
    lease(store)
    with store.begin() as transaction:
        assert transaction.delete_queue(QUEUE) == 3
        with pytest.raises(UnknownQueueError):
            transaction.queue(QUEUE)
    a_queue(store)
    assert stats(store).added_total == 0
    assert samples(store).finished == ()
    assert [each.status for each in add(store, NewTask(name="big"), NewTask())] == ["added", "added"]


def test_a_queues_settings_are_kept(store: Store) -> None:
    spec = QueueSpec("b-queue", 5.0, 50.0, 3, 0.5, 9.0, "delete", 77.0)
    with store.begin() as transaction:
        assert transaction.put_queue(spec, now=START)
        assert not transaction.put_queue(spec, now=START)
    with store.read() as transaction:
        assert transaction.queue("b-queue") == spec
        assert [each.name for each in transaction.queues()] == ["b-queue", QUEUE]


# -- statistics -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tag", [None, "a"])
def test_tasks_added_one_by_one_are_counted_like_those_of_a_batch(store: Store, tag: str | None) -> None:
    for delay_seconds in (None, 9, None, 9):
        add(store, NewTask(tag=tag, delay_seconds=delay_seconds))
    for tags in (ANY, UNTAGGED if tag is None else TagFilter.of(tag)):
        found = stats(store, tags, now=at(1))
        assert (found.ready, found.delayed, found.added_total) == (2, 2, 4)
    assert stats(store, now=at(9)).ready == 4


def test_statistics_tell_every_state_per_queue_and_per_tag(store: Store) -> None:
    add(store, NewTask(tag="a"), NewTask(tag="b"), NewTask(tag="b", delay_seconds=9), NewTask(), now=START)
    (held,) = lease(store, tags=TagFilter.of("b"), seconds=5, now=at(1))
    found = stats(store, now=at(2))
    assert (found.ready, found.delayed, found.in_flight, found.oldest_ready_at) == (2, 1, 1, START)
    assert (found.added_total, found.leased_total) == (4, 1)
    of_b = stats(store, TagFilter.of("b"), now=at(2))
    assert (of_b.ready, of_b.delayed, of_b.in_flight, of_b.oldest_ready_at) == (0, 1, 1, None)
    later = stats(store, TagFilter.of("b", "a"), now=at(9))
    assert (later.ready, later.delayed, later.in_flight, later.expired_total) == (3, 0, 0, 1)
    assert stats(store, TagFilter.of("b"), now=at(9)).oldest_ready_at == at(6)
    assert stats(store, UNTAGGED, now=at(9)).ready == 1
    with store.read() as transaction:
        listed = transaction.tag_stats(QUEUE, after=None, limit=2, now=at(9))
        rest = transaction.tag_stats(QUEUE, after="a", limit=9, now=at(9))
    assert [(each.tag, each.stats.ready) for each in (*listed, *rest)] == [(None, 1), ("a", 1), ("b", 2)]
    assert held.waited_seconds == 1.0


def test_samples_go_on_where_the_cursor_stands(store: Store) -> None:
    add(store, *[NewTask(tag="a") for _ in range(5)])
    leases = lease(store, 5)
    delete(store, *leases[:3], now=at(2))
    delete(store, *leases[3:], now=at(4))
    first = samples(store, limit=2)
    rest = samples(store, after=first.cursor)
    assert [each.name for each in (*first.finished, *rest.finished)] == ["_1", "_2", "_3", "_4", "_5"]
    assert [each.held_seconds for each in rest.finished] == [2.0, 4.0, 4.0]
    assert not rest.missed
    assert samples(store, after=rest.cursor).finished == ()


@pytest.mark.parametrize("verb", ["delete", "delete and add", "exchange", "release", "delete_by_name"])
def test_leases_that_one_call_ends_are_recorded_in_the_order_in_which_it_names_them(store: Store, verb: str) -> None:
    add(store, *[NewTask(tag=tag) for tag in ("a", None, "b", "a", None)])
    leases = lease(store, 5)
    named = [leases[place] for place in (2, 0, 4, 3, 1)]
    tokens, names = [each.token for each in named], [each.name for each in named]
    tokens += tokens[:3]  # which have ended by then
    with store.begin() as transaction:
        if verb == "delete":
            transaction.delete(QUEUE, [Deletion(token) for token in tokens], now=at(2))
        elif verb == "delete and add":
            transaction.delete(QUEUE, [Deletion(token, (NewTask(),)) for token in tokens], now=at(2))
        elif verb == "exchange":
            wanted = LeaseRequest(1, 60.0, ANY, "w")
            transaction.exchange(QUEUE, [Deletion(token) for token in tokens], wanted, now=at(2))
        elif verb == "release":
            transaction.release(QUEUE, [Release(token) for token in tokens], now=at(2))
        else:
            transaction.delete_by_name(QUEUE, names, now=at(2))
        history = transaction.history(QUEUE, limit=9, now=at(3))
    assert [each.name for each in samples(store).finished] == names
    assert [each.name for each in history.leases] == names[::-1]


def test_the_oldest_samples_are_forgotten_and_that_is_told(store: Store) -> None:
    for _ in range(13):
        add(store, *[NewTask() for _ in range(1000)])
        delete(store, *lease(store, 1000))
    found = samples(store, limit=20_000)
    assert found.missed
    assert samples(store, after=found.cursor) == Samples((), found.cursor)
    assert 10_000 <= len(found.finished) <= 12_000


def test_waiting_times_are_read_at_a_few_positions(store: Store) -> None:
    for second in range(20):
        add(store, NewTask(tag="a" if second % 2 else "b"), now=at(second))
    with store.read() as transaction:
        waiting = transaction.waiting(QUEUE, ANY, now=at(30))
        of_a = transaction.waiting(QUEUE, TagFilter.of("a"), now=at(30))
    assert len(waiting) == 8
    assert (waiting[0].ready_at, waiting[-1].position, waiting[-1].ready_at) == (at(0), 20, at(19))
    assert of_a[-1].position == 10


def etas_to_come(store: Store, tags: TagFilter = ANY, *, now: int = 0, until: int = 60, limit: int = 99) -> list[int]:
    with store.read() as transaction:
        found = transaction.upcoming(QUEUE, tags, until=at(until), limit=limit, now=at(now))
    return [(eta - START) // SECOND for eta in found]


def test_tasks_to_come_are_told_by_their_etas_until_an_instant(store: Store) -> None:
    add(store, *[NewTask(tag="a" if second % 2 else "b", delay_seconds=second) for second in (9, 3, 60, 6, 61)])
    add(store, NewTask(), NewTask(delay_seconds=5), NewTask(tag="a", delay_seconds=3, max_leases=2))
    assert etas_to_come(store) == [3, 3, 5, 6, 9, 60]
    assert etas_to_come(store, now=5) == [6, 9, 60]
    assert etas_to_come(store, until=8, now=3) == [5, 6]
    assert etas_to_come(store, TagFilter.of("a")) == [3, 3, 9]
    assert etas_to_come(store, TagFilter.of("b", "none")) == [6, 60]
    assert etas_to_come(store, TagFilter.of("none")) == []
    assert etas_to_come(store, UNTAGGED) == [5]
    assert etas_to_come(store, limit=2) == [3, 3]
    with store.read() as transaction, pytest.raises(UnknownQueueError):
        transaction.upcoming("nowhere", ANY, until=at(9), limit=9, now=START)


def test_a_task_that_was_leased_before_is_not_among_those_to_come(store: Store) -> None:
    add(store, NewTask(tag="a"), NewTask(), NewTask(tag="a", delay_seconds=7))
    with store.begin() as transaction:
        for held in transaction.lease(QUEUE, LeaseRequest(2, 9.0, ANY, "w"), now=START).leases:
            transaction.release(QUEUE, [Release(held.token, delay_seconds=5)], now=START)
    assert stats(store).delayed == 3
    assert etas_to_come(store) == [7]
    assert etas_to_come(store, TagFilter.of("a")) == [7]


def test_live_leases_are_listed_soonest_to_end_first(store: Store) -> None:
    add(store, NewTask(name="long"), NewTask(name="short"), NewTask(name="past"))
    lease(store, seconds=30, worker="w1")
    lease(store, seconds=20, worker="w2")
    lease(store, seconds=5, worker="w3")
    with store.read() as transaction:
        live = transaction.live_leases(QUEUE, limit=5, now=at(5))
        assert transaction.next_eta(QUEUE, now=at(5)) == at(5)
    assert [(each.name, each.worker) for each in live] == [("short", "w2"), ("long", "w1")]


# -- supervisors ------------------------------------------------------------------------------------------------------


def test_a_worker_is_known_from_its_first_lease_call(store: Store) -> None:
    grant(store, worker="w1", now=at(3))
    grant(store, worker="w1", now=at(9))
    with store.read() as transaction:
        assert transaction.workers_seen(["w1", "w2"]) == {"w1": at(3)}


@pytest.mark.parametrize(("off", "retired"), [(BEFORE, False), (0, True), (AFTER, True)])
def test_a_worker_that_holds_a_lease_is_not_retired(store: Store, off: float, retired: bool) -> None:
    add(store, NewTask())
    lease(store, seconds=10, worker="w1")
    with store.begin() as transaction:
        assert transaction.retire_worker("w1", now=at(10 + off)) == retired
    if retired:
        with pytest.raises(WorkerRetiredError):
            grant(store, worker="w1", now=at(20))


def test_a_worker_that_is_to_finish_keeps_what_it_holds_and_gets_no_more(store: Store) -> None:
    a_queue(store, "other")
    add(store, NewTask(), NewTask())
    add(store, NewTask(), queue="other")
    (held,) = lease(store, seconds=10, worker="w1")
    with store.begin() as transaction:
        assert not transaction.retire_worker("w1", busy="finish", now=at(1))
    for queue in (QUEUE, "other"):
        with pytest.raises(WorkerRetiredError):
            grant(store, worker="w1", queue=queue, now=at(2))
    with store.begin() as transaction:
        assert transaction.renew(QUEUE, [Renewal(held.token, 10.0)], now=at(3))[0] is not None
        assert not transaction.retire_worker("w1", now=at(4))
        assert not transaction.retire_worker("w1", busy="finish", now=at(4))
    with pytest.raises(WorkerRetiredError):
        grant(store, worker="w1", now=at(5))
    assert delete(store, held, now=at(6))[0] is not None
    with store.begin() as transaction:
        assert transaction.retire_worker("w1", busy="finish", now=at(7))
    assert len(lease(store, 2, now=at(8))) == 1


def test_a_dead_workers_leases_are_leasable_at_once(store: Store) -> None:
    a_queue(store, "other")
    add(store, NewTask(), NewTask(), NewTask())
    add(store, NewTask(), queue="other")
    lost = lease(store, 2, worker="dead", now=at(1))
    lease(store, worker="dead", queue="other", now=at(1))
    (kept,) = lease(store, worker="alive", now=at(1))
    with store.begin() as transaction:
        released = transaction.release_worker("dead", now=at(2))
    assert [each.queue for each in released] == [QUEUE, QUEUE, "other"]
    assert [each.lease_number for each in lease(store, 5, worker="alive", now=at(2))] == [2, 2]
    assert delete(store, *lost, kept, now=at(3))[:2] == [None, None]
    with pytest.raises(WorkerRetiredError):
        grant(store, worker="dead", now=at(3))


@pytest.mark.parametrize(("off", "taken"), [(BEFORE, False), (0, True), (AFTER, True)])
def test_one_holder_leads_until_its_time_is_over(store: Store, off: float, taken: bool) -> None:
    with store.begin() as transaction:
        assert transaction.lead("fleet", "first", seconds=5, now=START)
        assert transaction.lead("fleet", "first", seconds=10, now=at(1))
        assert transaction.lead("fleet", "second", seconds=5, now=at(11 + off)) == taken


def test_settling_is_bounded_and_tells_whether_more_is_due(store: Store) -> None:
    add(store, *[NewTask(delay_seconds=1) for _ in range(3)])
    rounds = 0
    with store.begin() as transaction:
        while transaction.expire(QUEUE, limit=2, now=at(1))[1]:
            rounds += 1
    assert rounds <= 1
    assert stats(store, now=at(1)).ready == 3

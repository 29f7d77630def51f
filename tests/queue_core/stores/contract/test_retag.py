"""What every store must do to change tags of tasks that nobody has leased: places, counters, lanes, the rotation."""

import pytest

from queue_core.admission import Rate, TagLimits
from queue_core.clock import START, Instant
from queue_core.errors import QueueMovedError, UnknownQueueError
from queue_core.store import Store
from queue_core.task import UNTAGGED, NewTask, QueueSpec, StoredTask, TagFilter, TaskState
from queue_core.verbs import Release
from tests.support.stores import changes
from tests.support.stores.restored_tasks import fence, peek
from tests.support.stores.task_builders import QUEUE, add, at, lease, names, stats


def retag(
    store: Store, *given: str, tag: str | None, now: Instant = START, queue: str = QUEUE
) -> list[tuple[str, bool]]:
    with store.begin() as transaction:
        return changes.retag(transaction, queue, given, tag, now=now)


def shown(store: Store, name: str, *, now: Instant = START) -> StoredTask:
    (task,) = [one for one in peek(store, now=now) if one.shown_name == name]
    return task


def limit_tags(store: Store, limits: TagLimits) -> None:
    with store.begin() as transaction:
        transaction.put_queue(QueueSpec(QUEUE, per_tag=limits), now=START)


def leased(store: Store, tag: str | None, count: int = 9, *, now: Instant = START) -> list[str]:
    tags = UNTAGGED if tag is None else TagFilter.of(tag)
    return names(lease(store, count, tags=tags, now=now))


@pytest.mark.parametrize("before", [None, "a"])
@pytest.mark.parametrize("after", [None, "b"])
def test_a_ready_task_is_leased_by_its_new_tag_alone_in_the_place_of_its_eta(
    store: Store, before: str | None, after: str | None
) -> None:
    add(store, NewTask(b"x", name="mine", tag=before))
    add(store, NewTask(name="other", tag=after), now=at(2))
    assert retag(store, "mine", tag=after, now=at(5)) == ([] if before == after else [("mine", True)])
    assert leased(store, after, now=at(5)) == ["mine", "other"]
    if before != after:
        assert leased(store, before, now=at(5)) == []
    task = shown(store, "mine", now=at(5))
    assert (task.tag, task.payload, task.ready_at) == (after, b"x", START)


def test_delayed_and_dead_tasks_keep_their_state_their_eta_and_what_they_went_through(store: Store) -> None:
    add(store, NewTask(name="late", tag="a", eta=at(10)), NewTask(name="dead", tag="a"))
    (held,) = lease(store)
    with store.begin() as transaction:
        transaction.release(QUEUE, [Release(held.token, dead_reason="bad")], now=START)
    before = {task.name: task for task in peek(store)}
    assert retag(store, "dead", "late", tag="b") == [("dead", False), ("late", False)]
    for task in peek(store):
        was = before[task.name]
        assert (task.tag, task.state, task.eta) == ("b", was.state, was.eta)
        assert (task.leases, task.reason, task.attempts) == (was.leases, was.reason, was.attempts)
    assert leased(store, "a", now=at(20)) == []
    assert leased(store, "b", now=at(20)) == ["late"]
    with store.begin() as transaction:
        redriven = changes.redrive(transaction, QUEUE, ["dead"], TagFilter.of("b"), limit=9, now=at(20))
    assert [task.tag for task in redriven] == ["b"]


def test_a_leased_task_is_left_alone_until_its_lease_ends(store: Store) -> None:
    add(store, NewTask(name="mine", tag="a"))
    lease(store, seconds=30)
    assert retag(store, "mine", "unknown", "_9", tag="b") == []
    assert retag(store, "mine", tag="b", now=at(30)) == [("mine", True)]
    assert leased(store, "b", now=at(30)) == ["mine"]


def test_names_count_once_and_what_has_the_tag_already_is_not_changed(store: Store) -> None:
    add(store, NewTask(tag="a"), NewTask(tag="b"), NewTask(tag="a"))
    assert retag(store, "_3", "_1", "_2", "_3", tag="b") == [("_3", True), ("_1", True)]


def test_a_task_that_was_leased_before_tells_its_new_tag_at_the_end_of_its_next_lease(store: Store) -> None:
    add(store, NewTask(name="mine", tag="a"))
    (held,) = lease(store)
    with store.begin() as transaction:
        transaction.release(QUEUE, [Release(held.token)], now=START)
    retag(store, "mine", tag="longer-tag")
    (again,) = lease(store, tags=TagFilter.of("longer-tag"), now=at(60))
    assert (again.tag, again.lease_number) == ("longer-tag", 2)
    with store.begin() as transaction:
        transaction.release(QUEUE, [Release(again.token)], now=at(61))
    with store.read() as transaction:
        ended = transaction.history(QUEUE, names=["mine"], limit=9, now=at(61)).leases
    assert [one.tag for one in ended] == ["longer-tag", "a"]


def test_the_counts_of_both_tags_are_right(store: Store) -> None:
    add(store, *(NewTask(tag="a", eta=at(eta)) for eta in (-1, -1, 50)))
    assert len(retag(store, "_1", "_3", tag="b")) == 2
    for tag, counts in (("a", (1, 0)), ("b", (1, 1))):
        found = stats(store, TagFilter.of(tag))
        assert (found.ready, found.delayed) == counts, tag
    whole = stats(store)
    assert (whole.ready, whole.delayed, whole.added_total) == (2, 1, 3)
    with store.read() as transaction:
        listed = transaction.tag_stats(QUEUE, after=None, limit=9, now=START)
    assert [one.tag for one in listed] == ["a", "b"]


def test_a_lane_of_the_new_tag_holds_what_it_has_no_room_for(store: Store) -> None:
    limit_tags(store, TagLimits(max_in_flight=1))
    add(store, NewTask(name="first", tag="b"), NewTask(name="mine", tag="a"), NewTask(name="plain"))
    assert retag(store, "mine", "plain", tag="b") == [("mine", True), ("plain", True)]
    found = stats(store, TagFilter.of("b"))
    assert (found.ready, found.held) == (1, 2)
    assert leased(store, "b") == ["first"]
    assert stats(store, TagFilter.of("a")).ready == 0


def test_the_lane_that_a_task_leaves_admits_the_next(store: Store) -> None:
    limit_tags(store, TagLimits(max_in_flight=1))
    add(store, NewTask(name="first", tag="a"), NewTask(name="next", tag="a"), NewTask(name="last", tag="a"))
    assert retag(store, "first", tag="b", now=at(5)) == [("first", True)]
    assert shown(store, "next", now=at(5)).eta == at(5)
    assert (leased(store, "a", now=at(5)), leased(store, "b", now=at(5))) == (["next"], ["first"])


@pytest.mark.parametrize("tag", [None, "b"])
def test_a_task_that_a_lane_holds_is_admitted_where_there_is_room(store: Store, tag: str | None) -> None:
    limit_tags(store, TagLimits(max_in_flight=1))
    add(store, NewTask(name="first", tag="a"), NewTask(name="held", tag="a", priority=3))
    add(store, NewTask(name="waits", tag="a"))
    assert shown(store, "waits").state is TaskState.HELD
    assert retag(store, "waits", tag=tag, now=at(7)) == [("waits", True)]
    task = shown(store, "waits", now=at(7))
    assert (task.state, task.eta, task.ready_at) == (TaskState.READY, at(7), at(7)), "its wait counts from now"
    assert leased(store, tag, now=at(7)) == ["waits"]


def test_tokens_of_the_new_tag_s_rate_are_obeyed(store: Store) -> None:
    limit_tags(store, TagLimits(rate=Rate(1.0)))
    add(store, NewTask(name="one", tag="a"), NewTask(name="two", tag="b"), NewTask(name="three", tag="c"))
    retag(store, "one", "two", tag="c")
    assert len(leased(store, "c")) == 1
    assert len(leased(store, "c", now=at(1))) == 1


def test_in_a_fair_queue_the_new_tag_takes_its_turn_and_an_empty_one_has_none(store: Store) -> None:
    limit_tags(store, TagLimits(fair=True))
    add(store, NewTask(name="a1", tag="a"), NewTask(name="b1", tag="b"), NewTask(name="b2", tag="b"))
    retag(store, "a1", tag="c")
    assert names(lease(store, 3)) == ["b1", "a1", "b2"]


@pytest.mark.parametrize("priority", [0, 9])
def test_a_task_keeps_its_priority(store: Store, priority: int) -> None:
    add(store, NewTask(name="mine", tag="a", priority=priority), NewTask(name="five", tag="b", priority=5))
    retag(store, "mine", tag="b")
    assert leased(store, "b") == (["mine", "five"] if priority else ["five", "mine"])


def test_a_queue_that_is_not_there_or_has_moved_is_refused(store: Store) -> None:
    with pytest.raises(UnknownQueueError):
        retag(store, "mine", tag="b", queue="nowhere")
    fence(store)
    with pytest.raises(QueueMovedError):
        retag(store, "mine", tag="b")

"""Every store obeys the limits of queues and tags, exactly; and priorities, and turns."""

from dataclasses import replace

import pytest

from queue_core.admission import Rate, TagLimits
from queue_core.clock import START, Instant
from queue_core.store import Store
from queue_core.task import ANY, UNTAGGED, NewTask, TagFilter, TaskState
from queue_core.verbs import Deletion, LeaseRequest, Release
from tests.support.stores import changes
from tests.support.stores.restored_tasks import peek
from tests.support.stores.task_builders import QUEUE, SPEC, a_queue, add, at, delete, grant, lease, names, stats

TWO_AT_A_TIME = TagLimits(max_in_flight=2)


def named(number: int, tag: str | None, **settings: object) -> list[NewTask]:
    """Tasks called `<tag>-1`, `<tag>-2`, ..."""
    return [NewTask(b"x", name=f"{tag}-{index}", tag=tag, **settings) for index in range(1, number + 1)]  # type: ignore[arg-type]


def states(store: Store, *, now: Instant = START) -> dict[str, TaskState]:
    return {task.shown_name: task.state for task in peek(store, now=now)}


def expire(store: Store, *, now: Instant = START) -> None:
    with store.begin() as transaction:
        transaction.expire(QUEUE, limit=500, now=now)


def next_eta(store: Store, *, now: Instant = START) -> Instant | None:
    with store.read() as transaction:
        return transaction.next_eta(QUEUE, now=now)


# -- priority --------------------------------------------------------------------------------------------------------


def test_a_higher_priority_is_leased_first_then_an_earlier_eta_then_a_lower_id(store: Store) -> None:
    add(store, NewTask(name="plain"), NewTask(name="urgent", priority=9), NewTask(name="soon", priority=3))
    add(store, NewTask(name="also-soon", priority=3), NewTask(name="also-plain"))
    add(store, NewTask(name="urgent-later", priority=9, delay_seconds=1.0), now=START)
    assert names(lease(store, 10, now=at(2))) == ["urgent", "urgent-later", "soon", "also-soon", "plain", "also-plain"]


@pytest.mark.parametrize(
    "tags",
    [
        pytest.param(TagFilter.of("a"), id="one tag"),
        pytest.param(TagFilter.of("a", "b"), id="several tags"),
        pytest.param(ANY, id="any"),
    ],
)
def test_priority_holds_with_every_filter(store: Store, tags: TagFilter) -> None:
    add(store, NewTask(name="a0", tag="a"), NewTask(name="a5", tag="a", priority=5))
    add(store, NewTask(name="a9", tag="a", priority=9))
    got = [lease(store, tags=tags)[0].name for _ in range(3)]
    assert got == ["a9", "a5", "a0"]


def test_the_oldest_tag_is_that_of_the_most_urgent_task(store: Store) -> None:
    add(store, *named(2, "a"), *named(2, "b", priority=1), NewTask(name="none"))
    assert names(lease(store, 5, tags=TagFilter.oldest())) == ["b-1", "b-2"]
    assert names(lease(store, 5, tags=TagFilter.oldest("a", "b"))) == ["a-1", "a-2"]


def test_untagged_tasks_have_priorities_too(store: Store) -> None:
    add(store, NewTask(name="plain"), NewTask(name="urgent", priority=1))
    assert names(lease(store, 2, tags=UNTAGGED)) == ["urgent", "plain"]


def test_a_task_keeps_its_priority_whatever_happens_to_it(store: Store) -> None:
    a_queue(store, max_leases=2)
    add(store, NewTask(name="plain"), NewTask(name="urgent", priority=7, delay_seconds=1.0))
    (held,) = lease(store, now=at(1))
    with store.begin() as transaction:
        transaction.release(QUEUE, [Release(held.token, 0.0)], now=at(2))
    (again,) = lease(store, seconds=1.0, now=at(3))
    assert (held.name, again.name) == ("urgent", "urgent")
    expire(store, now=at(5))
    assert states(store, now=at(5))["urgent"] is TaskState.DEAD
    with store.begin() as transaction:
        changes.redrive(transaction, QUEUE, ["urgent"], ANY, limit=1, now=at(6))
    assert names(lease(store, now=at(7))) == ["urgent"]
    assert {task.shown_name: task.priority for task in peek(store, now=at(7))} == {"plain": 0, "urgent": 7}


def test_statistics_look_at_etas_not_at_priorities(store: Store) -> None:
    add(store, NewTask(name="old"))
    add(store, NewTask(name="urgent", priority=9), now=at(5))
    seen = stats(store, now=at(6))
    assert (seen.ready, seen.oldest_ready_at) == (2, START)
    with store.read() as transaction:
        waiting = transaction.waiting(QUEUE, ANY, now=at(6))
    assert [one.ready_at for one in waiting] == [START, at(5)]


# -- max_in_flight of a tag ------------------------------------------------------------------------------------------


def test_no_more_than_max_in_flight_tasks_of_a_tag_are_leased(store: Store) -> None:
    a_queue(store, per_tag=TWO_AT_A_TIME)
    add(store, *named(5, "a"), *named(1, "b"), *named(3, None))
    assert names(lease(store, 10)) == ["a-1", "a-2", "b-1", "None-1", "None-2", "None-3"]
    assert lease(store, 10) == []
    seen = stats(store)
    assert (seen.ready, seen.held, seen.in_flight, seen.pending) == (0, 3, 6, 9)
    assert (stats(store, TagFilter.of("a")).held, stats(store, TagFilter.of("b")).held) == (3, 0)


def test_a_place_that_returns_is_taken_by_the_next_task_of_the_tag(store: Store) -> None:
    a_queue(store, per_tag=TWO_AT_A_TIME)
    add(store, *named(4, "a"))
    first, _ = lease(store, 10)
    delete(store, first, now=at(3))
    assert (stats(store, now=at(3)).ready, stats(store, now=at(3)).held) == (1, 1)
    (third,) = lease(store, 10, now=at(5))
    assert (third.name, third.ready_at) == ("a-3", at(3))  # since when it could be leased
    assert third.waited_seconds == 2.0


@pytest.mark.parametrize("end", ["expire", "release", "release_worker", "delete_by_name", "exchange"])
def test_every_end_of_a_lease_returns_its_place(store: Store, end: str) -> None:
    a_queue(store, per_tag=TagLimits(max_in_flight=1))
    add(store, *named(3, "a"))
    (held,) = lease(store, 10, seconds=2.0)
    with store.begin() as transaction:
        if end == "expire":
            transaction.expire(QUEUE, limit=10, now=at(2))
        elif end == "release":
            transaction.release(QUEUE, [Release(held.token, 60.0)], now=at(1))
        elif end == "release_worker":
            transaction.release_worker("worker-1", now=at(1))
        elif end == "delete_by_name":
            transaction.delete_by_name(QUEUE, ["a-1"], now=at(1))
        else:
            _, granted = transaction.exchange(
                QUEUE, [Deletion(held.token)], LeaseRequest(5, 9.0, ANY, "worker-2"), now=at(1)
            )
            assert names(granted.leases) == ["a-2"]
    now = at(3)
    got = names(lease(store, 10, worker="worker-2", now=now))
    assert got == {"release_worker": ["a-1"], "exchange": []}.get(end, ["a-2"])
    assert stats(store, now=now).in_flight == 1


def test_a_held_task_that_is_deleted_or_purged_is_gone(store: Store) -> None:
    a_queue(store, per_tag=TagLimits(max_in_flight=1))
    add(store, *named(4, "a"), *named(2, "b"))
    assert list(states(store).values()).count(TaskState.HELD) == 4
    with store.begin() as transaction:
        assert transaction.delete_by_name(QUEUE, ["a-2"], now=START) == ["deleted"]
    assert stats(store).held == 3
    with store.begin() as transaction:
        assert transaction.purge(QUEUE, TagFilter.of("a"), limit=100, now=START) == 3
    assert (stats(store).held, stats(store).ready) == (1, 1)


def test_a_ready_task_that_is_deleted_makes_room(store: Store) -> None:
    a_queue(store, per_tag=TagLimits(max_in_flight=1))
    add(store, *named(2, "a"))
    with store.begin() as transaction:
        transaction.delete_by_name(QUEUE, ["a-1"], now=at(1))
    assert names(lease(store, now=at(2))) == ["a-2"]


def test_a_more_urgent_task_takes_the_place_of_one_that_waits(store: Store) -> None:
    a_queue(store, per_tag=TagLimits(max_in_flight=1))
    add(store, *named(2, "a"))
    add(store, NewTask(name="urgent", tag="a", priority=5), now=at(1))
    assert states(store) == {"a-1": TaskState.HELD, "a-2": TaskState.HELD, "urgent": TaskState.READY}
    (held,) = lease(store, 10, now=at(2))
    delete(store, held, now=at(3))
    assert (held.name, names(lease(store, 10, now=at(4)))) == ("urgent", ["a-1"])


@pytest.mark.parametrize(
    "tags",
    [
        pytest.param(TagFilter.of("a"), id="one tag"),
        pytest.param(TagFilter.of("a", "z"), id="several tags"),
        pytest.param(TagFilter.oldest(), id="oldest"),
        pytest.param(TagFilter.oldest("a", "z"), id="oldest of some"),
    ],
)
def test_a_limit_holds_with_every_filter(store: Store, tags: TagFilter) -> None:
    a_queue(store, per_tag=TWO_AT_A_TIME)
    add(store, *named(5, "a"))
    assert names(lease(store, 10, tags=tags)) == ["a-1", "a-2"]
    assert lease(store, 10, tags=tags) == []


def test_delayed_tasks_are_held_when_they_become_due(store: Store) -> None:
    a_queue(store, per_tag=TagLimits(max_in_flight=1))
    add(store, *named(3, "a", delay_seconds=5.0))
    expire(store, now=at(5))
    assert list(states(store, now=at(5)).values()) == [TaskState.READY, TaskState.HELD, TaskState.HELD]


def test_a_quarantined_task_obeys_the_limit_too(store: Store) -> None:
    a_queue(store, per_tag=TagLimits(max_in_flight=1))
    add(store, NewTask(name="q", tag="a", delay_seconds=50.0), NewTask(name="other", tag="a"))
    quarantined = next(task for task in peek(store) if task.shown_name == "q")

    def lease_it(now: Instant) -> bool:
        with store.begin() as transaction:
            found = transaction.lease_delayed(
                QUEUE, quarantined.id, expected=quarantined.eta, worker="w", seconds=5.0, now=now
            )
        return found is not None

    (held,) = lease(store, now=at(1))
    assert not lease_it(at(2))
    with store.begin() as transaction:
        transaction.release(QUEUE, [Release(held.token, 0.0)], now=at(3))
    assert states(store, now=at(3))["other"] is TaskState.READY
    assert lease_it(at(4))
    assert states(store, now=at(4))["other"] is TaskState.HELD
    assert lease(store, now=at(4)) == []


def test_new_limits_hold_at_once_and_old_ones_no_longer(store: Store) -> None:
    add(store, *named(5, "a"))
    a_queue(store, per_tag=TWO_AT_A_TIME)
    assert (stats(store).ready, stats(store).held) == (2, 3)
    assert names(lease(store, 10)) == ["a-1", "a-2"]
    a_queue(store, per_tag=TagLimits(max_in_flight=3))
    assert names(lease(store, 10)) == ["a-3"]
    a_queue(store)
    assert (stats(store).ready, stats(store).held) == (2, 0)
    assert len(lease(store, 10)) == 2


@pytest.mark.parametrize("fair", [False, True])
def test_a_removed_limit_admits_what_it_held_and_tells_of_it(store: Store, fair: bool) -> None:
    a_queue(store, per_tag=TagLimits(max_in_flight=1, fair=fair))
    add(store, *named(3, "a"), NewTask(b"x", name="a-urgent", tag="a", priority=3), *named(2, "b"), *named(1, None))
    with store.begin() as transaction:
        transaction.admitted()
        transaction.put_queue(replace(SPEC, per_tag=TagLimits(fair=fair)), now=at(4))
        told = sorted(transaction.admitted())  # calls that wait for a task are woken
    assert told == [(QUEUE, "a", 3), (QUEUE, "b", 1)]
    with store.read() as transaction:
        waiting = transaction.waiting(QUEUE, ANY, now=at(6))
    assert [one.ready_at for one in waiting] == [START] * 3 + [at(4)] * 4
    leases = lease(store, 10, now=at(6))
    assert {one.name: one.ready_at for one in leases} == {
        "a-urgent": START,
        "a-1": at(4),  # the urgent one took its place
        "a-2": at(4),
        "a-3": at(4),
        "b-1": START,
        "b-2": at(4),
        "None-1": START,
    }
    assert store.check().problems == ()


def test_a_limit_removed_by_a_clock_behind_admits_as_of_that_clock(store: Store) -> None:
    a_queue(store, per_tag=TagLimits(max_in_flight=1))
    add(store, *named(2, "a"), now=at(5))
    with store.begin() as transaction:
        transaction.put_queue(SPEC, now=at(3))
    assert {task.shown_name: task.eta for task in peek(store, now=at(6))} == {"a-1": at(5), "a-2": at(3)}
    assert names(lease(store, 2, now=at(6))) == ["a-2", "a-1"]


def test_a_new_rate_holds_what_is_ready_and_what_stays_keeps_its_place(store: Store) -> None:
    add(store, *named(5, "a"), *named(2, "b"))
    with store.begin() as transaction:
        transaction.put_queue(replace(SPEC, per_tag=TagLimits(rate=Rate(1.0, burst=2))), now=at(4))
    assert (stats(store, now=at(4)).ready, stats(store, now=at(4)).held) == (4, 3)
    leases = lease(store, 10, now=at(5))
    assert [(one.name, one.ready_at) for one in leases] == [
        ("a-1", START),
        ("a-2", START),
        ("b-1", START),
        ("b-2", START),
    ]
    with store.begin() as transaction:
        transaction.expire(QUEUE, limit=10, now=at(9))
    assert stats(store, now=at(9)).ready == 2
    a_queue(store, per_tag=TagLimits(rate=Rate(1.0)))
    assert (stats(store).ready, stats(store).held) == (0, 3)  # the bucket is empty as of START


def test_admitted_tasks_are_told_once(store: Store) -> None:
    a_queue(store, per_tag=TagLimits(max_in_flight=1))
    add(store, *named(3, "a"))
    (held,) = lease(store)
    with store.begin() as transaction:
        transaction.admitted()
        transaction.delete(QUEUE, [Deletion(held.token)], now=at(1))
        assert list(transaction.admitted()) == [(QUEUE, "a", 1)]
        assert list(transaction.admitted()) == []


def test_a_moved_task_is_held_by_the_limits_of_its_new_queue(store: Store) -> None:
    add(store, *named(3, "a"))
    moved = list(peek(store))
    a_queue(store, "other", per_tag=TagLimits(max_in_flight=1))
    with store.begin() as transaction:
        transaction.restore("other", moved, now=at(1))
        seen = transaction.stats("other", ANY, now=at(1))
    assert (seen.ready, seen.held) == (1, 2)


def test_the_store_checks_its_lanes(store: Store) -> None:
    a_queue(store, per_tag=TagLimits(2, Rate(1.0, 3), fair=True))
    add(store, *named(5, "a"), *named(2, "b"), *named(2, None))
    held = lease(store, 3)
    delete(store, held[0], now=at(1))
    assert store.check().problems == ()


# -- rate of a tag ---------------------------------------------------------------------------------------------------


def test_a_rate_lets_a_burst_go_and_then_one_after_the_other(store: Store) -> None:
    a_queue(store, per_tag=TagLimits(rate=Rate(2.0, burst=3)))
    add(store, *named(6, "a"))
    assert names(lease(store, 10)) == ["a-1", "a-2", "a-3"]
    assert next_eta(store) == at(0.5)
    assert lease(store, 10, now=at(0.49)) == []
    (held,) = lease(store, 10, now=at(0.75))
    assert (held.name, held.ready_at) == ("a-4", at(0.75))
    assert names(lease(store, 10, now=at(1.5))) == ["a-5", "a-6"]


def test_tokens_that_nobody_uses_are_no_more_than_a_burst(store: Store) -> None:
    a_queue(store, per_tag=TagLimits(rate=Rate(10.0, burst=2)))
    add(store, *named(50, "a"))
    expire(store, now=at(60))
    assert stats(store, now=at(60)).ready == 2
    assert len(lease(store, 50, now=at(60))) == 2
    assert len(lease(store, 50, now=at(60.05))) == 0
    assert len(lease(store, 50, now=at(60.1))) == 1


def test_rates_of_two_tags_are_their_own(store: Store) -> None:
    a_queue(store, per_tag=TagLimits(rate=Rate(1.0)))
    add(store, *named(2, "a"), *named(2, "b"))
    assert names(lease(store, 10)) == ["a-1", "b-1"]


# -- the whole queue -------------------------------------------------------------------------------------------------


def test_a_queue_grants_no_more_than_max_in_flight_leases(store: Store) -> None:
    a_queue(store, max_in_flight=3)
    add(store, *named(2, "a"), *named(3, None))
    first = lease(store, 2)
    assert (len(first), len(lease(store, 10)), lease(store, 10)) == (2, 1, [])
    seen = stats(store)
    assert (seen.ready, seen.room, seen.leasable) == (2, 0, 0)
    with store.begin() as transaction:
        transaction.admitted()
        transaction.delete(QUEUE, [Deletion(first[0].token)], now=at(1))
        assert [(queue, count) for queue, _, count in transaction.admitted()] == [(QUEUE, 1)]
    assert stats(store, now=at(1)).leasable == 1
    assert len(lease(store, 10, now=at(2))) == 1


def test_a_queue_grants_leases_at_its_rate(store: Store) -> None:
    a_queue(store, rate=Rate(4.0, burst=2))
    add(store, *named(6, "a"))
    assert len(lease(store, 10)) == 2
    assert (next_eta(store), stats(store).room) == (at(0.25), 0)
    assert len(lease(store, 10, now=at(0.3))) == 1
    expire(store, now=at(0.6))
    with store.begin() as transaction:
        transaction.expire(QUEUE, limit=10, now=at(0.6))
        assert transaction.admitted()
    assert len(lease(store, 10, now=at(9))) == 2


def test_a_queue_without_limits_has_room_without_end(store: Store) -> None:
    add(store, *named(2, "a"))
    seen = stats(store)
    assert (seen.room, seen.held, seen.leasable) == (None, 0, 2)


# -- fair ------------------------------------------------------------------------------------------------------------


def test_tags_take_turns_however_much_each_has(store: Store) -> None:
    a_queue(store, per_tag=TagLimits(fair=True))
    add(store, *named(5, "a"), *named(2, "b"), *named(1, None))
    add(store, *named(2, "c"), now=at(1))
    got = [lease(store, now=at(2))[0].name for _ in range(10)]
    assert got == ["a-1", "b-1", "None-1", "c-1", "a-2", "b-2", "c-2", "a-3", "a-4", "a-5"]


def test_a_batch_takes_turns_too(store: Store) -> None:
    a_queue(store, per_tag=TagLimits(fair=True))
    add(store, *named(5, "a"), *named(2, "b"))
    assert names(lease(store, 5)) == ["a-1", "b-1", "a-2", "b-2", "a-3"]


def test_turns_hold_among_some_tags_and_for_the_oldest(store: Store) -> None:
    a_queue(store, per_tag=TagLimits(fair=True))
    add(store, *named(3, "a"), *named(3, "b"), *named(3, "c"))
    assert names(lease(store, 3, tags=TagFilter.of("c", "b"))) == ["b-1", "c-1", "b-2"]
    assert names(lease(store, 9, tags=TagFilter.oldest())) == ["a-1", "a-2", "a-3"]
    assert names(lease(store, 9, tags=TagFilter.oldest("b", "c"))) == ["c-2", "c-3"]


def test_a_more_urgent_task_goes_before_any_turn(store: Store) -> None:
    a_queue(store, per_tag=TagLimits(fair=True))
    add(store, *named(3, "a"), *named(1, "b"))
    add(store, NewTask(name="urgent", tag="a", priority=1), now=at(1))
    assert names(lease(store, 3, now=at(2))) == ["urgent", "b-1", "a-1"]


def test_turns_go_with_limits(store: Store) -> None:
    a_queue(store, per_tag=TagLimits(max_in_flight=1, fair=True))
    add(store, *named(3, "a"), *named(3, "b"))
    first = lease(store, 9)
    assert names(first) == ["a-1", "b-1"]
    delete(store, first[1], now=at(1))
    delete(store, first[0], now=at(1))
    assert names(lease(store, 9, now=at(2))) == ["b-2", "a-2"]


def test_a_queue_that_becomes_fair_is_at_once(store: Store) -> None:
    add(store, *named(3, "a"), *named(1, "b"))
    a_queue(store, per_tag=TagLimits(fair=True))
    assert names(lease(store, 3)) == ["a-1", "b-1", "a-2"]


def test_an_allowance_cuts_a_batch_that_takes_turns(store: Store) -> None:
    a_queue(store, per_tag=TagLimits(fair=True))
    add(store, *named(3, "a"), *named(3, "b"))
    assert names(grant(store, 1).leases) == ["a-1"]
    assert names(grant(store, 2).leases) == ["b-1", "a-2"]


def test_a_due_task_of_priority_waits_for_whoever_leases_the_oldest_tag(store: Store) -> None:
    add(store, NewTask(tag="b", delay_seconds=2, priority=1), NewTask(tag="c", delay_seconds=1))
    with store.read() as transaction:
        waiting = transaction.waiting(QUEUE, TagFilter.oldest(), now=at(6))
    assert [each.ready_at for each in waiting] == [at(2)]

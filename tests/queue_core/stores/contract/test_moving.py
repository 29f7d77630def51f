"""What every store must do with a queue that comes from another: tasks as they were, and names that stay held."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from queue_core.attempts.attempt import WORDS
from queue_core.clock import START
from queue_core.limits import MAX_PAYLOAD_BYTES
from queue_core.store import Store
from queue_core.stores.memory.store import MemoryStore
from queue_core.task import ANY, UNTAGGED, NewTask, StoredTask, TagFilter, TaskState
from queue_core.verbs import Deletion, HeldName, Release, Renewal
from tests.support.stores import changes
from tests.support.stores.restored_tasks import a_leased_task, a_task, held_names, hold, peek, restore
from tests.support.stores.task_builders import MICROSECOND, QUEUE, a_queue, add, at, delete, grant, lease, names, stats

BEFORE, AFTER = -MICROSECOND, MICROSECOND


# -- tasks as they were -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "moved",
    [
        pytest.param(a_task(), id="ready, never leased"),
        pytest.param(a_task(name="cat-1", tag="resize"), id="named and tagged"),
        pytest.param(a_task(tag="größe ✓"), id="a tag beyond ASCII"),
        pytest.param(a_task(eta=at(-86_400), ready_at=at(-86_400)), id="an eta long past"),
        pytest.param(a_task(leases=3, leased_at=at(-7), worker="old-1"), id="leased before, and given back"),
        pytest.param(a_task(state=TaskState.DELAYED, eta=at(30), ready_at=at(30)), id="delayed"),
        pytest.param(
            a_task(
                state=TaskState.DELAYED,
                eta=at(30),
                ready_at=at(30),
                leases=2,
                leased_at=at(-3),
                spent=(at(40), at(50)),
            ),
            id="leases cut short",
        ),
        pytest.param(
            a_task(state=TaskState.DEAD, leases=5, leased_at=at(-9), eta=at(-8), ready_at=at(-8), reason="no such cat"),
            id="dead",
        ),
    ],
)
def test_a_restored_task_is_as_it_was_but_for_its_id(store: Store, moved: StoredTask) -> None:
    add(store, NewTask(b"one that was here"))
    (added,) = restore(store, moved)
    assert added.status == "added"
    _, task = peek(store)
    assert task == replace(moved, id=task.id)
    assert task.id != moved.id
    assert added.name == task.shown_name


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(b"", id="empty"),
        pytest.param(bytes(range(256)), id="every byte"),
        pytest.param(b"\xff\xfe\x00", id="not UTF-8"),
        pytest.param("ä\x00\n\u2028".encode(), id="UTF-8 with controls"),
        pytest.param(b"\xc3" * MAX_PAYLOAD_BYTES, id="1 MiB"),
        pytest.param(b"\xc3" * (8 * MAX_PAYLOAD_BYTES), id="8 MiB"),
        pytest.param(b"y" * 4096, id="4 KiB"),
    ],
)
def test_a_restored_payload_is_leased_byte_for_byte(store: Store, payload: bytes) -> None:
    restore(store, a_task(payload=payload))
    assert [held.payload for held in lease(store)] == [payload]


def test_restored_tasks_are_leased_in_eta_order_with_ties_in_the_order_they_came(store: Store) -> None:
    restore(
        store,
        a_task(7, name="third", eta=at(-1), ready_at=at(-1)),
        a_task(3, name="first", eta=at(-2), ready_at=at(-2)),
        a_task(9, name="fourth", eta=at(-1), ready_at=at(-1)),
        a_task(8, name="second", eta=at(-2), ready_at=at(-2)),
    )
    assert names(lease(store, 4)) == ["first", "second", "third", "fourth"]


def test_restored_tasks_are_counted_by_state_and_as_added(store: Store) -> None:
    restore(
        store,
        a_task(1, tag="a"),
        a_task(2, tag="a", state=TaskState.DELAYED, eta=at(5)),
        a_leased_task(3, tag="b"),
        a_task(4, state=TaskState.DEAD, leases=1, leased_at=at(-1)),
    )
    whole = stats(store)
    assert (whole.ready, whole.delayed, whole.in_flight, whole.dead, whole.added_total) == (1, 1, 1, 1, 4)
    of_a = stats(store, TagFilter.of("a"))
    assert (of_a.ready, of_a.delayed, of_a.in_flight, of_a.added_total) == (1, 1, 0, 2)
    assert (whole.leased_total, whole.deleted_total, whole.died_total) == (0, 0, 0)


def test_a_restored_task_keeps_its_tag_and_none_is_not_a_tag(store: Store) -> None:
    restore(store, a_task(1, name="tagged", tag="a"), a_task(2, name="untagged"))
    assert names(lease(store, 2, tags=UNTAGGED)) == ["untagged"]
    assert names(lease(store, 2, tags=TagFilter.of("a"))) == ["tagged"]


def test_a_ready_task_whose_eta_this_clock_has_not_reached_waits_for_it(store: Store) -> None:
    (added,) = restore(store, a_task(eta=at(2), ready_at=at(2)))
    assert not added.ready
    assert lease(store, now=at(2 + BEFORE)) == []
    assert len(lease(store, now=at(2))) == 1


def test_the_leases_a_restored_task_was_charged_with_count_towards_its_last(store: Store) -> None:
    a_queue(store, max_leases=3)
    restore(store, a_task(leases=2, leased_at=at(-20)))
    (held,) = lease(store, seconds=10)
    assert held.lease_number == 3
    assert lease(store, now=at(10)) == []
    assert [(task.state, task.reason) for task in peek(store, now=at(10))] == [(TaskState.DEAD, WORDS["expired"])]


def test_a_restored_dead_task_can_be_redriven_with_all_its_leases(store: Store) -> None:
    a_queue(store, max_leases=1)
    restore(store, a_task(name="cat", state=TaskState.DEAD, leases=1, leased_at=at(-9), reason="no such cat"))
    with store.begin() as transaction:
        (redriven,) = changes.redrive(transaction, QUEUE, ["cat"], ANY, limit=10, now=START)
    assert redriven.state is TaskState.READY
    assert [held.lease_number for held in lease(store)] == [1]


# -- tasks in flight --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("off", "leased"), [(BEFORE, 0), (0, 1), (AFTER, 1)])
def test_a_restored_lease_hides_its_task_until_its_end(store: Store, off: float, leased: int) -> None:
    restore(store, a_leased_task())
    now = at(10 + off)
    assert stats(store, now=now).in_flight == 1 - leased
    assert [held.lease_number for held in lease(store, now=now)] == [3] * leased


def test_a_restored_lease_is_nobodys(store: Store) -> None:
    restore(store, a_leased_task())
    with store.begin() as transaction:
        assert [held.worker for held in transaction.live_leases(QUEUE, limit=10, now=START)] == [""]
        assert transaction.release_worker("old-1", now=START) == []
    assert stats(store).in_flight == 1


def test_a_restored_last_lease_makes_its_task_dead_at_its_end(store: Store) -> None:
    a_queue(store, max_leases=2)
    restore(store, a_leased_task())
    granted = grant(store, now=at(10))
    assert granted.leases == ()
    assert [(ended.outcome, ended.lease_number, ended.died) for ended in granted.expired] == [("expired", 2, True)]
    assert stats(store, now=at(10)).dead == 1


@pytest.mark.parametrize("verb", ["renew", "release", "delete"])
def test_a_token_of_the_other_store_names_no_lease_here_though_the_ids_be_the_same(store: Store, verb: str) -> None:
    other = MemoryStore()
    a_queue(other)
    add(other, *[NewTask(b"%d" % number) for number in range(3)])
    tokens = [held.token for held in lease(other, 3, seconds=10)]
    restore(store, *peek(other))
    assert [task.id for task in peek(store)] == [task.id for task in peek(other)]
    with store.begin() as transaction:
        outcomes: dict[str, Callable[[], list[object]]] = {
            "renew": lambda: [*transaction.renew(QUEUE, [Renewal(token, 10) for token in tokens], now=at(1))],
            "release": lambda: [*transaction.release(QUEUE, [Release(token, 0) for token in tokens], now=at(1))],
            "delete": lambda: [*transaction.delete(QUEUE, [Deletion(token) for token in tokens], now=at(1))],
        }
        assert outcomes[verb]() == [None] * 3
    assert stats(store, now=at(1)).in_flight == 3


@pytest.mark.parametrize("moved", [a_task(leases=1, leased_at=at(100)), a_leased_task(leased_at=at(100), eta=at(0))])
def test_a_grant_after_a_restore_is_later_than_any_before_it_whatever_the_clock_says(
    store: Store, moved: StoredTask
) -> None:
    restore(store, moved)
    (held,) = lease(store, now=at(1))
    assert held.leased_at > at(100)


def test_no_lease_ends_where_one_was_cut_short_on_the_other_store(store: Store) -> None:
    restore(store, a_task(leases=1, leased_at=at(-5), spent=(at(20), at(20 + MICROSECOND))))
    (held,) = lease(store, seconds=20)
    assert held.expires_at == at(20 + 2 * MICROSECOND)


# -- names ------------------------------------------------------------------------------------------------------------


def test_a_restored_name_is_taken_and_stays_so_after_its_task(store: Store) -> None:
    restore(store, a_task(name="once"))
    assert add(store, NewTask(name="once"))[0].status == "exists"
    delete(store, *lease(store), now=at(1))
    assert add(store, NewTask(name="once"), now=at(2))[0].status == "tombstoned"


def test_a_task_whose_name_is_taken_is_not_restored_and_the_others_are(store: Store) -> None:
    add(store, NewTask(b"here before", name="taken"))
    hold(store, HeldName("held", at(50)))
    outcomes = restore(store, a_task(1, name="taken"), a_task(2, name="held"), a_task(3, name="new"), a_task(4))
    assert [outcome.status for outcome in outcomes] == ["exists", "tombstoned", "added", "added"]
    assert [task.payload for task in peek(store)] == [b"here before", b"x", b"x"]
    assert stats(store).added_total == 3


def test_two_restored_tasks_cannot_have_one_name(store: Store) -> None:
    outcomes = restore(store, a_task(1, name="twin"), a_task(2, name="twin"))
    assert [outcome.status for outcome in outcomes] == ["added", "exists"]


@pytest.mark.parametrize(("off", "status"), [(BEFORE, "tombstoned"), (0, "added"), (AFTER, "added")])
def test_a_held_name_refuses_an_add_until_its_time(store: Store, off: float, status: str) -> None:
    hold(store, HeldName("done", at(7)))
    assert add(store, NewTask(name="done"), now=at(7 + off))[0].status == status


def test_holding_a_name_leaves_the_task_that_has_it_alone(store: Store) -> None:
    add(store, NewTask(name="alive"))
    hold(store, HeldName("alive", at(50)))
    assert held_names(store) == []
    assert names(lease(store)) == ["alive"]


def test_holding_a_name_again_never_frees_it_earlier(store: Store) -> None:
    hold(store, HeldName("done", at(50)))
    hold(store, HeldName("done", at(20)), HeldName("past", at(-1)))
    assert held_names(store) == [HeldName("done", at(50))]


def test_held_names_are_told_by_name_page_by_page_while_they_are_taken(store: Store) -> None:
    add(store, *[NewTask(name=name) for name in ("b", "a", "c_2", "c-1", "alive")])
    doomed = [held for held in lease(store, 5) if held.name != "alive"]
    delete(store, *doomed, now=at(1))
    hold(store, HeldName("Z", at(500)))
    first = held_names(store, limit=3, now=at(100))
    rest = held_names(store, after=first[-1].name, limit=3, now=at(100))
    told = [*first, *rest]
    assert {held.name: held.until for held in told} == {
        **dict.fromkeys(("a", "b", "c-1", "c_2"), at(101)),
        "Z": at(500),
    }
    assert [held.name for held in told] == sorted(held.name for held in told)
    assert [held.name for held in held_names(store, now=at(101))] == ["Z"]

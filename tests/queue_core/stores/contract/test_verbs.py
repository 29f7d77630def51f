"""What every store must do: who may lease what, and when; to the microsecond before, at and after each boundary."""

import pytest

from queue_core.clock import START, Instant
from queue_core.errors import (
    InvalidEtaError,
    UnknownQueueError,
)
from queue_core.limits import MAX_PAYLOAD_BYTES
from queue_core.store import Store
from queue_core.task import ANY, UNTAGGED, NewTask, TagFilter, TaskState
from queue_core.verbs import Deletion, Release, Renewal
from tests.support.stores.task_builders import (
    MICROSECOND,
    QUEUE,
    add,
    at,
    delete,
    grant,
    lease,
    names,
    stats,
)

BEFORE, AFTER = -MICROSECOND, MICROSECOND


# -- time -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("off", "leased"), [(BEFORE, 0), (0, 1), (AFTER, 1)])
def test_a_task_is_never_leased_before_its_eta(store: Store, off: float, leased: int) -> None:
    add(store, NewTask(eta=at(5)))
    assert stats(store, now=at(5 + off)).ready == leased
    assert stats(store, now=at(5 + off)).delayed == 1 - leased
    assert len(lease(store, now=at(5 + off))) == leased


@pytest.mark.parametrize(("off", "leased"), [(BEFORE, 0), (0, 1), (AFTER, 1)])
def test_a_leased_task_is_hidden_until_its_lease_ends(store: Store, off: float, leased: int) -> None:
    add(store, NewTask())
    lease(store, seconds=10)
    assert stats(store, now=at(10 + off)).in_flight == 1 - leased
    again = lease(store, now=at(10 + off))
    assert [each.lease_number for each in again] == [2] * leased


@pytest.mark.parametrize("verb", ["delete", "renew", "release"])
@pytest.mark.parametrize(("off", "current"), [(BEFORE, True), (0, False), (AFTER, False)])
def test_a_token_holds_until_its_lease_ends(store: Store, verb: str, off: float, current: bool) -> None:
    add(store, NewTask())
    (held,) = lease(store, seconds=10)
    now = at(10 + off)
    with store.begin() as transaction:
        if verb == "delete":
            outcome: object = transaction.delete(QUEUE, [Deletion(held.token)], now=now)[0]
        elif verb == "renew":
            outcome = transaction.renew(QUEUE, [Renewal(held.token, 10)], now=now)[0]
        else:
            outcome = transaction.release(QUEUE, [Release(held.token, 0)], now=now)[0]
    assert (outcome is not None) == current


def test_a_name_whose_time_was_over_is_taken_again_once_the_clock_is_set_back_a_little(store: Store) -> None:
    add(store, NewTask(name="once"))
    delete(store, *lease(store))
    add(store, *[NewTask(name=f"other-{number}") for number in range(10)], now=at(101))
    assert add(store, NewTask(name="once"), now=at(99))[0].status == "tombstoned"


@pytest.mark.parametrize(("off", "status"), [(BEFORE, "tombstoned"), (0, "added"), (AFTER, "added")])
def test_a_deleted_tasks_name_stays_taken_for_its_retention(store: Store, off: float, status: str) -> None:
    add(store, NewTask(name="once"))
    delete(store, *lease(store), now=at(1))
    (added,) = add(store, NewTask(name="once"), now=at(101 + off))
    assert added.status == status


def test_an_expired_lease_is_leasable_at_once_with_nobody_sweeping(store: Store) -> None:
    add(store, NewTask(tag="a"), NewTask(tag="a"))
    lease(store, 2, seconds=10)
    granted = grant(store, 2, tags=TagFilter.of("a"), now=at(10))
    assert [each.lease_number for each in granted.leases] == [2, 2]
    assert [(each.outcome, each.held_seconds) for each in granted.expired] == [("expired", 10.0)] * 2


def test_tokens_never_repeat_when_the_clock_is_stepped_back(store: Store) -> None:
    add(store, NewTask())
    seen = set()
    for _ in range(4):
        (held,) = lease(store, seconds=10, now=START)
        seen.add(held.token)
        with store.begin() as transaction:
            assert transaction.release(QUEUE, [Release(held.token, 0)], now=START)[0] is not None
    assert len(seen) == 4


def test_what_is_ready_stays_so_when_the_clock_is_stepped_back(store: Store) -> None:
    add(store, NewTask(name="waits"), now=at(5))
    assert names(lease(store, 1, now=at(3))) == ["waits"]


# -- order and tags ---------------------------------------------------------------------------------------------------


def test_tasks_are_leased_by_eta_and_ties_by_insertion(store: Store) -> None:
    add(store, NewTask(name="late", eta=at(3)), NewTask(name="first", eta=at(1)), NewTask(name="second", eta=at(1)))
    add(store, NewTask(name="now"), now=START)
    assert names(lease(store, 10, now=at(9))) == ["now", "first", "second", "late"]


def test_order_holds_although_only_some_due_tasks_are_settled_a_call(store: Store) -> None:
    add(store, *[NewTask(name=f"late-{index}", delay_seconds=1 + index * MICROSECOND) for index in range(800)])
    add(store, NewTask(name="middle"), now=at(1 + 700 * MICROSECOND + MICROSECOND / 2))
    order: list[str] = []
    while taken := names(lease(store, 60, now=at(10))):
        order += taken
    assert order == [
        *[f"late-{index}" for index in range(701)],
        "middle",
        *[f"late-{index}" for index in range(701, 800)],
    ]


@pytest.mark.parametrize(
    ("tags", "wanted"),
    [
        pytest.param(ANY, {"a", "b", None}, id="any"),
        pytest.param(TagFilter.of("a"), {"a"}, id="one tag"),
        pytest.param(TagFilter.of("a", "b"), {"a", "b"}, id="several tags"),
        pytest.param(UNTAGGED, {None}, id="untagged"),
    ],
)
def test_order_holds_among_hundreds_of_delays_and_leases_that_end_and_tasks_that_wait(
    store: Store, tags: TagFilter, wanted: set[str | None]
) -> None:
    tag_of = {0: "a", 1: "b", 2: None}
    etas: dict[str, tuple[Instant, str | None]] = {}
    for number in range(450):  # leases that end at 10 s to 14 s, in another order than that in which they were added
        tag, name, ends = tag_of[number % 3], f"leased-{number}", 10 + (number * 7 % 450) / 100
        add(store, NewTask(name=name, tag=tag))
        lease(store, seconds=ends)
        etas[name] = at(ends), tag
    for first in (0, 450):  # delays that are over at 10 s to 19 s
        new = []
        for number in range(first, first + 450):
            tag, name, eta = tag_of[number % 3], f"delayed-{number}", at(10 + (number * 11 % 900) / 100)
            new.append(NewTask(name=name, tag=tag, eta=eta))
            etas[name] = eta, tag
        add(store, *new)
    for number in range(60):  # tasks that wait since 12 s to 20 s, which time has nothing to do with
        tag, name, added_at = tag_of[number % 3], f"ready-{number}", at(12 + number * 7 % 60 / 7.5)
        add(store, NewTask(name=name, tag=tag), now=added_at)
        etas[name] = added_at, tag
    added = list(etas)
    expected = sorted((name for name in added if etas[name][1] in wanted), key=lambda name: etas[name][0])
    order: list[str] = []
    while taken := names(lease(store, 600, seconds=1000, tags=tags, now=at(30))):
        order += taken
    assert order == expected


def test_thousands_that_come_due_at_one_instant_are_all_leased_by_tag_in_order(store: Store) -> None:
    for first in range(0, 1500, 500):
        add(store, *[NewTask(tag="b", name=f"b-{first + index}", delay_seconds=1) for index in range(500)])
    add(store, NewTask(tag="a", name="a", delay_seconds=1))
    assert names(lease(store, tags=TagFilter.of("a"), now=at(1))) == ["a"]
    assert names(lease(store, 2, tags=TagFilter.of("b"), now=at(1))) == ["b-0", "b-1"]


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        pytest.param(ANY, ["b1", "a1", "none", "a2", "c1"], id="any"),
        pytest.param(TagFilter.of("a"), ["a1", "a2"], id="one tag"),
        pytest.param(TagFilter.of("c", "a"), ["a1", "a2", "c1"], id="several tags, merged by eta"),
        pytest.param(TagFilter.of("nobody"), [], id="a tag that never was"),
        pytest.param(UNTAGGED, ["none"], id="untagged"),
        pytest.param(TagFilter.oldest(), ["b1"], id="the tag of the oldest"),
        pytest.param(TagFilter.oldest("c", "a"), ["a1", "a2"], id="the tag of the oldest among some"),
    ],
)
def test_a_lease_takes_only_what_its_filter_accepts(store: Store, tags: TagFilter, expected: list[str]) -> None:
    for order, (name, tag) in enumerate([("b1", "b"), ("a1", "a"), ("none", None), ("a2", "a"), ("c1", "c")]):
        add(store, NewTask(name=name, tag=tag), now=at(order))
    assert names(lease(store, 10, tags=tags, now=at(10))) == expected


def test_untagged_tasks_can_be_a_batch_of_their_own(store: Store) -> None:
    add(store, NewTask(name="one"), NewTask(name="two", tag="a"), NewTask(name="three"))
    assert names(lease(store, 10, tags=TagFilter.oldest())) == ["one", "three"]


def test_count_bounds_a_lease(store: Store) -> None:
    add(store, *[NewTask() for _ in range(5)])
    assert [len(lease(store, 3)), len(lease(store, 3)), len(lease(store, 3))] == [3, 2, 0]


# -- add --------------------------------------------------------------------------------------------------------------


def test_adding_a_name_twice_changes_nothing_the_second_time(store: Store) -> None:
    first = add(store, NewTask(b"one", name="same"), NewTask(b"two", name="same"))
    second = add(store, NewTask(b"three", name="same"))
    assert [each.status for each in (*first, *second)] == ["added", "exists", "exists"]
    assert [each.payload for each in lease(store, 10)] == [b"one"]


def test_names_are_chosen_by_the_queue_in_order_when_none_is_given(store: Store) -> None:
    assert [each.name for each in add(store, NewTask(), NewTask(), NewTask(name="mine"), NewTask())] == [
        "_1",
        "_2",
        "mine",
        "_4",
    ]


def test_an_add_out_of_range_fails_whole_before_anything_is_written(store: Store) -> None:
    with pytest.raises(InvalidEtaError):
        add(store, NewTask(), NewTask(eta=at(3651 * 86_400)))
    with pytest.raises(UnknownQueueError):
        add(store, NewTask(), NewTask(queue="nowhere"))
    with pytest.raises(UnknownQueueError):
        add(store, NewTask(), queue="nowhere")
    assert stats(store).added_total == 0


@pytest.mark.parametrize(
    "payload",
    [b"", b"\x00", bytes(range(256)), b"x" * 2048, b"x" * 2049, bytes(range(256)) * (MAX_PAYLOAD_BYTES // 256)],
    ids=["empty", "zero byte", "all bytes", "inline", "long", "largest"],
)
def test_payloads_come_back_byte_for_byte(store: Store, payload: bytes) -> None:
    add(store, NewTask(payload))
    (held,) = lease(store)
    assert held.payload == payload
    with store.read() as transaction:
        page = transaction.peek(QUEUE, ANY, frozenset(TaskState), limit=1, payload_bytes=7, now=START)
    assert page.tasks[0].payload == payload[:7]
    assert delete(store, held)[0] is not None

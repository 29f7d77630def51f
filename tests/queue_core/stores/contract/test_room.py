"""What every store must do: a lease takes no more than there is room for in its answer, and charges nothing else."""

import pytest

from queue_core import semantics
from queue_core.clock import START, Instant
from queue_core.store import Store
from queue_core.task import ANY, UNTAGGED, Lease, NewTask, TagFilter
from queue_core.verbs import Deletion, Granted, LeaseRequest, PayloadAllowance
from tests.support.stores.task_builders import QUEUE, add, at, grant, lease, stats

LONG, SHORT = b"l" * 3000, b"s" * 1000
"""Payloads that stores keep apart from their tasks, and with them."""


def leased(
    store: Store,
    count: int,
    room: PayloadAllowance | None,
    *,
    tags: TagFilter = ANY,
    seconds: float = 60.0,
    now: Instant = START,
) -> Granted:
    with store.begin() as transaction:
        return transaction.lease(QUEUE, LeaseRequest(count, seconds, tags, "worker-1", room), now=now)


def sizes(leases: Granted) -> list[int]:
    return [len(one.payload) for one in leases.leases]


@pytest.mark.parametrize(
    ("sizes", "room", "fit"),
    [
        pytest.param([], PayloadAllowance(10), 0, id="nothing"),
        pytest.param([4, 6], PayloadAllowance(10), 2, id="as much as there is room for"),
        pytest.param([4, 7], PayloadAllowance(10), 1, id="a byte too many"),
        pytest.param([11, 1], PayloadAllowance(10), 1, id="the first whatever its size"),
        pytest.param([4, 7, 1], PayloadAllowance(10), 1, id="none beyond the one that does not fit"),
        pytest.param([0, 0, 0], PayloadAllowance(10, 4), 2, id="each takes something of its own"),
        pytest.param([11, 1], PayloadAllowance(10, least=0), 0, id="not even the first"),
    ],
)
def test_how_many_tasks_fit(sizes: list[int], room: PayloadAllowance, fit: int) -> None:
    assert room.fitting(sizes) == fit


def test_what_counts_of_a_task_is_its_payload_its_tag_and_the_name_it_was_given() -> None:
    assert semantics.size_of(5, None, None) == 5
    assert semantics.size_of(5, "\u00e4", "name") == 5 + 2 + 4


@pytest.mark.parametrize("payload", [SHORT, LONG], ids=["short", "long"])
@pytest.mark.parametrize("tag", [None, "a"])
@pytest.mark.parametrize(
    "kind", [pytest.param("any", id="any tag"), pytest.param("own", id="its tag"), pytest.param("oldest", id="oldest")]
)
def test_a_lease_takes_no_more_than_there_is_room_for(store: Store, payload: bytes, tag: str | None, kind: str) -> None:
    tags = {"any": ANY, "oldest": TagFilter.oldest(), "own": TagFilter.of(tag) if tag else UNTAGGED}[kind]
    add(store, *(NewTask(payload, tag=tag) for _ in range(10)))
    granted = leased(store, 10, PayloadAllowance(3 * (len(payload) + len(tag or ""))), tags=tags)
    assert sizes(granted) == [len(payload)] * 3
    found = stats(store)
    assert (found.ready, found.in_flight, found.leased_total) == (7, 3, 3)
    rest = leased(store, 10, None, tags=tags).leases
    assert [one.lease_number for one in rest] == [1] * 7


def test_of_several_tags_the_first_that_fit_are_leased_in_order(store: Store) -> None:
    tags = ("a", "b", "c")
    add(store, *(NewTask(b"%d" % number * 1000, tag=tags[number % 3]) for number in range(9)))
    granted = leased(store, 9, PayloadAllowance(5 * 1001), tags=TagFilter.of(*tags[:2], "d", tags[2]))
    assert [one.payload[:1] for one in granted.leases] == [b"0", b"1", b"2", b"3", b"4"]
    assert [one.payload[:1] for one in leased(store, 9, None).leases] == [b"5", b"6", b"7", b"8"]


def test_names_count_and_so_does_what_comes_with_each_task(store: Store) -> None:
    add(store, *(NewTask(b"x" * 90, name=f"task-{number}") for number in range(10)))
    assert len(leased(store, 10, PayloadAllowance(4 * 106, 10)).leases) == 4
    assert len(leased(store, 10, PayloadAllowance(3 * 106 - 1, 10)).leases) == 2


def test_the_first_task_is_leased_whatever_its_size(store: Store) -> None:
    add(store, NewTask(LONG), NewTask(b"small"), NewTask(LONG), NewTask(b""))
    assert sizes(leased(store, 4, PayloadAllowance(1))) == [len(LONG)]
    assert sizes(leased(store, 4, PayloadAllowance(20))) == [5]
    assert sizes(leased(store, 4, PayloadAllowance(1))) == [len(LONG)]
    assert sizes(leased(store, 4, PayloadAllowance(1))) == [0]


def test_what_does_not_fit_keeps_its_place_and_its_leases(store: Store) -> None:
    add(store, *(NewTask(SHORT, max_leases=2) for _ in range(6)))
    for number in (1, 2):
        granted = leased(store, 6, PayloadAllowance(2 * len(SHORT)), seconds=0.0)
        assert [(one.lease_number, one.expires_at) for one in granted.leases] == [(number, START)] * 2
    third = leased(store, 6, PayloadAllowance(2 * len(SHORT)), seconds=0.0)
    assert [one.lease_number for one in third.leases] == [1, 1]
    assert stats(store).ready == 4


def test_due_tasks_that_do_not_fit_are_left_ready(store: Store) -> None:
    add(store, *(NewTask(SHORT, eta=at(5)) for _ in range(6)))
    assert len(leased(store, 6, PayloadAllowance(2 * len(SHORT)), now=at(6)).leases) == 2
    assert stats(store, now=at(6)).ready == 4
    assert len(lease(store, 6, now=at(6))) == 4


def test_an_exchange_has_the_same_bound(store: Store) -> None:
    add(store, *(NewTask(LONG) for _ in range(6)))
    held: list[Lease] = list(grant(store, 2).leases)
    with store.begin() as transaction:
        outcomes, granted = transaction.exchange(
            QUEUE,
            [Deletion(one.token) for one in held],
            LeaseRequest(4, 60.0, ANY, "worker-1", PayloadAllowance(3 * len(LONG))),
            now=START,
        )
    assert None not in outcomes
    assert sizes(granted) == [len(LONG)] * 3
    assert (stats(store).ready, stats(store).in_flight, stats(store).deleted_total) == (1, 3, 2)

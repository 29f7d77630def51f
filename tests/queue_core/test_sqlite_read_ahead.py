"""What a connection has read ahead while its swaps wait: another process, or the next verb here, may change it all."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from queue_core.store import Deletion, LeaseRequest, Release, Renewal, Store
from queue_core.stores.sqlite.read_ahead import READ_AT_ONCE
from queue_core.stores.sqlite.rows import LONG_PAYLOAD_BYTES
from queue_core.stores.sqlite.store import SqliteStore
from queue_core.stores.sqlite.swapping import MAX_SWAPS
from queue_core.task import ANY, Lease, NewTask, TagFilter
from tests.support.swaps import FILE, TASKS, ended, filled, first, swap, swaps, waiting
from tests.support.task_builders import QUEUE, a_queue, add, at, delete, lease, samples, stats, swapped


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with filled(tmp_path) as store:
        yield store


@pytest.fixture
def other(store: SqliteStore, tmp_path: Path) -> Iterator[SqliteStore]:
    """The same file, as another process has it open."""
    with closing(SqliteStore(tmp_path / FILE)) as other:
        yield other


@contextmanager
def stepped_back(folder: Path, *early: NewTask) -> Iterator[tuple[SqliteStore, SqliteStore]]:
    """A file as two processes have it open: after those tasks thirty more, by a clock that was stepped back then."""
    with closing(SqliteStore(folder / FILE)) as store, closing(SqliteStore(folder / FILE)) as other:
        a_queue(store)
        add(store, *early)
        add(store, *[NewTask()] * 30, now=at(9))
        yield store, other


def take(store: Store, held: Lease, tag: str | None = None) -> Lease:
    """The next task of a tag, or of all, for a finished one."""
    tags = ANY if tag is None else TagFilter.of(tag)
    with store.begin() as transaction:
        request = LeaseRequest(1, 600.0, tags, held.worker)
        (outcome,), granted = transaction.exchange(QUEUE, [Deletion(held.token)], request, now=at(2))
    assert outcome is not None
    (taken,) = granted.leases
    return taken


CHANGES: dict[str, tuple[Callable[[Store, Lease], object], list[str]]] = {
    "looked": (lambda to, _: stats(to, now=at(2)), ["_5", "_6", "_7"]),
    "leased the next": (lambda to, _: lease(to, 2, worker="worker-2", now=at(2)), ["_7", "_8", "_9"]),
    "deleted the next": (
        lambda to, _: delete(to, *lease(to, 1, worker="worker-2", now=at(2)), now=at(2)),
        ["_6", "_7", "_8"],
    ),
    "added to the end": (lambda to, _: add(to, NewTask(), now=at(2)), ["_5", "_6", "_7"]),
    "added a batch to the head": (
        lambda to, _: add(to, NewTask(name="urgent"), NewTask(name="next"), now=at(-5)),
        ["urgent", "next", "_5"],
    ),
}


@pytest.mark.parametrize("who", ["another process", "this one"])
@pytest.mark.parametrize("what", CHANGES)
def test_what_was_done_in_between_is_seen(store: Store, other: Store, who: str, what: str) -> None:
    change, expected = CHANGES[what]
    held = swaps(store, first(store), 3, now=at(2))
    change(other if who == "another process" else store, held)
    found = []
    for _ in range(3):
        held = swap(store, held, now=at(3))
        found.append(held.name)
    assert found == expected
    assert store.check().problems == ()
    assert other.check().problems == ()


@pytest.mark.parametrize("who", ["another process", "this one"])
def test_a_task_deleted_by_name_is_not_leased(store: Store, other: Store, who: str) -> None:
    add(store, NewTask(name="mine"), NewTask(name="gone"), NewTask(name="kept"), now=at(-1))
    held = swap(store, swap(store, first(store), now=at(2)), now=at(2))
    assert held.name == "kept"
    with (other if who == "another process" else store).begin() as transaction:
        transaction.delete_by_name(QUEUE, ["_1", "_3"], now=at(2))
    assert swap(store, swap(store, held, now=at(2)), now=at(2)).name == "_4"
    assert store.check().problems == ()


@pytest.mark.parametrize("who", ["another process", "this one"])
def test_after_a_purge_there_is_none(store: Store, other: Store, who: str) -> None:
    held = swaps(store, first(store), 3, now=at(2))
    with (other if who == "another process" else store).begin() as transaction:
        assert transaction.purge(QUEUE, ANY, limit=1000, now=at(2)) > 0
    (outcome,), leases = swapped(store, held.token, now=at(3))
    assert leases == []
    assert (outcome is None) == (stats(store, now=at(3)).in_flight == 0)
    assert stats(store, now=at(3)).ready == 0
    assert store.check().problems == ()


@pytest.mark.parametrize("who", ["another process", "this one"])
def test_while_the_queue_is_paused_nothing_is_leased(store: Store, other: Store, who: str) -> None:
    held = swaps(store, first(store), 3, now=at(2))
    who_pauses = other if who == "another process" else store
    with who_pauses.begin() as transaction:
        transaction.set_paused(QUEUE, "paused")
    assert swapped(store, held.token, now=at(3))[1] == []
    with who_pauses.begin() as transaction:
        transaction.set_paused(QUEUE, "running")
    assert [held.name for held in lease(store, 1, now=at(3))] == ["_5"]


@pytest.mark.parametrize("who", ["another process", "this one"])
def test_a_lease_renewed_or_released_or_deleted_meanwhile(store: Store, other: Store, who: str) -> None:
    by = other if who == "another process" else store
    held = swaps(store, first(store), 2, now=at(2))
    with by.begin() as transaction:
        assert transaction.renew(QUEUE, [Renewal(held.token, 900.0)], now=at(3)) != [None]
    held = swaps(store, held, 2, now=at(4))
    with by.begin() as transaction:
        assert transaction.release(QUEUE, [Release(held.token, 0.0)], now=at(5)) != [None]
    (outcome,), (taken,) = swapped(store, held.token, now=at(6))
    assert (outcome, taken.name) == (None, "_6")
    taken = swaps(store, taken, 2, now=at(6))
    assert delete(by, taken, now=at(7)) != [None]
    (outcome,), (last,) = swapped(store, taken.token, now=at(8))
    assert (outcome, last.name) == (None, "_9")
    assert ended(store) == [f"_{number}" for number in range(1, 9)]
    assert store.check().problems == ()


@pytest.mark.parametrize("who", ["another process", "this one"])
def test_a_lease_that_ends_brings_its_task_back_first(tmp_path: Path, who: str) -> None:
    with stepped_back(tmp_path, NewTask(name="short")) as (store, other):
        lease(other if who == "another process" else store, 1, seconds=3.0, worker="worker-2", now=at(1))
        held = swaps(store, first(store), 3, now=at(2))
        assert held.name == "_5"
        held = swap(store, held, now=at(4))
        assert held.name == "short"
        assert swap(store, held, now=at(4)).name == "_6"
        finished = [(each.name, each.outcome, each.lease_number) for each in samples(store).finished]
        assert finished[-1] == ("short", "deleted", 2)
        assert store.check().problems == ()


@pytest.mark.parametrize("who", ["another process", "this one"])
def test_a_lease_given_since_brings_its_task_back_first_when_it_ends(tmp_path: Path, who: str) -> None:
    with stepped_back(tmp_path, *[NewTask()] * 5) as (store, other):
        held = swaps(store, first(store), 3, now=at(2))
        (short,) = lease(other if who == "another process" else store, 1, seconds=3.0, worker="worker-2", now=at(2))
        held = swaps(store, held, 2, now=at(4))
        assert (short.name, held.name) == ("_5", "_7")
        held = swap(store, held, now=at(6))
        assert held.name == "_5"
        assert swap(store, held, now=at(6)).name == "_8"
        assert store.check().problems == ()


@pytest.mark.parametrize("who", ["another process", "this one"])
def test_a_task_that_was_released_is_leased_again_in_its_turn(tmp_path: Path, who: str) -> None:
    with stepped_back(tmp_path, *[NewTask()] * 5) as (store, other):
        held = swap(store, first(store), now=at(2))
        with (other if who == "another process" else store).begin() as transaction:
            assert transaction.release(QUEUE, [Release(held.token, 0.0)], now=at(3)) != [None]
        names = [held.name]
        held = first(store, now=at(3))
        for _ in range(4):
            held = swap(store, held, now=at(4))
            names.append(held.name)
        assert names == ["_2", "_4", "_5", "_2", "_6"]
        assert store.check().problems == ()


def test_one_that_has_become_due_is_no_longer_delayed(store: Store, other: Store) -> None:
    held = swaps(store, first(store), 2, now=at(2))
    add(other, NewTask(name="soon", eta=at(5)), now=at(2))
    held = swaps(store, held, 2, now=at(4))
    held = swaps(store, held, 2, now=at(6))
    counted = stats(other, now=at(6))
    assert (counted.delayed, counted.ready) == (0, TASKS + 1 - 7)
    assert store.check().problems == ()


def test_two_processes_and_two_holders_in_each_lease_every_task_once(store: Store, other: Store) -> None:
    holders = [(by, first(by, worker=f"worker-{number}")) for number, by in enumerate([store, other, store, other])]
    names = [held.name for _, held in holders]
    for turn in range(TASKS - len(holders)):
        place = (turn * 7 + turn // 5) % len(holders)  # neither by turns nor one for long
        by, held = holders[place]
        holders[place] = by, swap(by, held, now=at(2))
        names.append(holders[place][1].name)
    assert names == [f"_{number}" for number in range(1, TASKS + 1)]
    for by, held in holders:
        assert swapped(by, held.token, now=at(3))[1] == []
    assert sorted(ended(store)) == sorted(names)
    assert store.check().problems == ()


def test_one_goes_on_where_the_other_stopped(store: Store, other: Store) -> None:
    mine, theirs = first(store), first(other, worker="worker-2")
    mine = swaps(store, mine, 5, now=at(2))
    theirs = swaps(other, theirs, 2 * READ_AT_ONCE, now=at(2))
    assert int(theirs.name[1:]) == 7 + 2 * READ_AT_ONCE
    assert int(swap(store, mine, now=at(2)).name[1:]) == 8 + 2 * READ_AT_ONCE
    assert store.check().problems == ()


def test_a_lease_given_here_is_finished_there(store: Store, other: Store) -> None:
    held = swaps(store, first(store), 3, now=at(2))
    first(other, worker="worker-2")
    for turn in range(MAX_SWAPS):
        held = swap(store if turn % 2 else other, held, now=at(2))
    assert len(ended(store)) == MAX_SWAPS + 3
    (outcome,), _ = swapped(store, held.token, now=at(3))
    assert outcome is not None
    (outcome,), _ = swapped(store, held.token, now=at(3))
    assert outcome is None
    assert store.check().problems == ()


def test_a_lease_that_another_process_has_finished_by_a_swap_is_not_current(store: Store, other: Store) -> None:
    first(other)
    held = swaps(store, first(store), 3, now=at(2))
    swap(other, held, now=at(2))
    (outcome,), _ = swapped(store, held.token, now=at(2))
    assert outcome is None
    assert ended(store).count(held.name) == 1
    assert store.check().problems == ()


def test_tags_and_all_side_by_side_never_lease_a_task_twice(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / FILE)) as store:
        a_queue(store)
        add(store, *[NewTask(tag="ab"[number % 2]) for number in range(TASKS)])
        held = first(store)
        names = [held.name]
        for turn in range(60):
            held = take(store, held, [None, "a", "b", "a"][turn % 4])
            names.append(held.name)
        assert len(set(names)) == len(names) == 61
        assert names[:5] == ["_1", "_2", "_3", "_4", "_5"]
        assert ended(store) == names[:-1]
        assert store.check().problems == ()


def test_a_token_is_good_once_and_in_its_queue_only(store: Store) -> None:
    a_queue(store, "b")
    add(store, *[NewTask()] * 9, queue="b")
    (beside,) = lease(store, 1, queue="b", seconds=600.0, now=at(1))
    held = swaps(store, first(store), 3, now=at(2))
    (outcome,), (beside_too,) = swapped(store, held.token, now=at(2), queue="b")
    assert outcome is None
    beside = swap(store, beside, now=at(2), queue="b")
    assert int(beside.name[1:]) == int(beside_too.name[1:]) + 1
    held_too = swap(store, held, now=at(2))
    (outcome,), (third,) = swapped(store, held.token, now=at(2))
    assert (outcome, third.name) == (None, "_6")
    assert swap(store, held_too, now=at(2)).name == "_7"
    assert store.check().problems == ()


def test_what_was_rolled_back_is_not_remembered(store: Store, tmp_path: Path) -> None:
    held, beside = (first(store, worker="") for _ in range(2))
    held, beside = swap(store, held, now=at(2)), swap(store, beside, now=at(2))
    with pytest.raises(ZeroDivisionError), store.begin() as transaction:
        request = LeaseRequest(1, 600.0, ANY, held.worker)
        _, granted = transaction.exchange(QUEUE, [Deletion(held.token)], request, now=at(3))
        (lost,) = granted.leases
        raise ZeroDivisionError
    beside = swap(store, beside, now=at(2))
    assert beside.name == lost.name == "_5"
    (outcome,), (other,) = swapped(store, lost.token, now=at(2))
    assert (outcome, other.name) == (None, "_6")
    assert swap(store, held, now=at(2)).name == "_7"
    assert waiting(tmp_path) > 0
    assert store.check().problems == ()


def test_a_payload_is_whole_and_a_lease_counted_however_the_task_was_found(tmp_path: Path) -> None:
    payloads = [b"%d" % number * (LONG_PAYLOAD_BYTES if number % 5 == 0 else 1) for number in range(40)]
    with closing(SqliteStore(tmp_path / FILE)) as store:
        a_queue(store)
        add(store, *[NewTask(payload, name=f"n{number}") for number, payload in enumerate(payloads)])
        taken = lease(store, 20, seconds=600.0, now=at(0.5))
        with store.begin() as transaction:
            transaction.release(QUEUE, [Release(each.token, 0.0) for each in taken], now=at(0.75))
        held = first(store)
        seen = {held.name: held.payload}
        for _ in range(39):
            held = swap(store, held, now=at(2))
            seen[held.name] = held.payload
        assert seen == {f"n{number}": payload for number, payload in enumerate(payloads)}
        counted = {each.name: each.lease_number for each in samples(store).finished if each.outcome == "deleted"}
        assert counted == {f"n{number}": 2 if number < 20 else 1 for number in range(40) if f"n{number}" != held.name}
        assert store.check().problems == ()

"""One finished lease for the next: both wait to be sorted in, and nobody can tell, whoever looks, whatever happens."""

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from queue_core.store import Deletion, LeaseRequest, Release, Store
from queue_core.stores.sqlite.driver import stdlib_driver
from queue_core.stores.sqlite.rows import LONG_PAYLOAD_BYTES
from queue_core.stores.sqlite.store import SqliteStore
from queue_core.stores.sqlite.swapping import MAX_SWAPS
from queue_core.task import ANY, NewTask, TagFilter, TaskState
from tests.faults.fault_vfs import FaultVfs, Meter
from tests.faults.quiet_driver import quiet_driver
from tests.support.moved_tasks import peek
from tests.support.swaps import FILE, TASKS, ended, filled, first, swap, swaps, waiting
from tests.support.task_builders import MICROSECOND, QUEUE, a_queue, add, at, lease, samples, stats, swapped


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with filled(tmp_path) as store:
        yield store


def test_they_wait_until_somebody_looks_and_all_is_told(store: Store, tmp_path: Path) -> None:
    held = swaps(store, first(store), 3, now=at(2))
    assert waiting(tmp_path) == 4  # the first was a lease that is in its place, with one row for its end
    counted = stats(store, now=at(3))
    assert waiting(tmp_path) == 0
    assert (counted.ready, counted.in_flight, counted.deleted_total, counted.leased_total) == (TASKS - 4, 1, 3, 4)
    found = samples(store).finished
    assert [each.name for each in found] == ["_1", "_2", "_3"]
    assert [(each.outcome, each.worker, each.lease_number, each.ended_at) for each in found] == [
        ("deleted", "worker-1", 1, at(2))
    ] * 3
    assert [each.held_seconds for each in found] == [1.0, 0.0, 0.0]
    with store.read() as transaction:
        (live,) = transaction.live_leases(QUEUE, limit=9, now=at(3))
    assert (live.name, live.worker, live.expires_at) == (held.name, held.worker, held.expires_at)
    assert store.check().problems == ()


def test_one_is_one_page_of_the_log(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / FILE)) as store:
        a_queue(store)
        add(store, *[NewTask()] * 30)
        held = swaps(store, first(store), 2, now=at(2))
        before = store._log.pages
        swaps(store, held, 9, now=at(2))
        assert store._log.pages == before + 9


def test_no_more_than_so_many_wait_and_each_task_is_leased_once_in_order(store: Store, tmp_path: Path) -> None:
    held = first(store)
    most = 0
    for number in range(2, TASKS + 1):
        held = swap(store, held, now=at(2))
        assert (held.name, held.payload) == (f"_{number}", b"%d" % number)
        most = max(most, waiting(tmp_path))
    assert most in (MAX_SWAPS - 1, MAX_SWAPS)
    assert swapped(store, held.token, now=at(3))[1] == []
    assert waiting(tmp_path) == 0  # who comes to rest leaves nothing behind
    assert ended(store) == [f"_{number}" for number in range(1, TASKS + 1)]
    counted = stats(store, now=at(3))
    assert (counted.ready, counted.in_flight, counted.deleted_total, counted.leased_total) == (0, 0, TASKS, TASKS)
    assert store.check().problems == ()


def test_with_the_standard_librarys_sqlite_too(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / FILE, driver=stdlib_driver())) as store:
        a_queue(store)
        add(store, *[NewTask()] * TASKS)
        held = swaps(store, first(store), TASKS - 1, now=at(2))
        assert held.name == f"_{TASKS}"
        assert ended(store) == [f"_{number}" for number in range(1, TASKS)]
        counted = stats(store, now=at(3))
        assert (counted.ready, counted.in_flight, counted.deleted_total) == (0, 1, TASKS - 1)
        assert store.check().problems == ()


def test_two_processes_take_turns(store: Store, tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / FILE)) as other:
        one, two = first(store), first(other, worker="worker-2")
        names = [one.name, two.name]
        for _ in range(MAX_SWAPS):
            one, two = swap(store, one, now=at(2)), swap(other, two, now=at(2))
            names += [one.name, two.name]
        assert names == [f"_{number}" for number in range(1, 2 * MAX_SWAPS + 3)]
        for looking in (store, other):
            counted = stats(looking, now=at(3))
            assert (counted.in_flight, counted.deleted_total) == (2, 2 * MAX_SWAPS)
            assert ended(looking) == names[:-2]
            assert looking.check().problems == ()


def test_many_holders_have_their_leases_sorted_in_before_they_end(store: Store, tmp_path: Path) -> None:
    leases = [first(store, worker=f"worker-{number}") for number in range(MAX_SWAPS)]
    for _ in range(2):
        leases = [swap(store, held, now=at(2)) for held in leases]
        assert 0 < waiting(tmp_path) <= MAX_SWAPS
    assert {held.worker for held in leases} == {f"worker-{number}" for number in range(MAX_SWAPS)}
    counted = stats(store, now=at(3))
    assert (counted.in_flight, counted.deleted_total, counted.ready) == (MAX_SWAPS, 2 * MAX_SWAPS, 0)
    assert [each.worker for each in samples(store).finished] == [held.worker for held in leases] * 2
    assert store.check().problems == ()


def test_names_tags_and_long_payloads(tmp_path: Path) -> None:
    long = b"x" * (LONG_PAYLOAD_BYTES + 1)
    with closing(SqliteStore(tmp_path / FILE)) as store:
        a_queue(store)
        add(store, *[NewTask(long, name=f"n{number}", tag="ab"[number % 2]) for number in range(6)])
        held = first(store)
        for number in range(1, 4):
            held = swap(store, held, now=at(2))
            assert (held.name, held.tag, held.payload) == (f"n{number}", "ab"[number % 2], long)
        assert waiting(tmp_path) == 4
        (again,) = add(store, NewTask(name="n1"), now=at(3))
        assert (again.status, waiting(tmp_path)) == ("tombstoned", 0)
        first_name = [add(store, NewTask(name="n0"), now=now)[0].status for now in (at(102 - MICROSECOND), at(102))]
        assert first_name == ["tombstoned", "added"]
        assert [(each.name, each.tag) for each in samples(store).finished] == [("n0", "a"), ("n1", "b"), ("n2", "a")]
        counted = [stats(store, TagFilter.of(tag), now=at(3)) for tag in "ab"]
        assert [(each.ready, each.in_flight, each.deleted_total) for each in counted] == [(1, 0, 2), (1, 1, 1)]
        with closing(apsw.Connection(str(tmp_path / FILE))) as connection:
            assert connection.execute("SELECT count(*) FROM payloads").fetchall() == [(3,)]
            changed = connection.execute("SELECT changed_at FROM counts WHERE tag IN ('a', 'b')").fetchall()
        assert changed == [(at(3),)] * 2
        assert store.check().problems == ()


def test_its_tag_was_last_changed_by_the_swap_not_by_the_look(store: Store, tmp_path: Path) -> None:
    swap(store, swap(store, first(store), now=at(7)), now=at(8))
    stats(store, now=at(9))
    with closing(apsw.Connection(str(tmp_path / FILE))) as connection:
        ((changed_at,),) = connection.execute("SELECT changed_at FROM counts WHERE tag IS NULL AND id > 0").fetchall()
    assert changed_at == at(8)


def test_samples_tell_when_each_lease_ended_in_that_order(store: Store) -> None:
    one, two = first(store), first(store, worker="worker-2")
    two = swap(store, two, now=at(2))
    one = swap(store, one, now=at(3))
    swap(store, two, now=at(4))
    swap(store, one, now=at(5))
    found = samples(store).finished
    assert [(each.name, each.ended_at) for each in found] == [
        ("_2", at(2)),
        ("_1", at(3)),
        ("_3", at(4)),
        ("_4", at(5)),
    ]


def test_the_wait_is_counted_from_when_it_was_ready_again(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / FILE)) as store:
        a_queue(store)
        add(store, NewTask())
        (given_back,) = lease(store, 1, now=at(1))
        with store.begin() as transaction:
            transaction.release(QUEUE, [Release(given_back.token, 5.0)], now=at(1))
        assert stats(store, now=at(6)).ready == 1
        add(store, *[NewTask()] * 3, now=at(4))
        held = swaps(store, first(store, now=at(7)), 3, now=at(10))
        assert (held.name, held.waited_seconds) == (given_back.name, 4.0)
        add(store, *[NewTask()] * 2, now=at(10))
        swap(store, held, now=at(11))
        last = samples(store).finished[-1]
        assert (last.name, last.lease_number, last.waited_seconds) == (given_back.name, 2, 4.0)


def test_one_has_a_ticket_to_wait_for(store: Store) -> None:
    held = first(store)
    before = store.ticket()
    swap(store, held, now=at(2))
    assert store.ticket() == before + 1


def test_what_comes_while_a_reader_begins_is_left_to_the_next_and_so_is_what_came_after_it(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sort_in = store._sort_in
    with closing(SqliteStore(tmp_path / FILE)) as other:
        held = [swap(other, first(other), now=at(2))]

        def sort_in_and_another_goes_on() -> bool:
            is_done = sort_in()
            held.append(swap(other, held[-1], now=at(3)))
            add(other, NewTask(b"after"), now=at(4))
            return is_done

        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(store, "_sort_in", sort_in_and_another_goes_on)
            counted = stats(store, now=at(5))
        assert (counted.deleted_total, counted.added_total) == (1, TASKS)
        counted = stats(store, now=at(5))
        assert (counted.deleted_total, counted.added_total) == (2, TASKS + 1)
        assert waiting(tmp_path) == 0


def test_on_a_disk_that_takes_nothing_a_reader_finds_them_too(tmp_path: Path) -> None:
    is_full = False

    def fault(_event: int) -> None:
        if is_full:
            raise apsw.FullError("no")

    vfs = FaultVfs("full-swaps", Meter(fault), counts_syncs=False)
    with closing(SqliteStore(tmp_path / FILE, vfs=vfs.name, driver=quiet_driver())) as store:
        a_queue(store)
        add(store, *[NewTask(b"x" * 1000)] * 9)
        held = swaps(store, first(store), 5, now=at(2))
        is_full = True
        for _ in range(2):
            assert ended(store) == [f"_{number}" for number in range(1, 6)]
            assert stats(store, now=at(3)).in_flight == 1
            (found,) = [task for task in peek(store) if task.state is TaskState.LEASED]
            assert (found.shown_name, found.leased_at) == (held.name, at(2))
        assert waiting(tmp_path) == 6
        is_full = False
        assert ended(store) == [f"_{number}" for number in range(1, 6)]
        assert waiting(tmp_path) == 0
    vfs.unregister()


def test_they_outlive_whoever_is_killed(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / FILE)) as store:
        a_queue(store)
        add(store, *[NewTask()] * 9)
        child = os.fork()
        if child == 0:
            try:
                of_child = SqliteStore(tmp_path / FILE)
                swaps(of_child, first(of_child), 5, now=at(2))
            finally:
                os.kill(os.getpid(), signal.SIGKILL)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
        assert waiting(tmp_path) == 6
        assert ended(store) == [f"_{number}" for number in range(1, 6)]
        counted = stats(store, now=at(2))
        assert (counted.deleted_total, counted.in_flight, counted.ready) == (5, 1, 3)
        assert store.check().problems == ()


def test_they_are_there_when_the_file_is_opened_again(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / FILE)) as store:
        a_queue(store)
        add(store, *[NewTask()] * 9)
        held = swaps(store, first(store), 5, now=at(2))
    assert waiting(tmp_path) == 6
    with closing(SqliteStore(tmp_path / FILE)) as store:
        assert lease(store, 1, worker=held.worker, now=at(3))[0].name == "_7"
        assert swap(store, held, now=at(3)).name == "_8"
        assert ended(store) == [f"_{number}" for number in range(1, 7)]


def test_a_transaction_that_is_rolled_back_swaps_nothing(store: Store, tmp_path: Path) -> None:
    held = swap(store, first(store), now=at(2))
    with pytest.raises(ZeroDivisionError), store.begin() as transaction:
        transaction.exchange(QUEUE, [Deletion(held.token)], LeaseRequest(1, 600.0, ANY, held.worker), now=at(3))
        raise ZeroDivisionError
    assert waiting(tmp_path) == 2
    assert swap(store, held, now=at(3)).name == "_3"
    assert ended(store) == ["_1", "_2"]


def test_those_of_a_queue_that_is_deleted_go_with_it(store: Store, tmp_path: Path) -> None:
    a_queue(store, "other")
    add(store, *[NewTask()] * 5, queue="other")
    held = swap(store, first(store), now=at(2))
    (of_other,) = lease(store, 1, now=at(1), queue="other")
    of_other = swap(store, of_other, now=at(2), queue="other")
    swap(store, of_other, now=at(2), queue="other")
    swap(store, held, now=at(3))
    with closing(SqliteStore(tmp_path / FILE)) as elsewhere, elsewhere.begin() as transaction:
        transaction.delete_queue("other")
    assert ended(store) == ["_1", "_2"]
    assert store.check().problems == ()

"""Samples of who takes one task after the other: written a few together, told in order and once, whoever looks."""

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from queue_core.clock import Instant
from queue_core.store import Deletion, LeaseRequest, Store
from queue_core.stores.sqlite.samples import MAX_HELD, MAX_HELD_MICROSECONDS
from queue_core.stores.sqlite.store import SqliteStore
from queue_core.task import ANY, Lease, NewTask
from tests.faults.fault_vfs import FaultVfs, Meter
from tests.faults.quiet_driver import quiet_driver
from tests.support.task_builders import MICROSECOND, QUEUE, a_queue, add, at, delete, lease, samples, stats, swapped

FILE = "queue.db"
SECONDS = MAX_HELD_MICROSECONDS / 1_000_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with closing(SqliteStore(tmp_path / FILE)) as store:
        a_queue(store)
        add(store, *[NewTask()] * (MAX_HELD + 20))
        yield store


def written(folder: Path) -> int:
    """How many samples the file has."""
    with closing(apsw.Connection(str(folder / FILE))) as connection:
        return int(connection.execute("SELECT ifnull(sum(size), 0) FROM samples").fetchall()[0][0])


def swap(store: Store, held: Lease, *, now: Instant, queue: str = QUEUE) -> Lease | None:
    """The next task for a finished one; None: there is none."""
    (outcome,), leases = swapped(store, held.token, now=now, seconds=600.0, worker=held.worker, queue=queue)
    assert outcome is not None
    return leases[0] if leases else None


def swaps(store: Store, held: Lease, number: int, *, now: Instant) -> Lease:
    """So many, one after the other."""
    for _ in range(number):
        taken = swap(store, held, now=now)
        assert taken is not None
        held = taken
    return held


def told(store: Store) -> list[str]:
    """The names of finished leases, as pages of two tell them."""
    found: list[str] = []
    after = 0
    while page := samples(store, after=after, limit=2):
        assert not page.missed
        if not page.finished:
            break
        found += [finished.name for finished in page.finished]
        after = page.cursor
    assert after == len(found)
    return found


@pytest.mark.parametrize(
    ("later", "those"), [(0.0, 1), (SECONDS - MICROSECOND, 1), (SECONDS, 3), (500.0, 3), (-MICROSECOND, 3)]
)
def test_the_first_is_written_at_once_and_those_soon_after_it_later(
    store: Store, tmp_path: Path, later: float, those: int
) -> None:
    (held,) = lease(store, 1, seconds=600.0, now=at(1))
    held = swaps(store, held, 1, now=at(2))
    assert written(tmp_path) == 1
    held = swaps(store, held, 1, now=at(2))
    swaps(store, held, 1, now=at(2 + later))
    assert written(tmp_path) == those


def test_no_more_than_so_many_are_held(store: Store, tmp_path: Path) -> None:
    (held,) = lease(store, 1, now=at(1))
    held = swaps(store, held, MAX_HELD, now=at(2))
    assert written(tmp_path) == 1
    swaps(store, held, 1, now=at(2))
    assert written(tmp_path) == MAX_HELD + 1


def test_who_looks_through_the_same_store_finds_all_in_order(store: Store, tmp_path: Path) -> None:
    (held,) = lease(store, 1, now=at(1))
    held = swaps(store, held, 3, now=at(2))
    with store.begin() as transaction:
        assert len(transaction.samples(QUEUE, after=0, limit=9).finished) == 3
    assert written(tmp_path) == 3
    swaps(store, held, 4, now=at(2))
    assert written(tmp_path) == 4  # after a look the first is written at once again
    assert told(store) == [f"_{number}" for number in range(1, 8)]
    assert written(tmp_path) == 7
    assert store.check().problems == ()


def test_with_whatever_else_ends_a_lease_they_are_written_before_it(store: Store, tmp_path: Path) -> None:
    (held, other) = lease(store, 2, now=at(1))
    swaps(store, held, 3, now=at(2))
    delete(store, other, now=at(2))
    assert written(tmp_path) == 4
    assert told(store) == ["_1", "_3", "_4", "_2"]


def test_none_is_held_when_no_task_is_left(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / FILE)) as store:
        a_queue(store)
        add(store, *[NewTask()] * 3)
        (held,) = lease(store, 1, now=at(1))
        held = swaps(store, held, 2, now=at(2))
        assert written(tmp_path) == 1
        assert swap(store, held, now=at(2)) is None
        assert written(tmp_path) == 3


def test_an_add_writes_them_once_they_are_due(store: Store, tmp_path: Path) -> None:
    (held,) = lease(store, 1, now=at(1))
    swaps(store, held, 3, now=at(2))
    add(store, NewTask(), now=at(2))
    assert written(tmp_path) == 1
    add(store, NewTask(), now=at(2 + SECONDS))
    assert written(tmp_path) == 3


def test_they_are_written_when_the_store_is_closed(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / FILE)) as store:
        a_queue(store)
        add(store, *[NewTask()] * 9)
        (held,) = lease(store, 1, now=at(1))
        swaps(store, held, 5, now=at(2))
        assert written(tmp_path) == 1
    assert written(tmp_path) == 5
    with closing(SqliteStore(tmp_path / FILE)) as store:
        assert told(store) == [f"_{number}" for number in range(1, 6)]


def test_those_of_two_processes_stand_in_the_order_in_which_they_were_written(store: Store, tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / FILE)) as other:
        (one,), (two,) = lease(store, 1, now=at(1)), lease(other, 1, now=at(1))
        one, two = swaps(store, one, 1, now=at(2)), swaps(other, two, 1, now=at(2))
        one, two = swaps(store, one, 2, now=at(2)), swaps(other, two, 2, now=at(2))
        assert written(tmp_path) == 2
        assert told(other) == ["_1", "_2", "_4", "_7"]
        assert told(store) == ["_1", "_2", "_4", "_7", "_3", "_5"]
        assert stats(other, now=at(2)).deleted_total == 6


def test_a_transaction_that_is_rolled_back_takes_its_own_with_it(store: Store, tmp_path: Path) -> None:
    (held,) = lease(store, 1, now=at(1))
    held = swaps(store, held, 3, now=at(2))
    request = LeaseRequest(1, 600.0, ANY, held.worker)
    for now in (at(2), at(9)):  # once they would be held, once written
        with pytest.raises(ZeroDivisionError), store.begin() as transaction:
            assert transaction.exchange(QUEUE, [Deletion(held.token)], request, now=now)[0] != [None]
            assert now == at(2) or len(transaction.samples(QUEUE, after=0, limit=9).finished) == 4
            raise ZeroDivisionError
    assert written(tmp_path) == 1
    assert told(store) == ["_1", "_2", "_3"]


def test_those_of_a_queue_that_is_deleted_go_with_it(store: Store, tmp_path: Path) -> None:
    a_queue(store, "other")
    add(store, *[NewTask()] * 5, queue="other")
    (held,), (of_other,) = lease(store, 1, now=at(1)), lease(store, 1, now=at(1), queue="other")
    held = swaps(store, held, 2, now=at(2))
    assert swap(store, of_other, now=at(2), queue="other") is not None
    with closing(SqliteStore(tmp_path / FILE)) as elsewhere, elsewhere.begin() as transaction:
        transaction.delete_queue("other")
    assert told(store) == ["_1", "_2"]
    assert written(tmp_path) == 2


def test_on_a_disk_that_takes_nothing_a_reader_finds_them_too(tmp_path: Path) -> None:
    is_full = False

    def fault(_event: int) -> None:
        if is_full:
            raise apsw.FullError("no")

    vfs = FaultVfs("full-samples", Meter(fault), counts_syncs=False)
    with closing(SqliteStore(tmp_path / FILE, vfs=vfs.name, driver=quiet_driver())) as store:
        a_queue(store)
        add(store, *[NewTask(b"x" * 1000)] * 9)
        (held,) = lease(store, 1, now=at(1))
        swaps(store, held, 5, now=at(2))
        add(store, NewTask(), now=at(2))
        is_full = True
        for _ in range(2):
            assert told(store) == [f"_{number}" for number in range(1, 6)]
        assert written(tmp_path) == 1
        is_full = False
        assert told(store) == [f"_{number}" for number in range(1, 6)]
        assert written(tmp_path) == 5
    vfs.unregister()


def test_a_store_that_is_closed_in_a_child_of_a_fork_writes_none(store: SqliteStore, tmp_path: Path) -> None:
    (held,) = lease(store, 1, now=at(1))
    swaps(store, held, 3, now=at(2))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            store.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert written(tmp_path) == 1
    assert told(store) == ["_1", "_2", "_3"]


def test_who_is_killed_takes_no_more_than_those_with_it_and_no_count(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / FILE)) as store:
        a_queue(store)
        add(store, *[NewTask()] * 9)
        child = os.fork()
        if child == 0:
            try:
                of_child = SqliteStore(tmp_path / FILE)
                (held,) = lease(of_child, 1, now=at(1))
                swaps(of_child, held, 5, now=at(2))
            finally:
                os.kill(os.getpid(), signal.SIGKILL)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
        counted = stats(store, now=at(2))
        assert (counted.deleted_total, counted.in_flight, counted.ready) == (5, 1, 3)
        assert told(store) == ["_1"]
        assert store.check().problems == ()

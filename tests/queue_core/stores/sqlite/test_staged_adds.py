"""Staged adds: tasks added one at a time are flushed before any read or other change, also after a failure."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from queue_core.clock import START
from queue_core.errors import StoreError, StoreFullError, StoreUnavailableError
from queue_core.store import Store
from queue_core.stores.sqlite.adds import MAX_STAGED, MAX_STAGED_PER_TRANSACTION
from queue_core.stores.sqlite.driver import apsw_driver, stdlib_driver
from queue_core.stores.sqlite.rows import LONG_PAYLOAD_BYTES
from queue_core.stores.sqlite.store import SqliteStore
from queue_core.stores.sqlite.wal import FileSyncer
from queue_core.task import ANY, UNTAGGED, NewTask, TagFilter
from tests.faults.fault_vfs import FaultVfs, Meter, quiet_driver
from tests.support.stores.restored_tasks import peek
from tests.support.stores.task_builders import QUEUE, a_queue, add, at, delete, lease, stats

FILE = "queue.db"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with closing(SqliteStore(tmp_path / FILE)) as store:
        a_queue(store)
        add(store, NewTask(), NewTask(tag="a"))  # from now on both are counted
        assert staged(tmp_path) == 0
        yield store


def staged(folder: Path) -> int:
    """The number of staged adds in the file."""
    with closing(apsw.Connection(str(folder / FILE))) as connection:
        return int(connection.execute("SELECT count(*) FROM staged_adds").fetchall()[0][0])


def test_a_task_added_alone_is_staged_until_the_next_read(store: Store, tmp_path: Path) -> None:
    (added,) = add(store, NewTask(b"alone", tag="a", max_leases=2, headers={"a": "b"}), now=at(1))
    assert (added.name, added.ready, staged(tmp_path)) == ("_3", True, 1)
    assert stats(store, TagFilter.of("a"), now=at(1)).ready == 2
    assert staged(tmp_path) == 0
    found = peek(store)[-1]
    assert (found.payload, found.tag, found.added_at, found.eta, found.max_leases) == (b"alone", "a", at(1), at(1), 2)
    assert found.headers == {"a": "b"}
    assert store.check().problems == ()


def test_it_is_durable_before_its_add_returns(tmp_path: Path) -> None:
    synced: list[str] = []

    class Noting(FileSyncer):
        def sync(self) -> None:
            synced.append("sync")
            super().sync()

    with closing(SqliteStore(tmp_path / FILE, open_syncer=Noting)) as store:
        a_queue(store)
        add(store, NewTask(), NewTask())
        store.sync(store.ticket())
        synced.clear()
        add(store, NewTask())
        store.sync(store.ticket())
        assert synced == ["sync"]
        assert stats(store).ready == 3
        store.sync(store.ticket())
        assert synced == ["sync"]  # the flush since need not be durable: nothing was acknowledged


@pytest.mark.parametrize("number", [1, MAX_STAGED_PER_TRANSACTION + 1])
def test_its_tag_was_last_changed_when_it_was_added(store: Store, tmp_path: Path, number: int) -> None:
    with store.begin() as transaction:
        for _ in range(number):
            transaction.add(QUEUE, [NewTask(tag="a")], now=at(7))
    assert stats(store, now=at(9)).ready == number + 2
    with closing(apsw.Connection(str(tmp_path / FILE))) as connection:
        ((changed_at,),) = connection.execute("SELECT changed_at FROM counts WHERE tag = 'a'").fetchall()
    assert changed_at == at(7)


def test_it_is_one_page_of_the_log(store: SqliteStore) -> None:
    add(store, NewTask())
    before = store._log.pages
    for _ in range(5):
        add(store, NewTask())
    assert store._log.pages == before + 5


def test_adds_while_a_reader_begins_are_left_to_the_next_reader(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush = store._flush

    def flush_and_another_adds() -> bool:
        is_done = flush()
        add(other, NewTask())
        return is_done

    with closing(SqliteStore(tmp_path / FILE)) as other:
        add(store, NewTask())
        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(store, "_flush", flush_and_another_adds)
            assert stats(store).ready == 3
        assert staged(tmp_path) == 1
        assert stats(store).ready == 4


def test_it_is_leased_by_another_process_and_ids_go_on(store: Store, tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / FILE)) as other:
        names = [
            added.name
            for number in range(12)
            for added in add((store, other)[number % 2], *[NewTask(b"%d" % number)] * (1 + (number == 7)))
        ]
        assert names == [f"_{number}" for number in range(3, 16)]
        assert [held.payload for held in lease(other, 99)][2:] == [b"%d" % n for n in sorted((*range(12), 7))]
    assert store.check().problems == ()


def test_staged_adds_keep_their_tags_and_queues(store: Store, tmp_path: Path) -> None:
    a_queue(store, "other")
    add(store, NewTask(), NewTask(tag="a"), queue="other")
    for queue, tag in ((QUEUE, None), ("other", "a"), (QUEUE, "a"), ("other", "a"), (QUEUE, None), (QUEUE, None)):
        add(store, NewTask(tag=tag), queue=queue)
    assert staged(tmp_path) == 6
    found = [stats(store, tags, queue=name) for name in (QUEUE, "other") for tags in (UNTAGGED, TagFilter.of("a"), ANY)]
    assert [one.ready for one in found] == [4, 2, 6, 1, 3, 4]
    assert [one.added_total for one in found] == [4, 2, 6, 1, 3, 4]
    assert store.check().problems == ()


def test_the_number_of_staged_adds_is_bounded(store: Store, tmp_path: Path) -> None:
    seen = set()
    for _ in range(3 * MAX_STAGED):
        add(store, NewTask())
        seen.add(staged(tmp_path))
    assert seen == set(range(MAX_STAGED + 1))
    assert stats(store).ready == 3 * MAX_STAGED + 2


@pytest.mark.parametrize(
    ("number", "left"), [(MAX_STAGED_PER_TRANSACTION, MAX_STAGED_PER_TRANSACTION), (MAX_STAGED_PER_TRANSACTION + 1, 0)]
)
def test_a_transaction_with_many_adds_flushes_them(store: Store, tmp_path: Path, number: int, left: int) -> None:
    with store.begin() as transaction:
        for _ in range(number):
            transaction.add(QUEUE, [NewTask(b"one of some", tag="a")], now=START)
    assert staged(tmp_path) == left
    assert stats(store, TagFilter.of("a")).ready == number + 1
    assert store.check().problems == ()


def test_a_task_leased_in_the_transaction_that_added_it_is_never_staged(store: Store, tmp_path: Path) -> None:
    add(store, NewTask(b"before"))
    lease(store, 9)
    with store.begin() as transaction:
        transaction.add(QUEUE, [NewTask(b"now")], now=START)
        assert transaction.stats(QUEUE, TagFilter(), now=START).ready == 1
    assert [held.payload for held in lease(store, 9)] == [b"now"]
    assert staged(tmp_path) == 0


@pytest.mark.parametrize(
    "new",
    [
        NewTask(name="given"),
        NewTask(eta=START),
        NewTask(delay_seconds=0.0),
        NewTask(tag="never seen before"),
        NewTask(b"x" * (LONG_PAYLOAD_BYTES + 1)),
        NewTask(b"x" * (LONG_PAYLOAD_BYTES // 2), headers={"a": "x" * (LONG_PAYLOAD_BYTES // 2)}),
    ],
    ids=["named", "at an instant", "with a delay", "of a new tag", "long", "with long headers"],
)
def test_an_add_that_cannot_be_staged_flushes_those_before_it(store: Store, tmp_path: Path, new: NewTask) -> None:
    add(store, NewTask())
    add(store, new)
    assert staged(tmp_path) == 0
    assert stats(store).ready == 4


def test_nothing_is_staged_while_payloads_are_limited(store: Store, tmp_path: Path) -> None:
    add(store, NewTask(b"before"))
    with closing(SqliteStore(tmp_path / FILE)) as other, other.begin() as transaction:
        transaction.set_storage_limit(1000)
    add(store, NewTask(b"measured"))
    assert staged(tmp_path) == 0
    with store.read() as transaction:
        assert transaction.storage().used_bytes == len(b"beforemeasured")
    with store.begin() as transaction:
        transaction.set_storage_limit(None)
    add(store, NewTask())
    assert staged(tmp_path) == 1
    assert store.check().problems == ()


def test_a_transaction_that_is_rolled_back_leaves_none(store: Store, tmp_path: Path) -> None:
    add(store, NewTask())
    with pytest.raises(ZeroDivisionError), store.begin() as transaction:
        transaction.add(QUEUE, [NewTask()], now=START)
        raise ZeroDivisionError
    assert staged(tmp_path) == 1
    assert [added.name for added in add(store, NewTask())] == ["_4"]
    assert stats(store).ready == 4


@pytest.mark.parametrize(
    ("failure", "refusal"), [(apsw.FullError, StoreFullError), (apsw.IOError, StoreUnavailableError)]
)
def test_a_reader_finds_them_flushed_on_a_full_disk(
    tmp_path: Path, failure: type[apsw.Error], refusal: type[StoreError]
) -> None:
    is_full = False

    def fault(_event: int) -> None:
        if is_full:
            raise failure("no")

    vfs = FaultVfs("full-staged-adds", Meter(fault), counts_syncs=False)
    with closing(SqliteStore(tmp_path / FILE, vfs=vfs.name, driver=quiet_driver())) as store:
        a_queue(store)
        add(store, NewTask(), NewTask())
        for _ in range(MAX_STAGED):
            add(store, NewTask(b"x" * LONG_PAYLOAD_BYTES))
        is_full = True
        for _ in range(2):
            assert stats(store).ready == MAX_STAGED + 2
            assert len(peek(store)) == MAX_STAGED + 2
        assert store.check().problems == ()
        assert staged(tmp_path) == MAX_STAGED
        with pytest.raises(refusal):
            add(store, NewTask())
        is_full = False
        assert [added.name for added in add(store, NewTask())] == [f"_{MAX_STAGED + 3}"]
        assert stats(store).ready == MAX_STAGED + 3
        assert staged(tmp_path) == 0
        assert store.check().problems == ()
    vfs.unregister()


def test_a_reader_finds_them_flushed_after_a_sync_has_failed(tmp_path: Path) -> None:
    class Failing(FileSyncer):
        failed = False

        def sync(self) -> None:
            if Failing.failed:
                raise OSError("no")
            super().sync()

    with closing(SqliteStore(tmp_path / FILE, open_syncer=Failing)) as store:
        a_queue(store)
        add(store, NewTask(), NewTask())
        add(store, NewTask())
        Failing.failed = True
        with pytest.raises(StoreUnavailableError, match="could not be synced"):
            store.sync(store.ticket())
        assert stats(store).ready == 3
        with pytest.raises(StoreUnavailableError, match="could not be synced"):
            add(store, NewTask())
        assert staged(tmp_path) == 1


def test_a_reader_of_a_closed_store_is_refused(store: SqliteStore) -> None:
    add(store, NewTask())
    store.close()
    with pytest.raises(StoreUnavailableError, match="was closed"):
        stats(store)


def test_the_other_driver_goes_on_where_the_first_staged_tasks(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / FILE, driver=stdlib_driver())) as store:
        a_queue(store)
        add(store, NewTask(), NewTask())
        for number in range(MAX_STAGED + 5):
            add(store, NewTask(b"%d" % number))
    assert staged(tmp_path) == 4
    with closing(SqliteStore(tmp_path / FILE, driver=apsw_driver())) as store:
        assert [added.name for added in add(store, NewTask(b"last"))] == [f"_{MAX_STAGED + 8}"]
    with closing(SqliteStore(tmp_path / FILE, driver=stdlib_driver())) as store:
        held = lease(store, 1000)
        assert [each.payload for each in held[2:-1]] == [b"%d" % number for number in range(MAX_STAGED + 5)]
        assert held[-1].payload == b"last"
        assert None not in delete(store, *held)
        assert store.check().problems == ()

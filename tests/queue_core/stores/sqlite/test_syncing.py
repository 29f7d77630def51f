"""What of a SQLite store reaches the disk: one sync for many commits, a log that is folded in, a disk that fails."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import apsw
import pytest

from queue_core.errors import StoreUnavailableError
from queue_core.stores.sqlite import store as store_module
from queue_core.stores.sqlite.driver import apsw_driver
from queue_core.stores.sqlite.store import SqliteStore
from queue_core.stores.sqlite.wal import GroupSync
from queue_core.task import NewTask
from tests.support.eventually import eventually
from tests.support.stores.sqlite_stores import BlockingSyncer, a_store
from tests.support.stores.task_builders import a_queue, add, lease, stats


def test_one_sync_serves_every_commit_that_ended_before_it_began(tmp_path: Path) -> None:
    syncer = BlockingSyncer()
    store = a_store(tmp_path / "queue.db", syncer)
    store.sync(store.ticket())
    syncer.syncs = 0
    syncer.let_through.clear()
    entered = Barrier(8)

    def add_and_sync() -> None:
        add(store, NewTask())
        ticket = store.ticket()
        entered.wait(10)
        store.sync(ticket)

    with ThreadPoolExecutor(8) as threads:
        running = [threads.submit(add_and_sync) for _ in range(8)]
        eventually(lambda: syncer.syncs == 1)
        syncer.let_through.set()
        for each in running:
            each.result(10)
    assert syncer.syncs <= 2
    store.close()


def test_a_commit_that_ends_during_a_sync_waits_for_the_next(tmp_path: Path) -> None:
    syncer = BlockingSyncer()
    group = GroupSync(syncer, tmp_path / "queue.db")
    first = group.record_commit()
    syncer.let_through.clear()
    with ThreadPoolExecutor(2) as threads:
        leader = threads.submit(group.wait, first)
        eventually(lambda: syncer.syncs == 1)
        follower = threads.submit(group.wait, group.record_commit())
        syncer.let_through.set()
        leader.result(10)
        follower.result(10)
    assert syncer.syncs == 2
    group.wait(first)
    assert syncer.syncs == 2


def test_after_a_failed_sync_nothing_is_acknowledged_until_the_file_is_opened_again(tmp_path: Path) -> None:
    syncer = BlockingSyncer()
    store = a_store(tmp_path / "queue.db", syncer)
    store.sync(store.ticket())
    durable = store.ticket()
    add(store, NewTask())
    syncer.failure = OSError(5, "Input/output error")
    for _ in range(2):
        with pytest.raises(StoreUnavailableError):
            store.sync(store.ticket())
        syncer.failure = None
    assert syncer.syncs == 2
    store.sync(durable)
    with pytest.raises(StoreUnavailableError):
        add(store, NewTask())
    assert stats(store).ready == 1
    store.close()
    store = a_store(tmp_path / "queue.db")
    add(store, NewTask())
    store.sync(store.ticket())
    assert store.check().problems == ()
    store.close()


def test_waiters_of_a_failed_sync_are_all_told(tmp_path: Path) -> None:
    syncer = BlockingSyncer()
    group = GroupSync(syncer, tmp_path / "queue.db")
    tickets = [group.record_commit() for _ in range(4)]
    syncer.let_through.clear()
    syncer.failure = OSError(28, "No space left on device")
    with ThreadPoolExecutor(4) as threads:
        waiting = [threads.submit(group.wait, ticket) for ticket in tickets]
        eventually(lambda: syncer.syncs == 1)
        syncer.let_through.set()
        assert [type(each.exception(10)) for each in waiting] == [StoreUnavailableError] * 4
    assert syncer.syncs == 1


def test_a_look_that_finds_nothing_costs_no_sync(tmp_path: Path) -> None:
    syncer = BlockingSyncer()
    store = a_store(tmp_path / "queue.db", syncer)
    lease(store, worker="known")
    store.sync(store.ticket())
    syncer.syncs = 0
    lease(store, worker="known")
    store.sync(store.ticket())
    assert syncer.syncs == 0
    store.close()


def test_the_log_of_a_relaxed_store_is_folded_in_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "CHECKPOINT_PAGES", 10)
    store = SqliteStore(tmp_path / "queue.db", durability="relaxed")
    a_queue(store)
    for _ in range(100):
        add(store, *[NewTask(b"x" * 1000) for _ in range(20)])
    assert (tmp_path / "queue.db-wal").stat().st_size <= 200 * 4120
    assert store.check().problems == ()
    store.close()


class FailingSyncer:
    """A disk that takes nothing."""

    def __init__(self, path: Path) -> None:
        pass

    def sync(self) -> None:
        raise OSError("no")

    def grow(self, size_bytes: int) -> None:
        raise OSError("no")

    def close(self) -> None:
        pass


def test_a_relaxed_store_whose_log_can_not_be_written_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "CHECKPOINT_PAGES", 1)
    store = SqliteStore(tmp_path / "queue.db", durability="relaxed", open_syncer=FailingSyncer)

    def refuses() -> bool:
        try:
            a_queue(store)
            add(store, NewTask())
        except StoreUnavailableError:
            return True
        return False

    eventually(refuses)
    store.close()


class FailingCheckpoints(apsw.Connection):
    """A file whose log can be written, but not folded into it."""

    error: type[Exception] = apsw.IOError

    def execute(self, sql: str, *cells: object) -> object:  # type: ignore[override]
        if sql == "PRAGMA wal_checkpoint(PASSIVE)":
            raise self.error("no")
        return super().execute(sql, *cells)  # type: ignore[arg-type]


@pytest.mark.parametrize(("error", "goes_on"), [(apsw.FullError, True), (apsw.IOError, False)])
def test_only_a_full_disk_may_be_tried_again_after_a_failed_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception], goes_on: bool
) -> None:
    monkeypatch.setattr(FailingCheckpoints, "error", error)
    driver = replace(apsw_driver(), connect=lambda path, _vfs: FailingCheckpoints(path))
    store = SqliteStore(tmp_path / "queue.db", driver=driver)
    a_queue(store)
    monkeypatch.setattr(store_module, "CHECKPOINT_PAGES", 1)
    add(store, NewTask())
    if goes_on:
        add(store, NewTask())
        store.sync(store.ticket())
    else:
        with pytest.raises(StoreUnavailableError):
            store.sync(store.ticket())
        with pytest.raises(StoreUnavailableError):
            add(store, NewTask())
    store.close()
    store = SqliteStore(tmp_path / "queue.db")
    assert stats(store).ready == 1 + goes_on
    store.close()

"""A store whose file is moved, removed or replaced while it is open acknowledges nothing more, until it is back."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from queue_core.client.local_calls import LocalQueues
from queue_core.clock import ManualClock, SystemClock
from queue_core.errors import OutcomeUnknownError, StoreUnavailableError
from queue_core.stores.sqlite.file import FOLDER_TIME_MICROSECONDS, FileIdentity
from queue_core.stores.sqlite.store import SqliteStore
from queue_core.task import NewTask
from queue_core.unit.service import QueueService
from tests.support.stores.task_builders import a_queue, add, lease, stats


def move(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))


def replace(path: Path) -> None:
    shutil.copy(path, path.with_name("copy"))
    path.with_name("copy").rename(path)


def move_folder(path: Path) -> None:
    path.parent.rename(path.parent.with_name("elsewhere"))


def a_synced_store(path: Path, durability: Literal["strict", "relaxed"] = "strict") -> SqliteStore:
    path.parent.mkdir(exist_ok=True)
    store = SqliteStore(path, durability=durability)
    a_queue(store)
    add(store, NewTask(b"first"))
    store.sync(store.ticket())
    return store


@pytest.mark.parametrize("kind", ["", "-wal", "-shm"], ids=["the file", "its log", "the log's index"])
@pytest.mark.parametrize("harm", [Path.unlink, move, replace, move_folder])
def test_a_change_is_not_acknowledged_once_a_file_is_not_where_it_was(
    tmp_path: Path, kind: str, harm: Callable[[Path], None]
) -> None:
    path = tmp_path / "home" / "queue.db"
    store = a_synced_store(path)
    queue = LocalQueues(QueueService(store)).queue("thumbs")
    harm(path.with_name(path.name + kind))
    with pytest.raises(OutcomeUnknownError, match=r"queue\.db"):
        queue.add(b"second")
    for _ in range(2):
        with pytest.raises(StoreUnavailableError, match="towline backup"):
            queue.add(b"third")
    assert stats(store).ready == 2  # the first, and that of unknown outcome: it can be looked at, and saved
    store.close()


@pytest.mark.parametrize("kind", ["", "-wal"])
def test_a_file_that_is_put_back_is_used_as_before(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "queue.db"
    store = a_synced_store(path)
    moved = path.with_name(path.name + kind)
    moved.rename(tmp_path / "elsewhere")
    add(store, NewTask(b"second"))
    with pytest.raises(StoreUnavailableError):
        store.sync(store.ticket())
    (tmp_path / "elsewhere").rename(moved)
    add(store, NewTask(b"third"))
    store.sync(store.ticket())
    store.close()
    store = SqliteStore(path)
    assert [each.payload for each in lease(store, 5)] == [b"first", b"second", b"third"]
    assert store.check().problems == ()
    store.close()


def test_a_relaxed_store_notices_it_with_one_of_the_next_changes(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    store = a_synced_store(path, "relaxed")
    path.unlink()
    clock = SystemClock()
    until = clock.monotonic() + 10
    with pytest.raises(StoreUnavailableError):
        while clock.monotonic() < until:
            add(store, NewTask())
            store.sync(store.ticket())
    store.close()


def test_a_store_that_is_closed_leaves_the_log_of_the_file_that_replaced_its_own(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    store = a_synced_store(path)
    for each in list(tmp_path.iterdir()):
        each.rename(each.with_name(each.name + ".old"))
    other = a_synced_store(path)
    add(other, NewTask(b"second"))
    other.sync(other.ticket())
    store.close()
    assert path.with_name("queue.db-wal").stat().st_size > 0
    add(other, NewTask(b"third"))
    other.sync(other.ticket())
    assert stats(other).ready == 3
    other.close()


def opened_identity(folder: Path, clock: ManualClock) -> FileIdentity:
    for kind in ("", "-wal", "-shm"):
        (folder / f"queue.db{kind}").touch()
    identity = FileIdentity(folder / "queue.db", clock)
    identity.opened()
    return identity


def test_a_folder_that_changed_long_ago_is_all_that_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock(SystemClock().now())
    identity = opened_identity(tmp_path, clock)
    looked: list[object] = []
    real = os.stat

    def stat(path: str, *, follow_symlinks: bool = True) -> os.stat_result:
        looked.append(path)
        return real(path, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(os, "stat", stat)
    identity.check()
    assert len(looked) == 4  # the folder and its files
    clock.advance(FOLDER_TIME_MICROSECONDS / 1_000_000 + 1)
    identity.check()
    looked.clear()
    identity.check()
    assert looked == [str(tmp_path)]


def test_a_second_change_within_a_tick_of_the_folders_clock_is_noticed(tmp_path: Path) -> None:
    clock = ManualClock(SystemClock().now())
    identity = opened_identity(tmp_path, clock)
    times = tmp_path.stat()
    identity.check()
    (tmp_path / "queue.db").unlink()
    os.utime(tmp_path, ns=(times.st_atime_ns, times.st_mtime_ns))  # as if both had been within a tick
    with pytest.raises(StoreUnavailableError):
        identity.check()


@pytest.mark.parametrize("other_folder_time", [False, True])
def test_an_unlink_is_noticed_after_the_folder_was_quiet(tmp_path: Path, other_folder_time: bool) -> None:
    clock = ManualClock(SystemClock().now())
    identity = opened_identity(tmp_path, clock)
    if other_folder_time:
        os.utime(tmp_path, ns=(0, 0))
    clock.advance(100)
    identity.check()
    identity.check()
    (tmp_path / "queue.db-wal").unlink()
    with pytest.raises(StoreUnavailableError):
        identity.check()

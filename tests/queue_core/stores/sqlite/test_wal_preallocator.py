"""The log is preallocated, so that the sync of a commit need not write its size; SQLite ignores the zeros."""

import shutil
from contextlib import closing
from pathlib import Path
from typing import Literal

import pytest

from queue_core.stores.sqlite import file as file_module
from queue_core.stores.sqlite import store as store_module
from queue_core.stores.sqlite.file import PAGE_BYTES
from queue_core.stores.sqlite.store import SqliteStore
from queue_core.stores.sqlite.wal import FEWEST_PAGES, FRAME_HEAD_BYTES, LOG_HEAD_BYTES, SPARE_PAGES, FileSyncer
from queue_core.task import NewTask
from tests.support.stores.task_builders import a_queue, add, lease, stats

FRAME_BYTES = FRAME_HEAD_BYTES + PAGE_BYTES


def sizes(folder: Path, durability: Literal["strict", "relaxed"], commits: int) -> list[int]:
    """The log's size after each of so many commits."""
    with closing(SqliteStore(folder / "queue.db", durability=durability)) as store:
        a_queue(store)
        found = []
        for _ in range(commits):
            add(store, NewTask(), NewTask())
            found.append((folder / "queue.db-wal").stat().st_size)
    return found


def test_it_grows_for_many_commits_at_a_time(tmp_path: Path) -> None:
    check_growth(sizes(tmp_path, "strict", 100), PAGE_BYTES)


def test_it_grows_by_whole_pages_of_a_file_that_was_made_with_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(file_module, "PAGE_BYTES", 4096)
        SqliteStore(tmp_path / "queue.db").close()
    check_growth(sizes(tmp_path, "strict", 100), 4096)


def check_growth(sizes_bytes: list[int], page_bytes: int) -> None:
    grown = sorted(set(sizes_bytes[FEWEST_PAGES:]))
    assert 2 <= len(grown) <= 6
    assert all((size - LOG_HEAD_BYTES) % (FRAME_HEAD_BYTES + page_bytes) == 0 for size in grown)


def test_it_grows_no_longer_than_it_is_ever_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "CHECKPOINT_PAGES", 40)
    assert max(sizes(tmp_path, "strict", 100)) <= LOG_HEAD_BYTES + (40 + SPARE_PAGES) * FRAME_BYTES


def test_one_that_nobody_syncs_grows_as_it_is_written(tmp_path: Path) -> None:
    assert len(set(sizes(tmp_path, "relaxed", 100))) == 100


def test_that_of_a_program_that_adds_a_task_and_ends_is_left_alone(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / "queue.db")) as store:
        a_queue(store)
    with closing(SqliteStore(tmp_path / "queue.db")) as store:
        add(store, NewTask(), NewTask())
        add(store, NewTask())
        assert (tmp_path / "queue.db-wal").stat().st_size == LOG_HEAD_BYTES + store._log.pages * FRAME_BYTES


def test_whoever_opens_the_file_after_a_crash_finds_all_that_was_committed(tmp_path: Path) -> None:
    copies = []
    with closing(SqliteStore(tmp_path / "queue.db")) as store:
        a_queue(store)
        for number in range(60):
            add(store, NewTask(), NewTask())
            copy = tmp_path / f"copy-{number}"
            copy.mkdir()
            for file in ("queue.db", "queue.db-wal"):
                shutil.copy(tmp_path / file, copy / file)
            copies.append(copy)
    for number, copy in enumerate(copies):
        with closing(SqliteStore(copy / "queue.db")) as store:
            assert stats(store).ready == 2 * number + 2
            add(store, NewTask(b"after"), NewTask())
            assert lease(store, 200)[2 * number + 2].payload == b"after"
            assert store.check().problems == ()


class FullSyncer(FileSyncer):
    """A disk without room."""

    asked = 0

    def grow(self, size_bytes: int) -> None:
        FullSyncer.asked += 1
        raise OSError("no room")


def test_a_disk_that_has_no_room_ahead_is_not_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FullSyncer, "asked", 0)
    with closing(SqliteStore(tmp_path / "queue.db", open_syncer=FullSyncer)) as store:
        a_queue(store)
        for _ in range(60):
            add(store, NewTask(), NewTask())
        assert stats(store).ready == 120
    assert FullSyncer.asked == 1

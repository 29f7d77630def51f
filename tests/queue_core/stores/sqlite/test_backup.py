"""A copy of a store in use: of one moment, whole, checked, its owner's alone; also of a file that has lost its path."""

import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from queue_core.errors import InvalidRequestError, StoreCorruptError
from queue_core.stores.sqlite.backup import back_up
from queue_core.stores.sqlite.driver import Driver, apsw_driver, stdlib_driver
from queue_core.stores.sqlite.store import SqliteStore
from queue_core.task import NewTask
from tests.support.stores.task_builders import a_queue, add, lease, stats
from tests.support.stores.transfers import fill


def unheard(_done: int, _pages: int) -> None:
    pass


@pytest.fixture(params=[apsw_driver, stdlib_driver], ids=["apsw", "sqlite3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SqliteStore]:
    (tmp_path / "home").mkdir()
    driver: Driver = request.param()
    opened = SqliteStore(tmp_path / "home" / "queue.db", driver=driver)
    yield opened
    opened.close()


def test_a_copy_has_all_that_the_store_has_and_its_owner_alone_may_read_it(store: SqliteStore, tmp_path: Path) -> None:
    fill(store, longest=9000)
    told: list[tuple[int, int]] = []
    made = back_up(store, tmp_path / "copy.db", overwrite=False, progress=lambda *pages: told.append(pages))
    assert told[-1][0] == told[-1][1] > 0
    assert stat.S_IMODE(made.file.stat().st_mode) == 0o600
    assert {each.name for each in tmp_path.iterdir()} == {"copy.db", "home"}
    copy = SqliteStore(made.file)
    assert stats(copy) == stats(store)
    assert made.tasks == copy.check().tasks == store.check().tasks
    copy.close()


def test_a_copy_is_of_one_moment_while_others_add(store: SqliteStore, tmp_path: Path) -> None:
    a_queue(store)
    for _ in range(20):
        add(store, *[NewTask(b"x" * 1000) for _ in range(100)])
    is_over = Event()

    def keep_adding() -> int:
        added = 0
        while not is_over.is_set() or not added:
            add(store, NewTask(b"x"), NewTask(b"y"))
            added += 2
        return added

    with ThreadPoolExecutor(1) as threads:
        adding = threads.submit(keep_adding)
        try:
            made = back_up(store, tmp_path / "copy.db", overwrite=False, progress=unheard)
        finally:
            is_over.set()
        added = adding.result(30)
    assert 2000 <= made.tasks <= 2000 + added
    assert made.tasks % 2 == 0
    assert stats(store).ready == 2000 + added


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_file_that_is_there_is_replaced_only_when_that_is_asked_for(
    store: SqliteStore, tmp_path: Path, overwrite: bool
) -> None:
    a_queue(store)
    add(store, NewTask())
    target = tmp_path / "copy.db"
    target.write_bytes(b"precious")
    if overwrite:
        assert back_up(store, target, overwrite=True, progress=unheard).tasks == 1
    else:
        with pytest.raises(FileExistsError):
            back_up(store, target, overwrite=False, progress=unheard)
        assert target.read_bytes() == b"precious"


def test_a_copy_that_is_not_right_is_not_kept(store: SqliteStore, tmp_path: Path) -> None:
    a_queue(store)
    add(store, NewTask(tag="a"))
    lease(store)
    store._writer.execute("UPDATE counts SET leased = 7").fetchall()
    with pytest.raises(StoreCorruptError):
        back_up(store, tmp_path / "copy.db", overwrite=False, progress=unheard)
    assert [each.name for each in tmp_path.iterdir()] == ["home"]


@pytest.mark.parametrize("name", ["queue.db", "queue.db-wal"])
def test_the_store_itself_is_not_overwritten(store: SqliteStore, name: str) -> None:
    with pytest.raises(InvalidRequestError):
        back_up(store, store.path.with_name(name), overwrite=True, progress=unheard)


@pytest.mark.parametrize("lost", ["", "-wal", "-shm", "all"])
def test_what_a_store_holds_is_saved_after_its_files_were_removed(
    store: SqliteStore, tmp_path: Path, lost: str
) -> None:
    a_queue(store)
    add(store, NewTask(b"kept"))
    for kind in ("", "-wal", "-shm") if lost == "all" else (lost,):
        store.path.with_name(f"queue.db{kind}").unlink()
    made = back_up(store, tmp_path / "saved.db", overwrite=False, progress=unheard)
    copy = SqliteStore(made.file)
    assert [each.payload for each in lease(copy)] == [b"kept"]
    copy.close()

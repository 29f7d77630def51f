"""Which files the SQLite store opens, which it refuses, and that a refused one is as it was."""

import os
import sqlite3
from pathlib import Path

import pytest

from queue_core.errors import (
    InvalidSettingError,
    StoreCorruptError,
    StoreReadOnlyError,
    StoreUnavailableError,
    StoreUnsafeError,
    StoreVersionError,
)
from queue_core.store import Store
from queue_core.stores import open_store
from queue_core.stores.sqlite import file as store_file
from queue_core.stores.sqlite.driver import apsw_driver, best_driver, stdlib_driver
from queue_core.stores.sqlite.file import SqliteMigration
from queue_core.stores.sqlite.store import SqliteStore
from queue_core.task import NewTask
from tests.support.stores.task_builders import a_queue, add, lease, stats


def url_of(path: Path) -> str:
    return f"sqlite:///{path}"


def a_used_file(folder: Path) -> Path:
    path = folder / "queue.db"
    store = open_store(url_of(path))
    a_queue(store)
    add(store, NewTask(b"kept"))
    store.close()
    return path


def test_what_was_added_is_there_after_opening_again(tmp_path: Path) -> None:
    store = open_store(url_of(a_used_file(tmp_path)))
    assert [each.payload for each in lease(store)] == [b"kept"]
    assert store.check().problems == ()
    store.close()


def test_a_relative_url_names_a_file_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = open_store("sqlite:///here.db")
    monkeypatch.chdir("/")
    a_queue(store)
    store.close()
    assert (tmp_path / "here.db").is_file()
    assert store.url == url_of(tmp_path / "here.db")


@pytest.mark.parametrize(
    "url", ["sqlite:", "sqlite:///", "sqlite://host/file.db", "mysql://u:secret@h/db", "", "queue.db"]
)
def test_a_url_of_no_store_is_refused_without_telling_secrets(url: str) -> None:
    with pytest.raises(InvalidSettingError) as refusal:
        open_store(url)
    assert "secret" not in str(refusal.value)


def test_an_unknown_durability_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettingError):
        open_store(url_of(tmp_path / "queue.db"), durability="maybe")  # type: ignore[arg-type]


def test_a_folder_and_a_missing_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere" / "queue.db"):
        with pytest.raises(InvalidSettingError):
            open_store(url_of(path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "content", [b"hello, this is no database at all" * 50, b"x", b"SQLite format 3\x00" + b"?" * 4096]
)
def test_a_file_that_is_not_sqlite_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(StoreCorruptError):
        open_store(url_of(path))
    assert path.read_bytes() == content
    assert [each.name for each in tmp_path.iterdir()] == ["notes.txt"]


def test_another_programs_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "theirs.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE letters (body TEXT)")
    connection.commit()
    connection.close()
    content = path.read_bytes()
    with pytest.raises(StoreCorruptError):
        open_store(url_of(path))
    assert path.read_bytes() == content
    assert [each.name for each in tmp_path.iterdir()] == ["theirs.db"]


def test_an_empty_file_becomes_a_queue(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    path.touch()
    store = open_store(url_of(path))
    a_queue(store)
    store.close()
    assert path.stat().st_size > 0


@pytest.mark.parametrize("left", ["nothing", "an empty file"])
def test_a_log_whose_file_is_gone_is_not_thrown_away(tmp_path: Path, left: str) -> None:
    path = tmp_path / "queue.db"
    store = SqliteStore(path)
    a_queue(store)
    add(store, NewTask(b"kept"))
    saved = {kind: path.with_name(f"queue.db{kind}").read_bytes() for kind in ("", "-wal")}
    store.close()
    path.with_name("queue.db-wal").write_bytes(saved["-wal"])  # as a crash leaves it
    path.unlink()
    if left == "an empty file":
        path.touch()
    with pytest.raises(StoreUnsafeError, match=r"queue\.db-wal"):
        SqliteStore(path)
    assert path.with_name("queue.db-wal").read_bytes() == saved["-wal"]
    path.write_bytes(saved[""])
    store = SqliteStore(path)
    assert [each.payload for each in lease(store)] == [b"kept"]
    store.close()


def test_a_file_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = a_used_file(tmp_path)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.commit()
    connection.close()
    with pytest.raises(StoreVersionError):
        open_store(url_of(path))


def test_a_file_made_by_a_migration_that_was_changed_since_is_refused(tmp_path: Path) -> None:
    path = a_used_file(tmp_path)
    connection = sqlite3.connect(path)
    connection.execute("UPDATE migrations SET checksum = 'other'")
    connection.commit()
    connection.close()
    with pytest.raises(StoreVersionError):
        open_store(url_of(path))


def test_an_older_file_is_brought_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = a_used_file(tmp_path)
    known = store_file.migrations()
    added = SqliteMigration(known[-1].number + 1, "next", "CREATE TABLE fresh (id INTEGER);\n")
    monkeypatch.setattr(store_file, "migrations", lambda: [*known, added])
    store = open_store(url_of(path))
    assert stats(store).ready == 1
    store.close()
    monkeypatch.setattr(store_file, "migrations", lambda: known)
    with pytest.raises(StoreVersionError):
        open_store(url_of(path))


def test_migrations_are_numbered_without_gaps() -> None:
    assert [each.number for each in store_file.migrations()] == list(range(1, len(store_file.migrations()) + 1))


def test_a_file_marked_read_only_is_refused(tmp_path: Path) -> None:
    path = a_used_file(tmp_path)
    path.chmod(0o444)
    with pytest.raises(StoreReadOnlyError):
        open_store(url_of(path))
    path.chmod(0o644)
    open_store(url_of(path)).close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    try:
        with pytest.raises(StoreReadOnlyError):
            open_store(url_of(tmp_path / "queue.db"))
    finally:
        tmp_path.chmod(0o755)


def test_a_damaged_file_says_so(tmp_path: Path) -> None:
    path = a_used_file(tmp_path)
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(bytes(content))
    with pytest.raises(StoreCorruptError):
        open_store(url_of(path))


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = open_store(url_of(tmp_path / "queue.db"))
    store.close()
    store.close()
    with pytest.raises(StoreUnavailableError), store.begin():
        pass
    with pytest.raises(StoreUnavailableError), store.read():
        pass


def test_a_full_file_refuses_the_add_and_works_again_when_there_is_room(tmp_path: Path) -> None:
    path = a_used_file(tmp_path)
    store = SqliteStore(path)
    pages = store._writer.execute("PRAGMA page_count").fetchall()[0][0]
    store._writer.execute(f"PRAGMA max_page_count = {pages + 40}").fetchall()
    filled = 0
    with pytest.raises(StoreUnavailableError) as refusal:
        for _ in range(100):
            add(store, NewTask(b"x" * 100_000))
            filled += 1
    assert type(refusal.value).__name__ == "StoreFullError"
    assert stats(store).ready == 1 + filled
    store._writer.execute("PRAGMA max_page_count = 1000000").fetchall()
    add(store, NewTask(b"x" * 100_000))
    assert stats(store).ready == 2 + filled
    assert store.check().problems == ()
    store.close()


def test_the_driver_tells_its_version_and_whether_it_is_affected() -> None:
    assert best_driver().name == apsw_driver().name
    assert apsw_driver().name.startswith("apsw 3.")
    affected = sqlite3.sqlite_version_info < (3, 51, 3)
    assert ("affected" in stdlib_driver().name) == affected


def test_both_drivers_use_one_file_in_turn(tmp_path: Path) -> None:
    path = a_used_file(tmp_path)
    store: Store = SqliteStore(path, driver=stdlib_driver())
    add(store, NewTask(b"second"))
    store.close()
    store = SqliteStore(path)
    assert [each.payload for each in lease(store, 5)] == [b"kept", b"second"]
    store.close()

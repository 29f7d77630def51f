"""The write lock: whatever fails of its three, those that were taken are let go, in reverse."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from queue_core.stores.sqlite.driver import Driver, SqliteConnection, apsw_driver, stdlib_driver
from queue_core.stores.sqlite.write_lock import WriteLock


@pytest.fixture(params=[apsw_driver, stdlib_driver], ids=["apsw", "sqlite3"])
def driver(request: pytest.FixtureRequest) -> Driver:
    found: Driver = request.param()
    return found


@pytest.fixture
def writer(driver: Driver, tmp_path: Path) -> Iterator[SqliteConnection]:
    with closing(driver.connect(str(tmp_path / "queue.db"), "")) as writer:
        writer.execute("CREATE TABLE written (number INTEGER)")
        yield writer


@pytest.fixture
def lock(driver: Driver, writer: SqliteConnection, tmp_path: Path) -> Iterator[WriteLock]:
    lock = WriteLock(tmp_path / "queue.db")
    lock.open()
    lock.set_writer(driver, writer, writer.cursor())
    yield lock
    lock.close()


def is_free(lock: WriteLock, writer: SqliteConnection, folder: Path) -> bool:
    """Whether no thread, no process and no transaction has it."""
    descriptor = os.open(folder / "queue.db-lock", os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return not lock.threads.locked() and not writer.in_transaction


def test_it_is_had_whole_and_let_go_whole(lock: WriteLock, writer: SqliteConnection, tmp_path: Path) -> None:
    lock.acquire(lambda: None)
    assert lock.threads.locked()
    assert writer.in_transaction
    assert not is_free(lock, writer, tmp_path)
    writer.execute("INSERT INTO written VALUES (1)")
    writer.execute("COMMIT")
    assert lock.threads.locked()
    lock.release()
    assert is_free(lock, writer, tmp_path)
    assert writer.execute("SELECT number FROM written").fetchall() == [(1,)]


def test_what_was_not_committed_is_rolled_back(lock: WriteLock, writer: SqliteConnection, tmp_path: Path) -> None:
    lock.acquire(lambda: None)
    writer.execute("INSERT INTO written VALUES (1)")
    lock.release()
    assert is_free(lock, writer, tmp_path)
    assert writer.execute("SELECT number FROM written").fetchall() == []


def test_a_preparation_that_fails_lets_it_go(lock: WriteLock, writer: SqliteConnection, tmp_path: Path) -> None:
    def fail() -> None:
        assert lock.threads.locked()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        lock.acquire(fail)
    assert is_free(lock, writer, tmp_path)


def test_a_lock_file_that_fails_lets_it_go(
    lock: WriteLock, writer: SqliteConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock

    def fail(descriptor: int, how: int) -> None:
        if how == fcntl.LOCK_EX:
            raise OSError("no locks left")
        flock(descriptor, how)

    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", fail)
        with pytest.raises(OSError, match="no locks left"):
            lock.acquire(lambda: None)
    assert is_free(lock, writer, tmp_path)


def test_a_transaction_that_cant_begin_lets_it_go(
    lock: WriteLock, writer: SqliteConnection, driver: Driver, tmp_path: Path
) -> None:
    writer.execute("PRAGMA busy_timeout = 0").fetchall()
    with closing(driver.connect(str(tmp_path / "queue.db"), "")) as other:
        other.execute("BEGIN IMMEDIATE")  # by a program that knows of no lock but SQLite's
        with pytest.raises(driver.error):
            lock.acquire(lambda: None)
        assert is_free(lock, writer, tmp_path)
        other.execute("ROLLBACK")
    lock.acquire(lambda: None)
    lock.release()


def test_after_a_fork_the_child_has_a_free_one_and_the_parents_is_as_it_was(
    lock: WriteLock, writer: SqliteConnection, tmp_path: Path
) -> None:
    lock.acquire(lambda: None)
    writer.execute("COMMIT")  # the test's fork is of a process that holds no more than the two
    child = os.fork()
    if child == 0:
        was_free = lock.renew_after_fork()
        os._exit(int(was_free or lock.threads.locked()))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not is_free(lock, writer, tmp_path)
    lock.release()
    assert is_free(lock, writer, tmp_path)

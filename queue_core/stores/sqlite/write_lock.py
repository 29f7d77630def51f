"""The lock of a store's writers: one thread of one process at a time, in a transaction of SQLite."""

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

from queue_core.errors import StoreReadOnlyError
from queue_core.stores.sqlite.driver import Cursor, Driver, SqliteConnection
from queue_core.stores.sqlite.wal import open_beside


class WriteLock:
    """Three locks in one, in this order: between threads, between processes, and SQLite's, which is a transaction.

    The lock between processes is the kernel's (`flock`): fair enough, free of polling, and released when its holder
    dies. SQLite's own busy handler polls, and lets some writers starve.
    """

    def __init__(self, path: Path) -> None:
        """Args:
        path: the store's file; the lock between processes is a small file beside it.
        """
        self._path = path
        self._threads = Lock()
        self._is_held_for_fork = False
        self._descriptor: int | None = None
        self._writer: tuple[Driver, SqliteConnection, Cursor] | None = None

    @property
    def threads(self) -> Lock:
        """The lock between threads alone, held to open, close or copy the file."""
        return self._threads

    def open(self) -> None:
        """Open the lock file, made when it is not there. Raises `StoreReadOnlyError`."""
        path = self._path.with_name(self._path.name + "-lock")
        try:
            self._descriptor = open_beside(path, self._path)
        except OSError as error:
            raise StoreReadOnlyError(f"can't write {path} ({error.strerror}): make the folder writable") from error

    def set_writer(self, driver: Driver, writer: SqliteConnection, cursor: Cursor) -> None:
        """Set the connection on which transactions begin, once it is open."""
        self._writer = driver, writer, cursor

    def close(self) -> None:
        """Release the lock file."""
        self._writer = None
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def acquire(self, prepare: Callable[[], None]) -> None:
        """Take all three; after a failure none. Raises what `prepare` and the library raise.

        Args:
            prepare: called once no other thread of this process writes; may open the file.
        """
        self._threads.acquire()
        try:
            prepare()
            assert self._descriptor is not None, "`prepare` has opened it"
            assert self._writer is not None, "`prepare` has opened it"
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            self._writer[2].execute("BEGIN IMMEDIATE")
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Release all three; a transaction that was not committed is rolled back."""
        try:
            if self._writer is not None:
                driver, writer, _ = self._writer
                # After some failures SQLite has rolled back by itself, and another must not hide the first.
                if writer.in_transaction:
                    with contextlib.suppress(driver.error):
                        writer.execute("ROLLBACK")
        finally:
            try:
                if self._descriptor is not None:
                    fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            finally:
                self._threads.release()

    @contextmanager
    def between_processes(self) -> Iterator[None]:
        """Hold the lock between processes, without a transaction. The caller holds `threads`."""
        assert self._descriptor is not None, "it was opened"
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    # -- forks ----------------------------------------------------------------------------------------------------

    def pause_for_fork(self, seconds: float) -> None:
        """Take the lock between threads, if that is possible within `seconds`."""
        self._is_held_for_fork = self._threads.acquire(timeout=seconds)

    def resume_after_fork(self) -> None:
        """Release the lock between threads."""
        if self._is_held_for_fork:
            self._is_held_for_fork = False
            self._threads.release()

    def renew_after_fork(self) -> bool:
        """In the child: reset, and return whether no thread of the parent was writing.

        The lock file is closed: the child's copy of its descriptor would keep the lock of a parent that is killed.
        """
        was_free = self._is_held_for_fork or not self._threads.locked()
        self._is_held_for_fork = False
        self._threads = Lock()
        self.close()
        return was_free

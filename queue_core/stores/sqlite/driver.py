"""The SQLite libraries behind one interface: apsw, or the standard library's `sqlite3` when apsw is missing.

Connections of both execute alike; the differences are in `Driver`. Neither library survives a fork: see `INHERITED`.
"""

import contextlib
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from operator import methodcaller
from threading import Lock
from typing import Any, Protocol, TypeAlias

from queue_core.errors import StoreCorruptError, StoreError, StoreFullError, StoreReadOnlyError, StoreUnavailableError
from queue_core.process import forking

Cell = int | str | bytes | float | None
Row: TypeAlias = tuple[Any, ...]  # the statement decides what its columns are

Progress: TypeAlias = Callable[[int, int], None]

BUSY_SECONDS = 10.0
PAGES_PER_STEP = 1000
STATEMENTS_KEPT = 256
WAL_RESET_FIXED = (3, 51, 3)
SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE = 1006


class Rows(Protocol):
    """The result of a statement: rows are tuples of its columns."""

    def fetchone(self) -> Row | None: ...

    def fetchall(self) -> list[Row]: ...

    def __iter__(self) -> Iterator[Row]: ...


class Cursor(Protocol):
    """A cursor, reused from statement to statement: all rows must be fetched before the next one.

    Making a cursor takes a third of the time of a small statement.
    """

    def execute(self, sql: str, cells: Sequence[Cell] = ...) -> Rows: ...

    def executemany(self, sql: str, cells: Iterable[Sequence[Cell]]) -> object: ...


class SqliteConnection(Protocol):
    """The part of a connection that the store uses; in autocommit mode, transactions are statements."""

    @property
    def in_transaction(self) -> bool: ...

    def execute(self, sql: str, cells: Sequence[Cell] = ...) -> Rows: ...

    def executemany(self, sql: str, cells: Iterable[Sequence[Cell]]) -> object: ...

    def cursor(self) -> Cursor: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class LogSize:
    """The pages in the log at the last commit of a connection; always 0 where the library does not report them."""

    is_reported: bool
    pages: int = 0


@dataclass(frozen=True, slots=True)
class Driver:
    """One SQLite library.

    Args:
        name: for people: `apsw 3.54.1`, or the other library and its known bug.
        connect: opens a file, with a VFS by name ("" is the usual one).
        error: the base class of the library's errors.
        watch: returns a `LogSize` that follows the commits of a connection.
        version: SQLite's data version of a connection: unchanged only if no other connection has committed since.
        leave_log: makes a connection leave the log in place when it is closed last; False: not possible.
        copy: copies all that a connection sees to a file; calls its progress with the pages copied and all pages.
    """

    name: str
    connect: Callable[[str, str], SqliteConnection]
    error: type[Exception]
    watch: Callable[[SqliteConnection], LogSize]
    version: Callable[[SqliteConnection], int]
    translate: Callable[[Exception, str], StoreError]
    leave_log: Callable[[SqliteConnection], bool]
    copy: Callable[[SqliteConnection, str, Progress], None]


def best_driver() -> Driver:
    """Return apsw's driver when it is installed, else the standard library's."""
    try:
        return apsw_driver()
    except ImportError:
        return stdlib_driver()


def apsw_driver() -> Driver:
    """Return apsw's driver: its own SQLite lacks the bug that loses commits on a log reset. Raises `ImportError`."""
    import apsw

    def connect(path: str, vfs: str) -> SqliteConnection:
        connection = apsw.Connection(path, vfs=vfs or None, statementcachesize=STATEMENTS_KEPT)
        connection.set_busy_timeout(int(BUSY_SECONDS * 1000))
        # Otherwise SQLite plans a statement that could use a partial index again for every new parameter value:
        # measured, 5 to 9 us for a statement that takes 1.
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        opened: SqliteConnection = connection
        return opened

    def watch(connection: SqliteConnection) -> LogSize:
        size = LogSize(is_reported=True)

        def hook(_connection: object, _schema: str, pages: int) -> int:
            size.pages = pages
            return 0

        connection.set_wal_hook(hook)  # type: ignore[attr-defined]
        return size

    kinds: tuple[tuple[type[Exception], str], ...] = (
        (apsw.FullError, "full"),
        (apsw.ReadOnlyError, "readonly"),
        (apsw.CantOpenError, "readonly"),
        (apsw.PermissionsError, "readonly"),
        (apsw.NotADBError, "notadb"),
        (apsw.CorruptError, "corrupt"),
    )

    def leave_log(connection: SqliteConnection) -> bool:
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)  # type: ignore[attr-defined]
        return True

    def translate(error: Exception, path: str) -> StoreError:
        kind = next((kind for cls, kind in kinds if isinstance(error, cls)), "unavailable")
        return store_error(kind, error, path)

    def copy(connection: SqliteConnection, path: str, progress: Progress) -> None:
        target = apsw.Connection(path)
        try:
            with target.backup("main", connection, "main") as backup:  # type: ignore[arg-type]
                while not backup.done:
                    backup.step(PAGES_PER_STEP)
                    progress(backup.page_count - backup.remaining, backup.page_count)
        finally:
            target.close()

    return Driver(
        f"apsw {apsw.sqlite_lib_version()}",
        connect,
        apsw.Error,
        watch,
        methodcaller("data_version"),
        translate,
        leave_log,
        copy,
    )


def stdlib_driver() -> Driver:
    """Return the driver of the standard library's sqlite3, with the system's SQLite."""
    version = sqlite3.sqlite_version
    affected = sqlite3.sqlite_version_info < WAL_RESET_FIXED

    def connect(path: str, vfs: str) -> SqliteConnection:
        uri = bool(vfs)
        from urllib.parse import quote

        name = f"file:{quote(path)}?vfs={vfs}" if uri else path
        return sqlite3.connect(
            name,
            timeout=BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=STATEMENTS_KEPT,
            uri=uri,
        )

    def leave_log(connection: SqliteConnection) -> bool:
        set_config = getattr(connection, "setconfig", None)  # Python 3.12 and later
        if set_config is None:
            return False
        set_config(SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE)
        return True

    kinds = {
        sqlite3.SQLITE_FULL: "full",
        sqlite3.SQLITE_READONLY: "readonly",
        sqlite3.SQLITE_CANTOPEN: "readonly",
        sqlite3.SQLITE_PERM: "readonly",
        sqlite3.SQLITE_NOTADB: "notadb",
        sqlite3.SQLITE_CORRUPT: "corrupt",
    }

    def translate(error: Exception, path: str) -> StoreError:
        code = getattr(error, "sqlite_errorcode", 0)
        return store_error(kinds.get(code & 0xFF, "unavailable"), error, path)

    name = f"sqlite3 {version}" + (" (affected by the WAL-reset bug; install apsw)" if affected else "")
    versions = count()  # it has no data version without a statement: as if another had always committed
    size = LogSize(is_reported=False)

    def copy(connection: SqliteConnection, path: str, progress: Progress) -> None:
        target = sqlite3.connect(path)
        try:
            connection.backup(  # type: ignore[attr-defined]
                target, pages=PAGES_PER_STEP, progress=lambda _status, left, pages: progress(pages - left, pages)
            )
        finally:
            target.close()

    return Driver(
        name,
        connect,
        sqlite3.Error,
        lambda _connection: size,
        lambda _connection: next(versions),
        translate,
        leave_log,
        copy,
    )


def store_error(kind: str, error: Exception, path: str) -> StoreError:
    """Return our error for a kind of failure of the file at `path`."""
    if kind == "full":
        return StoreFullError(f"no room left for {path}; nothing was changed: free disk space and try again")
    if kind == "readonly":
        return StoreReadOnlyError(f"can't write {path} ({error}): make the file and its folder writable")
    if kind == "notadb":
        return StoreCorruptError(f"{path} is not an SQLite file; nothing was changed: name another file")
    if kind == "corrupt":
        return StoreCorruptError(f"{path} is damaged ({error}): restore a copy, or move it away and start anew")
    return StoreUnavailableError(f"{path} is unavailable: {error}")


class Inherited:
    """Connections that the child of a fork inherited: closed before this process opens another one (ADR 29).

    SQLite keeps, for the whole process and per file, a list of the locks it holds. A fork copies the list but not the
    locks: a connection opened beside an inherited one would rely on locks that it does not hold, and another process
    would delete the log under it. Locks belong to a process, so closing here releases none of the parent's.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: dict[str, tuple[Driver, list[SqliteConnection]]] = {}
        self._lost: set[str] = set()
        forking.renew_after_forks(self)

    def renew_after_fork(self) -> None:
        """In the child of a fork: connections that the parent was just closing can't be closed here."""
        if self._lock.locked():
            self._lost.update(self._kept)
        self._lock = Lock()

    def add(self, driver: Driver, connections: Iterable[SqliteConnection], *, is_whole: bool) -> None:
        """Add inherited connections; in the child of a fork, before anything else.

        Args:
            is_whole: no thread of the parent was in the library. Otherwise threads that do not exist here may hold the
                library's locks, and a call to it may never return.
        """
        _, kept = self._kept.setdefault(driver.name, (driver, []))
        for connection in connections:
            # Never deallocated, not even at the end of this process: that would close it.
            _keep_for_ever(connection)
            kept.append(connection)
            if not is_whole or not driver.leave_log(connection):
                self._lost.add(driver.name)
        if not is_whole:
            self._lost.add(driver.name)

    def close_all(self, driver: Driver, path: object) -> None:
        """Close all inherited connections. Raises `StoreUnavailableError` where that is impossible."""
        if not self._kept:
            return
        with self._lock:
            if driver.name in self._lost:
                raise StoreUnavailableError(
                    f"{path} can't be opened in this process: it was forked from one that had a store open, with a "
                    f"call under way that did not end for {forking.PAUSE_SECONDS:.0f} s, or by a library that can't "
                    f"let go of it ({driver.name}); fork before the store is opened, or start a new program"
                )
            for connection in self._kept.pop(driver.name, (driver, []))[1]:
                with contextlib.suppress(driver.error):
                    connection.close()


INHERITED = Inherited()


def _keep_for_ever(connection: SqliteConnection) -> None:
    """Increment the reference count of `connection` for ever."""
    with contextlib.suppress(ImportError, AttributeError):
        import ctypes

        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))

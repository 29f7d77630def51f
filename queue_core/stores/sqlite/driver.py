"""The one place that knows which SQLite is underneath: apsw, or the standard library's when apsw is missing.

Both connections execute alike; what differs is gathered in a `Driver`. Neither library survives a fork: `INHERITED`.
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
Row: TypeAlias = tuple[Any, ...]  # what its columns are is known only to the statement

Progress: TypeAlias = Callable[[int, int], None]

BUSY_SECONDS = 10.0
PAGES_PER_STEP = 1000
STATEMENTS_KEPT = 256
WAL_RESET_FIXED = (3, 51, 3)
SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE = 1006


class Rows(Protocol):
    """What a statement answered; rows are tuples, as the statement's columns say."""

    def fetchone(self) -> Row | None: ...

    def fetchall(self) -> list[Row]: ...

    def __iter__(self) -> Iterator[Row]: ...


class Cursor(Protocol):
    """Runs one statement at a time, whose rows are to be fetched at once and all: the next statement ends it.

    Making one takes a third of the time of a small statement.
    """

    def execute(self, sql: str, cells: Sequence[Cell] = ...) -> Rows: ...

    def executemany(self, sql: str, cells: Iterable[Sequence[Cell]]) -> object: ...


class SqliteConnection(Protocol):
    """What the store uses of a connection; autocommit, transactions are statements."""

    @property
    def in_transaction(self) -> bool: ...

    def execute(self, sql: str, cells: Sequence[Cell] = ...) -> Rows: ...

    def executemany(self, sql: str, cells: Iterable[Sequence[Cell]]) -> object: ...

    def cursor(self) -> Cursor: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class LogSize:
    """How many pages the log had at the last commit of a connection; always none where the library can't tell."""

    is_told: bool
    pages: int = 0


@dataclass(frozen=True, slots=True)
class Driver:
    """One SQLite library.

    Args:
        name: for people: `apsw 3.54.1`, or what is wrong with the one that is used instead.
        connect: opens a file, with a VFS by name ("" is the usual one).
        error: the class of everything the library raises.
        watch: has the library tell of each commit of a connection how long the log is by now.
        version: of what a connection sees; the same as before only if nobody has committed in between.
        leave_log: has a connection leave the log as it is when it is closed, whoever else is there; False: it can't.
        copy: of all that a connection sees to the file of a name, told with the pages that are there and all pages.
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
    """Apsw when it is installed, else the standard library's."""
    try:
        return apsw_driver()
    except ImportError:
        return stdlib_driver()


def apsw_driver() -> Driver:
    """Apsw: brings its own SQLite, without the bug that loses commits when the log is reset. Raises `ImportError`."""
    import apsw

    def connect(path: str, vfs: str) -> SqliteConnection:
        connection = apsw.Connection(path, vfs=vfs or None, statementcachesize=STATEMENTS_KEPT)
        connection.set_busy_timeout(int(BUSY_SECONDS * 1000))
        # Without this guarantee every new value of a parameter makes SQLite plan anew what could use a partial index:
        # measured, 5 to 9 us a statement that takes 1.
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        opened: SqliteConnection = connection
        return opened

    def watch(connection: SqliteConnection) -> LogSize:
        size = LogSize(is_told=True)

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
    """The standard library's sqlite3, whatever SQLite the system has."""
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
    asked = count()  # it can't tell without a statement: as if somebody always had committed
    size = LogSize(is_told=False)

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
        lambda _connection: next(asked),
        translate,
        leave_log,
        copy,
    )


def store_error(kind: str, error: Exception, path: str) -> StoreError:
    """Our error for a kind of failure of the file at `path`."""
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

    SQLite remembers, for the whole process and per file, which locks it holds. A fork copies that memory and not the
    locks: a connection opened beside an inherited one would believe that it holds them, and another process, believing
    that it is alone, would delete the log under it. Locks are a process's own: closing here lets go of none of the
    parent's.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: dict[str, tuple[Driver, list[SqliteConnection]]] = {}
        self._lost: set[str] = set()
        forking.renew_after_forks(self)

    def renew_after_fork(self) -> None:
        """A fork in the middle of closing leaves what nobody can close."""
        if self._lock.locked():
            self._lost.update(self._kept)
        self._lock = Lock()

    def add(self, driver: Driver, connections: Iterable[SqliteConnection], *, is_whole: bool) -> None:
        """In the child, before it does anything else.

        Args:
            is_whole: no thread of the parent was in the library. Otherwise the library's locks may be held by threads
                that are not here, and no call to it may return.
        """
        _, kept = self._kept.setdefault(driver.name, (driver, []))
        for connection in connections:
            # Never deallocated, which would close it: at the end of this process too.
            _keep_for_ever(connection)
            kept.append(connection)
            if not is_whole or not driver.leave_log(connection):
                self._lost.add(driver.name)
        if not is_whole:
            self._lost.add(driver.name)

    def let_go(self, driver: Driver, path: object) -> None:
        """Close all. Raises `StoreUnavailableError` where that can't be done; nothing can be opened then."""
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
    """Raise its count of references by one that is never let go."""
    with contextlib.suppress(ImportError, AttributeError):
        import ctypes

        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))

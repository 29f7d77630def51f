"""Open a store's file: make a new one or recognise ours, refuse any other, bring the schema up to date.

Also detect that a store's open files are no longer those at its path: moved, removed or replaced. Writes to them would
be lost with the process, or never found again, so none may be acknowledged.
"""

import hashlib
import os
import stat
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from queue_core.clock import Clock
from queue_core.errors import (
    InvalidSettingError,
    StoreCorruptError,
    StoreReadOnlyError,
    StoreUnavailableError,
    StoreUnsafeError,
    StoreVersionError,
)
from queue_core.stores.sqlite.driver import Driver, SqliteConnection
from queue_core.stores.sqlite.wal import sync_folder

APPLICATION_ID = 0x546F776C  # "Towl"
PAGE_BYTES = 2048
"""Page size of a new file. Single tasks are 2 to 11 % quicker than with 4,096, batches up to a third slower (ADR 7)."""
SMALLEST_PAGE_BYTES = 512
LOG_SUFFIX = "-wal"
NEW_FILE_MODE = 0o600
"""Only the owner may read a new file, as payloads may be private; an existing file keeps its mode."""
CACHE_KIBIBYTES = 32_768
WAL_KEPT_BYTES = 64 << 20
VACUUM_IN_MEMORY_BYTES = 64 << 20
"""A store with more is copied by way of a file while it is vacuumed."""
_KINDS = ("", "-wal", "-shm")
FOLDER_TIME_MICROSECONDS = 3_000_000
"""A folder's modification time is trusted once it is older: two changes within one tick of the file system's clock, 2 s
on the coarsest, leave the same time."""
CHECK_INTERVAL_SECONDS = 0.1
"""Time between two checks of the files in a `relaxed` store, where a check costs more than a tenth of a change."""
_FileId = tuple[int, int]


@dataclass(frozen=True, slots=True)
class SqliteMigration:
    """One migration of the schema: forward only, and never changed once it has been released."""

    number: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        """The hash of the SQL, to detect that the migration applied to a file is another than this program's."""
        return hashlib.sha256(self.sql.encode()).hexdigest()


def migrations() -> list[SqliteMigration]:
    """Return this program's migrations, in order."""
    folder = files("queue_core.stores.sqlite").joinpath("migrations")
    found = [
        SqliteMigration(int(entry.name[:4]), entry.name.removesuffix(".sql"), entry.read_text(encoding="utf-8"))
        for entry in folder.iterdir()
        if entry.name.endswith(".sql")
    ]
    return sorted(found, key=lambda migration: migration.number)


def real_path(path: Path) -> Path:
    """Return the file itself: absolute, and with no symbolic link on the way.

    SQLite follows links, so its log lies beside the file and not beside the link. Raises `InvalidSettingError` for
    links that lead in a circle.
    """
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:
        raise InvalidSettingError(f"{path} can't be followed ({error}): name the file itself") from error


def check_path(path: Path) -> None:
    """Raise for a path where no file can be, one that is marked read-only, or one of several names of a file."""
    if path.is_dir():
        raise InvalidSettingError(f"{path} is a folder: name a file in it, such as {path / 'towline.db'}")
    if not path.parent.is_dir():
        raise InvalidSettingError(f"the folder {path.parent} does not exist: create it, or name another file")
    if not path.exists():
        return
    found = path.stat()
    mode = found.st_mode
    if not stat.S_ISREG(mode):
        raise InvalidSettingError(f"{path} is not a regular file: name another")
    if found.st_nlink > 1:
        raise StoreUnsafeError(
            f"{path} has {found.st_nlink} names (hard links); each would get its own log, and changes would be lost "
            f"between them: find the others with `find / -xdev -samefile {path}`, and remove all but one"
        )
    if not mode & 0o222 or not os.access(path, os.W_OK):
        raise StoreReadOnlyError(
            f"{path} is read-only (mode {mode & 0o777:04o}): make the file and its folder writable"
        )


def create_file(path: Path) -> None:
    """Make an empty file that only its owner can read, unless there is one: SQLite gives its log the same mode.

    The name is synced before the file has a log, so that no power cut leaves a log without a file. Raises
    `StoreReadOnlyError`.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, NEW_FILE_MODE))
        sync_folder(path.parent)
    except FileExistsError:
        return
    except OSError as error:
        raise StoreReadOnlyError(f"can't make {path} ({error.strerror}): make the folder writable") from error


def connect(driver: Driver, path: Path, vfs: str, *, cache_kibibytes: int = CACHE_KIBIBYTES) -> SqliteConnection:
    """Open a connection with this store's settings; its file must have been prepared, or be about to be."""
    try:
        connection = driver.connect(str(path), vfs)
    except driver.error as error:
        raise driver.translate(error, str(path)) from error
    connection.execute(f"PRAGMA cache_size = -{cache_kibibytes}").fetchall()
    connection.execute("PRAGMA synchronous = NORMAL").fetchall()
    connection.execute("PRAGMA wal_autocheckpoint = 0").fetchall()
    connection.execute(f"PRAGMA journal_size_limit = {WAL_KEPT_BYTES}").fetchall()
    connection.execute("PRAGMA temp_store = MEMORY").fetchall()
    return connection


def prepare(driver: Driver, path: Path, vfs: str) -> SqliteConnection:
    """Create the file or bring it up to date, and return a connection to it. The caller excludes all others."""
    connection = connect(driver, path, vfs)
    try:
        try:
            version = recognise(connection, path)
            _migrate(connection, path, version)
            connection.execute("SELECT count(*) FROM migrations").fetchall()  # opens the log for the syncer
        except driver.error as error:
            raise driver.translate(error, str(path)) from error
        sync_folder(path.parent)
    except BaseException:
        connection.close()
        raise
    return connection


def page_bytes(connection: SqliteConnection) -> int:
    """Return the page size of this file, which stays as it was when the file was made."""
    return _number(connection, "PRAGMA page_size")


def unused_bytes(connection: SqliteConnection) -> int:
    """Return the size of the pages within the file that hold nothing."""
    return _number(connection, "PRAGMA freelist_count") * page_bytes(connection)


def unused_bytes_in(driver: Driver, path: Path) -> int:
    """Return `unused_bytes` of a store's file that may be in use. Raises `StoreError`."""
    try:
        connection = driver.connect(str(path), "")
        try:
            return unused_bytes(connection)
        finally:
            connection.close()
    except driver.error as error:
        raise driver.translate(error, str(path)) from error


def vacuum(connection: SqliteConnection) -> None:
    """Write the file anew without unused pages, and empty its log. Raises the library's error.

    A copy of what is left goes into memory if it is small: a disk that is full has no room for a second one.
    """
    used_bytes = _number(connection, "PRAGMA page_count") * page_bytes(connection) - unused_bytes(connection)
    if used_bytes > VACUUM_IN_MEMORY_BYTES:
        connection.execute("PRAGMA temp_store = FILE").fetchall()
    try:
        connection.execute("VACUUM").fetchall()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    finally:
        connection.execute("PRAGMA temp_store = MEMORY").fetchall()


def inspect(driver: Driver, path: Path, vfs: str) -> None:
    """Raise `StoreCorruptError` for an existing file that is not ours, before anything is written beside it."""
    size = _size(path)
    if size == 0:
        _check_no_log(path)
        return
    if size < SMALLEST_PAGE_BYTES:  # SQLite would take it for an empty file, and write over it
        raise StoreCorruptError(f"{path} is not an SQLite file ({size} bytes); nothing was changed: name another file")
    try:
        connection = driver.connect(str(path), vfs)
        try:
            recognise(connection, path)
        finally:
            connection.close()
    except driver.error as error:
        raise driver.translate(error, str(path)) from error


def _check_no_log(path: Path) -> None:
    """Raise `StoreUnsafeError` for a log without its file: SQLite would take it for a new store and delete the log."""
    log = path.with_name(path.name + LOG_SUFFIX)
    if size := _size(log):
        raise StoreUnsafeError(
            f"{path} is {'empty' if path.exists() else 'missing'}, but its log {log} ({size} bytes) is there, and "
            "would be deleted: put the file back, or move the log away to start with an empty store"
        )


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def recognise(connection: SqliteConnection, path: Path) -> int:
    """Return the schema's number; 0 for an empty file.

    Raises `StoreCorruptError` for another program's database, `StoreVersionError` for a newer version.
    """
    owner = _number(connection, "PRAGMA application_id")
    tables = _number(connection, "SELECT count(*) FROM sqlite_schema")
    version = _number(connection, "PRAGMA user_version")
    if owner == 0 and tables == 0 and version == 0:
        return 0
    if owner != APPLICATION_ID:
        raise StoreCorruptError(
            f"{path} is an SQLite database of another program ({tables} tables and indexes); "
            "nothing was changed: name another file"
        )
    newest = migrations()[-1].number
    if version > newest:
        raise StoreVersionError(f"{path} has schema {version}, this program knows {newest}: upgrade towline")
    return version


def _migrate(connection: SqliteConnection, path: Path, version: int) -> None:
    if version == 0:
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}").fetchall()
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode is None or mode[0] != "wal":
        raise StoreUnavailableError(f"{path} can't be used with a write-ahead log: is it on a network file system?")
    known = migrations()
    if version:
        rows = connection.execute("SELECT number, checksum FROM migrations").fetchall()
        applied: dict[int, str] = {row[0]: row[1] for row in rows}
        for migration in known[:version]:
            if applied.get(migration.number) != migration.checksum:
                raise StoreVersionError(f"{path}: migration {migration.name} differs from this program's")
    if version == known[-1].number:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute(
            "CREATE TABLE IF NOT EXISTS migrations"
            " (number INTEGER PRIMARY KEY, name TEXT NOT NULL, checksum TEXT NOT NULL)"
        )
        for migration in known[version:]:
            for statement in _statements(migration.sql):
                connection.execute(statement)
            connection.execute(
                "INSERT INTO migrations VALUES (?, ?, ?)", (migration.number, migration.name, migration.checksum)
            )
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {known[-1].number}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def _statements(sql: str) -> list[str]:
    """Split a file of SQL, in which each statement ends with a semicolon at the end of a line."""
    return [part for part in (piece.strip() for piece in f"{sql}\n".split(";\n")) if part]


def _number(connection: SqliteConnection, sql: str) -> int:
    row = connection.execute(sql).fetchone()
    assert row is not None, "a pragma or count answers one row"
    return int(row[0])


class FileIdentity:
    """Compares device and inode of the file, its log and the log's index with those that were opened.

    As long as the folder's modification time stays, which is read in 1.5 us, the files need no comparison.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        """Args:
        path: the store's file, which exists and will be opened next.
        clock: the host's, which the folder's modification time comes from.
        """
        self._path = path
        self._folder = os.fspath(path.parent)
        self._names = {kind: f"{path}{kind}" for kind in _KINDS}
        self._clock = clock
        self._checked_at = 0.0
        self._unchanged: tuple[int, int, int] | None = None
        self._opened: dict[str, _FileId] = {"": found} if (found := self._current_id("")) is not None else {}

    def opened(self) -> None:
        """Record which files are open; called when all of them are. Raises `StoreUnavailableError`."""
        for kind in _KINDS:
            found = self._current_id(kind)
            if found is None or self._opened.setdefault(kind, found) != found:
                raise self._error(kind, found)

    def check(self) -> None:
        """Raise `StoreUnavailableError` when one of the files is no longer at its path."""
        try:
            folder = os.stat(self._folder)  # noqa: PTH116 - on the way of every change
        except OSError:
            raise self._error("", None) from None
        seen = folder.st_mtime_ns, folder.st_ino, folder.st_dev
        if seen == self._unchanged:
            return
        for kind, opened in self._opened.items():
            found: os.stat_result | None
            try:
                found = os.stat(self._names[kind])  # noqa: PTH116 - on the way of every change
            except OSError:
                found = None
            if found is None or (found.st_dev, found.st_ino) != opened:
                self._unchanged = None
                raise self._error(kind, found)
        is_trusted = self._clock.now() - folder.st_mtime_ns // 1000 > FOLDER_TIME_MICROSECONDS
        self._unchanged = seen if is_trusted else None

    def check_if_due(self) -> None:
        """Call `check`, unless it was called less than `CHECK_INTERVAL_SECONDS` ago."""
        now = self._clock.monotonic()
        if now - self._checked_at >= CHECK_INTERVAL_SECONDS:
            self.check()
            self._checked_at = now

    def _current_id(self, kind: str) -> _FileId | None:
        try:
            found = Path(self._names[kind]).stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _error(self, kind: str, found: object) -> StoreUnavailableError:
        became = "was moved or removed" if found is None else "was replaced by another file"
        return StoreUnavailableError(
            f"{self._path}{kind} {became} while it was open: no change is acknowledged, as it would be lost. "
            "Put the file back; or, before this process ends, save what it still holds: `towline backup FILE`"
        )

"""The SQLite store: one writer at a time, snapshots for readers, one sync for many commits.

A file lock orders the writers of several processes; it is released before the sync (ADR 7).
"""

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Literal

from queue_core.clock import Clock, SteadyClock, SystemClock
from queue_core.errors import InvalidRequestError, StoreError, StoreFullError, StoreUnavailableError
from queue_core.process import forking
from queue_core.store import Ticket, Unit
from queue_core.stores.sqlite import adds
from queue_core.stores.sqlite.bus import DatagramBus
from queue_core.stores.sqlite.check import check
from queue_core.stores.sqlite.driver import INHERITED, Driver, Progress, Row, SqliteConnection, best_driver
from queue_core.stores.sqlite.file import (
    FileIdentity,
    check_path,
    connect,
    create_file,
    inspect,
    page_bytes,
    prepare,
    real_path,
    unused_bytes,
    vacuum,
)
from queue_core.stores.sqlite.session import (
    CatalogCache,
    ReaderPool,
    SqliteSession,
    bring_forward,
    keep_course,
    kept_course,
)
from queue_core.stores.sqlite.signals import SocketSignals
from queue_core.stores.sqlite.transaction import SqliteTransaction
from queue_core.stores.sqlite.wal import (
    DiskReserve,
    FileSyncer,
    GroupSync,
    OpenSyncer,
    SyncAhead,
    WalPreallocator,
    held_snapshot,
)
from queue_core.stores.sqlite.write_lock import WriteLock
from queue_core.verbs import Check, HeldSnapshot

CHECKPOINT_PAGES = 2000
"""Pages of the log after which it is folded into the file. With twice as many, finding pages in it costs more than is
saved."""
CHECKPOINT_COMMITS = 500
"""Commits after which that happens where the library does not report the log's pages."""
MAX_CHECKPOINT_TRIES = 16
"""Tries of a checkpoint on a full disk: more than there are pieces of the reserve."""
READER_CACHE_KIBIBYTES = 4096
FORWARD_SECONDS = 0.25
"""Time between two looks for tasks whose eta the wall clock has reached, while store time lags behind it."""


class SqliteWrite(SqliteTransaction):
    """A write transaction, and its context manager: entering a generator costs 0.7 us more."""

    def __init__(self, store: "SqliteStore") -> None:
        self._store = store

    def __enter__(self) -> SqliteTransaction:
        self._session = self._store.enter()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._store.leave(self._session, error)


class SqliteStore:
    """See `Store`."""

    def __init__(
        self,
        path: Path,
        *,
        durability: Literal["strict", "relaxed"] = "strict",
        driver: Driver | None = None,
        vfs: str = "",
        open_syncer: OpenSyncer | None = None,
        clock: SteadyClock | None = None,
    ) -> None:
        """Open the file at `path`, or make it.

        Args:
            driver: the SQLite library; default: see `best_driver`.
            vfs: the name of an apsw VFS to open the file with; "" is the usual one.
            open_syncer: opens a `Syncer` of the log, given its path; a test of power cuts brings its own.
            clock: the store's; a test of clock steps brings its own.
        """
        self._path = real_path(path)
        self._durability = durability
        self._driver = driver or best_driver()
        self._vfs = vfs
        self._open_syncer = open_syncer or FileSyncer
        self._host_clock = SystemClock()
        self._clock = clock or SteadyClock()
        self._follows_file = False
        self._forward_at = 0.0
        self._lock = WriteLock(self._path)
        self._readers = ReaderPool(self._driver, self._connect_reader)
        self._is_open = self._is_inherited = self._closed = False
        forking.renew_after_forks(self)
        with self._lock.threads:
            self._open()
        self._signals = SocketSignals(self._path)

    def _open(self) -> None:
        """Open the file, or make it. The caller holds the lock between threads."""
        INHERITED.close_all(self._driver, self._path)
        check_path(self._path)
        inspect(self._driver, self._path, self._vfs)
        if not self._vfs:
            create_file(self._path)
        self._identity = FileIdentity(self._path, self._host_clock)
        self._lock.open()
        self._reserve = DiskReserve(self._path, self._host_clock)
        try:
            self._writer = self._prepare()
        except BaseException:
            self._lock.close()
            raise
        self._cursor = self._writer.cursor()
        self._lock.set_writer(self._driver, self._writer, self._cursor)
        self._log = self._driver.watch(self._writer)
        self._pages_left = 0
        self._commits = 0
        syncer = self._open_syncer(self._sibling_path("-wal"))
        self._identity.opened()
        if not self._vfs:
            self._reserve.take()
        self._group = GroupSync(syncer, self._path, check_files=self._identity.check)
        self._is_strict = self._durability == "strict"
        self._ahead = None if self._is_strict else SyncAhead(syncer, self._group.fail)
        self._preallocator = WalPreallocator(syncer, CHECKPOINT_PAGES, page_bytes=page_bytes(self._writer))
        self._catalog = CatalogCache()
        self._is_open = True

    def _prepare(self) -> SqliteConnection:
        with self._lock.between_processes():
            try:
                return prepare(self._driver, self._path, self._vfs)
            except StoreUnavailableError:  # maybe a full disk, without space for the log's index
                if not self._reserve.spend():
                    raise
            return prepare(self._driver, self._path, self._vfs)

    def _sibling_path(self, suffix: str) -> Path:
        return self._path.with_name(self._path.name + suffix)

    @property
    def path(self) -> Path:
        """The path of the file itself, with symbolic links resolved."""
        return self._path

    @property
    def url(self) -> str:
        """See `Store.url`."""
        return f"sqlite:///{self._path}"

    @property
    def durability(self) -> Literal["strict", "relaxed"]:
        """See `Store.durability`."""
        return self._durability

    @property
    def clock(self) -> Clock:
        """See `Store.clock`."""
        return self._clock

    @property
    def is_remote(self) -> bool:
        """See `Store.is_remote`."""
        return False

    @property
    def unit(self) -> Unit:
        """See `Store.unit`."""
        return "transaction"

    @property
    def driver(self) -> str:
        """The name and version of the SQLite library, and its known bug, if any."""
        return self._driver.name

    @property
    def signals(self) -> SocketSignals:
        """See `Store.signals`."""
        return self._signals

    def bus(self) -> DatagramBus:
        """See `Broadcaster.bus`."""
        return DatagramBus(self._path, self._clock)

    # -- transactions ---------------------------------------------------------------------------------------------

    def begin(self, unit: Unit = "transaction") -> "SqliteWrite":  # noqa: ARG002 - the protocol's
        """See `Store.begin`."""
        return SqliteWrite(self)

    def enter(self, *, will_commit: bool = True) -> SqliteSession:
        """Take the write lock and begin a transaction; for `SqliteWrite`.

        Args:
            will_commit: False for one that will be rolled back, which is possible even after a failed sync.
        """
        try:
            self._lock.acquire(self._check_open if will_commit else self._reopen)
        except self._driver.error as error:
            raise self._driver.translate(error, str(self._path)) from error
        try:
            session = SqliteSession(
                self._writer, self._catalog, cursor=self._cursor, data_version=self._driver.version(self._writer)
            )
            if not self._follows_file or self._clock.course.lag or self._clock.is_stepped():
                self._keep_time(session)
        except BaseException as error:
            self._give_up(error)
            raise
        return session

    def _keep_time(self, session: SqliteSession) -> None:
        """Follow the file's course of time, or set it after a step of the wall clock."""
        clock = self._clock
        if not self._follows_file or clock.is_stepped():
            keep_course(session, clock)
            self._follows_file = True
        now = clock.monotonic()
        if now >= self._forward_at and clock.lag_seconds > 0:
            self._forward_at = now + FORWARD_SECONDS
            bring_forward(session, until=clock.wall(), now=clock.now())

    def _follow_time(self, session: SqliteSession) -> None:
        """Follow the file's course of time as a reader, which can't keep another one there."""
        clock, kept = self._clock, kept_course(session.connection)
        course = None if kept is None else clock.next_course(kept)
        if course is not None and (course == kept or not self._follows_file):
            clock.adopt(course)

    def _check_open(self) -> None:
        if not self._is_open:
            self._reopen()
        if self._group.is_doubtful:
            self._group.check()

    def leave(self, session: SqliteSession, error: BaseException | None) -> None:
        """Commit, or roll back for an `error`, and release the write lock; for `SqliteWrite`."""
        if error is None:
            try:
                if session.staged:
                    adds.write_staged(session)
                session.write()
                if self._is_strict and self._log.pages >= self._preallocator.due_pages:
                    self._preallocator.keep(self._log.pages)
                self._cursor.execute("COMMIT")
            except BaseException as failure:
                self._give_up(failure)
                raise
            try:
                session.committed(data_version=self._driver.version(self._writer))
                if session.has_changes:
                    self._commits += 1
                    self._group.record_commit()
                if self._log.pages - self._pages_left >= CHECKPOINT_PAGES or not self._log.is_reported:
                    self._checkpoint_if_due()
            finally:
                self._lock.release()
        else:
            self._give_up(error)

    def _give_up(self, error: BaseException) -> None:
        """Roll back and release the write lock; an error of the library is raised as ours."""
        self._cancel()
        if isinstance(error, self._driver.error):
            raise self._driver.translate(error, str(self._path)) from error

    def _cancel(self) -> None:
        self._catalog.forget()
        self._lock.release()

    def within(self, connection: object) -> AbstractContextManager[SqliteTransaction]:  # noqa: ARG002 - the protocol's
        """See `Store.within`."""
        raise InvalidRequestError("an sqlite: store uses its own connection: leave `connection` out")

    @contextmanager
    def read(self) -> Iterator[SqliteTransaction]:
        """See `Store.read`."""
        with self._snapshot() as session:
            yield SqliteTransaction(session)

    @contextmanager
    def _snapshot(self) -> Iterator[SqliteSession]:
        """Enter a read transaction in which all adds are flushed."""
        if not self._is_open:
            with self._lock.threads:
                self._reopen()
        if self._is_misplaced():
            with self._unsaved() as session:
                yield session
            return
        try:
            with self._readers.snapshot() as session:
                if not self._follows_file or self._clock.is_stepped():
                    self._follow_time(session)
                if not session.has_staged:
                    yield session
                    return
            if not self._flush():
                with self._unsaved() as session:
                    yield session
                return
            with self._readers.snapshot() as session:
                # Tasks staged by now were added after the read began: without them it is a snapshot of a moment ago.
                session.staged_rows = 0
                yield session
        except self._driver.error as error:
            raise self._driver.translate(error, str(self._path)) from error

    def _flush(self) -> bool:
        """Flush staged adds; False when that can't be committed, as the disk is full or failed."""
        try:
            with self.begin() as transaction:
                transaction.flush()
        except StoreError:
            return False
        return True

    @contextmanager
    def _unsaved(self) -> Iterator[SqliteSession]:
        """Flush staged adds in a write transaction that is rolled back at the end; no one else writes meanwhile."""
        session = self.enter(will_commit=False)
        try:
            adds.flush(session)
            session.write()
            yield session
        finally:
            self._cancel()

    def ticket(self) -> Ticket:
        """See `Store.ticket`."""
        return self._group.last

    def sync(self, ticket: Ticket) -> None:
        """See `Store.sync`."""
        if self._durability == "strict":
            self._group.wait(ticket)
        else:
            self._group.check_files(self._identity.check_if_due)

    def check_room(self) -> None:
        """See `Store.check_room`."""
        if self._reserve.is_spent:
            self._reserve.check(self.unused_bytes)

    def make_room(self) -> bool:
        """See `Store.make_room`. The freed part of the reserve becomes a log of full length at once, and pages of the
        file, before other programs take it."""
        if not self._reserve.spend():
            return False
        self.enter(will_commit=False)
        try:
            self._preallocator.take_all()
        finally:
            self._cancel()
        with self._lock.threads, self._lock.between_processes():
            self._fold_log()
        return True

    # -- maintenance ----------------------------------------------------------------------------------------------

    def held_snapshot(self, *, min_seconds: float = 0.0) -> HeldSnapshot | None:  # noqa: ARG002 - nothing says since when
        """See `Store.held_snapshot`: a reader of the file in another process, while the log is long."""
        return held_snapshot(self._sibling_path("-wal"), self._sibling_path("-shm"))

    def check(self) -> Check:
        """See `Store.check`."""
        with self._snapshot() as session:
            return check(session.connection)

    def unused_bytes(self) -> int:
        """Return the size of the pages that deleted tasks left within the file; new tasks fill them again."""
        try:
            with self._readers.snapshot() as session:
                return unused_bytes(session.connection)
        except self._driver.error as error:
            raise self._driver.translate(error, str(self._path)) from error

    def vacuum(self) -> tuple[int, int]:
        """Return unused pages to the file system; the size of the file in bytes before and after.

        Every writer waits meanwhile, in other processes too, and what is left is written twice. Raises
        `StoreFullError` where that does not fit on the disk: nothing was changed.
        """
        with self._lock.threads:
            self._reopen()
            self._group.check()
            before = self._path.stat().st_size
            with self._lock.between_processes():
                try:
                    vacuum(self._writer)
                except self._driver.error as error:
                    raise self._driver.translate(error, str(self._path)) from error
                self._preallocator.forget()
            return before, self._path.stat().st_size

    def copy_to(self, path: Path, progress: Progress) -> None:
        """Copy a snapshot of the file into another file; see `backup.back_up`.

        Also works while the file is no longer at its path; then all writers of this process wait.
        """
        with self._lock.threads:
            self._reopen()
        try:
            if self._is_misplaced():
                with self._lock.threads:
                    self._driver.copy(self._writer, str(path), progress)
                return
            with self._readers.snapshot() as session:  # a reader of the pool, so that forks wait for it
                session.connection.execute("SELECT count(*) FROM migrations").fetchall()  # fixes the snapshot
                self._driver.copy(session.connection, str(path), progress)
        except self._driver.error as error:
            raise self._driver.translate(error, str(path)) from error

    def close(self) -> None:
        """See `Store.close`. The last process to close folds the log into the file."""
        with self._lock.threads:
            if self._closed:
                return
            self._closed = True
            self._signals.close()
            if not self._is_open:
                return
            self._is_open = False
            connections = self._readers.close()
            if self._ahead is not None:
                self._ahead.close()
            with self._lock.between_processes():
                # SQLite would remove the log by its name, which may be another file by now; and on a full disk there is
                # no space for a new one.
                if self._is_misplaced() or self._reserve.is_spent:
                    self._driver.leave_log(self._writer)
                # Commits that can't be folded into the file stay in the log, and are read at the next opening.
                for connection in (*connections, self._writer):
                    with contextlib.suppress(self._driver.error):
                        connection.close()
            self._group.close()
            self._lock.close()

    # -- forks ----------------------------------------------------------------------------------------------------

    def pause_for_fork(self, seconds: float) -> None:
        """See `forking.Pausable`: wait until no thread is inside SQLite."""
        ends_at = self._host_clock.monotonic() + seconds
        self._lock.pause_for_fork(seconds)
        self._readers.pause(max(0.0, ends_at - self._host_clock.monotonic()))

    def resume_after_fork(self) -> None:
        """See `forking.Pausable`."""
        self._readers.resume()
        self._lock.resume_after_fork()

    def renew_after_fork(self) -> None:
        """See `forking.Renewable`. The next call opens the file again."""
        was_free = self._lock.renew_after_fork()
        connections, are_all = self._readers.renew_after_fork()
        if hasattr(self, "_signals"):  # not while another thread was opening the store
            self._signals.renew_after_fork()
        if self._is_open:
            self._is_open, self._is_inherited = False, True
            self._group.close()
            connections = (*connections, self._writer)
        INHERITED.add(self._driver, connections, is_whole=was_free and are_all)

    def _reopen(self) -> None:
        """Open the file again in the child of a fork. The caller holds the lock between threads."""
        if self._is_open:
            return
        if self._closed:
            raise StoreUnavailableError(f"the store {self.url} was closed: open it again")
        if self._is_inherited and not self._path.exists():
            raise StoreUnavailableError(f"{self._path} is gone since the fork: put it back, or open the store again")
        self._open()

    def _is_misplaced(self) -> bool:
        """Return whether the open files are no longer those at the store's path."""
        try:
            self._identity.check()
        except StoreUnavailableError:
            return True
        return False

    def _connect_reader(self) -> SqliteConnection:
        connection = connect(self._driver, self._path, self._vfs, cache_kibibytes=READER_CACHE_KIBIBYTES)
        try:
            self._identity.check()
        except StoreUnavailableError:
            self._driver.leave_log(connection)
            connection.close()
            raise
        return connection

    def _checkpoint_if_due(self) -> None:
        """Fold a log that is long enough into the file, with the write lock held: it then starts from its beginning.

        A reader may keep a part of the log in use; then the next attempt comes when the log has grown as much again. A
        `relaxed` store syncs the log first, in a thread (`SyncAhead`), unless the disk falls behind.
        """
        if self._log.is_reported:
            grown = self._log.pages - self._pages_left
            if not (self._ahead is None or self._ahead.is_over() or grown >= 2 * CHECKPOINT_PAGES):
                return
        elif self._commits < CHECKPOINT_COMMITS:
            return
        self._fold_log()

    def _fold_log(self) -> None:
        self._commits = 0
        row = self._checkpoint()
        held_back = row is None or row[0] or row[1] != row[2]
        self._pages_left = self._log.pages if held_back else 0

    def _checkpoint(self) -> Row | None:
        """Return the result row of a checkpoint; None: it failed."""
        for _ in range(MAX_CHECKPOINT_TRIES):
            try:
                return self._writer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            except self._driver.error as error:
                # On a full disk the commits stay in the log. After any other failure a second attempt might succeed
                # although the kernel has dropped pages.
                if not isinstance(self._driver.translate(error, str(self._path)), StoreFullError):
                    self._group.fail(OSError(str(error)))
                    return None
                if not self._reserve.spend():
                    return None
        return None

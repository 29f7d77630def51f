"""The SQLite store: transactions of one writer at a time, snapshots for readers, one sync for many commits.

Between processes a kernel file lock orders the writers; it is released before the sync.
"""

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Literal

from queue_core.clock import Clock, SystemClock
from queue_core.errors import InvalidRequestError, StoreError, StoreFullError, StoreUnavailableError
from queue_core.process import forking
from queue_core.store import Check, Ticket, Unit
from queue_core.stores.sqlite import adds
from queue_core.stores.sqlite.check import check
from queue_core.stores.sqlite.driver import INHERITED, Driver, Progress, Row, SqliteConnection, best_driver
from queue_core.stores.sqlite.file import (
    Identity,
    check_path,
    connect,
    create_file,
    inspect,
    page_bytes,
    prepare,
    real_path,
)
from queue_core.stores.sqlite.session import CatalogCache, Readers, SqliteSession
from queue_core.stores.sqlite.signals import SocketSignals
from queue_core.stores.sqlite.transaction import SqliteTransaction
from queue_core.stores.sqlite.wal import FileSyncer, GroupSync, OpenSyncer, Reserve, SyncAhead, WalPreallocator
from queue_core.stores.sqlite.write_lock import WriteLock

CHECKPOINT_PAGES = 2000  # twice as many were tried: pages then take longer to find in the log than is gained
CHECKPOINT_COMMITS = 500
MAX_TRIES = 16
"""Of a checkpoint on a full disk: more than there are pieces of the reserve."""
READER_CACHE_KIBIBYTES = 4096


class SqliteWrite:
    """A write transaction as a context; a class, as entering a generator costs 0.7 us more."""

    __slots__ = ("_step", "_store")

    def __init__(self, store: "SqliteStore") -> None:
        self._store = store
        self._step: SqliteSession | None = None

    def __enter__(self) -> SqliteTransaction:
        step = self._step = self._store.enter()
        return SqliteTransaction(step)

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        step, self._step = self._step, None
        if step is not None:
            self._store.leave(step, error)


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
    ) -> None:
        """Open the file at `path`, or make it.

        Args:
            driver: the SQLite library; the best there is by default.
            vfs: the name of an apsw VFS to open the file with; "" is the usual one.
            open_syncer: makes the log durable, given its path; a test of power cuts brings its own.
        """
        self._path = real_path(path)
        self._durability = durability
        self._driver = driver or best_driver()
        self._vfs = vfs
        self._open_syncer = open_syncer or FileSyncer
        self._clock = SystemClock()
        self._lock = WriteLock(self._path)
        self._readers = Readers(self._driver, self._connect_reader)
        self._is_open = self._is_inherited = self._closed = False
        forking.renew_after_forks(self)
        with self._lock.threads:
            self._open()
        self._signals = SocketSignals(self._path)

    def _open(self) -> None:
        """Open the file, or make it; no other thread may do so meanwhile."""
        INHERITED.let_go(self._driver, self._path)
        check_path(self._path)
        inspect(self._driver, self._path, self._vfs)
        if not self._vfs:
            create_file(self._path)
        self._identity = Identity(self._path, self._clock)
        self._lock.open()
        self._reserve = Reserve(self._path, self._clock)
        try:
            self._writer = self._prepare()
        except BaseException:
            self._lock.close()
            raise
        self._cursor = self._writer.cursor()
        self._lock.begin_with(self._driver, self._writer, self._cursor)
        self._log = self._driver.watch(self._writer)
        self._pages_left = 0
        self._commits = 0
        syncer = self._open_syncer(self._beside("-wal"))
        self._identity.opened()
        if not self._vfs:
            self._reserve.take()
        self._group = GroupSync(syncer, self._path, look=self._identity.check)
        self._is_strict = self._durability == "strict"
        self._ahead = None if self._is_strict else SyncAhead(syncer, self._group.fail)
        self._room = WalPreallocator(syncer, CHECKPOINT_PAGES, page_bytes=page_bytes(self._writer))
        self._known = CatalogCache()
        self._is_open = True

    def _prepare(self) -> SqliteConnection:
        with self._lock.alone():
            try:
                return prepare(self._driver, self._path, self._vfs)
            except StoreUnavailableError:  # a full disk has no room for the log's index; some libraries say otherwise
                if not self._reserve.spend():
                    raise
            return prepare(self._driver, self._path, self._vfs)

    def _beside(self, suffix: str) -> Path:
        return self._path.with_name(self._path.name + suffix)

    @property
    def path(self) -> Path:
        """Of the file itself, whatever links led to it."""
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
        """The SQLite library in use, and what is wrong with it, if anything."""
        return self._driver.name

    @property
    def signals(self) -> SocketSignals:
        """See `Store.signals`."""
        return self._signals

    # -- transactions ---------------------------------------------------------------------------------------------

    def begin(self, unit: Unit = "transaction") -> "SqliteWrite":  # noqa: ARG002 - the protocol's
        """See `Store.begin`."""
        return SqliteWrite(self)

    def enter(self, *, to_keep: bool = True) -> SqliteSession:
        """Begin a transaction, alone among all writers; for `SqliteWrite`.

        Args:
            to_keep: False for one that will be rolled back, which a disk that failed does not mind.
        """
        try:
            self._lock.acquire(self._check_open if to_keep else self._open_anew)
        except self._driver.error as error:
            raise self._driver.translate(error, str(self._path)) from error
        try:
            return SqliteSession(
                self._writer, self._known, cursor=self._cursor, seen=self._driver.version(self._writer)
            )
        except BaseException as error:
            self._give_up(error)
            raise

    def _check_open(self) -> None:
        self._open_anew()
        self._group.check()

    def leave(self, step: SqliteSession, error: BaseException | None) -> None:
        """Commit, or roll back for an `error`, and let the next writer in; for `SqliteWrite`."""
        if error is None:
            try:
                if step.arriving:
                    adds.let_wait(step)
                step.write()
                if self._is_strict:
                    self._room.keep(self._log.pages)
                self._cursor.execute("COMMIT")
            except BaseException as failure:
                self._give_up(failure)
                raise
            try:
                step.committed(seen=self._driver.version(self._writer))
                if step.told:
                    self._commits += 1
                    self._group.note_commit()
                self._checkpoint_if_due()
            finally:
                self._lock.release()
        else:
            self._give_up(error)

    def _give_up(self, error: BaseException) -> None:
        """Roll back and let the next one in; a failure of the library is raised as what it means."""
        self._cancel()
        if isinstance(error, self._driver.error):
            raise self._driver.translate(error, str(self._path)) from error

    def _cancel(self) -> None:
        self._known.forget()
        self._lock.release()

    def within(self, connection: object) -> AbstractContextManager[SqliteTransaction]:  # noqa: ARG002 - the protocol's
        """See `Store.within`."""
        raise InvalidRequestError("an sqlite: store has a connection of its own: leave `connection` out")

    @contextmanager
    def read(self) -> Iterator[SqliteTransaction]:
        """See `Store.read`."""
        with self._snapshot() as step:
            yield SqliteTransaction(step)

    @contextmanager
    def _snapshot(self) -> Iterator[SqliteSession]:
        """All tasks as they are by now: nothing waits to be sorted in."""
        if not self._is_open:
            with self._lock.threads:
                self._open_anew()
        if self._is_misplaced():
            with self._unsaved() as step:
                yield step
            return
        try:
            with self._readers.glance() as step:
                if not step.waits:
                    yield step
                    return
            if not self._sort_in():
                with self._unsaved() as step:
                    yield step
                return
            with self._readers.glance() as step:
                # What waits by now came after this look began; without it the file is as it was a moment before.
                step.arrived = 0
                yield step
        except self._driver.error as error:
            raise self._driver.translate(error, str(self._path)) from error

    def _sort_in(self) -> bool:
        """Sort in what waits; False when that can't be kept, as the disk is full or failed."""
        try:
            with self.begin() as transaction:
                transaction.sort_in()
        except StoreError:
            return False
        return True

    @contextmanager
    def _unsaved(self) -> Iterator[SqliteSession]:
        """As it would be with all sorted in; nothing of it is written, and nobody else writes meanwhile."""
        step = self.enter(to_keep=False)
        try:
            adds.sort_in(step)
            step.write()
            yield step
        finally:
            self._cancel()

    def ticket(self) -> Ticket:
        """See `Store.ticket`."""
        return self._group.last()

    def sync(self, ticket: Ticket) -> None:
        """See `Store.sync`."""
        if self._durability == "strict":
            self._group.wait(ticket)
        else:
            self._group.look(self._identity.glance)

    def check_room(self) -> None:
        """See `Store.check_room`."""
        if self._reserve.is_spent:
            self._reserve.check()

    def make_room(self) -> bool:
        """See `Store.make_room`. What the reserve leaves is turned into a log of full length at once, and into pages of
        the file, before others can take it."""
        if not self._reserve.spend():
            return False
        self.enter(to_keep=False)
        try:
            self._room.take_all()
        finally:
            self._cancel()
        with self._lock.threads, self._lock.alone():
            self._fold_log()
        return True

    # -- upkeep ---------------------------------------------------------------------------------------------------

    def check(self) -> Check:
        """See `Store.check`."""
        with self._snapshot() as step:
            return check(step.connection)

    def copy_to(self, path: Path, progress: Progress) -> None:
        """Copy all of the file, as it is at one moment, into another file; see `backup.back_up`.

        Also while the file is not at its path any more: then nothing else is done in this process meanwhile.
        """
        with self._lock.threads:
            self._open_anew()
        try:
            if self._is_misplaced():
                with self._lock.threads:
                    self._driver.copy(self._writer, str(path), progress)
                return
            with self._readers.glance() as step:  # a reader like others: a fork waits for it, and knows of it
                step.connection.execute(
                    "SELECT count(*) FROM migrations"
                ).fetchall()  # from here on nothing new is seen
                self._driver.copy(step.connection, str(path), progress)
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
            with self._lock.alone():
                # SQLite would remove the log by its name, which may be another's by now; and on a full disk there is
                # no room for a new one.
                if self._is_misplaced() or self._reserve.is_spent:
                    self._driver.leave_log(self._writer)
                # What can't be folded into the file stays in the log, and is read when the store is next opened.
                for connection in (*connections, self._writer):
                    with contextlib.suppress(self._driver.error):
                        connection.close()
            self._group.close()
            self._lock.close()

    # -- forks ----------------------------------------------------------------------------------------------------

    def pause_for_fork(self, seconds: float) -> None:
        """See `forking.Pausable`: no thread may be within SQLite."""
        ends_at = self._clock.monotonic() + seconds
        self._lock.pause_for_fork(seconds)
        self._readers.hold(max(0.0, ends_at - self._clock.monotonic()))

    def resume_after_fork(self) -> None:
        """See `forking.Pausable`."""
        self._readers.resume()
        self._lock.resume_after_fork()

    def renew_after_fork(self) -> None:
        """See `forking.Renewable`. The next call opens the file anew."""
        was_free = self._lock.renew_after_fork()
        connections, are_all = self._readers.take_over()
        if hasattr(self, "_signals"):  # not while another thread was opening the store
            self._signals.renew_after_fork()
        if self._is_open:
            self._is_open, self._is_inherited = False, True
            self._group.close()
            connections = (*connections, self._writer)
        INHERITED.add(self._driver, connections, is_whole=was_free and are_all)

    def _open_anew(self) -> None:
        """In the child of a fork, once it needs the store; no other thread may do so meanwhile."""
        if self._is_open:
            return
        if self._closed:
            raise StoreUnavailableError(f"the store {self.url} was closed: open it again")
        if self._is_inherited and not self._path.exists():
            raise StoreUnavailableError(f"{self._path} is gone since the fork: put it back, or open the store anew")
        self._open()

    def _is_misplaced(self) -> bool:
        """Whether a file that is opened now by its path would be another than that which is open."""
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
        """Fold the log into the file while no other process writes: the log then starts again from its beginning.

        A reader may hold a part of it back; then the next attempt waits until the log has grown as much again. Where
        the log is not synced with every commit, that begins beforehand, unless the disk falls behind.
        """
        if self._is_checkpoint_due():
            self._fold_log()

    def _fold_log(self) -> None:
        self._commits = 0
        row = self._checkpoint()
        held_back = row is None or row[0] or row[1] != row[2]
        self._pages_left = self._log.pages if held_back else 0

    def _checkpoint(self) -> Row | None:
        """What became of it; None: it failed."""
        for _ in range(MAX_TRIES):
            try:
                return self._writer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            except self._driver.error as error:
                # On a full disk what was committed stays in the log. After any other failure a second attempt might
                # succeed over pages that the kernel has dropped.
                if not isinstance(self._driver.translate(error, str(self._path)), StoreFullError):
                    self._group.fail(OSError(str(error)))
                    return None
                if not self._reserve.spend():
                    return None
        return None

    def _is_checkpoint_due(self) -> bool:
        if not self._log.is_told:
            return self._commits >= CHECKPOINT_COMMITS
        grown = self._log.pages - self._pages_left
        if grown < CHECKPOINT_PAGES:
            return False
        return self._ahead is None or self._ahead.is_over() or grown >= 2 * CHECKPOINT_PAGES

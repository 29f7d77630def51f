"""The write-ahead log: sync commits to the disk, many at once, and reserve disk space for those that finish tasks.

After a failed sync nothing is acknowledged as durable any more: the kernel may have dropped what it could not write.
"""

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Condition, Lock, RLock, Thread
from typing import Protocol

from queue_core.clock import Clock
from queue_core.config.units import format_bytes
from queue_core.errors import StoreFullError, StoreUnavailableError
from queue_core.store import Ticket
from queue_core.verbs import HeldSnapshot

LONG_LOG_BYTES = 256 << 20
"""A longer log is told: somebody reads the file and does not end, so it can't start from its beginning."""
READER_LOCKS = range(123, 128)
"""The bytes of the `-shm` file that readers of the log lock: `WAL_READ_LOCK` of SQLite's `wal.c`."""
FEWEST_PAGES = 16
"""The log is preallocated once it has so many pages; a program that adds a few tasks and ends leaves a short one."""
SPARE_PAGES = 8
"""Pages that must be left for the next commit, more than most take."""
LOG_HEAD_BYTES = 32
FRAME_HEAD_BYTES = 24
RESERVE_BYTES = 12 << 20
"""Disk space reserved for commits that finish tasks."""
RESERVE_LOG_BYTES = 5 << 20
"""The part of the reserve freed first: a log of full length (`CHECKPOINT_PAGES`) takes 4.2 million bytes."""
RESERVE_PIECE_BYTES = 1 << 20
"""The part freed each time after that."""
RESERVE_RETRY_SECONDS = 1.0
"""Time between two attempts to refill the reserve."""


class Syncer(Protocol):
    """Makes a file's present content durable."""

    def sync(self) -> None:
        """Return when everything written before the call survives a power cut. Raises `OSError`."""

    def grow(self, size_bytes: int) -> None:
        """Extend a shorter file with zeros to that size. Only while nobody else writes. Raises `OSError`."""

    def close(self) -> None:
        """Release the file."""


OpenSyncer = Callable[[Path], Syncer]


class FileSyncer:
    """Syncs a file through its own descriptor, so that SQLite's lock need not be held meanwhile."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def sync(self) -> None:
        os.fdatasync(self._descriptor)

    def grow(self, size_bytes: int) -> None:
        present_bytes = os.fstat(self._descriptor).st_size
        if present_bytes < size_bytes:
            os.pwrite(self._descriptor, bytes(size_bytes - present_bytes), present_bytes)

    def close(self) -> None:
        os.close(self._descriptor)


class NoSyncer:
    """Never syncs: a test of power cuts must detect it."""

    def __init__(self, path: Path) -> None:
        pass

    def sync(self) -> None:
        pass

    def grow(self, size_bytes: int) -> None:
        pass

    def close(self) -> None:
        pass


class WalPreallocator:
    """Preallocates the log for the commits to come.

    A sync of a file that has grown takes twice as long, as its size must be written too. So the log is doubled when it
    is nearly full, once for many commits. SQLite does not take zeros at its end for frames.
    """

    def __init__(self, syncer: Syncer, most_pages: int, *, page_bytes: int) -> None:
        """Args:
        most_pages: pages of the log at a checkpoint, about.
        page_bytes: the page size of the file.
        """
        self._syncer = syncer
        self._frame_bytes = FRAME_HEAD_BYTES + page_bytes
        self._most_pages = most_pages + SPARE_PAGES
        self.due_pages = FEWEST_PAGES
        """The pages of the log from which on `keep` extends it."""

    def take_all(self) -> None:
        """Extend the log to its full length. As `keep`, only within a write transaction."""
        self._grow(self._most_pages)

    def forget(self) -> None:
        """Measure the log anew with the next commit, as it was truncated."""
        self.due_pages = FEWEST_PAGES

    def keep(self, used_pages: int) -> None:
        """Extend the log if it is nearly full. Only within a write transaction, when nobody else writes to the log."""
        if used_pages >= self.due_pages:
            self._grow(min(2 * used_pages, self._most_pages))

    def _grow(self, pages: int) -> None:
        try:
            self._syncer.grow(LOG_HEAD_BYTES + pages * self._frame_bytes)
        except OSError:
            pages = self._most_pages  # a full disk: the transaction may still fit into what is left
        self.due_pages = pages - SPARE_PAGES + 1 if pages < self._most_pages else sys.maxsize


class GroupSync:
    """Numbers commits and makes them durable; one sync serves every commit that ended before it began."""

    def __init__(self, syncer: Syncer, path: Path, *, check_files: Callable[[], None] = lambda: None) -> None:
        """Args:
        check_files: raises `StoreUnavailableError` while the synced files are not those at the store's path.
        """
        self._syncer = syncer
        self._path = path
        self._check_files = check_files
        self._is_misplaced = False
        self.is_doubtful = False
        """Whether `check` may raise: a sync has failed, or the files have been away, if only for a time."""
        self.last = Ticket(0)
        """The number of the last commit."""
        self._lock = RLock()
        self._ended = Condition(self._lock)  # notified at the end of a sync; entered by its lock: 0.12 us, not 0.20
        self._durable = 0
        self._busy = False
        self._waiting = 0  # threads to notify at the end of a sync
        self._failure: OSError | None = None

    def record_commit(self) -> Ticket:
        """Number a commit that has just ended; only the holder of the write lock may call it."""
        self.last = Ticket(self.last + 1)
        return self.last

    def check(self) -> None:
        """Raise `StoreUnavailableError` once a sync has failed, and while the files are not at the store's path."""
        if self._is_misplaced:
            self._check_files()
            self._is_misplaced = False
        if self._failure is not None:
            raise StoreUnavailableError(
                f"{self._path} could not be synced ({self._failure}): later changes may be lost; "
                "repair the disk and open the store again"
            )

    def check_files(self, check: Callable[[], None]) -> None:
        """Run `check`; if it raises `StoreUnavailableError`, `self.check` raises too until the files are back."""
        try:
            check()
        except StoreUnavailableError:
            self._is_misplaced = self.is_doubtful = True
            raise

    def fail(self, failure: OSError) -> None:
        """Acknowledge nothing more: what was written may be lost although a later sync succeeds."""
        with self._lock:
            self._failure = self._failure or failure
            self.is_doubtful = True
            self._ended.notify_all()

    def wait(self, ticket: Ticket) -> None:
        """Return when the commit is durable: by a sync of this thread or of another."""
        while self._durable < ticket:
            with self._lock:
                while self._busy and self._durable < ticket:
                    self._waiting += 1
                    try:
                        self._ended.wait()
                    finally:
                        self._waiting -= 1
                if self._durable >= ticket:
                    return
                if self.is_doubtful:
                    self.check()
                self._busy = True
                covered = self.last
            self._sync(covered)

    def _sync(self, covered: int) -> None:
        durable = 0
        failure: OSError | None = None
        try:
            self._syncer.sync()
            self._check_files()
            durable = covered
        except OSError as error:
            failure = error
        except StoreUnavailableError:
            self._is_misplaced = self.is_doubtful = True
            raise
        finally:
            with self._lock:
                self._busy = False
                self._durable = durable or self._durable
                if failure is not None:
                    self._failure = self._failure or failure
                    self.is_doubtful = True
                if self._waiting:
                    self._ended.notify_all()

    def close(self) -> None:
        """Release the file."""
        self._syncer.close()


class SyncAhead:
    """Syncs the log of a `relaxed` store in a thread, before a checkpoint, which then has little left to wait for.

    Only the holder of the write lock may call it.
    """

    def __init__(self, syncer: Syncer, failed: Callable[[OSError], None]) -> None:
        """Args:
        failed: called, in another thread, when a sync failed.
        """
        self._syncer = syncer
        self._failed = failed
        self._thread: Thread | None = None

    def is_over(self) -> bool:
        """Begin a sync unless one is under way; return whether it has ended: the next call then begins another."""
        if self._thread is None:
            self._thread = Thread(target=self._sync, name="towline-sync-ahead", daemon=True)
            self._thread.start()
        if self._thread.is_alive():
            return False
        self._thread = None
        return True

    def _sync(self) -> None:
        try:
            self._syncer.sync()
        except OSError as error:
            self._failed(error)

    def close(self) -> None:
        """Wait for a sync that is under way."""
        if self._thread is not None:
            self._thread.join()


def open_beside(path: Path, store: Path) -> int:
    """Open a file beside the store's; a new one gets its mode and owner, as SQLite's own files do. Raises `OSError`."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        found = store.stat()
    except FileNotFoundError:
        return descriptor
    os.fchmod(descriptor, found.st_mode & 0o666)
    if os.geteuid() == 0:
        with contextlib.suppress(OSError):  # a container's root may not; it then owns all of them
            os.fchown(descriptor, found.st_uid, found.st_gid)
    return descriptor


def sync_folder(path: Path) -> None:
    """Make the names of new files in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class DiskReserve:
    """Reserves disk space for the commits that finish tasks, so that a full disk refuses only adds. Thread-safe.

    A file beside the store's holds the space, and is truncated when the disk is full: first by the size of a full log,
    which checkpoints then reuse; later, piece by piece, for the few pages that the store's file grows without adds. On
    a disk that is too small there is no reserve: when it is full, every change fails.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        """Args:
        path: the store's file.
        """
        self._store = path
        self._path = path.with_name(path.name + "-reserve")
        self._clock = clock
        self._lock = Lock()
        self._tried_at = 0.0
        self.is_spent = False
        """Return whether the disk was full and the reserve has not been refilled since."""

    def take(self) -> None:
        """Reserve the space unless that was done before. A shorter file has been spent, maybe by another process."""
        left = self._left()
        if left < RESERVE_BYTES:
            self.is_spent = self._path.exists()
            self._refill()

    def spend(self) -> bool:
        """Free a part of the reserve on a full disk; return whether there was any. Retry at once, before others do."""
        with self._lock:
            left = self._left()
            if not left:
                return False
            part = RESERVE_LOG_BYTES if left >= RESERVE_BYTES else RESERVE_PIECE_BYTES
            try:
                os.truncate(self._path, max(0, left - part))
            except OSError:
                return False
            self.is_spent = True
            self._tried_at = self._clock.monotonic()
            return True

    def check(self, unused_bytes: Callable[[], int]) -> None:
        """Raise `StoreFullError` while there is room neither on the disk nor within the store's file.

        The disk is tried every `RESERVE_RETRY_SECONDS`. A file does not shrink: the pages of deleted tasks are filled
        again before it grows, so as much of them as the reserve takes is as good as the reserve.

        Args:
            unused_bytes: returns the size of the file's unused pages.
        """
        if not self.is_spent:
            return
        with self._lock:
            now = self._clock.monotonic()
            if now - self._tried_at >= RESERVE_RETRY_SECONDS:
                self._tried_at = now
                self._refill()
            if self.is_spent and unused_bytes() < RESERVE_BYTES:
                raise StoreFullError(
                    f"the disk of {self._store} is full: tasks are leased, released and deleted, but none are added "
                    f"until {format_bytes(RESERVE_BYTES)} are free, on the disk or in the file; nothing was changed: "
                    "free disk space and try again",
                    affects_only_caller=True,
                )

    def _left(self) -> int:
        try:
            return self._path.stat().st_size
        except OSError:
            return 0

    def _refill(self) -> None:
        """Reserve the space again, all of it or nothing."""
        try:
            descriptor = open_beside(self._path, self._store)
        except OSError:
            return  # no file can be made here: go on without a reserve
        left = os.fstat(descriptor).st_size
        try:
            os.posix_fallocate(descriptor, 0, RESERVE_BYTES)
            self.is_spent = False
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, left)
            if not self.is_spent:
                self._path.unlink(missing_ok=True)  # the disk is too small, or the file system can't reserve
        finally:
            os.close(descriptor)


def held_snapshot(log: Path, shared: Path, *, long_bytes: int = LONG_LOG_BYTES) -> HeldSnapshot | None:
    """Return the other process that reads the log, if the log is long; see `Store.held_snapshot`.

    Without a reader the log is long only until the next change, which starts it from its beginning.
    """
    try:
        log_bytes = log.stat().st_size
        inode = shared.stat().st_ino
        locks = Path("/proc/locks").read_text(encoding="ascii")
    except OSError:
        return None
    if log_bytes < long_bytes:
        return None
    readers = sorted(_readers(locks, inode) - {os.getpid()})
    if not readers:
        return None
    pid = readers[0]
    return HeldSnapshot(
        "reader of the file",
        ", ".join(f"pid {reader}" for reader in readers),
        pid,
        application=_program_of(pid),
        log_bytes=log_bytes,
        remedy=f"kill {pid}",
    )


def _readers(locks: str, inode: int) -> set[int]:
    """Return the processes that hold a lock of a reader, from the lines of /proc/locks: a file is device:inode."""
    found = set()
    for line in locks.splitlines():
        fields = line.split()
        if len(fields) != 8 or fields[1] != "POSIX" or fields[5].rpartition(":")[2] != str(inode):
            continue
        first, last = int(fields[6]), int(fields[7]) if fields[7] != "EOF" else READER_LOCKS.stop
        if (
            fields[3] == "READ"
            and first < READER_LOCKS.stop
            and last >= READER_LOCKS.start
            and first >= READER_LOCKS.start
        ):
            found.add(int(fields[4]))
    return found


def _program_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""

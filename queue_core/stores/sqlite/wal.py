"""Make commits survive a power cut, many with one sync, and keep room on the disk for those that finish tasks.

After a failed sync nobody is told that anything is durable again: the kernel may have dropped what it could not write.
"""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from threading import Condition, Lock, RLock, Thread
from typing import Protocol

from queue_core.clock import Clock
from queue_core.config.units import format_bytes
from queue_core.errors import StoreFullError, StoreUnavailableError
from queue_core.store import Ticket

FEWEST_PAGES = 16
"""A log that is shorter, of a program that adds a few tasks and ends, is left as it is."""
SPARE_PAGES = 8
"""More than most commits take."""
LOG_HEAD_BYTES = 32
FRAME_HEAD_BYTES = 24
RESERVE_BYTES = 12 << 20
RESERVE_LOG_BYTES = 5 << 20
"""A log of full length (`CHECKPOINT_PAGES`) takes 4.2 million bytes."""
RESERVE_PIECE_BYTES = 1 << 20
RESERVE_RETRY_SECONDS = 1.0


class Syncer(Protocol):
    """Makes a file's present content durable."""

    def sync(self) -> None:
        """Return when everything written before the call survives a power cut. Raises `OSError`."""

    def grow(self, size_bytes: int) -> None:
        """Fill the file up to that size with zeros, unless it is as long. Only while nobody else writes.

        Raises `OSError`.
        """

    def close(self) -> None:
        """Release the file."""


OpenSyncer = Callable[[Path], Syncer]


class FileSyncer:
    """Syncs a file through a descriptor of its own: SQLite's lock need not be held meanwhile."""

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
    """Leaves it to the kernel when to write: what a test of power cuts must find out."""

    def __init__(self, path: Path) -> None:
        pass

    def sync(self) -> None:
        pass

    def grow(self, size_bytes: int) -> None:
        pass

    def close(self) -> None:
        pass


class WalPreallocator:
    """Keeps room in the log for the commits to come.

    A sync after which a file has grown takes twice as long: its size must be written too. So the log grows by as much
    again when it is nearly full, once for many commits. Zeros at its end are no frames to SQLite, whoever finds them.
    """

    def __init__(self, syncer: Syncer, most_pages: int, *, page_bytes: int) -> None:
        """Args:
        most_pages: about as many as it has when SQLite begins anew from its start.
        page_bytes: the file's, whoever made it.
        """
        self._syncer = syncer
        self._frame_bytes = FRAME_HEAD_BYTES + page_bytes
        self._most_pages = most_pages + SPARE_PAGES
        self._pages = 0

    def take_all(self) -> None:
        """Make the log as long as it gets. As `keep`, only within a write transaction."""
        self._grow(self._most_pages)

    def keep(self, used_pages: int) -> None:
        """Grow if it is time. Only within a write transaction: SQLite keeps everybody else off the log meanwhile."""
        if used_pages < FEWEST_PAGES or used_pages + SPARE_PAGES <= self._pages or self._pages >= self._most_pages:
            return
        self._grow(min(2 * used_pages, self._most_pages))

    def _grow(self, pages: int) -> None:
        self._pages = pages
        try:
            self._syncer.grow(LOG_HEAD_BYTES + self._pages * self._frame_bytes)
        except OSError:
            self._pages = self._most_pages  # no room: the transaction finds out whether there is enough for it


class GroupSync:
    """Numbers commits and makes them durable; one sync serves every commit that ended before it began."""

    def __init__(self, syncer: Syncer, path: Path, *, look: Callable[[], None] = lambda: None) -> None:
        """Args:
        look: raises `StoreUnavailableError` while the files that were synced are not those at the store's path.
        """
        self._syncer = syncer
        self._path = path
        self._look = look
        self._is_misplaced = False
        self._lock = RLock()
        self._ended = Condition(self._lock)  # a sync has; entered by its lock: 0.12 us, and not 0.20
        self._committed = 0
        self._durable = 0
        self._busy = False
        self._failure: OSError | None = None

    def note_commit(self) -> Ticket:
        """Number a commit that has just ended. One caller at a time: whoever holds the right to write."""
        self._committed += 1
        return Ticket(self._committed)

    def last(self) -> Ticket:
        """The number of the last commit."""
        return Ticket(self._committed)

    def check(self) -> None:
        """Raise `StoreUnavailableError` once a sync has failed, and while the files are not where they belong: what
        follows could not be kept either."""
        if self._is_misplaced:
            self._look()
            self._is_misplaced = False
        if self._failure is not None:
            raise StoreUnavailableError(
                f"{self._path} could not be synced ({self._failure}): changes since are in doubt; "
                "mend the disk and open the store again"
            )

    def look(self, look: Callable[[], None]) -> None:
        """Look after the files; from now on `check` raises until they are back. Raises `StoreUnavailableError`."""
        try:
            look()
        except StoreUnavailableError:
            self._is_misplaced = True
            raise

    def fail(self, failure: OSError) -> None:
        """Acknowledge nothing more: what was written may be lost though a later sync would say otherwise."""
        with self._lock:
            self._failure = self._failure or failure
            self._ended.notify_all()

    def wait(self, ticket: Ticket) -> None:
        """Return when the commit is durable: by a sync of one's own, or of another thread."""
        while self._durable < ticket:
            with self._lock:
                while self._busy and self._durable < ticket:
                    self._ended.wait()
                if self._durable >= ticket:
                    return
                self.check()
                self._busy = True
                covered = self._committed
            self._lead(covered)

    def _lead(self, covered: int) -> None:
        durable = 0
        failure: OSError | None = None
        try:
            self._syncer.sync()
            self.look(self._look)
            durable = covered
        except OSError as error:
            failure = error
        finally:
            with self._lock:
                self._busy = False
                self._durable = durable or self._durable
                self._failure = self._failure or failure
                self._ended.notify_all()

    def close(self) -> None:
        """Release the file."""
        self._syncer.close()


class SyncAhead:
    """Has the log of a `relaxed` store written to the disk while transactions go on.

    A checkpoint must wait until all of it is there, and then finds little left. One caller at a time: whoever holds the
    right to write.
    """

    def __init__(self, syncer: Syncer, failed: Callable[[OSError], None]) -> None:
        """Args:
        failed: told, in another thread, of a sync that failed.
        """
        self._syncer = syncer
        self._failed = failed
        self._thread: Thread | None = None

    def is_over(self) -> bool:
        """Begin a sync, unless one is under way; whether the one begun last has ended. It is then forgotten."""
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
    """A descriptor of a file beside the store's; a new one gets the mode and the owner that the store's file has, as
    SQLite does with its own. Raises `OSError`."""
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
        with contextlib.suppress(OSError):  # root of a container may not; it then owns all of them
            os.fchown(descriptor, found.st_uid, found.st_gid)
    return descriptor


def sync_folder(path: Path) -> None:
    """Make the names of new files in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Reserve:
    """Keeps room on the disk for what finishes tasks, so that a full disk refuses adds and nothing else.

    A file beside the store's holds it, and is cut when the disk is full: first by what a log of full length takes,
    which then begins anew from its start again and again; later, piece by piece, by the few pages that the store's file
    grows without adds. A disk that is too small for it has none: when full it refuses whatever needs room.

    Any thread may use it.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        """Args:
        path: of the store's file.
        """
        self._store = path
        self._path = path.with_name(path.name + "-reserve")
        self._clock = clock
        self._lock = Lock()
        self._tried_at = 0.0
        self.is_spent = False
        """Whether the disk was full, and is for all that is known."""

    def take(self) -> None:
        """Take the room unless it was taken before. A part of it that is there was spent, by whatever process."""
        left = self._left()
        if left < RESERVE_BYTES:
            self.is_spent = self._path.exists()
            self._refill()

    def spend(self) -> bool:
        """Give a part of the room back to the disk, which is full; whether there was any, and another try is worth it.

        At once: others wait for room as well.
        """
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

    def check(self) -> None:
        """Raise `StoreFullError` while there is no room for the reserve; tried once a second."""
        if not self.is_spent:
            return
        with self._lock:
            now = self._clock.monotonic()
            if now - self._tried_at >= RESERVE_RETRY_SECONDS:
                self._tried_at = now
                self._refill()
            if self.is_spent:
                raise StoreFullError(
                    f"the disk of {self._store} is full: tasks are leased, released and deleted, but none are added "
                    f"until {format_bytes(RESERVE_BYTES)} are free; nothing was changed: free disk space and try again",
                    affects_only_caller=True,
                )

    def _left(self) -> int:
        try:
            return self._path.stat().st_size
        except OSError:
            return 0

    def _refill(self) -> None:
        """Take the room again, all of it or nothing."""
        try:
            descriptor = open_beside(self._path, self._store)
        except OSError:
            return  # nothing new may be made here: as without a reserve
        left = os.fstat(descriptor).st_size
        try:
            os.posix_fallocate(descriptor, 0, RESERVE_BYTES)
            self.is_spent = False
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, left)
            if not self.is_spent:
                self._path.unlink(missing_ok=True)  # too small a disk, or a file system that can't
        finally:
            os.close(descriptor)

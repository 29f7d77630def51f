"""Keep room on the disk for what finishes tasks, so that a full disk refuses adds and nothing else.

A file beside the store's holds it, and is cut when the disk is full: first by what a log of full length takes, which
then begins anew from its start again and again; later, piece by piece, by the few pages that the store's file grows
without adds.
"""

import contextlib
import os
from pathlib import Path
from threading import Lock

from queue_core.clock import Clock
from queue_core.errors import StoreFullError
from queue_core.stores.sqlite.durable import open_beside
from queue_core.units import format_bytes

RESERVE_BYTES = 12 << 20
LOG_BYTES = 5 << 20
"""A log of full length (`CHECKPOINT_PAGES`) takes 4.2 million bytes."""
PIECE_BYTES = 1 << 20
RETRY_SECONDS = 1.0


class Reserve:
    """From any thread. A disk that is too small for it has none: when full it refuses whatever needs room."""

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
            part = LOG_BYTES if left >= RESERVE_BYTES else PIECE_BYTES
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
            if now - self._tried_at >= RETRY_SECONDS:
                self._tried_at = now
                self._refill()
            if self.is_spent:
                raise StoreFullError(
                    f"the disk of {self._store} is full: tasks are leased, released and deleted, but none are added "
                    f"until {format_bytes(RESERVE_BYTES)} are free; nothing was changed: free disk space and try again",
                    is_alone=True,
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

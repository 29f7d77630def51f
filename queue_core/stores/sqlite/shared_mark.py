"""A mark that all processes on a file share: changed with a system call, and read without one."""

import contextlib
import mmap
import os
import secrets
from pathlib import Path
from threading import Lock

from queue_core.stores.sqlite.durable import open_lock_file

MARK_BYTES = 8


class SharedMark:
    """The first bytes of a small file that is there anyway, mapped; like SQLite's `-shm`, it must not be cut short
    while it is in use.

    Each change makes it what it never was: two at once leave one of theirs, and whoever remembers an older one sees
    that something changed. A count that both had read before they raised it could return to what was remembered.
    """

    def __init__(self, path: Path) -> None:
        self._lock = Lock()  # a descriptor that was closed may be another file's
        self._descriptor: int | None = None
        self._mapped: mmap.mmap | None = None
        with contextlib.suppress(OSError):  # no room, or a file system that can't: unknown, for this process
            self._descriptor = open_lock_file(path)
            if os.fstat(self._descriptor).st_size < MARK_BYTES:
                os.posix_fallocate(self._descriptor, 0, MARK_BYTES)  # so that no change needs room on the disk
            self._mapped = mmap.mmap(self._descriptor, MARK_BYTES, prot=mmap.PROT_READ)

    def value(self) -> bytes | None:
        """What it is now; None when that can't be told."""
        mapped = self._mapped
        return None if mapped is None else mapped[:MARK_BYTES]

    def change(self) -> None:
        """Make it another one, for all processes that can tell."""
        with self._lock, contextlib.suppress(OSError):
            if self._descriptor is not None:
                os.pwrite(self._descriptor, secrets.token_bytes(MARK_BYTES), 0)

    def renew_after_fork(self) -> None:
        """In the child of a fork: mapping and descriptor are as good as the parent's."""
        self._lock = Lock()

    def close(self) -> None:
        """Release the file; the mark can't be told any more."""
        self._mapped = None  # unmapped with its last user, who may be about to read it
        with self._lock:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None

"""An SQLite VFS that counts disk events and injects a fault at the n-th, and a driver that tolerates its errors."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType

import apsw

from queue_core.stores.sqlite.driver import Driver, SqliteConnection, apsw_driver
from queue_core.stores.sqlite.wal import FileSyncer

Fault = Callable[[int], None]
"""Gets the number of each write, truncation, deletion or sync before it happens; may raise or never return."""


class Meter:
    """Counts the events of one process and injects the fault."""

    def __init__(self, fault: Fault = lambda _: None) -> None:
        self._fault = fault
        self._lock = threading.Lock()
        self.events = 0

    def event(self) -> None:
        """Count one more event."""
        with self._lock:
            self.events += 1
            number = self.events
        self._fault(number)


def kill_at(event: int) -> Fault:
    """SIGKILL this process instead of the event."""

    def fault(number: int) -> None:
        if number == event:
            os.kill(os.getpid(), signal.SIGKILL)

    return fault


def full_between(first: int, last: int) -> Fault:
    """Report a full disk for the events from `first` to `last`."""

    def fault(number: int) -> None:
        if first <= number <= last:
            raise apsw.FullError("database or disk is full")

    return fault


class FaultVfs(apsw.VFS):
    """Forwards everything to the default VFS through the meter. Close every connection before `unregister`.

    Args:
        counts_syncs: False where syncs can't fail in this way, as on a full disk.
    """

    def __init__(self, name: str, meter: Meter, *, counts_syncs: bool = True) -> None:
        self.name = name
        self.meter = meter
        self.counts_syncs = counts_syncs
        super().__init__(name, "unix")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> "FaultFile":  # noqa: N802
        return FaultFile(self, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        if self.counts_syncs:
            self.meter.event()
        super().xDelete(filename, syncdir)


class FaultFile(apsw.VFSFile):
    """One open file."""

    def __init__(self, vfs: FaultVfs, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self._vfs = vfs
        super().__init__("unix", name, flags)

    def excepthook(
        self,
        etype: type[BaseException] | None,
        evalue: BaseException | None,
        etraceback: TracebackType | None,
    ) -> bool:
        """Stay silent where SQLite itself ignores a failure: it is the injected one."""
        return True

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        self._vfs.meter.event()
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        if self._vfs.counts_syncs:
            self._vfs.meter.event()
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:  # noqa: N802
        if self._vfs.counts_syncs:
            self._vfs.meter.event()
        super().xSync(flags)


class MeteredSyncer(FileSyncer):
    """The store's own syncer, with its events counted."""

    def __init__(self, meter: Meter, path: Path) -> None:
        super().__init__(path)
        self._meter = meter

    def sync(self) -> None:
        """See `Syncer.sync`."""
        self._meter.event()
        super().sync()

    def grow(self, size_bytes: int) -> None:
        """See `Syncer.grow`."""
        self._meter.event()
        super().grow(size_bytes)


BUSY_MILLISECONDS = 10_000


class QuietlyClosing(apsw.Connection):
    """A connection whose `close` ignores the failures that SQLite's own VFS would not raise.

    SQLite ignores failures while it closes (the log stays, and is read at the next opening); apsw would raise them.
    """

    def close(self, force: bool = False) -> None:
        with contextlib.suppress(apsw.FullError, apsw.IOError):
            super().close(force)


@contextmanager
def planned_failures() -> Iterator[None]:
    """Ignore injected failures that apsw can't raise: of two in one statement it raises the last."""
    usual = sys.unraisablehook

    def hook(unraisable: "sys.UnraisableHookArgs") -> None:
        if not isinstance(unraisable.exc_value, apsw.FullError | apsw.IOError):
            usual(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = usual


def quiet_driver() -> Driver:
    """Return apsw with connections that close quietly."""

    def connect(path: str, vfs: str) -> SqliteConnection:
        connection = QuietlyClosing(path, vfs=vfs or None)
        connection.set_busy_timeout(BUSY_MILLISECONDS)
        opened: SqliteConnection = connection
        return opened

    return replace(apsw_driver(), connect=connect)

"""An SQLite VFS over the disk model: files work as usual, and the power may be cut at any moment.

The real files act as the page cache: every reader sees them, and the cut loses them.
"""

import errno
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import apsw

from tests.faults.disk import Directory, Truncate, Wreck, Write


@dataclass(slots=True)
class Handle:
    """One open descriptor and the device failures it has reported."""

    failures_seen: int = 0


class PowerDisk:
    """Tracks which data of one folder is durable. Events are writes, truncations, deletions, and both ends of syncs.

    Args:
        on_event: called under the lock with each event's number before it takes effect: the moment to `wreck()`.
        sync_pause: called between begin and end of each sync, without the lock, so that others go on meanwhile.
    """

    def __init__(
        self, on_event: Callable[[int], None] = lambda _: None, sync_pause: Callable[[], None] = lambda: None
    ) -> None:
        self._directory = Directory()
        self._lock = threading.RLock()
        self._on_event = on_event
        self._sync_pause = sync_pause
        self._syncs_to_fail = 0
        self._failures: dict[str, int] = {}
        self.events = 0
        self.syncs = 0

    def write(self, name: str, offset: int, data: bytes) -> None:
        """Record bytes that are only in the page cache."""
        with self._lock:
            self._event()
            self._directory.open(name).pending.append(Write(offset, data))

    def truncate(self, name: str, size: int) -> None:
        """Record a size that is only in the page cache."""
        with self._lock:
            self._event()
            self._directory.open(name).pending.append(Truncate(size))

    def create(self, name: str) -> bool:
        """Record that a file was opened; return True when that made it."""
        with self._lock:
            made = self._directory.find(name) is None
            if made:
                self._event()
                self._directory.open(name)
            return made

    def delete(self, name: str) -> None:
        """Record that a name was removed from the folder."""
        with self._lock:
            self._event()
            self._directory.delete(name)

    def sync(self, name: str, handle: "Handle") -> None:
        """Make a file's present content durable. Raises `OSError` when the device failed.

        After a failed sync the file is as Linux leaves it: the changes stay visible, count as written, and are never
        durable; each handle reports the failure once.
        """
        with self._lock:
            self._event()
            inode = self._directory.find(name)
            mark = inode.changes if inode is not None else 0
        self._sync_pause()
        with self._lock:
            self._event()
            self.syncs += 1
            if inode is None:
                return
            if self._syncs_to_fail:
                self._syncs_to_fail -= 1
                self._failures[name] = self._failures.get(name, 0) + 1
                inode.lose(mark)
            else:
                inode.sync(mark)
            if self._failures.get(name, 0) > handle.failures_seen:
                handle.failures_seen = self._failures[name]
                raise OSError(errno.EIO, "Input/output error", name)

    def sync_directory(self) -> None:
        """Make every name durable."""
        with self._lock:
            self._event()
            self._directory.sync()

    def fail_syncs(self, number: int) -> None:
        """Fail the next syncs, of any file."""
        with self._lock:
            self._syncs_to_fail = number

    def wreck(self) -> Wreck:
        """Return the disk as a cut at this moment leaves it."""
        with self._lock:
            return self._directory.wreck()

    def _event(self) -> None:
        self.events += 1
        self._on_event(self.events)


class PowerSyncer:
    """Replaces the store's own syncer, on the modelled disk."""

    def __init__(self, disk: PowerDisk, path: Path) -> None:
        self._disk = disk
        self._path = path
        self._name = path.name
        self._handle = Handle()

    def sync(self) -> None:
        """See `Syncer.sync`."""
        self._disk.sync(self._name, self._handle)

    def grow(self, size_bytes: int) -> None:
        """See `Syncer.grow`."""
        with self._path.open("r+b") as file:
            present_bytes = file.seek(0, os.SEEK_END)
            if present_bytes < size_bytes:
                self._disk.write(self._name, present_bytes, bytes(size_bytes - present_bytes))
                file.write(bytes(size_bytes - present_bytes))

    def close(self) -> None:
        """Do nothing."""


class PowerVfs(apsw.VFS):
    """Forwards everything to the default VFS and records it on the disk. Close every connection before `unregister`."""

    def __init__(self, name: str, disk: PowerDisk) -> None:
        self.name = name
        self.disk = disk
        super().__init__(name, "unix")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> "PowerFile":  # noqa: N802
        return PowerFile(self.disk, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        self.disk.delete(Path(filename).name)
        super().xDelete(filename, syncdir)
        if syncdir:
            self.disk.sync_directory()


class PowerFile(apsw.VFSFile):
    """One open file; the disk ignores temporary files without a name."""

    def __init__(self, disk: PowerDisk, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        filename = name.filename() if isinstance(name, apsw.URIFilename) else name
        self._disk = disk
        self._handle = Handle()
        self._name = Path(filename).name if filename else ""
        # SQLite's own VFS syncs the folder with the first sync of a log or journal, and of no other file.
        self._syncs_folder = bool(flags[0] & (apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_MAIN_JOURNAL))
        super().__init__("unix", name, flags)
        if self._name:
            self._syncs_folder = self._disk.create(self._name) and self._syncs_folder

    def excepthook(
        self,
        etype: type[BaseException] | None,
        evalue: BaseException | None,
        etraceback: TracebackType | None,
    ) -> bool:
        """Stay silent where SQLite itself ignores a failure: it is the injected one."""
        return True

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        if self._name:
            self._disk.write(self._name, offset, bytes(data))
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        if self._name:
            self._disk.truncate(self._name, newsize)
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:  # noqa: N802
        # No real sync is needed: the model decides what survives.
        if self._name:
            try:
                self._disk.sync(self._name, self._handle)
            except OSError as error:
                raise apsw.IOError(str(error)) from error
            if self._syncs_folder:
                self._disk.sync_directory()
                self._syncs_folder = False


def materialise(files: dict[str, bytes], folder: Path) -> None:
    """Write the surviving files into an empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)

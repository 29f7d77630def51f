"""Notice that the files a store has open are no longer those at its path: moved, removed or replaced.

What is written to them then is lost with the process, or never found again, so nothing more may be acknowledged.
"""

import os
from pathlib import Path

from queue_core.clock import Clock
from queue_core.errors import StoreUnavailableError

KINDS = ("", "-wal", "-shm")
SETTLED_MICROSECONDS = 3_000_000
"""A folder's time of change is relied on once it is older: two changes within a tick of its clock, 2 s on the coarsest
file systems, leave one time."""
GLANCE_SECONDS = 0.1
"""How old the last look may be where nothing is synced: a look costs more than a tenth of a change there."""

File = tuple[int, int]


class Identity:
    """Compares device and inode of the file, its log and the log's index with those that were opened.

    A look at the folder alone, 1.5 us, tells that none was moved, removed or replaced in it since the last comparison.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        """Args:
        path: of the store's file, which is there and will be opened next.
        clock: the host's, which stamps the folder.
        """
        self._path = path
        self._folder = os.fspath(path.parent)
        self._clock = clock
        self._looked_at = 0.0
        self._quiet: tuple[int, int, int] | None = None
        self._opened: dict[str, File] = {"": found} if (found := self._at("")) is not None else {}

    def opened(self) -> None:
        """Keep which files are open; called when all of them are. Raises `StoreUnavailableError`."""
        for kind in KINDS:
            found = self._at(kind)
            if found is None or self._opened.setdefault(kind, found) != found:
                raise self._error(kind, found)

    def check(self) -> None:
        """Raise `StoreUnavailableError` when one of the files is not at its path any more."""
        try:
            folder = os.stat(self._folder)  # noqa: PTH116 - on the way of every change
        except OSError:
            raise self._error("", None) from None
        seen = folder.st_mtime_ns, folder.st_ino, folder.st_dev
        if seen == self._quiet:
            return
        for kind, opened in self._opened.items():
            if (found := self._at(kind)) != opened:
                self._quiet = None
                raise self._error(kind, found)
        is_settled = self._clock.now() - folder.st_mtime_ns // 1000 > SETTLED_MICROSECONDS
        self._quiet = seen if is_settled else None

    def glance(self) -> None:
        """The same, unless it was done a moment ago."""
        now = self._clock.monotonic()
        if now - self._looked_at >= GLANCE_SECONDS:
            self.check()
            self._looked_at = now

    def _at(self, kind: str) -> File | None:
        try:
            found = self._path.with_name(self._path.name + kind).stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _error(self, kind: str, found: File | None) -> StoreUnavailableError:
        became = "was moved or removed" if found is None else "was replaced by another file"
        return StoreUnavailableError(
            f"{self._path}{kind} {became} while it was open: no change is acknowledged, as it would be lost. "
            "Put the file back; or, before this process ends, save what it still holds: `towline backup FILE`"
        )

"""What workers write, in one file each: bounded while they live, kept for a while when they are dead.

Files, not pipes: a worker that outlives its supervisor must not be ended by a broken pipe.
"""

import contextlib
import os
from collections.abc import Collection
from pathlib import Path
from typing import Final

MAX_LOG_BYTES: Final = 4 * 1024 * 1024
KEPT_LOG_BYTES: Final = 256 * 1024
MAX_DEAD_LOGS: Final = 50
MAX_LAST_LINES: Final = 20
MAX_LINE_CHARS: Final = 500
MAX_STACK_LINES: Final = 200

_TAIL_BYTES: Final = 16 * 1024
_STACK_BYTES: Final = 64 * 1024
_STACK_LINES: Final = ("Thread 0x", "Current thread 0x", '  File "', "  ...")
_SUFFIX: Final = ".log"


class WorkerLogs:
    """The folder of workers' logs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def path(self, worker: str) -> Path:
        """Where a worker's output goes."""
        return self._folder / f"{worker}{_SUFFIX}"

    def open(self, worker: str) -> int:
        """A file descriptor for a new worker's output; the caller closes it.

        It appends, so that `trim` may shorten the file while the worker goes on writing. Where no file can be made the
        output is dropped: a worker without a log is better than none.
        """
        try:
            return os.open(self.path(worker), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError:
            return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)

    def last_lines(self, worker: str) -> tuple[str, ...]:
        """The last lines a worker wrote: up to 20, each cut to 500 characters; none when there is no log."""
        return tuple(self._tail(worker, _TAIL_BYTES)[-MAX_LAST_LINES:])

    def stack(self, worker: str) -> tuple[str, ...]:
        """The last stack of all its threads that a worker wrote (see `faulthandler`), at most 200 lines."""
        stack: list[str] = []
        for line in reversed(self._tail(worker, _STACK_BYTES)):
            if line.startswith(_STACK_LINES):
                stack.append(line)
            elif stack:
                break
        return tuple(reversed(stack[:MAX_STACK_LINES]))

    def _tail(self, worker: str, size: int) -> list[str]:
        try:
            with self.path(worker).open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - size))
                text = file.read(size).decode(errors="replace")
        except OSError:
            return []
        return [line[:MAX_LINE_CHARS] for line in text.splitlines() if line.strip()]

    def trim(self, live: Collection[str]) -> None:
        """Cut logs that grew beyond 4 MiB to their last 256 KiB, and forget all but the 50 newest of the dead.

        What a worker writes between the copy and the cut is lost.
        """
        dead: list[tuple[float, Path]] = []
        for entry in os.scandir(self._folder):
            if not entry.name.endswith(_SUFFIX):
                continue
            status = entry.stat()
            if status.st_size > MAX_LOG_BYTES:
                with contextlib.suppress(OSError):  # a full disk, most likely: next time
                    _cut(Path(entry.path))
            if entry.name.removesuffix(_SUFFIX) not in live:
                dead.append((status.st_mtime, Path(entry.path)))
        for _, path in sorted(dead)[:-MAX_DEAD_LOGS]:
            path.unlink(missing_ok=True)


def _cut(path: Path) -> None:
    with path.open("rb") as file:
        file.seek(-KEPT_LOG_BYTES, os.SEEK_END)
        kept = file.read(KEPT_LOG_BYTES)
    os.truncate(path, 0)
    with path.open("ab") as file:
        file.write(kept[kept.find(b"\n") + 1 :])

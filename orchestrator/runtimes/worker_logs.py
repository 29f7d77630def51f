"""Workers' output, in two files each: bounded while they live, kept for a while after they end.

Files, not pipes: a worker that outlives its supervisor must not be ended by a broken pipe. The file that a worker
writes to can't be replaced, so a log that grew too large is copied and emptied, as logrotate's `copytruncate` does.
The supervisor checks sizes each turn, and the watchdog does where there is no supervisor (ADR 12).
"""

import contextlib
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Final

from orchestrator.state.private_files import make_folder

MAX_LOG_BYTES: Final = 8 * 1024 * 1024
"""Size at which a log is rotated; with the one before it, 16 MiB of a worker's output are kept."""
KEPT_ON_FULL_DISK_BYTES: Final = 64 * 1024
"""Size of the end of a log that is kept when a full disk has no room for the second file."""
MAX_DEAD_LOGS: Final = 50
"""Logs of ended workers that are kept."""
MAX_LAST_LINES: Final = 20
"""Lines of output in a worker's exit."""
MAX_LINE_CHARS: Final = 500
"""Length at which such a line is cut."""
MAX_STACK_LINES: Final = 200
"""Lines of a stack dump that are kept."""

_TAIL_BYTES: Final = 16 * 1024
_STACK_BYTES: Final = 64 * 1024
_STACK_LINES: Final = ("Thread 0x", "Current thread 0x", "Stack (", '  File "', "  ...")
_HEADINGS: Final = ("Thread 0x", "Current thread 0x", "Stack (")
_CALLS: Final = ('  File "', "  ...")
_FATAL: Final = "Fatal Python error: "
LOG_SUFFIX: Final = ".log"
BEFORE_SUFFIX: Final = ".log.1"
_PART: Final = ".log.part"
ROTATED_MARK: Final = "(towline: rotated; what came before is in "
_LATE_READS: Final = 8
_LATE_BYTES: Final = 64 * 1024
_COPIED_BYTES: Final = MAX_LOG_BYTES - _LATE_READS * _LATE_BYTES


def _is_unknown(_worker: str) -> bool:
    return False


class WorkerLogs:
    """The folder of workers' logs."""

    def __init__(self, folder: Path, *, is_alive: Callable[[str], bool] = _is_unknown) -> None:
        """`is_alive`: whether another runtime of the same folder runs this worker, whose log must stay."""
        self._folder = folder
        self._is_alive = is_alive
        make_folder(folder)

    def path(self, worker: str) -> Path:
        """Return the file of a worker's output."""
        return self._folder / f"{worker}{LOG_SUFFIX}"

    def path_before(self, worker: str) -> Path:
        """Return the file of a worker's output before the last rotation."""
        return self._folder / f"{worker}{BEFORE_SUFFIX}"

    def open(self, worker: str) -> int:
        """Open a worker's log and return the file descriptor; the caller closes it.

        It appends, so the file may be emptied while the worker writes. If the file can't be created, the output is
        dropped: a worker without a log is better than none.
        """
        try:
            return os.open(self.path(worker), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError:
            return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)

    def last_lines(self, worker: str, *, without_stack: bool = False) -> tuple[str, ...]:
        """Return the worker's last lines of output: up to 20, each cut to 500 characters.

        `without_stack`: a stack dump of all threads does not count. It is longer than that, and would hide the words
        in which the worker said before it what it hangs at.
        """
        if not without_stack:
            lines = self._tail(worker, _TAIL_BYTES, at_least=MAX_LAST_LINES)
            if len(without_dumps(lines)) < len(lines):
                lines = without_dumps(self._tail(worker, _STACK_BYTES, at_least=MAX_LAST_LINES))
            return tuple(lines[-MAX_LAST_LINES:])
        lines = self._tail(worker, _STACK_BYTES, at_least=MAX_LAST_LINES)
        return tuple([line for line in lines if not line.startswith(_STACK_LINES)][-MAX_LAST_LINES:])

    def stack(self, worker: str) -> tuple[str, ...]:
        """Return the last stack dump of all threads that a worker wrote (see `faulthandler`), at most 200 lines."""
        stack: list[str] = []
        for line in reversed(self._tail(worker, _STACK_BYTES, at_least=MAX_STACK_LINES)):
            if line.startswith(_STACK_LINES):
                stack.append(line)
            elif stack:
                break
        return tuple(reversed(stack[:MAX_STACK_LINES]))

    def fatal_stack(self, worker: str) -> tuple[str, ...]:
        """Return the stack that a worker wrote as a fault ended it; nothing without one."""
        lines = self._tail(worker, _STACK_BYTES, at_least=MAX_STACK_LINES)
        begins = [index for index, line in enumerate(lines) if line.startswith(_FATAL)]
        return tuple([line for line in lines[begins[-1] :] if line.startswith(_STACK_LINES)]) if begins else ()

    def rotate(self, workers: Iterable[str]) -> list[str]:
        """Rotate those workers' logs that grew beyond 8 MiB, and return these workers. Costs one `stat` each.

        Output written between the last copied byte and the truncation is lost; more is, of a flood.
        """
        return [worker for worker in workers if self._rotate(worker)]

    def trim(self, live: Collection[str]) -> None:
        """Rotate all logs that are too large, and delete all but the 50 newest logs of ended workers.

        A worker's log that is deleted while it lives would be lost, and grow on unseen.
        """
        dead: list[tuple[float, str]] = []
        names: list[str] = []
        for entry in os.scandir(self._folder):
            if not entry.name.endswith(LOG_SUFFIX):
                continue
            worker = entry.name.removesuffix(LOG_SUFFIX)
            names.append(worker)
            if worker not in live and not self._is_alive(worker):
                with contextlib.suppress(OSError):
                    dead.append((entry.stat().st_mtime, worker))
        self.rotate(names)
        for _, worker in sorted(dead)[:-MAX_DEAD_LOGS]:
            self.path(worker).unlink(missing_ok=True)
            self.path_before(worker).unlink(missing_ok=True)

    def rotate_all(self) -> None:
        """Rotate every log in the folder that is too large."""
        self.rotate(
            [
                entry.name.removesuffix(LOG_SUFFIX)
                for entry in os.scandir(self._folder)
                if entry.name.endswith(LOG_SUFFIX)
            ]
        )

    def _rotate(self, worker: str) -> bool:
        path = self.path(worker)
        try:
            status = os.stat(path)  # noqa: PTH116  called for each worker in each turn
            if status.st_size <= MAX_LOG_BYTES:
                return False
            try:
                self._copy(worker)
                kept = b""
            except OSError:  # a full disk, most likely, and this log may have filled it
                kept = self._give_way(worker)
            os.truncate(path, 0)
            with path.open("ab") as file:
                file.write(kept or f"{ROTATED_MARK}{self.path_before(worker).name})\n".encode())
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # the time of its last line, see ADR 12
        except OSError:
            return False
        return True

    def _copy(self, worker: str) -> None:
        """Copy the end of the log, from its first whole line on, to the second file."""
        part = self._folder / f"{worker}{_PART}"
        with self.path(worker).open("rb") as source, part.open("wb") as target:
            os.fchmod(target.fileno(), 0o600)
            size = source.seek(0, os.SEEK_END)
            source.seek(max(0, size - _COPIED_BYTES))
            kept = source.read(_COPIED_BYTES)
            target.write(kept[kept.find(b"\n") + 1 :])
            for _ in range(_LATE_READS):  # written meanwhile; bounded, as a flood never ends
                late = source.read(_LATE_BYTES)
                target.write(late)
                if not late:
                    break
        part.replace(self.path_before(worker))

    def _give_way(self, worker: str) -> bytes:
        (self._folder / f"{worker}{_PART}").unlink(missing_ok=True)
        self.path_before(worker).unlink(missing_ok=True)
        with self.path(worker).open("rb") as file:
            file.seek(-KEPT_ON_FULL_DISK_BYTES, os.SEEK_END)
            kept = file.read(KEPT_ON_FULL_DISK_BYTES)
        return kept[kept.find(b"\n") + 1 :]

    def _tail(self, worker: str, size: int, *, at_least: int) -> list[str]:
        """Return the end of the output, each line cut to 500 characters; read past a rotation if it is short."""
        lines = _lines_at_the_end(self.path(worker), size)
        if len(lines) < at_least:
            lines = _lines_at_the_end(self.path_before(worker), size) + lines
        return [line[:MAX_LINE_CHARS] for line in lines]


def without_dumps(lines: Sequence[str]) -> list[str]:
    """Return the lines without stacks that somebody asked a running worker for: they say nothing of its end. Pure.

    The stack of a fault stays, and so do tracebacks.
    """
    kept: list[str] = []
    is_dump = has_fault = False
    for line in lines:
        has_fault = has_fault or line.startswith(_FATAL)
        if line.startswith(_HEADINGS) and not has_fault:
            is_dump = True
        elif not line.startswith(_CALLS):
            is_dump = False
        if not is_dump:
            kept.append(line)
    return kept


def _lines_at_the_end(path: Path, size: int) -> list[str]:
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - size))
            text = file.read(size).decode(errors="replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip() and not line.startswith(ROTATED_MARK)]

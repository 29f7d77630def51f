"""Read workers' output from the files of `worker_logs`: its end, and what is new since, past rotations.

Readers are other processes and threads than the writers; every read is bounded.
"""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, Final
from zlib import crc32

from orchestrator.runtimes.worker_logs import BEFORE_SUFFIX, LOG_SUFFIX, MAX_LOG_BYTES, ROTATED_MARK

MAX_LINE_BYTES: Final = 64 * 1024
"""Length from which on a line without an end counts as one."""
MAX_KEPT_FAILURES: Final = 50
"""Failures of handlers that are shown of output that is left out, at most in one look."""
_FAILURE: Final = b'"event":"handler.'
_BLOCK_BYTES: Final = 64 * 1024
_CHECKED_BYTES: Final = 256
_MAX_JSON_CHARS: Final = MAX_LINE_BYTES


@dataclass(frozen=True, slots=True)
class OutputLine:
    """A line of a worker's output. `at` is the time in it, in seconds since the epoch; None for plain text."""

    text: str
    at: float | None = None

    @property
    def entry(self) -> dict[str, object] | None:
        """The line as a log entry; None for plain text."""
        return entry_in(self.text)


@dataclass(frozen=True, slots=True)
class OutputPosition:
    """A place in a worker's output: an offset in the file, and a checksum of the bytes before it.

    After a rotation the checksum fits no more there, but in the file before.
    """

    offset: int = 0
    checksum: int = 0
    checked_bytes: int = 0


@dataclass(frozen=True, slots=True)
class OutputPiece:
    """Lines, the position behind them, and how many lines before them were left out; -1: some, but not how many."""

    lines: Sequence[OutputLine]
    position: OutputPosition
    skipped: int = 0


class WorkerOutput:
    """The output of all workers of a state directory, live and ended."""

    def __init__(self, state_dir: Path) -> None:
        self._folder = state_dir / "workers"

    def workers(self) -> list[str]:
        """Return the workers whose output is there, the least recently written first."""
        try:
            names = [entry.name for entry in os.scandir(self._folder) if entry.name.endswith(LOG_SUFFIX)]
        except FileNotFoundError:
            return []
        return sorted((name.removesuffix(LOG_SUFFIX) for name in names), key=self.written_at)

    def written_at(self, worker: str) -> float:
        """Return when the worker last wrote, in seconds since the epoch; 0 without output."""
        try:
            return self._path(worker).stat().st_mtime
        except OSError:
            return 0.0

    def last(self, worker: str, *, lines: int) -> OutputPiece:
        """Return the last lines; the position is the end of the last whole one."""
        data, size = _end_of(self._path(worker), lines=lines)
        whole = data.rfind(b"\n") + 1
        position = _position(data[:whole], size - (len(data) - whole))
        found = _lines(data)
        if len(found) < lines:
            found = _lines(_end_of(self._path_before(worker), lines=lines - len(found))[0]) + found
        return OutputPiece(found[-lines:] if lines else (), position)

    def after(self, worker: str, position: OutputPosition, *, max_bytes: int) -> OutputPiece:
        """Return the whole lines behind a position; where there are more than `max_bytes`, only the last of them.

        Of those left out, the first entries on failures of handlers are returned too, `MAX_KEPT_FAILURES` at most.
        """
        path = self._path(worker)
        if position.offset and self._size(path) == position.offset:
            return OutputPiece((), position)
        before: list[OutputLine] = []
        skipped = 0
        try:
            with path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                if size < position.offset or not _fits(file, position):
                    before, skipped = self._before_rotation(worker, position, max_bytes=max_bytes)
                    position = OutputPosition()
                if size - position.offset > max_bytes:
                    begin = size - max_bytes - 1  # one more: a line may begin just there
                    file.seek(begin)
                    cut = file.read(max_bytes + 1)
                    start = cut.find(b"\n") + 1
                    data, offset = cut[start:], begin + start
                    file.seek(position.offset)
                    left_out, failures = _left_out(file.read(offset - position.offset))
                    skipped = skipped + len(before) + left_out if skipped >= 0 else skipped
                    before = failures
                else:
                    file.seek(position.offset)
                    data, offset = file.read(max_bytes), position.offset
        except OSError:
            return OutputPiece((), position)
        whole = data.rfind(b"\n") + 1 or (len(data) if len(data) >= MAX_LINE_BYTES else 0)
        if not whole:
            return OutputPiece(before, position, skipped)
        kept = data[:whole]
        return OutputPiece([*before, *_lines(kept)], _position(kept, offset + whole), skipped)

    def _before_rotation(
        self, worker: str, position: OutputPosition, *, max_bytes: int
    ) -> tuple[list[OutputLine], int]:
        """Return what stood behind the position when the log was rotated, as far as that can be found."""
        try:
            data = self._path_before(worker).read_bytes()
        except OSError:
            return [], 0
        start = _found_in(data, position)
        if start is None:
            return [], -1
        rest = data[start:]
        if len(rest) <= max_bytes:
            return _lines(rest), 0
        begin = rest.find(b"\n", len(rest) - max_bytes - 1) + 1 or len(rest) - max_bytes
        left_out, failures = _left_out(rest[:begin])
        return [*failures, *_lines(rest[begin:])], left_out

    def _size(self, path: Path) -> int:
        try:
            return path.stat().st_size
        except OSError:
            return -1

    def _path(self, worker: str) -> Path:
        return self._folder / f"{worker}{LOG_SUFFIX}"

    def _path_before(self, worker: str) -> Path:
        return self._folder / f"{worker}{BEFORE_SUFFIX}"


def entry_in(text: str) -> dict[str, object] | None:
    """Return a line of JSON as a log entry; None for anything else."""
    if not text.startswith("{") or len(text) > _MAX_JSON_CHARS:
        return None
    try:
        entry = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) else None


def time_in(entry: dict[str, object] | None) -> float | None:
    """Return the time of a log entry in seconds since the epoch; None where it has none."""
    stamp = entry.get("timestamp") if entry is not None else None
    if not isinstance(stamp, str):
        return None
    try:
        return datetime.fromisoformat(stamp).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def _lines(data: bytes) -> list[OutputLine]:
    return list(_each_line(data))


def _each_line(data: bytes) -> Iterator[OutputLine]:
    for raw in data.decode(errors="replace").split("\n"):
        text = raw.removesuffix("\r")
        if text.strip() and not text.startswith(ROTATED_MARK):
            yield OutputLine(text, time_in(entry_in(text)))


def _left_out(data: bytes) -> tuple[int, list[OutputLine]]:
    """Return how many lines are left out of these, and the entries among them that are kept all the same."""
    kept: list[OutputLine] = []
    at = data.find(_FAILURE)
    while at >= 0 and len(kept) < MAX_KEPT_FAILURES:
        begin, end = data.rfind(b"\n", 0, at) + 1, data.find(b"\n", at)
        end = len(data) if end < 0 else end
        if data[begin : begin + 1] == b"{":
            kept += _lines(data[begin:end])
        at = data.find(_FAILURE, end)
    return data.count(b"\n") - len(kept), kept


def _end_of(path: Path, *, lines: int) -> tuple[bytes, int]:
    """Return the end of a file with at least so many lines, from the beginning of one on; and the file's size."""
    wanted = _BLOCK_BYTES
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            while True:
                begin = max(0, size - wanted)
                file.seek(begin)
                data = file.read(size - begin)
                if begin == 0:
                    return data, len(data)
                if data.count(b"\n") > lines or wanted >= MAX_LOG_BYTES:
                    return data[data.find(b"\n") + 1 :], begin + len(data)
                wanted *= 2
    except OSError:
        return b"", 0


def _position(before: bytes, offset: int) -> OutputPosition:
    checked = before[-_CHECKED_BYTES:]
    return OutputPosition(offset, crc32(checked), len(checked))


def _fits(file: BinaryIO, position: OutputPosition) -> bool:
    """Return whether the file still has before the position what stood there; False after a rotation."""
    if not position.checked_bytes:
        file.seek(0)
        return not file.read(len(ROTATED_MARK)).startswith(ROTATED_MARK.encode())
    file.seek(position.offset - position.checked_bytes)
    return crc32(file.read(position.checked_bytes)) == position.checksum


def _found_in(data: bytes, position: OutputPosition) -> int | None:
    """Return where the position is in the file before the rotation; None when that part is gone."""
    if not position.checked_bytes:
        return 0
    end = len(data)
    while end >= position.checked_bytes:
        if crc32(data[end - position.checked_bytes : end]) == position.checksum:
            return end
        end = data.rfind(b"\n", 0, end - 1) + 1
    return None

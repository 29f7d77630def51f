"""Exports queues to a file (settings, held names and tasks) while they are in use.

Tasks are read in id order, in chunks, each as it is then; a long snapshot would block the store's maintenance. Tasks
that a deletion adds (`then`) have higher ids and are read later, so none is missed. Only whole lines are written; a
truncated file is resumed after the last of them.
"""

import contextlib
import gzip
import hashlib
import os
import sys
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Literal, TypeAlias, TypeVar
from uuid import uuid4

from queue_core.errors import BadFileError, CutShortError, UnknownQueueError
from queue_core.process.private_files import opener
from queue_core.store import Store, Transaction
from queue_core.task import ANY
from queue_core.transfer.chunks import name_chunks, task_chunks
from queue_core.transfer.format import Footer, Header, NameLine, footer_line, header_line, name_line, task_line
from queue_core.transfer.reader import ExportReader, opened_for_reading

PIECE_BYTES: Final = 1 << 20
"""Bytes that are written, and compressed as one gzip member, at a time."""
LEVEL: Final = 6
"""The gzip level, 1 (fast) to 9 (small)."""
_GZIP_WINDOW: Final = 31  # selects the gzip format in zlib


class ExportWriter:
    """Appends lines to a binary file."""

    def __init__(self, file: BinaryIO, *, is_compressed: bool, digest: "hashlib._Hash | None" = None) -> None:
        """`digest`: the checksum of the lines already in the file."""
        self._file = file
        self._is_compressed = is_compressed
        self._digest = digest or hashlib.sha256()
        self._lines: list[bytes] = []
        self._bytes = 0

    def write(self, line: bytes) -> None:
        """Buffer a line; it is written with its piece."""
        self._lines.append(line)
        self._bytes += len(line)
        if self._bytes >= PIECE_BYTES:
            self.flush()

    def sha256(self) -> str:
        """Return the checksum of all lines so far."""
        self.flush()
        return self._digest.hexdigest()

    def flush(self) -> None:
        """Write all buffered lines."""
        if not self._lines:
            return
        piece = b"".join(self._lines)
        self._lines, self._bytes = [], 0
        self._digest.update(piece)
        self._file.write(gzip.compress(piece, LEVEL, mtime=0) if self._is_compressed else piece)
        self._file.flush()

    def sync(self) -> None:
        """Make all lines durable, if the file supports it."""
        self.flush()
        with contextlib.suppress(OSError):  # a pipe or a terminal has nothing to sync
            os.fsync(self._file.fileno())


def truncate_to_whole_pieces(path: Path) -> None:
    """Truncate a compressed file after its last whole gzip member."""
    os.truncate(path, _whole_bytes(path))


def _whole_bytes(path: Path) -> int:
    """Return the total length of the whole gzip members at the beginning of a file."""
    whole = read = 0
    member = zlib.decompressobj(_GZIP_WINDOW)
    with path.open("rb") as file:
        while block := file.read(PIECE_BYTES):
            read += len(block)
            while block:
                try:
                    member.decompress(block)
                except zlib.error:
                    return whole
                block = member.unused_data
                if member.eof:
                    whole = read - len(block)
                    member = zlib.decompressobj(_GZIP_WINDOW)
    return whole


Progress: TypeAlias = Callable[[str, int, int], None]
"""A callback with a queue, the number of its tasks that are done, and their total."""

T = TypeVar("T")

STDOUT: Final = Path("-")


@dataclass(frozen=True, slots=True)
class ExportResult:
    """The contents of the file; `was_whole`: it was complete before, so nothing was done."""

    header: Header
    tasks: int
    names: int
    was_whole: bool = False


@dataclass(slots=True)
class _Position:
    """The position in a file: counts of its lines, and the last of them."""

    tasks: int = 0
    names: int = 0
    queue: str = ""
    stage: Literal["names", "tasks"] = "names"
    after_name: str | None = None
    after_id: int = 0


def export(
    store: Store, path: Path, queues: Sequence[str] = (), *, progress: Progress, mode: Literal["new", "resume"] = "new"
) -> ExportResult:
    """Export queues of a store to a new file, or complete one.

    Args:
        path: `-` is stdout; a name that ends in .gz is compressed.
        queues: by default all that were not moved.
        mode: `resume` completes a truncated file, or begins a new one.

    Raises `FileExistsError` if a new file exists, `UnknownQueueError`, `BadFileError` for a file to resume that is not
    an export of this store, `OSError`, `StoreError`.
    """
    if mode == "resume" and path.exists():
        return _resume(store, path, queues, progress=progress)
    header = _header(store, queues)
    if path == STDOUT:
        return _write(store, ExportWriter(sys.stdout.buffer, is_compressed=False), header, None, progress=progress)
    with open(path, "xb", opener=opener) as file:
        return _write(store, _writer(file, path), header, None, progress=progress)


def _header(store: Store, queues: Sequence[str]) -> Header:
    with store.read() as snapshot:
        chosen = [snapshot.queue(name) for name in dict.fromkeys(queues)] if queues else snapshot.queues()
        specs = tuple(spec for spec in chosen if queues or not spec.moved_to)
    if not specs:
        raise UnknownQueueError(f"no queues to export in {store.url}: those it has were moved, or it has none")
    return Header(uuid4().hex, store.clock.now(), store.url, specs)


def _writer(file: BinaryIO, path: Path) -> ExportWriter:
    return ExportWriter(file, is_compressed=path.suffix == ".gz")


def _resume(store: Store, path: Path, queues: Sequence[str], *, progress: Progress) -> ExportResult:
    if path.suffix == ".gz":
        truncate_to_whole_pieces(path)
    position = _Position()
    with opened_for_reading(path) as found:
        try:
            reader = ExportReader(found, name=str(path), now=store.clock.now())
        except CutShortError:
            reader = None  # truncated in its first line
        if reader is not None and _read_to_end(reader, position):
            return ExportResult(reader.header, position.tasks, position.names, was_whole=True)
    if reader is None:
        path.unlink()
        return export(store, path, queues, progress=progress)
    header = reader.header
    if header.source != store.url:
        raise BadFileError(f"{path}: is an export of {header.source}, not of {store.url}: resume it there")
    if queues and {*queues} != {spec.name for spec in header.queues}:
        names = ", ".join(spec.name for spec in header.queues)
        raise BadFileError(f"{path}: is an export of {names}: give those queues, or none, to resume it")
    with path.open("r+b") as file:
        if path.suffix != ".gz":
            file.truncate(reader.whole_bytes)
        file.seek(0, 2)
        writer = ExportWriter(file, is_compressed=path.suffix == ".gz", digest=reader.digest)
        return _write(store, writer, header, position, progress=progress)


def _read_to_end(reader: ExportReader, position: _Position) -> bool:
    """Read to the last whole line and update the position; return whether the file is complete."""
    try:
        for record in reader.records():
            if record.queue != position.queue:
                position.queue, position.stage, position.after_name, position.after_id = record.queue, "names", None, 0
            if isinstance(record, NameLine):
                position.names += 1
                position.after_name = record.held.name
            else:
                position.tasks += 1
                position.stage, position.after_id = "tasks", record.id
    except CutShortError:
        return False
    return True


def _write(
    store: Store, writer: ExportWriter, header: Header, position: _Position | None, *, progress: Progress
) -> ExportResult:
    if position is None:
        position = _Position()
        writer.write(header_line(header))
        writer.flush()  # so that an export killed at once can be resumed
    names = [spec.name for spec in header.queues]
    left = names[names.index(position.queue) :] if position.queue else names
    for queue in left:
        if queue != position.queue:
            position.queue, position.stage, position.after_name, position.after_id = queue, "names", None, 0
        _write_queue(store, writer, position, progress=progress)
    writer.write(footer_line(Footer(position.tasks, position.names, writer.sha256())))
    writer.sync()
    return ExportResult(header, position.tasks, position.names)


def _write_queue(store: Store, writer: ExportWriter, position: _Position, *, progress: Progress) -> None:
    def read(operation: Callable[[Transaction], T], /) -> T:
        with store.read() as transaction:
            return operation(transaction)

    now = store.clock.now()
    counts = read(lambda transaction: transaction.stats(position.queue, ANY, now=now))
    total = counts.pending + counts.dead
    if position.stage == "names":
        for held in name_chunks(read, position.queue, after=position.after_name, now=now):
            for name in held:
                writer.write(name_line(position.queue, name))
            position.names += len(held)
    done = 0
    for chunk in task_chunks(read, position.queue, after=position.after_id, now=now):
        for task in chunk.tasks:
            writer.write(task_line(task))
        done += len(chunk.tasks)
        position.tasks += len(chunk.tasks)
        progress(position.queue, done, total)

"""Exports queues to a file: settings, held names and tasks, beside everything that goes on.

Tasks are read in id order, some at a time, each as it stands then; no snapshot is held for long, as that would keep the
store from tidying up. What a task hands on to while it is deleted has a higher id, so it is read later and not missed.
Whole lines only are written; a file that was cut short is taken up after the last of them.
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
from queue_core.store import Store, Transaction
from queue_core.task import ANY
from queue_core.transfer.chunks import name_chunks, task_chunks
from queue_core.transfer.format import Footer, Header, NameLine, footer_line, header_line, name_line, task_line
from queue_core.transfer.reader import ExportReader, opened_for_reading

PIECE_BYTES: Final = 1 << 20
LEVEL: Final = 6
_GZIP_WINDOW: Final = 31  # zlib's way to say gzip


class ExportWriter:
    """Appends lines to a binary file."""

    def __init__(self, file: BinaryIO, *, is_compressed: bool, digest: "hashlib._Hash | None" = None) -> None:
        """`digest` is that of the lines that the file has already."""
        self._file = file
        self._is_compressed = is_compressed
        self._digest = digest or hashlib.sha256()
        self._lines: list[bytes] = []
        self._bytes = 0

    def write(self, line: bytes) -> None:
        """Add a line; it reaches the file with its piece."""
        self._lines.append(line)
        self._bytes += len(line)
        if self._bytes >= PIECE_BYTES:
            self.flush()

    def sha256(self) -> str:
        """The checksum of all lines so far."""
        self.flush()
        return self._digest.hexdigest()

    def flush(self) -> None:
        """Hand all lines to the system."""
        if not self._lines:
            return
        piece = b"".join(self._lines)
        self._lines, self._bytes = [], 0
        self._digest.update(piece)
        self._file.write(gzip.compress(piece, LEVEL, mtime=0) if self._is_compressed else piece)
        self._file.flush()

    def sync(self) -> None:
        """Have all lines survive a power cut, where the file can."""
        self.flush()
        with contextlib.suppress(OSError):  # a pipe or a terminal has nothing to sync
            os.fsync(self._file.fileno())


def cut_to_whole_pieces(path: Path) -> None:
    """Take off the end of a compressed file what is not a whole gzip member."""
    os.truncate(path, _whole_bytes(path))


def _whole_bytes(path: Path) -> int:
    """How long the whole members at the beginning of a file are."""
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
"""Told of a queue, how many of its tasks are done, and of how many."""

T = TypeVar("T")

STDOUT: Final = Path("-")


@dataclass(frozen=True, slots=True)
class ExportResult:
    """What the file holds now; `was_whole`: it was complete already, and nothing was done."""

    header: Header
    tasks: int
    names: int
    was_whole: bool = False


@dataclass(slots=True)
class _Place:
    """How far a file is: counts of its lines, and the last of them."""

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
        queues: by default, all that were not moved elsewhere.
        mode: `resume` takes up a file where it was cut short, or begins it.

    Raises `FileExistsError` for a new file that is there, `UnknownQueueError`, `BadFileError` for a file to resume that
    is none of this store's, `OSError`, `StoreError`.
    """
    if mode == "resume" and path.exists():
        return _resume(store, path, queues, progress=progress)
    header = _header(store, queues)
    if path == STDOUT:
        return _write(store, ExportWriter(sys.stdout.buffer, is_compressed=False), header, None, progress=progress)
    with path.open("xb") as file:
        return _write(store, _writer(file, path), header, None, progress=progress)


def _header(store: Store, queues: Sequence[str]) -> Header:
    with store.read() as look:
        chosen = [look.queue(name) for name in dict.fromkeys(queues)] if queues else look.queues()
        specs = tuple(spec for spec in chosen if queues or not spec.moved_to)
    if not specs:
        raise UnknownQueueError(f"no queues to export in {store.url}: those it has were moved, or it has none")
    return Header(uuid4().hex, store.clock.now(), store.url, specs)


def _writer(file: BinaryIO, path: Path) -> ExportWriter:
    return ExportWriter(file, is_compressed=path.suffix == ".gz")


def _resume(store: Store, path: Path, queues: Sequence[str], *, progress: Progress) -> ExportResult:
    if path.suffix == ".gz":
        cut_to_whole_pieces(path)
    place = _Place()
    with opened_for_reading(path) as found:
        try:
            reader = ExportReader(found, name=str(path), now=store.clock.now())
        except CutShortError:
            reader = None  # killed before its first line was whole
        if reader is not None and _walk(reader, place):
            return ExportResult(reader.header, place.tasks, place.names, was_whole=True)
    if reader is None:
        path.unlink()
        return export(store, path, queues, progress=progress)
    header = reader.header
    if header.source != store.url:
        raise BadFileError(f"{path}: is an export of {header.source}, not of {store.url}: resume it there")
    if queues and {*queues} != {spec.name for spec in header.queues}:
        told = ", ".join(spec.name for spec in header.queues)
        raise BadFileError(f"{path}: is an export of {told}: name those queues, or none, to resume it")
    with path.open("r+b") as file:
        if path.suffix != ".gz":
            file.truncate(reader.whole_bytes)
        file.seek(0, 2)
        writer = ExportWriter(file, is_compressed=path.suffix == ".gz", digest=reader.digest)
        return _write(store, writer, header, place, progress=progress)


def _walk(reader: ExportReader, place: _Place) -> bool:
    """Read to the last whole line, keeping the place; whether it is the end."""
    try:
        for record in reader.records():
            if record.queue != place.queue:
                place.queue, place.stage, place.after_name, place.after_id = record.queue, "names", None, 0
            if isinstance(record, NameLine):
                place.names += 1
                place.after_name = record.held.name
            else:
                place.tasks += 1
                place.stage, place.after_id = "tasks", record.id
    except CutShortError:
        return False
    return True


def _write(
    store: Store, writer: ExportWriter, header: Header, place: _Place | None, *, progress: Progress
) -> ExportResult:
    if place is None:
        place = _Place()
        writer.write(header_line(header))
        writer.flush()  # so that even a file that is killed at once can be taken up
    names = [spec.name for spec in header.queues]
    left = names[names.index(place.queue) :] if place.queue else names
    for queue in left:
        if queue != place.queue:
            place.queue, place.stage, place.after_name, place.after_id = queue, "names", None, 0
        _write_queue(store, writer, place, progress=progress)
    writer.write(footer_line(Footer(place.tasks, place.names, writer.sha256())))
    writer.sync()
    return ExportResult(header, place.tasks, place.names)


def _write_queue(store: Store, writer: ExportWriter, place: _Place, *, progress: Progress) -> None:
    def look(step: Callable[[Transaction], T], /) -> T:
        with store.read() as transaction:
            return step(transaction)

    now = store.clock.now()
    counts = look(lambda transaction: transaction.stats(place.queue, ANY, now=now))
    total = counts.ready + counts.delayed + counts.in_flight + counts.dead
    if place.stage == "names":
        for held in name_chunks(look, place.queue, after=place.after_name, now=now):
            for name in held:
                writer.write(name_line(place.queue, name))
            place.names += len(held)
    done = 0
    for chunk in task_chunks(look, place.queue, after=place.after_id, now=now):
        for task in chunk.tasks:
            writer.write(task_line(task))
        done += len(chunk.tasks)
        place.tasks += len(chunk.tasks)
        progress(place.queue, done, total)

"""Reads an export line by line and verifies order, completeness and checksum; errors name the file and the line.

Memory is bounded by the longest line. A truncated file raises another error than an invalid one.
"""

import gzip
import hashlib
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, cast

from queue_core.clock import Instant
from queue_core.errors import BadFileError, CutShortError
from queue_core.process.wording import counted
from queue_core.task import StoredTask
from queue_core.transfer.format import (
    MAX_HEADER_BYTES,
    MAX_LINE_BYTES,
    BadFieldError,
    Footer,
    Header,
    NameLine,
    Record,
    record_of,
)

COMPLETED: Final = "`towline export --resume` completes it; or export again"


_CUT_IN_A_HEADER: Final = "(b'\\x1f')"
"""The end of `gzip`'s error for a file that ends after the first byte of a member; an export has several members."""


class ExportReader:
    """Reads the lines of one export in one pass."""

    def __init__(self, file: BinaryIO, *, name: str, now: Instant) -> None:
        """Read the header. Raises `BadFileError`, `CutShortError`.

        Args:
            name: the file's name in errors.
            now: limits the etas, see `record_of`.
        """
        self._file = file
        self._name = name
        self._now = now
        self._digest = hashlib.sha256()
        self._last_ids: dict[str, int] = {}
        self.lines = 0
        self.whole_bytes = 0
        self.tasks = 0
        self.names = 0
        self.footer: Footer | None = None
        record = self._next()
        if not isinstance(record, Header):
            raise self._bad("kind", "the first line must be a header; give a file that `towline export` wrote")
        self.header = record
        self._last_ids = dict.fromkeys((spec.name for spec in record.queues), 0)

    def records(self, *, after_line: int = 1) -> Iterator[StoredTask | NameLine]:
        """Yield the records after a line; lines before it only count for the checksum.

        Raises `BadFileError` for an invalid line, a wrong checksum or count, and data after the footer; `CutShortError`
        for a file without footer.
        """
        while self.lines < after_line:
            self._digest.update(self._line())
        while True:
            record = self._next()
            if isinstance(record, Footer):
                self._check_end(record)
                return
            if isinstance(record, Header):
                raise self._bad("kind", "a second header: put each export in a file of its own")
            yield record

    @property
    def digest(self) -> "hashlib._Hash":
        """The checksum of the lines read so far."""
        return self._digest.copy()

    def _next(self) -> Record:
        line = self._line()
        try:
            record = record_of(line, now=self._now)
            if isinstance(record, Footer):
                return record
            if isinstance(record, StoredTask | NameLine):
                self._count(record)
        except BadFieldError as error:
            raise self._bad(error.field, error.problem) from None
        self._digest.update(line)
        self.whole_bytes += len(line)
        return record

    def _count(self, record: StoredTask | NameLine) -> None:
        if record.queue not in self._last_ids:
            known = ", ".join(self._last_ids) or "none"
            raise BadFieldError("queue", f"must be one of the header's ({known}): {record.queue!r}")
        if isinstance(record, NameLine):
            self.names += 1
            return
        if record.id <= self._last_ids[record.queue]:
            raise BadFieldError("id", f"must rise from task to task: {record.id} after {self._last_ids[record.queue]}")
        self._last_ids[record.queue] = record.id
        self.tasks += 1

    def _line(self) -> bytes:
        try:
            most = MAX_LINE_BYTES if self.lines else MAX_HEADER_BYTES
            line = self._file.readline(most + 1)
        except EOFError:
            line = b""
        except (gzip.BadGzipFile, zlib.error) as error:
            if str(error).endswith(_CUT_IN_A_HEADER):
                raise CutShortError(f"{self._name}: the compressed file ends early: {COMPLETED}") from None
            raise BadFileError(f"{self._name}: after line {self.lines}: not whole as gzip: {error}") from None
        if not line.endswith(b"\n"):
            if len(line) > most:
                self.lines += 1
                raise self._bad("the line", f"must have at most {most} bytes; is this an export?")
            where = f"in line {self.lines + 1}" if line else f"after line {self.lines}"
            raise CutShortError(f"{self._name}: ends {where}, before its footer: {COMPLETED}")
        self.lines += 1
        return line

    def _check_end(self, footer: Footer) -> None:
        if footer.sha256 != self._digest.hexdigest():
            raise self._bad("sha256", "does not match the lines before it: the file was changed; export again")
        if footer.tasks + footer.names + 2 != self.lines:
            raise self._bad(
                "tasks",
                f"counts {counted(footer.tasks, 'task')} and {counted(footer.names, 'name')} in {self.lines - 2} lines",
            )
        if self._reads_on():
            raise self._bad("the line", "must be the last: more data follows; export again")
        self.footer = footer

    def _reads_on(self) -> bool:
        try:
            return bool(self._file.read(1))
        except EOFError:
            raise CutShortError(f"{self._name}: the compressed file ends early: {COMPLETED}") from None
        except (gzip.BadGzipFile, zlib.error):
            return True

    def _bad(self, field: str, problem: str) -> BadFileError:
        return BadFileError(f"{self._name}:{self.lines}: {field}: {problem}")


def opened_for_reading(path: Path) -> BinaryIO:
    """Open a file, decompressing it if its name ends in .gz. Raises `OSError`."""
    return cast("BinaryIO", gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb")

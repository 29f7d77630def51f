"""Writes an export: whole lines, hashed, in pieces; a file that was cut short is taken up after its last whole line.

Compressed, each piece is a gzip member of its own, so that what was written before a kill can be read and added to.
"""

import contextlib
import gzip
import hashlib
import os
import zlib
from pathlib import Path
from typing import BinaryIO, Final

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

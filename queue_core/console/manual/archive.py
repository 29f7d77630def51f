"""The file that has the manual's site, and what is in it. It is unpacked into memory when somebody looks, once."""

import hashlib
import lzma
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Final

from queue_core.console.manual.search import INDEX, search_index

ARCHIVE: Final = Path(__file__).parent / "site.tar.xz"
"""Written by `python3 run.py docs`; a checkout has none before that."""

MAX_BYTES: Final = 64 << 20
"""Bytes of all files, at most: the archive is our own, and this is many times its size."""

MEDIA_TYPES: Final[Mapping[str, str]] = MappingProxyType(
    {
        ".css": "text/css; charset=utf-8",
        ".html": "text/html; charset=utf-8",
        ".js": "text/javascript; charset=utf-8",
        ".json": "application/json",
        ".png": "image/png",
        ".svg": "image/svg+xml",
        ".txt": "text/plain; charset=utf-8",
        ".webp": "image/webp",
    }
)
"""The media types of the manual's files; a file of another kind is in no archive."""


@dataclass(frozen=True, slots=True)
class ManualFile:
    """A file of the manual."""

    data: bytes
    media_type: str
    etag: str


def _file(data: bytes, media_type: str) -> ManualFile:
    return ManualFile(data, media_type, f'"{hashlib.sha256(data).hexdigest()[:24]}"')


def read_manual(path: Path = ARCHIVE) -> Mapping[str, ManualFile] | None:
    """Return the manual's files by their paths; None: this copy of the program has no manual."""
    if not path.is_file():
        return None
    files: dict[str, ManualFile] = {}
    left = MAX_BYTES
    pages: dict[str, bytes] = {}
    with lzma.open(path) as plain, tarfile.open(fileobj=plain, mode="r|") as tar:
        for member in tar:
            media_type = MEDIA_TYPES.get(PurePosixPath(member.name).suffix)
            content = tar.extractfile(member) if member.isfile() else None
            left -= member.size
            if media_type is None or content is None or left < 0:
                continue
            pages[member.name] = content.read()
            files[member.name] = _file(pages[member.name], media_type)
    files[INDEX] = _file(search_index(pages), MEDIA_TYPES[".json"])
    return MappingProxyType(files)

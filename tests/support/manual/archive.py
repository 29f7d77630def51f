"""Packs the site into the one file that the package has: most of each page is the same as in the others."""

import lzma
import tarfile
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from queue_core.console.manual.archive import ARCHIVE
from queue_core.console.manual.search import INDEX
from tests.support.manual.site import build_site

_EPOCH: Final = 315_532_800
"""1980-01-01: the same pages are packed into the same bytes."""


def packed(site: Path) -> bytes:
    """Return the archive of a site."""
    return lzma.compress(tar_of(site), preset=9 | lzma.PRESET_EXTREME)


def tar_of(site: Path) -> bytes:
    """Return the files of a site in one, without the index, which is made of them; always as the same bytes."""
    plain = BytesIO()
    # Pages side by side, then texts of other kinds: what is alike lies close together.
    files = sorted((path.suffix, path) for path in site.rglob("*") if path.is_file() and path.name != INDEX)
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for _, path in files:
            data = path.read_bytes()
            info = tarfile.TarInfo(path.relative_to(site).as_posix())
            info.size, info.mtime, info.mode = len(data), _EPOCH, 0o644
            tar.addfile(info, BytesIO(data))
    return plain.getvalue()


def write_archive(path: Path = ARCHIVE) -> int:
    """Build the site and pack it; return its size in bytes."""
    with TemporaryDirectory() as folder:
        site = Path(folder) / "site"
        build_site(site)
        data = packed(site)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return len(data)

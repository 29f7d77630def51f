"""Make folders and files that their owner alone may read, whatever the umask: of workers, deaths, orders and tokens."""

import os
from pathlib import Path
from typing import Final

FOLDER_MODE: Final = 0o700
FILE_MODE: Final = 0o600


def make_folder(path: Path) -> None:
    """Make a folder, and those above it that are missing, with one mode for all: `mkdir(parents=True)` would give those
    above the umask's. One that is there keeps its mode. Raises `OSError`."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=FOLDER_MODE, exist_ok=True)
    path.mkdir(mode=FOLDER_MODE, exist_ok=True)  # raises for a file of that name


def opener(path: str, flags: int) -> int:
    """For `open`: a new file gets the mode, one that is there keeps its own."""
    return os.open(path, flags | os.O_CLOEXEC, FILE_MODE)

"""Create folders and files that only their owner may read, whatever the umask: some hold tokens."""

import os
from pathlib import Path
from typing import Final

FOLDER_MODE: Final = 0o700
FILE_MODE: Final = 0o600


def make_folder(path: Path) -> None:
    """Create a folder and its missing parents, all with `FOLDER_MODE`; an existing folder keeps its mode.

    `mkdir(parents=True)` would create the parents with the umask's mode. Raises `OSError`.
    """
    missing = [each for each in (path, *path.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=FOLDER_MODE, exist_ok=True)
    path.mkdir(mode=FOLDER_MODE, exist_ok=True)  # raises for a file of that name


def opener(path: str, flags: int) -> int:
    """Open a file for `open(..., opener=opener)`: a new file gets `FILE_MODE`, an existing one keeps its own."""
    return os.open(path, flags | os.O_CLOEXEC, FILE_MODE)

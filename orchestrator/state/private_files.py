"""Create folders that only their owner may read, whatever the umask: some hold tokens."""

import secrets
from pathlib import Path
from typing import Final

from queue_core.process.private_files import opener

FOLDER_MODE: Final = 0o700
_IDENTITY_FILE: Final = "holder"


def make_folder(path: Path) -> None:
    """Create a folder and its missing parents, all with `FOLDER_MODE`; an existing folder keeps its mode.

    `mkdir(parents=True)` would create the parents with the umask's mode. Raises `OSError`.
    """
    missing = [each for each in (path, *path.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=FOLDER_MODE, exist_ok=True)
    path.mkdir(mode=FOLDER_MODE, exist_ok=True)  # raises for a file of that name


def identity_of_folder(folder: Path) -> str:
    """Return the random id of a folder, which it keeps; the folder and its id are created if missing.

    A folder that is removed and made anew has another one. Raises `OSError`.
    """
    make_folder(folder)
    path = folder / _IDENTITY_FILE
    try:
        with open(path, "x", encoding="ascii", opener=opener) as file:
            file.write(secrets.token_hex(8))
    except FileExistsError:
        pass
    return known_identity(folder)


def known_identity(folder: Path) -> str:
    """Return the id that `identity_of_folder` gave the folder. Raises `OSError` without one."""
    return (folder / _IDENTITY_FILE).read_text(encoding="ascii").strip()


def is_same_folder(folder: Path, identity: str) -> bool:
    """Return whether the folder at this path still has this id: another may have taken its place."""
    try:
        return known_identity(folder) == identity
    except OSError:
        return False

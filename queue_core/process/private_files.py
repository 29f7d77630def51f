"""Create files that other users of the host can't read, or can't change, whatever the umask."""

import os
from typing import Final

FILE_MODE: Final = 0o600
SOURCE_MODE: Final = 0o644


def opener(path: str, flags: int) -> int:
    """Open a file for `open(..., opener=opener)`: a new file gets `FILE_MODE`, an existing one keeps its own."""
    return os.open(path, flags | os.O_CLOEXEC, FILE_MODE)


def source_opener(path: str, flags: int) -> int:
    """The same for a file without secrets that others may read, such as a program's source or a chart."""
    return os.open(path, flags | os.O_CLOEXEC, SOURCE_MODE)

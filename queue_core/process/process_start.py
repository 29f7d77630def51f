"""When a process of this machine started: with its id, what tells it from a later process of the same id."""

from contextlib import suppress
from pathlib import Path
from typing import Final

_STATE: Final = 0
_START: Final = 19
"""Places in `/proc/PID/stat` after the program's name."""


def process_start(pid: int) -> str:
    """Return when a living process started, as its kernel counts it; "": there is none, or it has ended."""
    if pid <= 0:
        return ""
    with suppress(OSError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return "" if fields[_STATE] in "ZXx" else fields[_START]
    if Path("/proc/self/stat").exists():
        return ""
    import psutil  # only a machine without /proc pays for the import

    try:
        process = psutil.Process(pid)
        return "" if process.status() == psutil.STATUS_ZOMBIE else str(process.create_time())
    except psutil.Error:
        return ""

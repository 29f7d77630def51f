"""Whether a worker's supervisor lives: it holds a lock on a file for as long as it does.

Not by the parent's pid: a supervisor that was restarted adopts its workers without becoming their parent.
"""

import fcntl
import os
from pathlib import Path


def supervisor_lives(lock: Path) -> bool:
    """Whether somebody holds the lock. A file that is gone or unreadable counts as nobody."""
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        # Shared, so that workers who look at the same moment do not take each other for the supervisor.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


class OrphanWatch:
    """How long the supervisor has been away; one that comes back sets it to nothing."""

    def __init__(self, lock: Path) -> None:
        self._lock = lock
        self._absent_since: float | None = None

    def absent_seconds(self, *, now: float) -> float:
        """Seconds for which nobody held the lock, as far as calls of this have seen."""
        if supervisor_lives(self._lock):
            self._absent_since = None
            return 0.0
        if self._absent_since is None:
            self._absent_since = now
        return now - self._absent_since

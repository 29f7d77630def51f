"""Keep one watchdog process running that outlives its supervisor; a locked file shows that it runs."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from orchestrator.runtimes.watchdog import is_held

_PACKAGE_ROOT: Final = Path(__file__).parents[2]


class WatchdogProcess:
    """A supervisor's watchdog process of one kind. Belongs to one thread."""

    def __init__(self, module: str, lock: Path) -> None:
        """Args:
        module: its function `watch` runs in a Python without site packages.
        lock: the file that a watchdog holds locked while it runs.
        """
        self._run = f"import sys; sys.path.insert(0, sys.argv[1]); from {module} import watch; watch(*sys.argv[2:])"
        self._lock = lock
        self._process: subprocess.Popen[bytes] | None = None

    def keep(self, *arguments: str) -> None:
        """Start the watchdog with these arguments of `watch`, unless one runs, such as an earlier supervisor's.

        Raises `OSError` when it can't be started now; a later call may succeed.
        """
        is_ours_alive = self._process is not None and self._process.poll() is None
        if is_ours_alive or self._is_running():
            return
        self._process = None
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-E", "-P", "-c", self._run, str(_PACKAGE_ROOT), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )

    def collect(self) -> None:
        """Collect the watchdog if it has ended."""
        if self._process is not None:
            self._process.poll()

    def leave(self) -> None:
        """Leave the watchdog running without us, as long as it has something to watch."""
        if self._process is not None and self._process.poll() is None:
            self._process.returncode = 0  # not ours to wait for

    def _is_running(self) -> bool:
        try:
            lock = os.open(self._lock, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            return is_held(lock)
        except OSError:
            return False
        finally:
            os.close(lock)

"""Keeps one warden on duty: a process that outlives its supervisor, and tells that it is there by a lock on a file."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from orchestrator.runtimes.warden import is_held

_PACKAGE_ROOT: Final = Path(__file__).parents[2]


class WatchdogProcess:
    """One kind of warden of one supervisor. Belongs to one thread."""

    def __init__(self, module: str, duty: Path) -> None:
        """Args:
        module: its `watch` is run, in a Python without site packages.
        duty: the file that a warden holds locked while it is on duty.
        """
        self._run = f"import sys; sys.path.insert(0, sys.argv[1]); from {module} import watch; watch(*sys.argv[2:])"
        self._duty = duty
        self._process: subprocess.Popen[bytes] | None = None

    def keep(self, *arguments: str) -> None:
        """Start one with these arguments of `watch`, unless one is on duty: that of the supervisor before us stays.

        Raises `OSError` when none can be started now; another call may have more luck.
        """
        is_ours_alive = self._process is not None and self._process.poll() is None
        if is_ours_alive or self._is_on_duty():
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
        """Collect ours if it has ended."""
        if self._process is not None:
            self._process.poll()

    def leave(self) -> None:
        """Let it go on without us, as long as there is somebody to look after."""
        if self._process is not None and self._process.poll() is None:
            self._process.returncode = 0  # not ours to wait for

    def _is_on_duty(self) -> bool:
        try:
            duty = os.open(self._duty, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            return is_held(duty)
        except OSError:
            return False
        finally:
            os.close(duty)

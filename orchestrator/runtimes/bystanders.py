"""Children of a supervisor that are no workers: its warden, those of the program before it, a container's orphans."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Final

from orchestrator.runtimes import procfs

_WARDEN: Final = "import sys; sys.path.insert(0, sys.argv[1]); from orchestrator.runtimes import warden; "


class Bystanders:
    """Keeps a warden on duty and collects whoever else ends. Belongs to one thread."""

    def __init__(self, state_dir: Path, *, lock: Path | None) -> None:
        """`lock` is the file that a living supervisor holds locked; without one there is no warden."""
        self._state_dir = state_dir
        self._lock = lock
        self._warden: subprocess.Popen[bytes] | None = None
        # Children that were there before us are of a program that was executed in this process until now.
        self._inherited = set(procfs.children_of(os.getpid()))

    def keep_warden(self) -> None:
        """Start a warden unless one is on duty: that of the supervisor before us stays for the workers it left.

        Where none can be started now, another call may have more luck.
        """
        is_ours_alive = self._warden is not None and self._warden.poll() is None
        if self._lock is None or is_ours_alive or self._is_on_duty():
            return
        package_root = Path(__file__).parents[2]
        try:
            self._warden = subprocess.Popen(
                [
                    *(sys.executable, "-S", "-E", "-P", "-c", f"{_WARDEN} warden.watch(*sys.argv[2:])"),
                    *(str(package_root), str(self._state_dir), str(self._lock)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
        except OSError:
            self._warden = None

    def collect(self, *, workers: Collection[int]) -> None:
        """Collect who has ended, but for `workers`; their pids are kept until their own end is told.

        As the first process of a container everybody's orphans are ours.
        """
        if self._warden is not None:
            self._warden.poll()
        self._inherited.difference_update([pid for pid in self._inherited.difference(workers) if _is_collected(pid)])
        if os.getpid() != 1:
            return
        while (pid := _first_ended()) and pid not in workers:
            _is_collected(pid)
        if pid:  # the end of a worker hides those of others until it is collected
            for orphan in set(procfs.ended_children_of(1)).difference(workers):
                _is_collected(orphan)

    def leave(self) -> None:
        """Let the warden go on without us, as long as there is a worker to look after."""
        if self._warden is not None and self._warden.poll() is None:
            self._warden.returncode = 0  # not ours to wait for

    def _is_on_duty(self) -> bool:
        try:
            duty = os.open(self._state_dir / "warden.lock", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(duty, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        finally:
            os.close(duty)
        return False


def _first_ended() -> int:
    """A child that has ended and is not collected yet; 0 without one."""
    try:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return 0
    return ended.si_pid if ended else 0


def _is_collected(pid: int) -> bool:
    """Collect a child if it has ended; whether it is collected, now or before."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG) is not None
    except ChildProcessError:
        return True

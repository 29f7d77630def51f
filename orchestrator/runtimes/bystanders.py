"""Children of a supervisor that are no workers: its warden, those of the program before it, a container's orphans."""

import contextlib
import os
from collections.abc import Collection
from pathlib import Path

from orchestrator.runtimes import procfs
from orchestrator.runtimes.warden_duty import WardenDuty


class Bystanders:
    """Keeps a warden on duty and collects whoever else ends. Belongs to one thread."""

    def __init__(self, state_dir: Path, *, lock: Path | None) -> None:
        """`lock` is the file that a living supervisor holds locked; without one there is no warden."""
        self._state_dir = state_dir
        self._lock = lock
        self._warden = WardenDuty("orchestrator.runtimes.warden", state_dir / "warden.lock")
        # Children that were there before us are of a program that was executed in this process until now.
        self._inherited = set(procfs.children_of(os.getpid()))

    def keep_warden(self) -> None:
        """Start a warden unless one is on duty: that of the supervisor before us stays for the workers it left.

        Where none can be started now, another call may have more luck.
        """
        if self._lock is not None:
            with contextlib.suppress(OSError):
                self._warden.keep(str(self._state_dir), str(self._lock))

    def collect(self, *, workers: Collection[int]) -> None:
        """Collect who has ended, but for `workers`; their pids are kept until their own end is told.

        As the first process of a container everybody's orphans are ours.
        """
        self._warden.collect()
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
        self._warden.leave()


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

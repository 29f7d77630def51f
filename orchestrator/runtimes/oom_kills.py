"""Kills for want of memory by the kernel: certain where its log can be read, else a perhaps.

The kernel counts such kills for a control group, not for a process: a template, a handler's child or any other process
of the group may be the one that was killed.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, Literal

from orchestrator.base.clock import Monotonic
from orchestrator.runtimes import procfs

RECENT_SECONDS: Final = 10.0
"""A kill that was counted longer ago than this has nothing to do with a process that ends now."""
KERNEL_LOG: Final = "/dev/kmsg"
MAX_RECORDS: Final = 100_000
"""Records of the kernel's log that are read at most."""
_RECORD_BYTES: Final = 8192
_FIRST_PID_NAMESPACE: Final = "pid:[4026531836]"
_KILLED: Final = re.compile(rb"^[^;]*?,[^,;]*,(?P<at>\d+),[^;]*;.*Killed process (?P<pid>\d+)[ ,]")
_MICROSECONDS: Final = 1e6

Verdict = Literal["yes", "no", "unknown"]


class OomKills:
    """The kernel's kills for want of memory in our control group. Belongs to one thread."""

    def __init__(self, *, count: Callable[[], int] = procfs.out_of_memory_kills) -> None:
        self._count = count
        self._counted = count()
        self._rises: list[tuple[Monotonic, int]] = []

    def watch(self, *, now: Monotonic) -> None:
        """Count the kills since the last call; call it each turn, so that an old kill is not taken for a new one."""
        before, self._counted = self._counted, max(self._counted, self._count())
        if self._counted > before:
            self._rises.append((now, self._counted - before))
        self._rises = [rise for rise in self._rises if now - rise[0] <= RECENT_SECONDS]

    @property
    def recent(self) -> int:
        """The number of processes that the kernel ended in the last seconds."""
        return sum(number for _, number in self._rises)


def ended_by_kernel(pid: int, *, since_boot_seconds: float) -> Verdict:
    """Return whether the kernel's log says that it ended this process, which began at `since_boot_seconds`.

    Unknown where the log can't be read, and in a container, whose pids the log does not know.
    """
    try:
        if str(Path("/proc/self/ns/pid").readlink()) != _FIRST_PID_NAMESPACE:
            return "unknown"
        return "yes" if is_killed_in(_kernel_log(), pid, since_boot_seconds=since_boot_seconds) else "no"
    except OSError:
        return "unknown"


def is_killed_in(records: Iterable[bytes], pid: int, *, since_boot_seconds: float) -> bool:
    """Return whether records of the kernel's log say that it ended a process that began at this time after the boot."""
    for record in records:
        found = _KILLED.match(record)
        if found and int(found["pid"]) == pid and int(found["at"]) / _MICROSECONDS >= since_boot_seconds:
            return True
    return False


def killed_perhaps(number: int) -> str:
    """Return what is known of a worker's SIGKILL while the kernel ended `number` processes; "" when it ended none."""
    if not number:
        return ""
    ended = "1 process" if number == 1 else f"{number:,} processes"
    return f"perhaps by the kernel: it ended {ended} of this control group at that time because it ran out of memory"


def _kernel_log() -> Iterator[bytes]:
    """Yield the records of the kernel's log, oldest first."""
    log = os.open(KERNEL_LOG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        for _ in range(MAX_RECORDS):
            try:
                yield os.read(log, _RECORD_BYTES)
            except BrokenPipeError:  # it was overwritten before it was read
                continue
            except BlockingIOError:  # that was the last
                return
    finally:
        os.close(log)

"""The memory of this worker that counts against its limit: of a forked worker what it shares with no other process.

Its supervisor counts likewise (`orchestrator.runtimes.forked_memory`), so both compare the same with `recycle.memory`.
"""

from typing import Final

from queue_core.worker.settings import resident_bytes

READ_SECONDS: Final = 10.0
"""Interval between two readings of what is shared: the kernel looks at every page, some ms for an application."""


class OwnMemory:
    """Measures the memory of this process. Belongs to one thread."""

    def __init__(self, *, is_forked: bool) -> None:
        self._is_forked = is_forked
        self._shared_bytes = 0
        self._read_at = float("-inf")

    def measure(self, *, limit_bytes: int, now: float) -> int:
        """Return the bytes that count, exact enough to be compared with `limit_bytes`.

        What is shared is read only if all of it is beyond the limit, and every 10 s at most.
        """
        resident = resident_bytes()
        if not self._is_forked or resident < limit_bytes:
            return resident
        if now - self._read_at >= READ_SECONDS:
            self._read_at = now
            self._shared_bytes = resident - _private_bytes(resident)
        return max(0, resident - self._shared_bytes)


def _private_bytes(resident: int) -> int:
    try:
        with open("/proc/self/smaps_rollup", encoding="ascii") as file:  # noqa: PTH123 - as procfs reads it
            return sum(int(line.split()[1]) * 1024 for line in file if line.startswith("Private_"))
    except OSError:  # no such file: then all of it counts
        return resident

"""SpareAddressSpace: what a worker keeps back to record a failure, and to end, where a handler has taken all memory.

It is reserved, and never touched: it takes no memory, but counts where a process's address space is limited
(`RLIMIT_AS`), which is where the interpreter is told that there is no memory.
"""

from contextlib import suppress
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, PROT_READ, mmap
from typing import Final

SPARE_BYTES: Final = 32 << 20
"""Two threads with their stacks, and some mebibytes of objects."""


class SpareAddressSpace:
    """Some address space that is there for bad times. Any thread may call."""

    def __init__(self, size: int = SPARE_BYTES) -> None:
        self._size = size
        self._kept: mmap | None = None
        self.take()

    def give(self) -> None:
        """Let others have it. Takes no memory itself."""
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.close()

    def take(self) -> bool:
        """Reserve it again after `give`; returns whether there is as much."""
        if self._kept is None:
            with suppress(OSError, MemoryError, ValueError):
                self._kept = mmap(-1, self._size, MAP_PRIVATE | MAP_ANONYMOUS, PROT_READ)
        return self._kept is not None

"""Memory that is free goes back to the system: what a server holds after the largest requests is what it held before.

The C library keeps freed memory for later, in as many heaps as there were threads, and an exception keeps the body that
it refuses until the garbage collector comes by, which a server without callers never sees (ADR 125).
"""

import asyncio
import ctypes
import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

LOOK_SECONDS: Final = 2.0
"""Between two looks at the size of the process, each of some microseconds."""
SPARE_BYTES: Final = 4 << 20
"""A server that has grown by less, between two looks or since it gave back, keeps it: it will be needed again."""
YOUNG: Final = 1
"""The generation up to which a server collects that has very many objects: the old ones may be all tasks of a store."""
MANY_BLOCKS: Final = 800_000
"""Blocks that a server has made since it began, up to which it collects the old ones too: some 30 ms. An error may have
grown old while its request waited, and it keeps the body."""
_BLOCKS_AT_START = sys.getallocatedblocks()
LONG_BLOCK_BYTES: Final = 256 << 10
"""Blocks of so many bytes are no part of a heap; glibc raises its own bound to 32 MiB after the first long body."""
HEAPS: Final = 2
"""The heaps of all threads together. Few threads wait for one another, as they need the interpreter's lock."""
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_STATM: Final = Path("/proc/self/statm")
_PAGE_BYTES: Final = 4 << 10


def give_back() -> None:
    """Collect garbage, and give free memory back; where the C library has no way to, nothing but that."""
    if sys.getallocatedblocks() - _BLOCKS_AT_START < MANY_BLOCKS:
        gc.collect()
    else:
        gc.collect(YOUNG)
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's; without the interpreter's lock
    if trim is not None:
        trim(0)


def keep_apart() -> None:
    """Let the C library ask the system for each long block, and keep two heaps at most: before threads are started."""
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_M_MMAP_THRESHOLD, LONG_BLOCK_BYTES)
        set_option(_M_ARENA_MAX, HEAPS)


def resident_bytes() -> int:
    """Return the size of this process in memory; 0 where the system has no `/proc`."""
    try:
        return int(_STATM.read_bytes().split()[1]) * _PAGE_BYTES
    except OSError:
        return 0


class LargeRequests(Protocol):
    """The requests of a listener, as far as they are not small: bytes under way, and bytes that ever arrived."""

    taken: int
    arrived: int


class SpareMemory:
    """Gives memory back once a process is quiet that was not: it has grown, or large requests have arrived."""

    def __init__(
        self,
        requests: LargeRequests,
        *,
        resident: Callable[[], int] = resident_bytes,
        give_back: Callable[[], None] = give_back,
    ) -> None:
        self._requests = requests
        self._resident = resident
        self._give_back = give_back
        self._arrived = requests.arrived
        self._kept_bytes = resident()
        self._has_spare = False

    def is_due(self) -> bool:
        """Return whether there may be something to give back, now that nothing has happened since the last look."""
        found, arrived = self._resident(), self._requests.arrived
        if found > self._kept_bytes + SPARE_BYTES or arrived != self._arrived:
            self._kept_bytes, self._arrived, self._has_spare = found, arrived, True
            return False
        self._kept_bytes = min(self._kept_bytes, found)
        return self._has_spare and not self._requests.taken

    async def look(self) -> None:
        """Give back what there is, in a thread: it takes some milliseconds for a hundred mebibytes."""
        if self.is_due():
            self._has_spare = False
            await asyncio.to_thread(self._give_back)
            self._kept_bytes = self._resident()

    async def run(self) -> None:
        """Look again and again."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.look()

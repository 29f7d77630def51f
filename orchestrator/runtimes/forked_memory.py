"""The memory of forked workers: without the part that they share with their template and with each other.

One more such worker takes just that, and just that ends with it. The proportional part (PSS) would change with the
number of workers, so a worker would reach `recycle.memory` because others ended.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from orchestrator.base.values import value
from orchestrator.runtimes import procfs

MOST_READINGS: Final = 2
"""Readings of shared memory in one measurement: each takes the supervisor some ms.

Between two readings a worker's own part is its resident memory beyond the shared part last read: growth is seen at
once, and only changes of shared pages are seen late.
"""


@value
class ForkedMemory:
    """The resident memory of one forked worker; `pid` is the process that runs its handlers."""

    worker: str
    pool: str
    pid: int
    resident_bytes: int


class ForkedMemoryMeter:
    """Measures the own memory of all forked workers. Belongs to one thread."""

    def __init__(self, *, most_readings: int = MOST_READINGS) -> None:
        self._most_readings = most_readings
        self._shared: dict[str, int] = {}
        self._shared_in_pool: dict[str, int] = {}
        self._read_in: dict[str, int] = {}
        self._readings = 0

    def own_bytes(self, workers: Sequence[ForkedMemory]) -> Mapping[str, int]:
        """Return the own memory of these workers; others are forgotten.

        A worker that was never read is taken to share as much as the last one read of its pool.
        """
        living = {one.worker for one in workers}
        for known in (self._shared, self._read_in):
            for worker in known.keys() - living:
                del known[worker]
        self._read(sorted(workers, key=self._urgency)[: self._most_readings])
        return {one.worker: max(0, one.resident_bytes - self._known_shared(one)) for one in workers}

    def _urgency(self, one: ForkedMemory) -> tuple[bool, int]:
        """Order by need: first those of which nothing is known, or nothing that fits; then by their last reading.

        A process that executes another program has less than it shared before.
        """
        is_known = one.pool in self._shared_in_pool and self._known_shared(one) < one.resident_bytes
        return is_known, self._read_in.get(one.worker, 0)

    def _read(self, workers: Iterable[ForkedMemory]) -> None:
        for one in workers:
            private = procfs.private_bytes(one.pid)
            if private is not None:
                self._shared[one.worker] = self._shared_in_pool[one.pool] = one.resident_bytes - private
            self._readings += 1
            self._read_in[one.worker] = self._readings

    def _known_shared(self, one: ForkedMemory) -> int:
        return self._shared.get(one.worker, self._shared_in_pool.get(one.pool, 0))

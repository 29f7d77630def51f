"""Which workers this server knows by their lease calls: who waits now, who called lately, who hung up. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from queue_core.stats import WorkerActivity

MAX_WORKERS = 20_000
"""Remembered at most; a worker that has been silent for longest is forgotten first."""


@dataclass(slots=True)
class WorkerPresence:
    """One worker on one queue. `at` is when its last call came or ended; `calls` are under way."""

    worker: str
    queue: str
    at: float
    calls: int = 0
    waits: bool = False
    hung_up: bool = False

    def describe(self, *, now: float) -> WorkerActivity:
        """Return what clients are shown of it."""
        silent_seconds = 0.0 if self.calls else max(0.0, now - self.at)
        return WorkerActivity(self.worker, round(silent_seconds, 3), self.waits, self.hung_up)


class Presence:
    """The workers of all queues. Nothing of it is stored; a server that starts knows nobody."""

    def __init__(self) -> None:
        self._workers: dict[tuple[str, str], WorkerPresence] = {}

    def call_began(self, queue: str, worker: str, *, waits: bool, now: float) -> None:
        """Note a call that came; one of a caller without a name counts for nobody."""
        if not worker:
            return
        key = (queue, worker)
        found = self._workers.pop(key, None)
        if found is None:
            found = WorkerPresence(worker, queue, now)
            if len(self._workers) >= MAX_WORKERS:
                del self._workers[next(iter(self._workers))]
        self._workers[key] = found
        found.at = now
        found.calls += 1
        found.waits = found.waits or waits
        found.hung_up = False

    def call_ended(self, queue: str, worker: str, *, now: float, hung_up: bool = False) -> None:
        """Note that a call was answered, or that its caller hung up."""
        found = self._workers.get((queue, worker))
        if found is not None:
            found.at = now
            found.calls = max(0, found.calls - 1)
            found.hung_up = hung_up

    def find(self, queue: str, workers: Iterable[str]) -> Iterator[WorkerPresence]:
        """Return those of these workers that called for leases of the queue."""
        return (found for worker in workers if (found := self._workers.get((queue, worker))) is not None)

    def with_prefix(self, queue: str, prefix: str) -> Iterator[WorkerPresence]:
        """Return those of a queue whose names begin so."""
        return (one for one in self._workers.values() if one.queue == queue and one.worker.startswith(prefix))

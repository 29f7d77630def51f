"""Lapses: leases that ended by themselves while a worker held them. Nobody ended them: what worked on them hangs."""

from collections.abc import Collection, Sequence
from typing import Final

from orchestrator.source import ReleasedTask
from queue_core.stats import FinishedLease

MAX_WORKERS: Final = 10_000
"""Workers whose lapses are remembered; the oldest go first."""
MAX_LAPSES: Final = 100
"""Lapses of one worker that are remembered; the oldest go first."""


def is_lapse(lease: FinishedLease) -> bool:
    """Return whether a lease ended by time, or by its worker for a handler that ran on at its end."""
    return lease.outcome == "expired" or lease.overran


def released_task(lease: FinishedLease) -> ReleasedTask:
    """Return an ended lease as the task that it leaves."""
    return ReleasedTask(lease.queue, lease.name, lease.tag, lease.held_seconds, lease.lease_number, lease.died)


class Lapses:
    """The lapses of each worker, in the order of their ends, and when it last ended a lease itself."""

    def __init__(self) -> None:
        self._of: dict[str, list[FinishedLease]] = {}
        self._acted_at: dict[str, int] = {}

    def add(self, finished: Sequence[FinishedLease]) -> None:
        """Remember leases that have ended."""
        for lease in finished:
            if is_lapse(lease):
                self._of.setdefault(lease.worker, []).append(lease)
                del self._of[lease.worker][:-MAX_LAPSES]
            elif lease.worker in self._of and lease.outcome != "removed":
                self._acted_at[lease.worker] = max(self._acted_at.get(lease.worker, 0), lease.ended_at)
        while len(self._of) > MAX_WORKERS:
            self._forget(next(iter(self._of)))

    def take(self, worker: str, finished: Sequence[FinishedLease], *, named: Collection[str]) -> list[ReleasedTask]:
        """Return the lapses of a worker that is gone, `finished` included, and forget it.

        Those of the named tasks, else those since it last ended a lease itself; of a task leased twice the last.
        """
        self.add(finished)
        acted_at = self._acted_at.get(worker, 0)
        found: dict[str, ReleasedTask] = {}
        for lease in self._of.get(worker, ()):
            if lease.name in named if named else lease.ended_at >= acted_at:
                found[lease.name] = released_task(lease)
        self._forget(worker)
        return list(found.values())

    def _forget(self, worker: str) -> None:
        self._of.pop(worker, None)
        self._acted_at.pop(worker, None)

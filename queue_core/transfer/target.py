"""The target queue of a migration: closed before the first task is added, opened after the last.

A closed queue only holds tasks of the migration that closed it, unless the progress of that migration has expired.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeVar

from queue_core.errors import MoveRefusedError
from queue_core.process.wording import counted
from queue_core.stats import QueueStats
from queue_core.store import Transaction
from queue_core.task import ANY, QueueSpec, StoredTask
from queue_core.transfer.progress import TransferProgress
from queue_core.unit.service import QueueService
from queue_core.unit.unit_of_work import UnitOfWork
from queue_core.verbs import Added
from queue_core.verbs.validation import FILLED_FROM

PAGE: Final = 1000
"""Tags per page when waiters are woken."""


def record_ready(work: UnitOfWork, queue: str, tasks: Sequence[StoredTask], added: Sequence[Added]) -> None:
    """Record wake-ups for the tasks restored in this unit of work."""
    for task, one in zip(tasks, added, strict=True):
        if one.ready and one.status == "added":
            work.wakes[queue, task.tag] = work.wakes.get((queue, task.tag), 0) + 1


def wake_ready(service: QueueService, queue: str) -> None:
    """Wake waiters for the ready tasks of a queue that has just been opened."""
    after: str | None = None
    while True:
        start = after
        page = service.read(lambda work, start=start: work.tag_stats(queue, after=start, limit=PAGE))  # type: ignore[misc]
        for one in page:
            if one.stats.ready:
                service.store.signals.publish(queue, one.tag, one.stats.ready)
        if len(page) < PAGE:
            return
        after = page[-1].tag


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """The progress of a copy. `base_...`: the totals of the new queue when it was closed."""

    stage: Literal["filling", "done"] = "filling"
    taken_at: int = 0
    existed: bool = False
    base_added: int = 0
    base_leased: int = 0
    base_deleted: int = 0
    after: int = 0
    tasks: int = 0
    restored: int = 0
    in_flight: int = 0
    name: str = ""
    names: int = 0


class TransferTarget:
    """The queue in the store that it is moved to."""

    def __init__(self, service: QueueService, queue: str, *, source_url: str, session: str) -> None:
        self._service = service
        self._queue = queue
        self._source_url = source_url
        self.url = service.store.url
        self.mark = f"{FILLED_FROM}{source_url}"
        self.journal = TransferProgress(service, session, CopyProgress)

    @property
    def knows_last_chunk(self) -> bool:
        """Return whether progress is saved atomically with its chunk."""
        return self._service.store.unit == "transaction"

    def spec(self) -> QueueSpec | None:
        """Return the queue's settings and fence; None when there is no such queue."""
        return self._service.read(lambda work: _spec_of(work.transaction, self._queue))

    def stats(self) -> QueueStats:
        """Return the queue's counts."""
        return self._service.read(lambda work: work.stats(self._queue, ANY))

    # -- the beginning --------------------------------------------------------------------------------------------

    def begin(
        self, here: QueueSpec, there: QueueSpec | None, known: CopyProgress | None, *, ever_added: int
    ) -> CopyProgress:
        """Close the new queue, or keep it closed, and return its progress: a new one, or that of an earlier run.

        Args:
            here, there: the old queue and the new one.
            known: the progress that an earlier run saved.
            ever_added: total of tasks ever added to the old queue.
        """
        if there is None:
            self._check_begun(here, known)
            return self._make(here, paused=here.paused)
        if there.moved_to == self.mark:
            if known is not None and here.moved_to == self.url:
                return known
            existed = known is not None and known.existed
            self._check_remembered(known)
            self.drop(None)
            return self._make(there if existed else here, paused=here.paused, existed=existed)
        if there.moved_to == self._source_url and not here.moved_to:
            self._check_all_left(ever_added)
            self.drop(None)
            return self._make(here, paused=here.paused)
        if there.moved_to:
            how = there.moved_to if there.moved_to.startswith(FILLED_FROM) else f"moved to {there.moved_to}"
            raise MoveRefusedError(f"queue {self._queue!r} at {self.url} is {how}: finish that first")
        return self._close(here)

    def _check_begun(self, here: QueueSpec, known: CopyProgress | None) -> None:
        """Refuse a queue that was moved completely and then dropped, as its tasks may be done."""
        if here.moved_to == self.url and (known is None or known.stage == "done"):
            raise MoveRefusedError(
                f"queue {self._queue!r} was moved to {self.url} and dropped there: `--abort` opens the old one "
                "again, with all the tasks it had then; after that it can be moved again"
            )

    def _check_remembered(self, known: CopyProgress | None) -> None:
        """Refuse a closed queue with tasks but without progress: their origin is unknown."""
        if known is None and size_of(self.stats()):
            raise MoveRefusedError(
                f"queue {self._queue!r} at {self.url} was partly filled a day or more ago, and its progress has "
                "expired: `--abort` drops what was copied, then move again"
            )

    def _check_all_left(self, ever_added: int) -> None:
        """Refuse to drop what an earlier move left here unless that queue is the one coming back."""
        count = size_of(self.stats())
        if count > ever_added:
            raise MoveRefusedError(
                f"queue {self._queue!r} was moved from {self.url} to {self._source_url} with "
                f"{counted(count, 'task')}, but only "
                f"{ever_added} were ever added to the queue there now: it is another queue; `--abort` the other way "
                f"round, --from {self.url}, opens the old one again"
            )

    def _make(self, spec: QueueSpec, *, paused: bool, existed: bool = False) -> CopyProgress:
        def make(work: UnitOfWork) -> QueueStats:
            work.put_queue(replace(spec, paused=False, moved_to=""))
            return self._shut(work, paused=paused)

        return self.journal.run(make, lambda counts: _begun(counts, existed=existed))

    def _close(self, here: QueueSpec) -> CopyProgress:
        """Close an existing empty queue and keep its settings."""

        def close(work: UnitOfWork) -> QueueStats:
            self._check_unused(work)
            counts = self._shut(work, paused=here.paused)
            if size_of(counts):  # added meanwhile, as an operation is not atomic here
                work.transaction.set_moved(self._queue, "")
                self._check_unused(work)
            return counts

        return self.journal.run(close, lambda counts: _begun(counts, existed=True))

    def _shut(self, work: UnitOfWork, *, paused: bool) -> QueueStats:
        work.transaction.set_moved(self._queue, self.mark)
        if paused:
            work.set_paused(self._queue, "paused")
        return work.stats(self._queue, ANY)

    def _check_unused(self, work: UnitOfWork) -> None:
        count = size_of(work.stats(self._queue, ANY))
        if count:
            raise MoveRefusedError(
                f"queue {self._queue!r} at {self.url} has {counted(count, 'task')} of its own: a queue can "
                f"only replace "
                "an empty one; finish or purge those tasks, or choose another store"
            )
        names = work.transaction.held_names(self._queue, after=None, limit=1, now=work.now)
        if names:
            raise MoveRefusedError(
                f"queue {self._queue!r} at {self.url} still holds names of deleted tasks, such as "
                f"{names[0].name!r}, which would refuse incoming tasks: drop that queue, or choose another store"
            )

    # -- the end --------------------------------------------------------------------------------------------------

    def open(self, done: CopyProgress) -> CopyProgress:
        """Save that the copy is done, open the queue and wake waiters."""
        finished = self.journal.save(replace(done, stage="done"))
        self.lift()
        wake_ready(self._service, self._queue)
        return finished

    def close(self) -> None:
        """Close the queue again."""
        self._service.run(lambda work: work.transaction.set_moved(self._queue, self.mark))

    def lift(self) -> None:
        """Open the queue."""
        self._service.run(lambda work: work.transaction.set_moved(self._queue, ""))

    def drop(self, spec: QueueSpec | None) -> int:
        """Drop the new queue and, with `spec`, create it again, empty; return the number of dropped tasks."""

        def drop(work: UnitOfWork) -> int:
            count = work.transaction.delete_queue(self._queue)
            if spec is not None:
                work.put_queue(replace(spec, moved_to=""))
                if spec.paused:
                    work.set_paused(self._queue, "paused")
            return count

        return self._service.run(drop)

    def used(self, done: CopyProgress | None, *, size_there: int) -> str:
        """Describe how the queue was used since the copy; "" if it was not.

        `size_there`: the size of the old queue, used when the progress has expired.
        """
        counts = self.stats()
        base = done or CopyProgress(restored=size_there)
        leased = counts.leased_total - base.base_leased
        deleted = counts.deleted_total - base.base_deleted
        added = counts.added_total - base.base_added - base.restored
        purged = base.restored - size_of(counts) - counts.died_total
        if leased > 0:
            return f"{counted(leased, 'lease')} {'was' if leased == 1 else 'were'} granted"
        if deleted > 0:
            return f"{counted(deleted, 'task')} {'was' if deleted == 1 else 'were'} deleted"
        if base.stage == "done" and added > 0:
            return f"{counted(added, 'task')} {'was' if added == 1 else 'were'} added"
        if base.stage == "done" and purged > 0:
            return f"{counted(purged, 'task')} {'was' if purged == 1 else 'were'} purged"
        return ""


def size_of(counts: QueueStats) -> int:
    """Return the number of tasks in any state."""
    return counts.pending + counts.dead


def _spec_of(transaction: Transaction, queue: str) -> QueueSpec | None:
    return next((spec for spec in transaction.queues() if spec.name == queue), None)


def _begun(counts: QueueStats, *, existed: bool) -> CopyProgress:
    return CopyProgress(
        existed=existed,
        base_added=counts.added_total,
        base_leased=counts.leased_total,
        base_deleted=counts.deleted_total,
    )

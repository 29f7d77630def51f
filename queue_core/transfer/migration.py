"""Migrates a queue to another store: fence the old queue, copy everything, open the new queue.

At no time do both grant leases. A migration may be killed at any point and resumed: the two fences show its stage, and
the progress of the copy is saved in the new store with each chunk.

    old   | new               | stage
    open  | none, or empty    | not begun
    open  | filled from old   | begun or aborted: the copy is discarded
    moved | filled from old   | copying
    moved | open              | done
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias, TypeVar

from queue_core.clock import MICROSECONDS, Instant, after
from queue_core.errors import MoveRefusedError, UnknownQueueError
from queue_core.process.wording import counted
from queue_core.stats import QueueStats
from queue_core.store import Store, Transaction
from queue_core.task import ANY, QueueSpec, StoredTask, TaskState
from queue_core.transfer.chunks import TransferChunk, name_chunks, task_chunks
from queue_core.transfer.progress import LEAD_SECONDS, TransferLead, holding_lead, session_of
from queue_core.transfer.target import CopyProgress, TransferTarget, size_of
from queue_core.unit.service import QueueService
from queue_core.verbs import HeldName
from queue_core.verbs.validation import FILLED_FROM

SKEW_SECONDS: Final = 0.01
"""Smallest difference of the stores' clocks that is corrected; they are read to a few milliseconds."""

Progress: TypeAlias = Callable[[str, int, int], None]
"""A callback with a queue, the number of its tasks that are done, and their total."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MigrationResult:
    """The result of a migration.

    Args:
        tasks: tasks added to the new store.
        in_flight: those of them that stay leased until their old leases end.
        refused: tasks left out because their name was taken in the new store.
        settings: whether the old queue's settings were copied or the new queue's kept.
        was_done: the queue was moved before, so nothing was done.
    """

    queue: str
    tasks: int
    names: int
    in_flight: int = 0
    refused: int = 0
    settings: Literal["taken along", "kept"] = "taken along"
    was_done: bool = False


class QueueMigration:
    """The migration of one queue from one store to another."""

    def __init__(
        self, source: Store, target: Store, queue: str, *, progress: Progress, lead_seconds: float = LEAD_SECONDS
    ) -> None:
        """Raises `MoveRefusedError` if both are the same store.

        `lead_seconds`: how long other processes wait for this one after it was killed.
        """
        if source.url == target.url:
            raise MoveRefusedError(f"from and to are the same store, {source.url}: name another")
        self._source = QueueService(source)
        self._target = QueueService(target)
        self._queue = queue
        self._progress = progress
        self._lead_seconds = lead_seconds
        self._session = session_of("move", source.url, queue)
        self._new = TransferTarget(self._target, queue, source_url=source.url, session=self._session)

    def run(self) -> MigrationResult:
        """Move the queue, or resume that.

        Raises `UnknownQueueError`, `MoveRefusedError` with the reason; after a `StoreError`, run it again to resume.
        """
        with holding_lead(self._target, self._session, seconds=self._lead_seconds) as lead:
            here, there = self._spec(), self._new.spec()
            self._check_source(here)
            known = self._new.journal.last()
            if there is not None and here.moved_to == self._new.url and not there.moved_to:
                return replace(self._result(known or CopyProgress()), was_done=True)
            done = self._new.begin(here, there, known, ever_added=self._stats().added_total)
            if done.stage == "filling":
                done = self._fill(here, done, lead)
            return self._result(self._new.open(done))

    def abort(self) -> int:
        """Open the old queue again and drop the copy; return the number of copied tasks.

        Raises `MoveRefusedError` when no migration was begun, or when the new queue was used since it was opened.
        """
        with holding_lead(self._target, self._session, seconds=self._lead_seconds):
            here, there = self._spec(), self._new.spec()
            is_ours = here.moved_to == self._new.url
            if not is_ours and (there is None or there.moved_to != self._new.mark):
                raise MoveRefusedError(f"queue {self._queue!r} was not moved to {self._new.url}: nothing to undo")
            if there is None:  # the new queue was dropped: only the old one is left
                self._set_moved("")
                return 0
            if there.moved_to not in ("", self._new.mark):
                problem = f"queue {self._queue!r} was moved on from {self._new.url} to {there.moved_to}"
                raise MoveRefusedError(f"{problem}: move it back from there")
            known = self._new.journal.last()
            self._new.close()
            used = self._new.used(known, size_there=size_of(self._stats()))
            if used:
                self._new.lift()
                problem = f"queue {self._queue!r} has been in use at {self._new.url}: {used}"
                back = f"--queue {self._queue} --from {self._new.url} --to {self._source.store.url}"
                raise MoveRefusedError(f"{problem}; move it back instead: `towline migrate {back}`")
            if is_ours:
                self._set_moved("")
            return self._new.drop(there if known is not None and known.existed else None)

    # -- the old queue --------------------------------------------------------------------------------------------

    def _spec(self) -> QueueSpec:
        return self._source.read(lambda work: work.transaction.queue(self._queue))

    def _check_source(self, here: QueueSpec) -> None:
        where = f"queue {self._queue!r} of {self._source.store.url}"
        if here.moved_to.startswith(FILLED_FROM):
            problem = f"{where} is itself being {here.moved_to}"
            raise MoveRefusedError(f"{problem}: finish or abort that first")
        if here.moved_to not in ("", self._new.url):
            raise MoveRefusedError(f"{where} was moved to {here.moved_to} already: move it from there")

    def _set_moved(self, to: str) -> None:
        self._source.run(lambda work: work.transaction.set_moved(self._queue, to))

    def _stats(self, *, now: int = 0) -> QueueStats:
        return self._source.read(lambda work: work.transaction.stats(self._queue, ANY, now=Instant(now or work.now)))

    def _read(self, operation: Callable[[Transaction], T], /) -> T:
        return self._source.read(lambda work: operation(work.transaction))

    # -- the copy -------------------------------------------------------------------------------------------------

    def _fill(self, here: QueueSpec, done: CopyProgress, lead: TransferLead) -> CopyProgress:
        if here.moved_to != self._new.url:
            self._set_moved(self._new.url)
        if not done.taken_at:
            done = self._new.journal.save(replace(done, taken_at=self._source.clock.now()))
        done = self._copy_names(done, lead)
        done = self._copy_tasks(done, lead)
        self._verify(done)
        return done

    def _copy_names(self, done: CopyProgress, lead: TransferLead) -> CopyProgress:
        for names in name_chunks(self._read, self._queue, after=done.name or None, now=Instant(done.taken_at)):
            done = self._write_names(done, names)
            lead.renew()
        return done

    def _write_names(self, done: CopyProgress, names: Sequence[HeldName]) -> CopyProgress:
        return self._new.journal.run(
            lambda work: work.transaction.hold_names(self._queue, names, now=work.now),
            lambda _: replace(done, name=names[-1].name, names=done.names + len(names)),
        )

    def _copy_tasks(self, done: CopyProgress, lead: TransferLead) -> CopyProgress:
        total = size_of(self._stats(now=done.taken_at))
        arrived = self._new.stats().added_total - done.base_added - done.restored
        for chunk in task_chunks(self._read, self._queue, after=done.after, now=Instant(done.taken_at)):
            done = self._skip_arrived(done, chunk, arrived) if arrived else self._write_tasks(done, chunk)
            arrived = 0
            lead.renew()
            self._progress(self._queue, done.tasks, total)
        return done

    def _write_tasks(self, done: CopyProgress, chunk: TransferChunk) -> CopyProgress:
        tasks = self._with_later_ends(chunk.tasks)
        return self._new.journal.run(
            lambda work: work.transaction.restore(self._queue, tasks, now=work.now),
            lambda added: _advanced(done, chunk, sum(one.status == "added" for one in added)),
        )

    def _skip_arrived(self, done: CopyProgress, chunk: TransferChunk, arrived: int) -> CopyProgress:
        """Skip the next chunk, which an earlier run added without saving its progress."""
        unnamed = sum(task.name is None for task in chunk.tasks)
        if self._new.knows_last_chunk or not unnamed <= arrived <= len(chunk.tasks):
            problem = f"{counted(arrived, 'task')} arrived at {self._new.url}, but it is not known which"
            raise MoveRefusedError(f"{problem}: `--abort`, then move again")
        return self._new.journal.save(_advanced(done, chunk, arrived))

    def _with_later_ends(self, tasks: Sequence[StoredTask]) -> Sequence[StoredTask]:
        """Move the ends of leases so that, by the new store's clock, none ends earlier than by the old store's."""
        ahead = (self._target.clock.now() - self._source.clock.now()) / MICROSECONDS
        if ahead < SKEW_SECONDS:
            return tasks
        return [replace(task, eta=after(task.eta, ahead)) if task.state is TaskState.LEASED else task for task in tasks]

    def _verify(self, done: CopyProgress) -> None:
        arrived = self._new.stats().added_total - done.base_added
        left = size_of(self._stats(now=done.taken_at))
        if arrived != done.restored or left != done.tasks:
            problem = (
                f"{counted(left, 'task')} at {self._source.store.url}, {done.tasks} read there, "
                f"{done.restored} added to "
            )
            problem += f"{self._new.url}, {arrived} counted there; both are closed and nothing is lost"
            raise MoveRefusedError(
                f"queue {self._queue!r}: the counts differ: {problem}: `--abort` opens the old one again"
            )

    def _result(self, done: CopyProgress) -> MigrationResult:
        settings: Literal["taken along", "kept"] = "kept" if done.existed else "taken along"
        refused = done.tasks - done.restored
        return MigrationResult(self._queue, done.restored, done.names, done.in_flight, refused, settings)


def queues_to_move(source: Store, target: Store, named: Sequence[str]) -> list[str]:
    """Return the named queues, or else all that were not moved to a third store. Raises `UnknownQueueError`."""
    with source.read() as snapshot:
        if named:
            return [snapshot.queue(name).name for name in dict.fromkeys(named)]
        found = [spec.name for spec in snapshot.queues() if spec.moved_to in ("", target.url)]
    if not found:
        raise UnknownQueueError(f"no queues to move in {source.url}: those it has were moved, or it has none")
    return found


def queues_to_undo(source: Store, target: Store, named: Sequence[str]) -> list[str]:
    """Return the named queues, or else all whose migration between these stores was begun.

    Raises `UnknownQueueError`.
    """
    with source.read() as snapshot:
        if named:
            return [snapshot.queue(name).name for name in dict.fromkeys(named)]
        here = {spec.name: spec.moved_to for spec in snapshot.queues()}
    with target.read() as snapshot:
        filling = {spec.name for spec in snapshot.queues() if spec.moved_to == f"{FILLED_FROM}{source.url}"}
    found = [name for name, moved_to in here.items() if moved_to == target.url or name in filling]
    if not found:
        raise UnknownQueueError(f"no queue of {source.url} was moved to {target.url}: nothing to undo")
    return found


def _advanced(done: CopyProgress, chunk: TransferChunk, added: int) -> CopyProgress:
    return replace(
        done,
        after=chunk.after,
        tasks=done.tasks + len(chunk.tasks),
        restored=done.restored + added,
        in_flight=done.in_flight + sum(task.state is TaskState.LEASED for task in chunk.tasks),
    )

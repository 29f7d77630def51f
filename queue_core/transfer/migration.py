"""Moves a queue from store to store: the old one is fenced first, then all is copied, then the new one is opened.

At no time can both give out a task. Every step can be cut off and is gone on with: which it was is read from the two
fences, and how far the copy is from the new store, where that is kept with each chunk.

    old   | new               | what it means
    open  | none, or empty    | nothing has begun
    open  | filled from old   | begun or broken off: what was copied is thrown away
    moved | filled from old   | being copied
    moved | open              | moved
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias, TypeVar

from queue_core.clock import MICROSECONDS, Instant, after
from queue_core.errors import MoveRefusedError, UnknownQueueError
from queue_core.service import QueueService
from queue_core.stats import QueueStats
from queue_core.store import HeldName, Store, Transaction
from queue_core.task import ANY, QueueSpec, StoredTask, TaskState
from queue_core.transfer.chunks import TransferChunk, name_chunks, task_chunks
from queue_core.transfer.progress import LEAD_SECONDS, TransferLead, holding_lead, session_of
from queue_core.transfer.target import CopyProgress, TransferTarget, size_of
from queue_core.validation import FILLED_FROM

SKEW_SECONDS: Final = 0.01
"""A difference of the two stores' clocks that is worth a thought: they are read to a few milliseconds."""

Progress: TypeAlias = Callable[[str, int, int], None]
"""Told of a queue, how many of its tasks are done, and of how many."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MigrationResult:
    """A queue that was moved.

    Args:
        tasks: in the new store now.
        in_flight: of those, how many stay hidden until the leases they had on the old store end.
        refused: tasks whose name was taken on the new store; they were left out.
        settings: those of the old store were taken along, or the new store's own were kept.
        was_done: it had been moved before, and nothing was done.
    """

    queue: str
    tasks: int
    names: int
    in_flight: int = 0
    refused: int = 0
    settings: Literal["taken along", "kept"] = "taken along"
    was_done: bool = False


class QueueMove:
    """One queue on its way from one store to another."""

    def __init__(
        self, source: Store, target: Store, queue: str, *, progress: Progress, lead_seconds: float = LEAD_SECONDS
    ) -> None:
        """Raises `MoveRefusedError` where both are the same store.

        `lead_seconds`: how long after this process was killed the move is still taken to be under way.
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
        """Move it, or go on with that, to the end.

        Raises `UnknownQueueError`, `MoveRefusedError` with the reason; `StoreError`: run it again, it goes on.
        """
        with holding_lead(self._target, self._session, seconds=self._lead_seconds) as hold:
            here, there = self._spec(), self._new.spec()
            self._check_source(here)
            known = self._new.journal.last()
            if there is not None and here.moved_to == self._new.url and not there.moved_to:
                return replace(self._told(known or CopyProgress()), was_done=True)
            done = self._new.begin(here, there, known, ever_added=self._stats().added_total)
            if done.stage == "filling":
                done = self._fill(here, done, hold)
            return self._told(self._new.open(done))

    def abort(self) -> int:
        """Open the old queue again and drop what was copied; how many tasks that were.

        Raises `MoveRefusedError` when nothing was begun, or when the new queue has been used since it was opened.
        """
        with holding_lead(self._target, self._session, seconds=self._lead_seconds):
            here, there = self._spec(), self._new.spec()
            is_ours = here.moved_to == self._new.url
            if not is_ours and (there is None or there.moved_to != self._new.mark):
                raise MoveRefusedError(f"queue {self._queue!r} was not moved to {self._new.url}: nothing to undo")
            if there is None:  # dropped there: the old store is all there is
                self._set_moved("")
                return 0
            if there.moved_to not in ("", self._new.mark):
                told = f"queue {self._queue!r} has gone on from {self._new.url} to {there.moved_to}"
                raise MoveRefusedError(f"{told}: move it back from there")
            known = self._new.journal.last()
            self._new.close()
            used = self._new.used(known, size_there=size_of(self._stats()))
            if used:
                self._new.lift()
                told = f"queue {self._queue!r} has been in use at {self._new.url}: {used}"
                back = f"--queue {self._queue} --from {self._new.url} --to {self._source.store.url}"
                raise MoveRefusedError(f"{told}; move it back instead: `towline migrate {back}`")
            if is_ours:
                self._set_moved("")
            return self._new.drop(there if known is not None and known.existed else None)

    # -- the old queue --------------------------------------------------------------------------------------------

    def _spec(self) -> QueueSpec:
        return self._source.read(lambda work: work.transaction.queue(self._queue))

    def _check_source(self, here: QueueSpec) -> None:
        where = f"queue {self._queue!r} of {self._source.store.url}"
        if here.moved_to.startswith(FILLED_FROM):
            told = f"{where} is itself being {here.moved_to}"
            raise MoveRefusedError(f"{told}: run that to its end, or abort it, first")
        if here.moved_to not in ("", self._new.url):
            raise MoveRefusedError(f"{where} was moved to {here.moved_to} already: move it from there")

    def _set_moved(self, to: str) -> None:
        self._source.run(lambda work: work.transaction.set_moved(self._queue, to))

    def _stats(self, *, now: int = 0) -> QueueStats:
        return self._source.read(lambda work: work.transaction.stats(self._queue, ANY, now=Instant(now or work.now)))

    def _look(self, step: Callable[[Transaction], T], /) -> T:
        return self._source.read(lambda work: step(work.transaction))

    # -- the copy -------------------------------------------------------------------------------------------------

    def _fill(self, here: QueueSpec, done: CopyProgress, hold: TransferLead) -> CopyProgress:
        if here.moved_to != self._new.url:
            self._set_moved(self._new.url)
        if not done.taken_at:
            done = self._new.journal.keep(replace(done, taken_at=self._source.clock.now()))
        done = self._copy_names(done, hold)
        done = self._copy_tasks(done, hold)
        self._verify(done)
        return done

    def _copy_names(self, done: CopyProgress, hold: TransferLead) -> CopyProgress:
        for names in name_chunks(self._look, self._queue, after=done.name or None, now=Instant(done.taken_at)):
            done = self._put_names(done, names)
            hold.renew()
        return done

    def _put_names(self, done: CopyProgress, names: Sequence[HeldName]) -> CopyProgress:
        return self._new.journal.do(
            lambda work: work.transaction.hold_names(self._queue, names, now=work.now),
            lambda _: replace(done, name=names[-1].name, names=done.names + len(names)),
        )

    def _copy_tasks(self, done: CopyProgress, hold: TransferLead) -> CopyProgress:
        total = size_of(self._stats(now=done.taken_at))
        came = self._new.stats().added_total - done.base_added - done.restored
        for chunk in task_chunks(self._look, self._queue, after=done.after, now=Instant(done.taken_at)):
            done = self._came_already(done, chunk, came) if came else self._put_tasks(done, chunk)
            came = 0
            hold.renew()
            self._progress(self._queue, done.tasks, total)
        return done

    def _put_tasks(self, done: CopyProgress, chunk: TransferChunk) -> CopyProgress:
        tasks = self._shifted(chunk.tasks)
        return self._new.journal.do(
            lambda work: work.transaction.restore(self._queue, tasks, now=work.now),
            lambda added: _advanced(done, chunk, sum(one.status == "added" for one in added)),
        )

    def _came_already(self, done: CopyProgress, chunk: TransferChunk, came: int) -> CopyProgress:
        """The chunk after the last that is known to have come: it came as well, before its progress was kept."""
        unnamed = sum(task.name is None for task in chunk.tasks)
        if self._new.tells_last_chunk or not unnamed <= came <= len(chunk.tasks):
            told = f"{came} tasks came to {self._new.url}, and which of them is not known"
            raise MoveRefusedError(f"{told}: `--abort`, then move again")
        return self._new.journal.keep(_advanced(done, chunk, came))

    def _shifted(self, tasks: Sequence[StoredTask]) -> Sequence[StoredTask]:
        """Leases end no earlier by the new store's clock than by the old one's: until then somebody may be at work."""
        ahead = (self._target.clock.now() - self._source.clock.now()) / MICROSECONDS
        if ahead < SKEW_SECONDS:
            return tasks
        return [replace(task, eta=after(task.eta, ahead)) if task.state is TaskState.LEASED else task for task in tasks]

    def _verify(self, done: CopyProgress) -> None:
        came = self._new.stats().added_total - done.base_added
        left = size_of(self._stats(now=done.taken_at))
        if came != done.restored or left != done.tasks:
            told = f"{left} tasks at {self._source.store.url}, {done.tasks} read there, {done.restored} brought to "
            told += f"{self._new.url}, {came} counted there; both are closed and nothing is lost"
            raise MoveRefusedError(
                f"queue {self._queue!r}: the counts differ: {told}: `--abort` opens the old one again"
            )

    def _told(self, done: CopyProgress) -> MigrationResult:
        settings: Literal["taken along", "kept"] = "kept" if done.existed else "taken along"
        refused = done.tasks - done.restored
        return MigrationResult(self._queue, done.restored, done.names, done.in_flight, refused, settings)


def queues_to_move(source: Store, target: Store, named: Sequence[str]) -> list[str]:
    """The queues named, or else all that are not somewhere else already. Raises `UnknownQueueError`."""
    with source.read() as look:
        if named:
            return [look.queue(name).name for name in dict.fromkeys(named)]
        found = [spec.name for spec in look.queues() if spec.moved_to in ("", target.url)]
    if not found:
        raise UnknownQueueError(f"no queues to move in {source.url}: those it has were moved, or it has none")
    return found


def queues_to_undo(source: Store, target: Store, named: Sequence[str]) -> list[str]:
    """The queues named, or else all whose move between these stores was begun. Raises `UnknownQueueError`."""
    with source.read() as look:
        if named:
            return [look.queue(name).name for name in dict.fromkeys(named)]
        here = {spec.name: spec.moved_to for spec in look.queues()}
    with target.read() as look:
        filling = {spec.name for spec in look.queues() if spec.moved_to == f"{FILLED_FROM}{source.url}"}
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

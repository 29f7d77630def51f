"""Imports an export into a store: checks the file first, then adds it chunk by chunk, each chunk once.

Progress is saved in the store with each chunk; and the import leaves a held name in every queue as a mark that lasts
for years. Where a store can't save both in one transaction, the queue is closed while it is filled, so that its totals
show whether the last chunk arrived.
"""

import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, TypeAlias

from queue_core.clock import Instant, after
from queue_core.errors import MoveRefusedError
from queue_core.process.wording import counted
from queue_core.store import Store, Transaction
from queue_core.task import ANY, QueueSpec, StoredTask
from queue_core.transfer.chunks import CHUNK_BYTES, CHUNK_NAMES, CHUNK_TASKS
from queue_core.transfer.format import Header, NameLine
from queue_core.transfer.progress import LEAD_SECONDS, TransferLead, TransferProgress, holding_lead
from queue_core.transfer.reader import ExportReader, opened_for_reading
from queue_core.transfer.target import record_ready, wake_ready
from queue_core.unit.service import QueueService
from queue_core.unit.unit_of_work import UnitOfWork
from queue_core.verbs import Added, HeldName
from queue_core.verbs.validation import FILLED_FROM, check_not_moved

STDIN: Final = Path("-")
MARK_SECONDS: Final = 10 * 365 * 86_400.0
"""How long the mark of an import lasts in its queues."""

Progress: TypeAlias = Callable[[int, int], None]
"""A callback with the number of lines done and their total (0: not known yet)."""


@dataclass(frozen=True, slots=True)
class ImportResult:
    """The result of an import, over all its runs.

    Args:
        tasks: tasks of the file that were added.
        refused: tasks left out because their name was taken.
        created: queues that were created.
        resumed_after: the line after which this run began; 1 for the first run.
        was_done: the import was complete before, so nothing was done.
    """

    header: Header
    tasks: int
    refused: int
    names: int
    created: tuple[str, ...] = ()
    resumed_after: int = 1
    was_done: bool = False


@dataclass(frozen=True, slots=True)
class _Progress:
    """The progress of an import. `restored` counts the tasks added to `queue` since its total was `base_added`."""

    stage: Literal["begun", "filling", "done"] = "begun"
    line: int = 1
    tasks: int = 0
    refused: int = 0
    names: int = 0
    created: str = ""
    queue: str = ""
    base_added: int = 0
    restored: int = 0


@dataclass(frozen=True, slots=True)
class _ImportChunk:
    """Consecutive lines of one kind and queue; `last` is the number of the last one."""

    queue: str
    tasks: tuple[StoredTask, ...]
    names: tuple[HeldName, ...]
    last: int


def import_file(store: Store, path: Path, *, checking: Progress, importing: Progress) -> ImportResult:
    """Import a file; `-` is stdin.

    A file is read twice, and nothing is added unless all of it is valid. A pipe is imported as it is read; import the
    same export again to continue where it ended.

    Raises what `check_file` and `Import.run` do.
    """
    now = store.clock.now()
    if path == STDIN:
        return Import(store, ExportReader(sys.stdin.buffer, name="stdin", now=now), lines=0, progress=importing).run()
    is_file = stat.S_ISREG(path.stat().st_mode)
    lines = check_file(path, now=now, progress=checking).lines if is_file else 0
    with opened_for_reading(path) as file:
        return Import(store, ExportReader(file, name=str(path), now=now), lines=lines, progress=importing).run()


def check_file(path: Path, *, now: Instant, progress: Progress) -> ExportReader:
    """Read and validate all lines of a file. Raises `OSError`, `BadFileError`, `CutShortError`."""
    if path == STDIN:
        return _checked(ExportReader(sys.stdin.buffer, name="stdin", now=now), progress)
    with opened_for_reading(path) as file:
        return _checked(ExportReader(file, name=str(path), now=now), progress)


def _checked(reader: ExportReader, progress: Progress) -> ExportReader:
    for number, _ in enumerate(reader.records()):
        if number % CHUNK_TASKS == 0:
            progress(number, 0)
    return reader


class Import:
    """The import of one file into one store."""

    def __init__(
        self,
        store: Store,
        reader: ExportReader,
        *,
        lines: int,
        progress: Progress,
        lead_seconds: float = LEAD_SECONDS,
    ) -> None:
        """Args:
        reader: a reader that has read the header only.
        lines: the number of lines of the file; 0: not known.
        lead_seconds: how long other processes wait for this one after it was killed.
        """
        self._lead_seconds = lead_seconds
        self._service = QueueService(store)
        self._reader = reader
        self._header = reader.header
        self._lines = lines
        self._progress = progress
        self._session = f"import-{reader.header.id}"
        self._journal = TransferProgress(self._service, self._session, _Progress)
        self._must_close = store.unit == "verb"
        self._mark = f"{FILLED_FROM}export {reader.header.id}"

    def run(self) -> ImportResult:
        """Import the rest of the file.

        Raises `MoveRefusedError` when its progress is unknown or another process is importing it; `QueueMovedError`;
        `BadFileError`, `CutShortError` when the file is read for the first time; `StoreError`.
        """
        with holding_lead(self._service, self._session, seconds=self._lead_seconds) as lead:
            found = self._earlier_progress()
            if found is not None and found.stage == "done":
                return self._result(found, resumed_after=found.line, was_done=True)
            begun = found or self._begin()
            if begun.stage == "begun":
                begun = self._create_queues(begun)
            return self._result(self._fill(begun, lead), resumed_after=begun.line)

    def _result(self, done: _Progress, *, resumed_after: int, was_done: bool = False) -> ImportResult:
        return ImportResult(
            self._header,
            done.tasks,
            done.refused,
            done.names,
            tuple(done.created.split()),
            resumed_after=resumed_after,
            was_done=was_done,
        )

    # -- the beginning --------------------------------------------------------------------------------------------

    def _earlier_progress(self) -> _Progress | None:
        """Return the progress of an earlier run; None if there was none, or all its queues were dropped since."""
        known = self._journal.last()
        marked = [spec.name for spec in self._header.queues if self._is_marked(spec.name)]
        if known is None and marked:
            raise MoveRefusedError(
                f"this file, or a part of it, was imported into queue {marked[0]!r} a day or more ago, and the "
                "progress has expired: nothing was done; drop the queue there and import again, or export again"
            )
        if known is None or known.stage == "begun" or len(marked) == len(self._header.queues):
            return known
        if marked:
            raise MoveRefusedError(
                f"of the queues that this file was imported into, {', '.join(marked)} are left: drop those as well to "
                "import it again, or export again"
            )
        return None

    def _is_marked(self, queue: str) -> bool:
        """Return whether a queue has the mark of this import."""
        name = self._session

        def read(work: UnitOfWork) -> bool:
            if queue not in {spec.name for spec in work.transaction.queues()}:
                return False
            holding_lead = work.transaction.held_names(queue, after=name[:-1], limit=1, now=work.now)
            return [each.name for each in holding_lead] == [name]

        return self._service.read(read)

    def _begin(self) -> _Progress:
        """Save that the import has begun, and which queues it creates."""

        def missing(work: UnitOfWork) -> list[str]:
            for spec in work.transaction.queues():
                if spec.name in {wanted.name for wanted in self._header.queues}:
                    check_not_moved(spec)
            return [spec.name for spec in self._missing(work.transaction)]

        return self._journal.save(_Progress(created=" ".join(self._service.read(missing))))

    def _create_queues(self, begun: _Progress) -> _Progress:
        """Create missing queues, and mark all queues of the import."""
        mark = HeldName(self._session, after(self._service.clock.now(), MARK_SECONDS))

        created = begun.created.split()

        def create(work: UnitOfWork) -> None:
            for spec in self._missing(work.transaction):
                work.put_queue(replace(spec, paused=False))
            for spec in self._header.queues:
                if spec.paused and spec.name in created:
                    work.set_paused(spec.name, "paused")
                work.transaction.hold_names(spec.name, [mark], now=work.now)

        return self._journal.run(create, lambda _: replace(begun, stage="filling"))

    def _missing(self, read: Transaction) -> list[QueueSpec]:
        there = {spec.name for spec in read.queues()}
        return [spec for spec in self._header.queues if spec.name not in there]

    # -- chunks ---------------------------------------------------------------------------------------------------

    def _fill(self, done: _Progress, lead: TransferLead) -> _Progress:
        for lines in chunks_of(self._reader, after_line=done.line):
            if lines.queue != done.queue:
                done = self._begin_queue(done, lines.queue)
            done = self._write_chunk(done, lines)
            lead.renew()
            self._progress(done.line, self._lines)
        if done.queue:
            self._end_queue(done.queue)
        return self._journal.save(replace(done, stage="done"))

    def _begin_queue(self, done: _Progress, queue: str) -> _Progress:
        """Begin with a queue, and close it where a chunk and its progress are not atomic."""
        if done.queue:
            self._end_queue(done.queue)
        if not self._must_close:
            return replace(done, queue=queue)

        def close(work: UnitOfWork) -> int:
            moved_to = work.transaction.queue(queue).moved_to
            if moved_to not in ("", self._mark):
                check_not_moved(work.transaction.queue(queue))
            work.transaction.set_moved(queue, self._mark)
            return work.stats(queue, ANY).added_total

        return self._journal.run(close, lambda added: replace(done, queue=queue, base_added=added, restored=0))

    def _end_queue(self, queue: str) -> None:
        if self._must_close:
            self._service.run(lambda work: work.transaction.set_moved(queue, ""))
            wake_ready(self._service, queue)

    def _write_chunk(self, done: _Progress, lines: _ImportChunk) -> _Progress:
        if self._must_close and lines.tasks:
            arrived = self._service.read(lambda work: work.stats(lines.queue, ANY)).added_total - done.base_added
            if arrived != done.restored:
                return self._skip_arrived(done, lines, arrived - done.restored)

        def write(work: UnitOfWork) -> list[Added]:
            self._check_open(work, lines.queue)
            if lines.names:
                work.transaction.hold_names(lines.queue, lines.names, now=work.now)
            if not lines.tasks:
                return []
            added = work.transaction.restore(lines.queue, lines.tasks, now=work.now)
            if not self._must_close:
                record_ready(work, lines.queue, lines.tasks, added)
            return added

        return self._journal.run(write, lambda added: _advanced(done, lines, _count_added(added)))

    def _check_open(self, work: UnitOfWork, queue: str) -> None:
        if not self._must_close:
            check_not_moved(work.transaction.queue(queue))

    def _skip_arrived(self, done: _Progress, lines: _ImportChunk, arrived: int) -> _Progress:
        """Skip the next chunk, which an earlier run added without saving its progress."""
        unnamed = sum(task.name is None for task in lines.tasks)
        if not unnamed <= arrived <= len(lines.tasks):
            raise MoveRefusedError(
                f"of {counted(len(lines.tasks), 'task')} before line {lines.last + 1}, {arrived} are in "
                f"queue {lines.queue!r}, "
                "but it is not known which: drop the queue and import again"
            )
        return self._journal.save(_advanced(done, lines, arrived))


def _count_added(outcomes: Sequence[Added]) -> int:
    return sum(outcome.status == "added" for outcome in outcomes)


def _advanced(done: _Progress, lines: _ImportChunk, added: int) -> _Progress:
    return replace(
        done,
        line=lines.last,
        tasks=done.tasks + added,
        refused=done.refused + len(lines.tasks) - added,
        names=done.names + len(lines.names),
        restored=done.restored + added,
    )


def chunks_of(reader: ExportReader, *, after_line: int) -> Iterator[_ImportChunk]:
    """Yield the records after a line in chunks of one queue and kind; reproducible for a given start."""
    tasks: list[StoredTask] = []
    names: list[HeldName] = []
    queue, size = "", 0
    last = after_line
    for record in reader.records(after_line=after_line):
        is_name = isinstance(record, NameLine)
        is_other = record.queue != queue or bool(tasks if is_name else names)
        is_full = len(tasks) >= CHUNK_TASKS or size >= CHUNK_BYTES or len(names) >= CHUNK_NAMES
        if (tasks or names) and (is_other or is_full):
            yield _ImportChunk(queue, tuple(tasks), tuple(names), last)
            tasks, names, size = [], [], 0
        queue, last = record.queue, reader.lines
        if isinstance(record, NameLine):
            names.append(record.held)
        else:
            tasks.append(record)
            size += len(record.payload)
    if tasks or names:
        yield _ImportChunk(queue, tuple(tasks), tuple(names), last)

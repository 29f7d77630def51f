"""Imports an export into a store: what it says is checked first, then done chunk by chunk, each chunk once.

How far it is stands in the store, kept with each chunk; and the file leaves a held name in every queue, which outlasts
that by years. Where a store can't keep both in one transaction, the queue is closed to all others while it is filled:
its own totals then tell whether the last chunk came.
"""

import stat
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, TypeAlias

from queue_core.clock import Instant, after
from queue_core.errors import MoveRefusedError
from queue_core.service import QueueService
from queue_core.store import Added, HeldName, Store, Transaction
from queue_core.task import ANY, QueueSpec, StoredTask
from queue_core.transfer.chunks import CHUNK_BYTES, CHUNK_NAMES, CHUNK_TASKS
from queue_core.transfer.format import Header, NameLine
from queue_core.transfer.progress import LEAD_SECONDS, TransferLead, TransferProgress, holding_lead
from queue_core.transfer.reader import ExportReader, opened_for_reading
from queue_core.transfer.target import record_ready, wake_ready
from queue_core.unit_of_work import UnitOfWork
from queue_core.validation import FILLED_FROM, check_not_moved

STDIN: Final = Path("-")
MARK_SECONDS: Final = 10 * 365 * 86_400.0
"""How long a queue refuses the name that a file leaves in it."""

Progress: TypeAlias = Callable[[int, int], None]
"""Told how many lines are done, and how many there are (0: not known yet)."""


@dataclass(frozen=True, slots=True)
class ImportResult:
    """What an import did, all its runs together.

    Args:
        tasks: of the file, that are in the store now.
        refused: tasks whose name was taken there; they were left out.
        created: queues that were not there before.
        resumed_after: the line after which this run began; 1 when it is the first.
        was_done: it had been done before, and nothing was.
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
    """How far a file is. `restored` counts what was added to `queue` since its total was `base_added`."""

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
class _Lines:
    """Consecutive lines of one kind and queue, and the number of the last."""

    queue: str
    tasks: tuple[StoredTask, ...]
    names: tuple[HeldName, ...]
    last: int


def import_file(store: Store, path: Path, *, checking: Progress, importing: Progress) -> ImportResult:
    """Import a file; `-` is stdin.

    A file is read twice: nothing is done unless all of it is right. What comes through a pipe is done as it comes, and
    goes on where it ended when the same export is given again.

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
    """Read all of a file, holding every line to its limits. Raises `OSError`, `BadFileError`, `CutShortError`."""
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
    """One file into one store."""

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
        reader: has read the header only.
        lines: how many the file has, 0 when that is not known.
        lead_seconds: how long after this process was killed the import is still taken to be under way.
        """
        self._lead_seconds = lead_seconds
        self._service = QueueService(store)
        self._reader = reader
        self._header = reader.header
        self._lines = lines
        self._progress = progress
        self._session = f"import-{reader.header.id}"
        self._journal = TransferProgress(self._service, self._session, _Progress)
        self._closes = store.unit == "verb"
        self._mark = f"{FILLED_FROM}export {reader.header.id}"

    def run(self) -> ImportResult:
        """Import what is not there yet.

        Raises `MoveRefusedError` when it can't be known how far it is, or another process is at it; `QueueMovedError`;
        `BadFileError`, `CutShortError` when the file is read for the first time; `StoreError`.
        """
        with holding_lead(self._service, self._session, seconds=self._lead_seconds) as hold:
            found = self._known()
            if found is not None and found.stage == "done":
                return self._told(found, resumed_after=found.line, was_done=True)
            begun = found or self._begin()
            if begun.stage == "begun":
                begun = self._make(begun)
            return self._told(self._fill(begun, hold), resumed_after=begun.line)

    def _told(self, done: _Progress, *, resumed_after: int, was_done: bool = False) -> ImportResult:
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

    def _known(self) -> _Progress | None:
        """How far an earlier run got; None for the first, and where all its queues were dropped since."""
        known = self._journal.last()
        marked = [spec.name for spec in self._header.queues if self._is_marked(spec.name)]
        if known is None and marked:
            raise MoveRefusedError(
                f"this file, or a part of it, was imported into queue {marked[0]!r} a day or more ago, and how far is "
                "not remembered: nothing was done; drop the queue there and import again, or export anew"
            )
        if known is None or known.stage == "begun" or len(marked) == len(self._header.queues):
            return known
        if marked:
            raise MoveRefusedError(
                f"of the queues that this file was imported into, {', '.join(marked)} are left: drop those as well to "
                "import it again, or export anew"
            )
        return None

    def _is_marked(self, queue: str) -> bool:
        """Whether the file left its name in a queue."""
        name = self._session

        def look(work: UnitOfWork) -> bool:
            if queue not in {spec.name for spec in work.transaction.queues()}:
                return False
            holding_lead = work.transaction.held_names(queue, after=name[:-1], limit=1, now=work.now)
            return [each.name for each in holding_lead] == [name]

        return self._service.read(look)

    def _begin(self) -> _Progress:
        """Remember that it was begun, and which queues are to be made."""

        def missing(work: UnitOfWork) -> list[str]:
            for spec in work.transaction.queues():
                if spec.name in {wanted.name for wanted in self._header.queues}:
                    check_not_moved(spec)
            return [spec.name for spec in self._missing(work.transaction)]

        return self._journal.keep(_Progress(created=" ".join(self._service.read(missing))))

    def _make(self, begun: _Progress) -> _Progress:
        """Make the queues that are not there, and leave the file's name in each."""
        mark = HeldName(self._session, after(self._service.clock.now(), MARK_SECONDS))

        created = begun.created.split()

        def make(work: UnitOfWork) -> None:
            for spec in self._missing(work.transaction):
                work.put_queue(replace(spec, paused=False))
            for spec in self._header.queues:
                if spec.paused and spec.name in created:
                    work.set_paused(spec.name, "paused")
                work.transaction.hold_names(spec.name, [mark], now=work.now)

        return self._journal.do(make, lambda _: replace(begun, stage="filling"))

    def _missing(self, look: Transaction) -> list[QueueSpec]:
        there = {spec.name for spec in look.queues()}
        return [spec for spec in self._header.queues if spec.name not in there]

    # -- chunks ---------------------------------------------------------------------------------------------------

    def _fill(self, done: _Progress, hold: TransferLead) -> _Progress:
        for lines in chunks_of(self._reader, after_line=done.line):
            if lines.queue != done.queue:
                done = self._enter(done, lines.queue)
            done = self._put(done, lines)
            hold.renew()
            self._progress(done.line, self._lines)
        if done.queue:
            self._leave(done.queue)
        return self._journal.keep(replace(done, stage="done"))

    def _enter(self, done: _Progress, queue: str) -> _Progress:
        """Begin with a queue, which is then closed to others where a chunk and its progress are not one step."""
        if done.queue:
            self._leave(done.queue)
        if not self._closes:
            return replace(done, queue=queue)

        def close(work: UnitOfWork) -> int:
            moved_to = work.transaction.queue(queue).moved_to
            if moved_to not in ("", self._mark):
                check_not_moved(work.transaction.queue(queue))
            work.transaction.set_moved(queue, self._mark)
            return work.stats(queue, ANY).added_total

        return self._journal.do(close, lambda added: replace(done, queue=queue, base_added=added, restored=0))

    def _leave(self, queue: str) -> None:
        if self._closes:
            self._service.run(lambda work: work.transaction.set_moved(queue, ""))
            wake_ready(self._service, queue)

    def _put(self, done: _Progress, lines: _Lines) -> _Progress:
        if self._closes and lines.tasks:
            came = self._service.read(lambda work: work.stats(lines.queue, ANY)).added_total - done.base_added
            if came != done.restored:
                return self._came_already(done, lines, came - done.restored)

        def put(work: UnitOfWork) -> list[Added]:
            self._check_open(work, lines.queue)
            if lines.names:
                work.transaction.hold_names(lines.queue, lines.names, now=work.now)
            if not lines.tasks:
                return []
            added = work.transaction.restore(lines.queue, lines.tasks, now=work.now)
            if not self._closes:
                record_ready(work, lines.queue, lines.tasks, added)
            return added

        return self._journal.do(put, lambda added: _advanced(done, lines, sum(one.status == "added" for one in added)))

    def _check_open(self, work: UnitOfWork, queue: str) -> None:
        if not self._closes:
            check_not_moved(work.transaction.queue(queue))

    def _came_already(self, done: _Progress, lines: _Lines, came: int) -> _Progress:
        """The chunk after the last that is known to have come: it came as well, before its progress was kept."""
        unnamed = sum(task.name is None for task in lines.tasks)
        if not unnamed <= came <= len(lines.tasks):
            raise MoveRefusedError(
                f"of {len(lines.tasks)} tasks before line {lines.last + 1}, {came} are in queue {lines.queue!r}, and "
                "which is not known: drop the queue and import again"
            )
        return self._journal.keep(_advanced(done, lines, came))


def _advanced(done: _Progress, lines: _Lines, added: int) -> _Progress:
    return replace(
        done,
        line=lines.last,
        tasks=done.tasks + added,
        refused=done.refused + len(lines.tasks) - added,
        names=done.names + len(lines.names),
        restored=done.restored + added,
    )


def chunks_of(reader: ExportReader, *, after_line: int) -> Iterator[_Lines]:
    """What comes after a line, in chunks of one queue and kind; the same chunks whenever it begins at the same line."""
    tasks: list[StoredTask] = []
    names: list[HeldName] = []
    queue, size = "", 0
    last = after_line
    for record in reader.records(after_line=after_line):
        is_name = isinstance(record, NameLine)
        is_other = record.queue != queue or bool(tasks if is_name else names)
        is_full = len(tasks) >= CHUNK_TASKS or size >= CHUNK_BYTES or len(names) >= CHUNK_NAMES
        if (tasks or names) and (is_other or is_full):
            yield _Lines(queue, tuple(tasks), tuple(names), last)
            tasks, names, size = [], [], 0
        queue, last = record.queue, reader.lines
        if isinstance(record, NameLine):
            names.append(record.held)
        else:
            tasks.append(record)
            size += len(record.payload)
    if tasks or names:
        yield _Lines(queue, tuple(tasks), tuple(names), last)

"""Print what `towline up` and `towline supervise` do: sentences on a terminal, JSON elsewhere, and workers' output.

One thread reads workers' output and writes everything: neither a flood nor a terminal that takes nothing holds up the
supervisor, and its events come after what was written before them.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Final, TextIO

from orchestrator.base import events
from orchestrator.base.clock import MonotonicClock
from orchestrator.cli.fleet_events import (
    OrphanedTask,
    death_line,
    fate_of,
    fleet_lines,
    held_tasks,
    is_death,
    short_name,
)
from orchestrator.cli.up.restarted_tasks import TaskLookup
from orchestrator.cli.up.stacks import StackFolder
from orchestrator.cli.worker_lines import LinePrinter
from orchestrator.runtimes.worker_output import entry_in
from orchestrator.supervisor.output import OutputBatch, OutputFollower, WorkerLine
from queue_core.cli.cut_output import OutputCutError
from queue_core.cli.event_lines import EventLine, FailureCounts, LineLayout
from queue_core.cli.worker_events import EventReader, worker_line
from queue_core.client.http.folded_decisions import MOMENT_SECONDS, repeats
from queue_core.process.terminal import terminal_size, write_at_once
from queue_core.process.wording import counted

LOOK_SECONDS: Final = 0.25
"""Pause between two looks at workers' output."""
MAX_LOOK_BYTES: Final = 16 * 1024
"""New output of one worker that one look reads, at most: 64 KiB a second. What it leaves out is counted."""
MAX_LOOK_LINES: Final = 250
"""Lines of output that one look shows, at most: 1,000 a second of all workers together. The others are counted."""
LINES_AT_A_TIME: Final = 25
"""Lines after which other threads get their turn."""
MAX_EVENTS: Final = 10_000
"""Events that wait for a terminal that takes nothing; beyond these the oldest are dropped."""
STOP_SECONDS: Final = 2.0
"""How long the end of the program waits for the last lines: a terminal may take nothing."""
BEGUN_SECONDS: Final = 2.0
"""How long the line of a death waits until its tasks were begun again."""
MAX_LOOKUPS: Final = 5
"""Deaths whose tasks are looked up at a time."""
NAME_CHARS: Final = 7
"""Characters that a worker's name has beside its pool's: `-7f3k2q`."""


@dataclass(slots=True)
class _Death:
    """A death that is not told yet: its tasks may be begun again in a moment."""

    entry: Mapping[str, object]
    died_at: float
    tell_by: float
    tasks: Sequence[OrphanedTask]
    held: int


@dataclass(slots=True)
class _Decided:
    """A pool's last decision, and how often it was made since it was shown."""

    entry: Mapping[str, object]
    at: float
    repeats: int = 0


@dataclass(slots=True)
class UpScreen:
    """Sentences on a terminal: the supervisor's events, failures of handlers, and workers' output.

    `take` may be called by any thread; all else belongs to the thread that shows.

    Args:
        stream: the terminal.
        reader: which events are shown, and how.
        layout: how lines look.
        clock: the time of lines, and of counting.
        shows_output: whether lines that workers write are shown too.
        where: the folder of workers' output, for a person.
        lookup: finds when a dead worker's tasks were begun again; None: that is not told.
        wake: called when there is something to show.
    """

    stream: TextIO
    reader: EventReader
    layout: LineLayout
    clock: MonotonicClock
    shows_output: bool = True
    where: str = ".towline/workers"
    lookup: TaskLookup | None = None
    wake: Callable[[], None] = lambda: None
    _header: Sequence[str] = ()
    _events: deque[tuple[float, Mapping[str, object]]] = field(default_factory=lambda: deque(maxlen=MAX_EVENTS))
    _failures: FailureCounts = field(default_factory=FailureCounts)
    _stacks: StackFolder = field(default_factory=StackFolder)
    _deaths: list[_Death] = field(default_factory=list)
    _troubles: dict[object, object] = field(default_factory=dict)
    """By pool, the trouble that was told last."""
    _decided: dict[object, _Decided] = field(default_factory=dict)
    _is_stopping: bool = False
    _summary: list[str] = field(default_factory=list)

    def take(self, entry: Mapping[str, object]) -> None:
        """Show an event soon. It does not block: the caller is the supervisor's thread, or the server's."""
        self._events.append((self.clock.wall_seconds(), dict(entry)))
        self.wake()

    def columns(self) -> int | None:
        """Return the width of the terminal now."""
        size = terminal_size(self.stream)
        return None if size is None else size.columns

    def begin(self, header: Sequence[str]) -> None:
        """Show lines as they are, above all others."""
        self._header = header
        self.wake()

    def step(self, batch: OutputBatch, *, is_last: bool) -> None:
        """Show what is new: output first, as it was written before the events that wait."""
        waiting = [self._events.popleft() for _ in range(len(self._events))]
        self.layout.width = self.columns()
        lines, self._header = list(self._header), ()
        lines += self._batch_lines(batch)
        for at, entry in waiting:
            lines += self._event_lines(entry, at)
        lines += self._repeat_lines(is_last=is_last)
        lines += self._death_lines(is_last=is_last)
        now = self.clock.monotonic()
        told = self._failures.rest() if is_last else self._failures.due(now=now)
        lines += [shown for line in told for shown in self.layout.lines(line, at=self.clock.wall_seconds())]
        lines += self._summary if is_last else []
        if lines:
            # A terminal echoes Ctrl-C as ^C; the first line after it is written over that.
            write_at_once(self.stream, ("\r" if self._is_stopping else "") + "".join(f"{line}\n" for line in lines))

    def _batch_lines(self, batch: OutputBatch) -> list[str]:
        at = self.clock.wall_seconds()
        skipped = dict(batch.skipped)
        lines = batch.lines
        if not self.reader.is_whole:
            lines = [one for line in lines for one in self._stacks.shown(line)]
        drop = len(lines) - MAX_LOOK_LINES
        shown: list[str] = []
        for line in lines:
            is_entry = line.text.startswith("{")
            if drop > 0 and not is_entry:
                drop -= 1
                skipped[line.worker] = skipped.get(line.worker, 0) + 1
                continue
            told = self._read(line) if is_entry else self._plain(line)
            if told is not None and (not told.kind or self._failures.is_new(told, now=self.clock.monotonic())):
                shown += self.layout.lines(told, at=at)
            if len(shown) % LINES_AT_A_TIME == 0:
                time.sleep(0)  # the supervisor's turn may wait for the interpreter
        if not self.shows_output:
            return shown
        left_out = [
            EventLine(self._left_out(count, worker), name=short_name(worker), mark="|")
            for worker, count in skipped.items()
        ]
        return [text for line in left_out for text in self.layout.lines(line, at=at)] + shown

    def _read(self, line: WorkerLine) -> EventLine | None:
        """Return an entry in a worker's output as it is shown; None for one that is not."""
        entry = entry_in(line.text)
        if entry is None or not isinstance(entry.get("event"), str):
            return self._plain(line)
        told = worker_line(entry, self.reader, name=short_name(line.worker))
        if told is None or (told.mark == "|" and not self.shows_output):
            return None
        return replace(told, group=line.pool) if told.kind else told

    def _plain(self, line: WorkerLine) -> EventLine | None:
        return EventLine(line.text, name=short_name(line.worker), mark="|") if self.shows_output else None

    def _left_out(self, count: int, worker: str) -> str:
        amount = "some lines were" if count < 0 else counted(count, "line was", "lines were")
        return f"({amount} left out, as too many came at once; what is kept of them is in {self.where}/{worker}.log)"

    def _event_lines(self, entry: Mapping[str, object], at: float) -> list[str]:
        if entry.get("event") == events.SUPERVISOR_STOPPING:
            self._is_stopping = True
        if is_death(entry) and self.reader.shows(str(entry.get("level"))):
            self._deaths.append(self._death(entry, at))
            return []
        if self._is_repeated(entry):
            return []
        before: list[str] = []
        if entry.get("event") == events.POOL_DECIDED and not self.reader.is_whole:
            known = self._decided.get(entry.get("pool"))
            if known is not None and repeats({**entry, "at": at}, {**known.entry, "at": known.at}):
                self._decided[entry.get("pool")] = _Decided(entry, at, known.repeats + 1)
                return []
            before = self._decision_lines(known)
            self._decided[entry.get("pool")] = _Decided(entry, at)
        lines = before + [shown for line in fleet_lines(entry, self.reader) for shown in self.layout.lines(line, at=at)]
        if entry.get("event") != events.WORK_COUNTED:
            return lines
        self._summary = lines  # the last line, behind counts and deaths that are told at the end
        return []

    def _is_repeated(self, entry: Mapping[str, object]) -> bool:
        """Return whether an event is a decision that changes nothing, for a trouble that a line has told already."""
        if entry.get("event") == events.POOL_TROUBLED:
            self._troubles[entry.get("pool")] = entry.get("sentence")
        return (
            not self.reader.is_whole
            and entry.get("event") == events.POOL_DECIDED
            and entry.get("current") == entry.get("target")
            and entry.get("why") == self._troubles.get(entry.get("pool"))
        )

    def _repeat_lines(self, *, is_last: bool) -> list[str]:
        """Return the lines of decisions that were repeated and are not any more."""
        now = self.clock.wall_seconds()
        over = [one for one in self._decided.values() if is_last or now - one.at > MOMENT_SECONDS]
        lines = [line for one in over for line in self._decision_lines(one)]
        for one in over:
            one.repeats = 0
        return lines

    def _decision_lines(self, decided: _Decided | None) -> list[str]:
        """Return the line of a decision that was repeated since it was shown, with how often."""
        if decided is None or not decided.repeats:
            return []
        times = counted(decided.repeats, "more time", "more times")
        found = [replace(line, text=f"{line.text} ({times})") for line in fleet_lines(decided.entry, self.reader)]
        return [shown for line in found for shown in self.layout.lines(line, at=decided.at)]

    def _death(self, entry: Mapping[str, object], at: float) -> _Death:
        ago, held = entry.get("seconds_ago"), entry.get("held")
        seconds_ago = float(ago) if isinstance(ago, int | float) else 0.0
        tell_by = self.clock.monotonic() + BEGUN_SECONDS
        tasks = held_tasks(entry)
        known = max(held if isinstance(held, int) else 0, len(tasks))
        return _Death(entry, at - seconds_ago, tell_by, tasks, known)

    def _death_lines(self, *, is_last: bool) -> list[str]:
        """Return the lines of deaths whose tasks were restarted, or that waited for long enough."""
        lines: list[str] = []
        left: list[_Death] = []
        for index, death in enumerate(self._deaths):
            given_back = [task for task in death.tasks if task.fate in {"given back", "lease ended"}]
            is_over = is_last or self._is_stopping or index >= MAX_LOOKUPS or self.clock.monotonic() >= death.tell_by
            restarted_after: float | None = None
            if given_back and self.lookup is not None and not self._is_stopping and index < MAX_LOOKUPS:
                restarted_after = self.lookup.restarted_after(
                    given_back, worker=str(death.entry.get("worker")), died_at=death.died_at
                )
            if given_back and restarted_after is None and not is_over:
                left.append(death)
                continue
            fate = fate_of(death.tasks, held=death.held, restarted_after=restarted_after, is_stopping=self._is_stopping)
            at = self.clock.wall_seconds()
            lines += self.layout.lines(death_line(death.entry, fate), at=at)
        self._deaths = left
        return lines


@dataclass(slots=True)
class JsonOutput:
    """Workers' output as JSON on a stream that is no terminal."""

    printer: LinePrinter

    def step(self, batch: OutputBatch, *, is_last: bool) -> None:  # noqa: ARG002
        """Show new output of workers."""
        self.printer.show(batch)


@contextmanager
def shown(follow: Callable[[], OutputFollower] | None, views: Sequence["UpScreen | JsonOutput"]) -> Iterator[None]:
    """Show during the block what workers write and what is told, and the last of it at its end.

    `follow`: begins to follow workers' output; None: nothing is read.
    """
    if not views:
        yield
        return
    follower = follow() if follow is not None else None
    is_over, news = threading.Event(), threading.Event()
    for view in views:
        if isinstance(view, UpScreen):
            view.wake = news.set

    def work() -> None:
        live: list[UpScreen | JsonOutput] = list(views)
        is_last = False
        while not is_last and live:
            news.wait(LOOK_SECONDS)
            news.clear()
            is_last = is_over.is_set()
            batch = OutputBatch()
            with suppress(OSError):
                batch = follower.new() if follower is not None else batch
            for view in list(live):
                try:
                    view.step(batch, is_last=is_last)
                except (OSError, ValueError, OutputCutError):  # its reader is gone, or the terminal
                    live.remove(view)

    thread = threading.Thread(target=work, name="towline-output", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        news.set()
        thread.join(STOP_SECONDS)


def with_pools(layout: LineLayout, pools: Sequence[str]) -> LineLayout:
    """Return the layout with a column that has room for the names of these pools' workers."""
    longest = max(map(len, pools), default=0)
    return replace(layout, names=longest + NAME_CHARS if longest else 0)

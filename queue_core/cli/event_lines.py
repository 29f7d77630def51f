"""Events as lines for people, broken at words: `12:04:31  resize  0 -> 1: 3 ready`; alike failures are counted. Pure.

Which events are shown, and in which words, is said by `worker_events`, and by the fleet's own module.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal

import click

from queue_core.attempts.failures import is_library
from queue_core.cli.wrapping import columns_of, padded, wrapped
from queue_core.process.terminal import clean
from queue_core.process.wording import counted, shown_clock, shown_seconds

Mark = Literal["", "|", "!", "x"]
"""Between a line's name and its text: `|` output, `!` a warning, `x` a failure or a death."""

COUNT_SECONDS: Final = 60.0
"""For so long after a failure others of its kind are counted, not repeated."""
GAP: Final = "  "
_MARK_COLOURS: Final[Mapping[Mark, str]] = {"!": "yellow", "x": "red"}
_NAME_COLOURS: Final = ("cyan", "green", "magenta", "blue", "bright_cyan", "bright_green", "bright_magenta")
_FRAME: Final = re.compile(r'^(\s+)File "(.*)", line (\d+)(, in .*)?$')
_CARETS: Final = re.compile(r"^\s*[~^]+\s*$")
_LIBRARIES: Final = ("/site-packages/", "/dist-packages/", "/lib/python3", "/queue_core/worker/")
_OURS: Final = "/queue_core/worker/"


@dataclass(frozen=True, slots=True)
class EventLine:
    """An event in one sentence, and lines below it.

    Args:
        name: the pool or worker that it is about; "" for the whole.
        hint: the command that shows more.
        group: the pool that a count of failures is of.
        kind: what a failure has in common with others of its kind; (): it is no failure of a handler.
        short: the failure in a few words, for a count of others like it.
    """

    text: str
    name: str = ""
    mark: Mark = ""
    more: Sequence[str] = ()
    hint: str = ""
    group: str = ""
    kind: tuple[str, ...] = ()
    short: str = ""


@dataclass(slots=True)
class LineLayout:
    """How lines look: columns of the terminal (None: lines are never broken), colours, and the column of names."""

    width: int | None = None
    has_colours: bool = False
    names: int = 0
    _colour_of: dict[str, str] = field(default_factory=dict)

    def lines(self, line: EventLine, *, at: float) -> list[str]:
        """Return a line as the terminal gets it; `at` is in seconds since the epoch."""
        prefix = f"{shown_time(at)}{GAP}"
        if line.name:
            prefix += self._name(line.name) + " "
        elif self.names and line.mark:
            prefix += " " * (self.names + 1)
        if line.mark:
            prefix += self._styled(line.mark, _MARK_COLOURS.get(line.mark)) + " "
        text = clean(line.text)
        if line.hint:  # whole, on a line of its own where there is no room for it: it is copied
            hint = f"({clean(line.hint)})"
            fits = self.width is None or columns_of(f"{prefix}{text}   {hint}") <= self.width
            text += f"   {hint}" if fits else f"\n{hint}"
        more = "".join(f"\n{clean(one)}" for one in line.more)
        return wrapped(text + more, width=self.width, prefix=prefix)

    def _name(self, name: str) -> str:
        colour = self._colour_of.setdefault(name, _NAME_COLOURS[len(self._colour_of) % len(_NAME_COLOURS)])
        return padded(self._styled(clean(name), colour), self.names)

    def _styled(self, text: str, colour: str | None) -> str:
        return click.style(text, fg=colour) if self.has_colours and colour else text


class FailureCounts:
    """Failures of one kind within a minute: the first is shown, the others are counted."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, ...], tuple[float, EventLine]] = {}
        self._others: dict[tuple[str, ...], int] = {}

    def is_new(self, line: EventLine, *, now: float) -> bool:
        """Return whether a failure is to be shown; else it is counted. `now`: seconds that never go back."""
        kind = (line.group, *line.kind)
        if kind in self._first and now - self._first[kind][0] < COUNT_SECONDS:
            self._others[kind] = self._others.get(kind, 0) + 1
            return False
        self._first[kind] = now, line
        return True

    def due(self, *, now: float) -> list[EventLine]:
        """Return a line for each kind whose minute is over, if there were others."""
        over = [kind for kind, (first, _) in self._first.items() if now - first >= COUNT_SECONDS]
        return [line for kind in over for line in self._counted(kind, "in the minute after that")]

    def rest(self) -> list[EventLine]:
        """Return a line for each kind that was counted and not told yet."""
        return [line for kind in list(self._first) for line in self._counted(kind, "since then")]

    def _counted(self, kind: tuple[str, ...], when: str) -> Iterator[EventLine]:
        _, first = self._first.pop(kind)
        others = self._others.pop(kind, 0)
        if others:
            text = f"{counted(others, 'more failure')} like this {when} (not shown): {first.short}"
            yield replace(first, name=first.group or first.name, text=text, more=(), hint="", kind=())


def shown_time(at: float) -> str:
    """Return the local time of day: `12:04:31`."""
    return shown_clock(at, now_seconds=at)


def event_words(event: str) -> str:
    """Return an event's name as words: `lease.lost` is "lease lost"."""
    return event.replace(".", " ").replace("_", " ")


def pairs_of(entry: Mapping[str, object], *, without: Sequence[str]) -> str:
    """Return an event's other fields as `name=value`, for `--log-level debug`."""
    return " ".join(f"{name}={value}" for name, value in entry.items() if name not in without)


def folded_traceback(text: str, *, folder: Path | None = None, is_whole: bool = False) -> list[str]:
    """Return a traceback's lines without marks below its code, and with the frames of libraries counted.

    Frames of the worker itself, which lead to the handler, are left out. `folder`: paths of files in it are shortened.
    `is_whole`: return the lines as they are.
    """
    lines = text.strip("\n").split("\n")
    if is_whole:
        return lines
    kept: list[str] = []
    folded = 0
    hidden: int | None = None  # the indent of the frame that is left out
    for line in lines:
        found = _FRAME.match(line)
        if found is not None:
            indent, filename, number, where = found.groups()
            if is_library_file(filename):
                hidden = len(indent)
                folded += _OURS not in filename
                continue
            hidden = None
            kept += _count_of_frames(folded)
            folded = 0
            kept.append(f'{indent}File "{short_path(filename, folder)}", line {number}{where or ""}')
            continue
        if hidden is not None and (not line.strip() or len(line) - len(line.lstrip()) > hidden):
            continue
        hidden = None
        kept += _count_of_frames(folded)
        folded = 0
        if not _CARETS.match(line):
            kept.append(line)
    return kept + _count_of_frames(folded)


def _count_of_frames(count: int) -> list[str]:
    return [f"  ... {counted(count, 'frame')} of libraries"] if count else []


def is_library_file(filename: str) -> bool:
    """Return whether a file of a traceback is not the user's."""
    return filename.startswith("<frozen ") or is_library(filename) or any(part in filename for part in _LIBRARIES)


def short_path(filename: str, folder: Path | None) -> str:
    """Return a file's path from a folder on, if it is in it."""
    path = Path(filename)
    return str(path.relative_to(folder)) if folder is not None and path.is_relative_to(folder) else filename


def of_tasks(count: int, task: object) -> str:
    """Return a task's name as the beginning of a sentence: `task 5`, or `task 5 and 3 more`."""
    return f"task {task}" + (f" and {count - 1:,} more" if count > 1 else "")


def again_in(seconds: float) -> str:
    """Return when a task may be leased again: `again in 1 s`, `again at once`."""
    return f"again in {shown_seconds(seconds)}" if seconds > 0 else "again at once"

"""How far a long command is: a bar on a terminal, else a line now and then; on stderr, for people only."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from queue_core.cli.output import say
from queue_core.clock import SystemClock

LINE_SECONDS: Final = 5.0


class ProgressBar(Protocol):
    """What is told how far it is."""

    def __call__(self, what: str, done: int, total: int) -> None:
        """`what` is at `done` of `total`, of which 0 is not known."""


@contextmanager
def progress(unit: str, *, quiet: bool) -> Iterator[ProgressBar]:
    """A bar while the block runs; `quiet`: none at all."""
    if quiet:
        yield lambda _what, _done, _total: None
    elif sys.stderr.isatty():
        with _bar(unit) as bar:
            yield bar
    else:
        yield ProgressLines(unit)


class ProgressLines:
    """A line every few seconds: what a log keeps."""

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._clock = SystemClock()
        self.told_at = self._clock.monotonic()

    def __call__(self, what: str, done: int, total: int) -> None:
        now = self._clock.monotonic()
        if now - self.told_at >= LINE_SECONDS:
            self.told_at = now
            say(f"{what}: {done:,}{f' of {total:,}' if total else ''} {self._unit}")


@contextmanager
def _bar(unit: str) -> Iterator[ProgressBar]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn(unit))
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as shown:
        bars: dict[str, TaskID] = {}

        def tell(what: str, done: int, total: int) -> None:
            if what not in bars:
                bars[what] = shown.add_task(what, total=None)
            shown.update(bars[what], completed=done, total=total or None)

        yield tell

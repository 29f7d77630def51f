"""The output of commands: JSON for programs, tables for people, progress on stderr; colour on a terminal only."""

import json
import os
import sys
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal, Protocol

import click

from queue_core.clock import MICROSECONDS, Instant, SystemClock
from queue_core.process.terminal import clean, clean_json, clean_lines
from queue_core.process.wording import shown_clock, shown_seconds

__all__ = [
    "Column",
    "ProgressBar",
    "ProgressLines",
    "columns",
    "echo",
    "payload_fields",
    "print_info",
    "print_json",
    "print_table",
    "progress",
    "shown_instant",
    "shown_payload",
    "shown_seconds",
    "wants_colour",
]

Align = Literal["left", "right"]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    title: str
    align: Align = "left"


def columns(*titles: str) -> list[Column]:
    """Return columns by their titles; one that begins with `>` is aligned to the right."""
    return [Column(title.removeprefix(">"), "right" if title.startswith(">") else "left") for title in titles]


def print_json(value: object) -> None:
    """Print a JSON value on one line."""
    click.echo(clean_json(json.dumps(value, ensure_ascii=False, default=str)))


def echo(line: str = "", *, mark: str = "", err: bool = False, color: bool | None = None) -> None:
    """Print one line, with all control characters escaped but those of `mark`, which may be coloured."""
    click.echo(mark + clean(line), err=err, color=color)


def print_table(heads: Sequence[Column], rows: Sequence[Sequence[object]], *, empty: str) -> None:
    """Print rows under their heads; if there are none, `empty` on stderr, so that a pipe gets nothing."""
    if not rows:
        print_info(empty)
        return
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(len(head.title), *(len(row[index]) for row in cells)) for index, head in enumerate(heads)]
    click.echo(click.style(_line([head.title for head in heads], heads, widths), dim=True), color=wants_colour())
    for row in cells:
        echo(_line(row, heads, widths))


def print_info(text: str) -> None:
    """Print a line for people on stderr, so that a pipe does not get it."""
    click.echo(clean_lines(text), err=True)


def wants_colour() -> bool:
    """Return whether stdout is a terminal and the user has not switched colours off."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def shown_instant(instant: Instant | int | None, *, now: Instant | int | None = None) -> str:
    """Format an instant by the local clock, with its date unless it is that of `now`; "" for None or 0."""
    if not instant:
        return ""
    return shown_clock(instant / MICROSECONDS, now_seconds=(now or 0) / MICROSECONDS)


def payload_fields(payload: bytes) -> Mapping[str, str]:
    """Return a payload as a JSON field: `payload` if it is text, else `payload_base64`."""
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": b64encode(payload).decode()}


def shown_payload(payload: bytes, *, characters: int = 60) -> str:
    """Format the beginning of a payload on one line; bytes that are not text are escaped."""
    text = payload.decode(errors="backslashreplace").replace("\n", "\\n")
    text = "".join(character if character.isprintable() else "." for character in text)
    return text if len(text) <= characters else f"{text[: characters - 1]}…"


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else clean(str(value))


def _line(cells: Sequence[str], heads: Sequence[Column], widths: Sequence[int]) -> str:
    parts = (
        cell.rjust(width) if head.align == "right" else cell.ljust(width)
        for cell, head, width in zip(cells, heads, widths, strict=True)
    )
    return "  ".join(parts).rstrip()


LINE_SECONDS: Final = 5.0
"""Seconds between two lines of progress."""


class ProgressBar(Protocol):
    """A display of progress."""

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show that `what` is at `done` of `total`; 0: the total is not known."""


@contextmanager
def progress(unit: str, *, quiet: bool) -> Iterator[ProgressBar]:
    """Show progress while the block runs, unless `quiet`."""
    if quiet:
        yield lambda _what, _done, _total: None
    elif sys.stderr.isatty():
        with _bar(unit) as bar:
            yield bar
    else:
        yield ProgressLines(unit)


class ProgressLines:
    """Progress as a line every `LINE_SECONDS`, for logs."""

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._clock = SystemClock()
        self.printed_at = self._clock.monotonic()

    def __call__(self, what: str, done: int, total: int) -> None:
        now = self._clock.monotonic()
        if now - self.printed_at >= LINE_SECONDS:
            self.printed_at = now
            print_info(f"{what}: {done:,}{f' of {total:,}' if total else ''} {self._unit}")


@contextmanager
def _bar(unit: str) -> Iterator[ProgressBar]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn(unit))
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as shown:
        bars: dict[str, TaskID] = {}

        def update(what: str, done: int, total: int) -> None:
            if what not in bars:
                bars[what] = shown.add_task(what, total=None)
            shown.update(bars[what], completed=done, total=total or None)

        yield update

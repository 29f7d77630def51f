"""The output of commands: JSON for programs, tables for people, progress on stderr; colour on a terminal only."""

import json
import sys
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, Protocol, TextIO

import click

from queue_core.cli.tables import Column, Paint, columns, lay_out
from queue_core.cli.wrapping import columns_of, wrapped
from queue_core.clock import MICROSECONDS, Instant, SystemClock
from queue_core.process.terminal import allows_colours, clean, clean_json, clean_lines, has_cursor, terminal_size
from queue_core.process.wording import shown_clock, shown_seconds

__all__ = ["columns", "shown_seconds"]  # made elsewhere, and used with this module by every command that has a table

HANG: Final = 2
"""The indent of the further lines of a text that a terminal gets in several."""


def print_json(value: object) -> None:
    """Print a JSON value on one line."""
    click.echo(clean_json(json.dumps(value, ensure_ascii=False, default=str)))


def echo(
    line: str = "",
    *,
    mark: str = "",
    hang: int | None = None,
    fg: str = "",
    err: bool = False,
    color: bool | None = None,
) -> None:
    """Print one line, with all control characters escaped but those of `mark`, which may be coloured.

    A terminal gets it broken at words.

    Args:
        hang: the indent of further lines: by default as far as the text behind a mark, and a step further than an
            indented line without one.
        fg: the colour of the text behind the mark.
    """
    text, width = clean(line), terminal_width(err=err)
    indent = len(text) - len(text.lstrip(" "))
    if hang is None:
        hang = columns_of(mark) + indent + (HANG if indent and not mark else 0)
    start = mark + text[:indent]
    parts = [mark + text] if width is None else wrapped(text[indent:], width=width, prefix=start, hang=hang)
    for part in parts:
        first = mark if fg and part is parts[0] else ""
        shown = first + click.style(part.removeprefix(first), fg=fg) if fg else part
        click.echo(shown, err=err, color=color)


def print_wrapped(text: str, prefix: str = "", *, hang: int | None = None, err: bool = False) -> None:
    """Print a text for people behind `prefix`; a terminal gets it broken at words (see `wrapped`)."""
    for line in wrapped(clean_lines(text), width=terminal_width(err=err), prefix=prefix, hang=hang):
        click.echo(line, err=err)


def print_table(
    heads: Sequence[Column], rows: Sequence[Sequence[object]], *, empty: str, paint: Paint | None = None
) -> None:
    """Print rows under their heads in the width of the terminal, and on stderr the columns it has no room for.

    If there are no rows, `empty` is printed on stderr, so that a pipe gets nothing. `paint` is used where colours are.
    """
    if not rows:
        print_info(empty)
        return
    has_colours = wants_colour()

    def painted(row: int, column: int, text: str) -> str:
        if row < 0:
            return click.style(text, dim=True)
        return text if paint is None else paint(row, column, text)

    table = lay_out(heads, rows, width=terminal_width(), paint=painted if has_colours else None)
    for line in table.lines:
        click.echo(line, color=has_colours)
    if table.note:
        print_info(table.note)


def print_info(text: str) -> None:
    """Print a text for people on stderr, so that a pipe does not get it; a terminal gets it broken at words."""
    print_wrapped(text, hang=HANG, err=True)


def wants_colour() -> bool:
    """Return whether stdout is a terminal that shows colours, and the user has not switched them off."""
    return sys.stdout.isatty() and allows_colours()


def can_redraw(*, err: bool = False) -> bool:
    """Return whether a terminal is behind stdout or stderr on which a line can be written anew."""
    stream: TextIO | None = sys.stderr if err else sys.stdout
    return stream is not None and stream.isatty() and has_cursor()


def terminal_width(*, err: bool = False) -> int | None:
    """Return the columns of the terminal behind stdout or stderr; None where there is none: lines stay whole there."""
    size = terminal_size(sys.stderr if err else sys.stdout)
    return None if size is None else size.columns


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
    beginning = payload[: 4 * characters + 1]  # a character has at most four bytes
    text = beginning.decode(errors="backslashreplace").replace("\n", "\\n")
    text = "".join(character if character.isprintable() else "." for character in text)
    return text if len(text) <= characters else f"{text[: characters - 1]}…"


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
    elif can_redraw(err=True):
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
            print_info(f"{what}: {_amount(done, total, self._unit)}")


def _amount(done: int, total: int, unit: str) -> str:
    return f"{done:,}{f' of {total:,}' if total else ''} {unit}"


@contextmanager
def _bar(unit: str) -> Iterator[ProgressBar]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[amount]}"))
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as shown:
        bars: dict[str, TaskID] = {}

        def update(what: str, done: int, total: int) -> None:
            if what not in bars:
                bars[what] = shown.add_task(what, total=None, amount="")
            shown.update(bars[what], completed=done, total=total or None, amount=_amount(done, total, unit))

        yield update

"""What commands print: JSON for programs, aligned columns for people; colour on a terminal only."""

import json
import os
import sys
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

import click

from queue_core.clock import MICROSECONDS, Instant
from queue_core.process.terminal import clean, clean_json, clean_lines

Format = Literal["text", "json"]
Align = Literal["left", "right"]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    title: str
    align: Align = "left"


def columns(*titles: str) -> list[Column]:
    """Columns by their titles; one that begins with `>` is aligned to the right."""
    return [Column(title.removeprefix(">"), "right" if title.startswith(">") else "left") for title in titles]


def print_json(value: object) -> None:
    """One JSON value on one line."""
    click.echo(clean_json(json.dumps(value, ensure_ascii=False, default=str)))


def echo(line: str = "", *, mark: str = "", err: bool = False, color: bool | None = None) -> None:
    """One line, with nothing in it that a terminal would obey; `mark` is ours, and may be coloured."""
    click.echo(mark + clean(line), err=err, color=color)


def print_table(heads: Sequence[Column], rows: Sequence[Sequence[object]], *, empty: str) -> None:
    """Rows under their heads; `empty` is said when there are none, on stderr, so that a pipe gets nothing."""
    if not rows:
        say(empty)
        return
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(len(head.title), *(len(row[index]) for row in cells)) for index, head in enumerate(heads)]
    click.echo(click.style(_line([head.title for head in heads], heads, widths), dim=True), color=wants_colour())
    for row in cells:
        echo(_line(row, heads, widths))


def say(text: str) -> None:
    """A remark for people, on stderr: what a pipe reads stays clean."""
    click.echo(clean_lines(text), err=True)


def wants_colour() -> bool:
    """Whether stdout is a terminal that wants colour."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def shown_instant(instant: Instant | int | None) -> str:
    """An instant as ISO 8601 in UTC, to the millisecond; nothing for none."""
    if not instant:
        return ""
    return datetime.fromtimestamp(instant / MICROSECONDS, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def shown_seconds(seconds: float | None) -> str:
    """A duration, short: 0.004 is "4ms", 75 is "1m15s"."""
    if seconds is None:
        return ""
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s"


def payload_fields(payload: bytes) -> Mapping[str, str]:
    """A payload for JSON: as text when it is, else base64 under a name that says so."""
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": b64encode(payload).decode()}


def shown_payload(payload: bytes, *, characters: int = 60) -> str:
    """The beginning of a payload on one line; bytes that are no text are escaped."""
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

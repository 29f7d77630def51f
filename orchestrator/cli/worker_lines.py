"""Workers' output on a terminal: a prefix for each worker, and log entries as people read them; or as JSON."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import click

from orchestrator.runtimes.worker_output import entry_in, time_in
from orchestrator.supervisor.output import OutputBatch, WorkerLine
from queue_core.cli.event_lines import folded_traceback, shown_time
from queue_core.cli.output import echo, terminal_width
from queue_core.process.terminal import clean, clean_json
from queue_core.process.wording import counted

_COLOURS: Final = ("cyan", "yellow", "green", "magenta", "blue", "bright_cyan", "bright_yellow", "bright_magenta")
_LEVEL_COLOURS: Final[Mapping[str, str]] = {"warning": "yellow", "error": "red", "critical": "red"}
_TRACEBACKS: Final = frozenset({"traceback", "exception"})
_SHOWN_FIRST: Final = ("timestamp", "level", "event")
# The prefix names the worker already.
_LEFT_OUT: Final = frozenset({*_SHOWN_FIRST, "worker", "pool"})
MAX_VALUE_CHARS: Final = 2_000
"""Length at which a value of a log entry is cut; texts of several lines are shown whole."""


class LinePrinter:
    """Prints workers' lines, each after its worker's name."""

    def __init__(
        self, *, as_json: bool = False, colours: bool = False, is_one_worker: bool = False, pool: str | None = None
    ) -> None:
        """`is_one_worker`: leave the names out until there is a second worker, or a line of this `pool`."""
        self._as_json = as_json
        self._has_colours = colours
        self._has_names = not is_one_worker
        self._pool = pool
        self._width = 0
        self._colour_of: dict[str, str] = {}

    def show(self, batch: OutputBatch) -> None:
        """Print a batch: first what was left out of it, then its lines."""
        workers = {line.worker for line in batch.lines} | batch.skipped.keys() | self._colour_of.keys()
        self._has_names = self._has_names or len(workers) > 1 or any(line.pool == self._pool for line in batch.lines)
        self._width = max([self._width, *map(len, workers)])
        for worker, size in batch.skipped.items():
            self._show_skipped(worker, size)
        for line in batch.lines:
            self._show(line)

    def _show(self, line: WorkerLine) -> None:
        if self._as_json:
            told: dict[str, object] = {"at": line.at} if line.has_time else {}
            told |= {"pool": line.pool, "worker": line.worker, "line": line.text}
            click.echo(clean_json(json.dumps(told, ensure_ascii=False)))
            return
        mark = self._mark(line.worker)
        level, shown = shown_lines(line.text, folds=terminal_width() is not None)
        for text in shown:
            fg = _LEVEL_COLOURS.get(level, "") if self._has_colours else ""
            echo(text, mark=mark, fg=fg, color=self._has_colours)

    def _show_skipped(self, worker: str, count: int) -> None:
        amount = "some lines" if count < 0 else counted(count, "line")
        if self._as_json:
            click.echo(clean_json(json.dumps({"worker": worker, "skipped_lines": count})))
        else:
            text = f"({amount} not shown: too many came at once; `towline logs {worker}` shows what is kept)"
            echo(text, mark=self._mark(worker), color=self._has_colours)

    def _mark(self, worker: str) -> str:
        colour = self._colour_of.setdefault(worker, _COLOURS[len(self._colour_of) % len(_COLOURS)])
        if not self._has_names:
            return ""
        mark = f"{clean(worker):<{self._width}} | "
        return click.style(mark, fg=colour) if self._has_colours else mark


def shown_lines(text: str, *, folds: bool = False) -> tuple[str, Sequence[str]]:
    """Return a line's level and how it is shown: a log entry with its fields, then its texts of several lines.

    `folds`: leave out of a traceback what is not the user's.
    """
    entry = entry_in(text)
    if entry is None or not isinstance(entry.get("event"), str):
        return "", [text]
    fields = {name: value for name, value in entry.items() if name not in _LEFT_OUT and value is not None}
    long = {name: value for name, value in fields.items() if isinstance(value, str) and "\n" in value.strip()}
    at = time_in(entry)
    level = str(entry.get("level") or "")
    head = ["" if at is None else shown_time(at), f"[{level}]" if level else "", str(entry["event"])]
    pairs = [f"{name}={_value(value)}" for name, value in fields.items() if name not in long]
    return level, [" ".join(part for part in (*head, *pairs) if part), *_indented(long, folds=folds)]


def _indented(long: Mapping[str, str], *, folds: bool) -> Iterator[str]:
    for name, value in long.items():
        for line in folded_traceback(value, is_whole=not (folds and name in _TRACEBACKS)):
            yield f"    {line}"


def _value(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text[:MAX_VALUE_CHARS]

"""Show a run: live on a terminal, as plain lines elsewhere."""

import contextlib
import sys
from typing import Final, Self

import click
from rich.console import Console
from rich.text import Text

from orchestrator.demo.frame import frame_of, status_line
from orchestrator.demo.run_state import DemoRun
from queue_core.cli.cut_output import OutputCutError
from queue_core.cli.output import terminal_width
from queue_core.cli.wrapping import wrapped
from queue_core.process.terminal import DEFAULT_SIZE, TerminalSize, terminal_size

STATUS_SECONDS: Final = 5.0
"""Time between two lines with the run's figures."""
INDENT: Final = 8
SUMMARY: Final = 8
"""Lines for the summary below the last frame."""
SHORTEST: Final = 6
_CLOSED: Final = contextlib.suppress(OSError, OutputCutError)
"""A terminal that was closed ends the run, by its hang-up; the report is still written."""
_ENTER: Final = "\x1b[?1049h\x1b[?25l"
_LEAVE: Final = "\x1b[H\x1b[J\x1b[?25h\x1b[?1049l"
_BEGIN_FRAME: Final = "\x1b[?2026h\x1b[H"
_END_LINE: Final = "\x1b[K\r\n"
_END_FRAME: Final = "\x1b[K\x1b[J\x1b[?2026l"
"""Terminals that know mode 2026 show a frame at once; all others ignore it."""


class LineView:
    """Prints messages, and every few seconds the run's figures, to stderr."""

    def __init__(self) -> None:
        self._shown = 0
        self._status_at = STATUS_SECONDS

    def update(self, run: DemoRun) -> None:
        """Print what is new."""
        for _at, kind, message in run.log[max(0, len(run.log) - (run.logged - self._shown)) :]:
            self._print(f"-- {message}" if kind == "note" else message)
        self._shown = run.logged
        if run.figures.at_seconds >= self._status_at or run.is_over:
            self._status_at = run.figures.at_seconds + STATUS_SECONDS
            self._print(status_line(run))

    def _print(self, text: str) -> None:
        for line in wrapped(text, width=terminal_width(err=True), hang=INDENT):
            click.echo(line, err=True)


class LiveView:
    """A screen redrawn when figures are new or its size has changed; use it as a context manager."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._drawn: tuple[object, ...] = ()
        self._run: DemoRun | None = None

    def __enter__(self) -> Self:
        self._write(_ENTER)
        return self

    def __exit__(self, *_error: object) -> None:
        """Leave the screen as it was, and print the last frame below, with room for the summary."""
        size, run = self._size(), self._run
        last = [] if run is None else frame_of(run, columns=size.columns, lines=max(SHORTEST, size.lines - SUMMARY))
        with _CLOSED:
            self._write(_LEAVE + "".join(f"{line}\n" for line in self._encoded(last)))

    def update(self, run: DemoRun) -> None:
        """Draw a frame if anything is new."""
        size = self._size()
        state = (len(run.history), run.logged, run.is_over, size)
        if state == self._drawn:
            return
        self._drawn = state
        self._run = run
        frame = frame_of(run, columns=size.columns, lines=size.lines)
        with _CLOSED:
            self._write(_BEGIN_FRAME + _END_LINE.join(self._encoded(frame)) + _END_FRAME)

    def _size(self) -> TerminalSize:
        return terminal_size(sys.stdout) or DEFAULT_SIZE

    def _encoded(self, lines: list[Text]) -> list[str]:
        encoded = []
        for line in lines:
            with self._console.capture() as captured:
                self._console.print(line, end="", no_wrap=True, crop=False, overflow="ignore")
            encoded.append(captured.get())
        return encoded

    def _write(self, text: str) -> None:
        self._console.file.write(text)
        self._console.file.flush()

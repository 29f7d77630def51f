"""Lines of code that a handler or a hook is at, for failures and the log: never with values, which may be payloads."""

from collections.abc import Sequence
from types import CodeType, FrameType
from typing import Final

from queue_core.attempts.failures import is_library, place_in, shown_path, traceback_at
from queue_core.fast_values import value
from queue_core.worker.context import Task

MAX_LINES_SHOWN: Final = 5
"""Lines of code, or tasks, that one log entry names at most."""
MAX_FRAMES: Final = 50
"""Frames of a handler's stack that are read at most."""


@value
class CodeLine:
    """A line of code that a handler is at: without values, which may be payloads."""

    filename: str
    number: int
    function: str

    @property
    def text(self) -> str:
        """The line with its whole path, for the log."""
        return f"{self.filename}:{self.number} in {self.function}"


def line_of(frame: FrameType) -> CodeLine:
    """Return the file, line and function of a frame."""
    return CodeLine(frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_name)


def shown_lines(lines: Sequence[CodeLine]) -> str:
    """Return the user's innermost lines with short paths, for a failure; those of libraries if there are no others."""
    own = [line for line in lines if not is_library(line.filename)] or lines
    return " < ".join(f"{shown_path(line.filename)}:{line.number} in {line.function}" for line in own[:MAX_LINES_SHOWN])


def full_lines(lines: Sequence[CodeLine]) -> str:
    """Return the innermost lines with whole paths, for the log."""
    return " < ".join(line.text for line in lines[:MAX_LINES_SHOWN])


def place_of_lines(lines: Sequence[CodeLine]) -> str:
    """Return the innermost of these lines that is the user's; see `place_in`."""
    return place_in([(line.filename, line.number) for line in lines])


def traceback_of_lines(ended: str, lines: Sequence[CodeLine], tasks: Sequence[Task]) -> str:
    """Return these lines in the form of a traceback: see `traceback_at`."""
    calls = [(line.filename, line.number, line.function) for line in lines]
    return traceback_at(ended, calls, [task.payload for task in tasks])


def lines_from(frame: FrameType | None, *, until: CodeType) -> tuple[CodeLine, ...]:
    """Return the lines of a stack, innermost first, up to the worker's own call of the handler, `until`."""
    lines: list[CodeLine] = []
    while frame is not None and len(lines) < MAX_FRAMES and frame.f_code is not until:
        lines.append(line_of(frame))
        frame = frame.f_back
    return tuple(lines)

"""Failures from exceptions: what a task's attempt shows of an error, without payloads and secrets."""

import os
import socket
import sysconfig
import traceback
from collections import deque
from collections.abc import Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Final, Literal, cast

from queue_core.attempts.attempt import (
    MAX_ERROR_CHARACTERS,
    MAX_HOST_CHARACTERS,
    MAX_MESSAGE_CHARACTERS,
    MAX_PATH_CHARACTERS,
    MAX_PLACE_CHARACTERS,
    MAX_TRACEBACK_CHARACTERS,
    Failure,
)
from queue_core.attempts.error_text import (
    MAX_RAW_CHARACTERS,
    TracebackPart,
    leaves_of,
    name_of,
    parts_of,
    path_of,
    text_of,
    text_of_value,
    traceback_parts,
)
from queue_core.attempts.redaction import redacted, redacted_parts
from queue_core.limits import MAX_REASON_CHARACTERS

MAX_ERRORS_OF_GROUP: Final = 3
"""Errors of an `ExceptionGroup` that a message has at most."""
MAX_TRACEBACK_CALLS: Final = 100
"""Innermost calls of each exception that a kept traceback has at most."""
MAX_FRAMES: Final = 50
"""Innermost calls among which the place of an error is looked for."""


def failure_of(
    error: BaseException | str,
    *,
    payloads: Sequence[bytes] = (),
    outcome: Literal["raised", "timed_out", "given_back"] = "raised",
    otherwise: str = "",
) -> Failure:
    """Return what an attempt shows of an exception, or of a text: cut to its limits, payloads and secrets replaced.

    `otherwise`: the place of an exception that no line of the user's raised.
    """
    if not issubclass(type(error), BaseException):  # `isinstance` would read an exception's `__class__`
        return Failure(outcome, "", failure_message(cast("str", error), payloads), "", host_name())
    error = cast("BaseException", error)
    return Failure(
        outcome,
        _clean(name_of(type(error)))[:MAX_ERROR_CHARACTERS],
        failure_message(_text_of(error), payloads),
        place_of(error, otherwise=otherwise),
        host_name(),
        _clean(path_of(type(error)))[:MAX_PATH_CHARACTERS],
        "" if outcome == "given_back" else whole_traceback(error, payloads),
    )


def whole_traceback(error: BaseException, payloads: Sequence[bytes] = ()) -> str:
    """Return an error's traceback, redacted: from the user's first call on, without the worker's that lead to it.

    Where it is too long, it is without libraries' calls, then without the first.
    """
    parts = _from_users_call(traceback_parts(error, limit=MAX_TRACEBACK_CALLS))
    if _length(parts) > MAX_TRACEBACK_CHARACTERS:
        parts = [part for part in parts if not part.filename or not is_library(part.filename)]
    while len(parts) > 1 and _length(parts) > MAX_TRACEBACK_CHARACTERS:
        parts = parts[max(1, len(parts) // 10) :]
    text = _clean(redacted_parts([part.text for part in parts], payloads))
    return text if len(text) <= MAX_TRACEBACK_CHARACTERS else f"{text[: MAX_TRACEBACK_CHARACTERS - 3]}..."


def traceback_at(ended: str, calls: Sequence[tuple[str, int, str]], payloads: Sequence[bytes] = ()) -> str:
    """Return where a handler was when it was `ended`, as its last line says, in the form of a traceback, redacted.

    `calls`: file, line and function of each, innermost first. Source lines are not read: files may hang too.
    """
    if not calls:
        return ""
    parts = [TracebackPart("Traceback (most recent call last):\n")]
    parts += [
        TracebackPart(f'  File "{filename}", line {number}, in {function}\n', filename)
        for filename, number, function in reversed(calls)
    ]
    parts.append(TracebackPart(f"{ended}\n"))
    return _clean(redacted_parts([part.text for part in _from_users_call(parts)], payloads))[:MAX_TRACEBACK_CHARACTERS]


def _from_users_call(parts: Sequence[TracebackPart]) -> list[TracebackPart]:
    """Leave out the libraries' calls before the user's first one, of each exception; of a user without a call, ours."""
    kept: list[TracebackPart] = []
    for is_calls, run in groupby(parts, key=lambda part: bool(part.filename)):
        calls = list(run)
        if is_calls:
            users = (at for at, call in enumerate(calls) if not is_library(call.filename))
            others = (at for at, call in enumerate(calls) if not call.filename.startswith(_own_folder()))
            calls = calls[next(users, next(others, 0)) :]
        kept += calls
    return kept


def _length(parts: Sequence[TracebackPart]) -> int:
    return sum(len(part.text) for part in parts)


def as_failure(error: "Failure | BaseException | str", payloads: Sequence[bytes] = ()) -> Failure:
    """Return the `error` of a release of tasks with these payloads as a failure."""
    if type(error) is Failure:
        return error
    return failure_of(cast("BaseException | str", error), payloads=payloads)


@cache
def host_name() -> str:
    """Return the name of this host, as attempts show it."""
    return _clean(socket.gethostname())[:MAX_HOST_CHARACTERS]


def this_program() -> str:
    """Return what a program that opened a store itself is called, as the record of what it deleted has it."""
    return f"process {os.getpid()} on {host_name()}"


def place_of(error: BaseException, *, otherwise: str = "") -> str:
    """Return the line that raised an error, as `tasks.py:14`: the innermost that is no library's, if there is one.

    Of a group it is the line of its first error. `otherwise`: what to return if all lines are libraries'.
    """
    tracebacks = [parts_of(one).traceback for one in leaves_of(error, most=MAX_ERRORS_OF_GROUP)]
    innermost = next((one for one in tracebacks if one is not None), parts_of(error).traceback)
    frames = deque(traceback.walk_tb(innermost), maxlen=MAX_FRAMES)
    lines = [(frame.f_code.co_filename, number or 0) for frame, number in reversed(frames)]
    if otherwise and all(is_library(filename) for filename, _ in lines):
        return otherwise
    return place_in(lines)


def place_in(lines: Sequence[tuple[str, int]]) -> str:
    """Return the first of these lines of code, innermost first, that is no library's, else the first; "" for none."""
    if not lines:
        return ""
    filename, number = next((line for line in lines if not is_library(line[0])), lines[0])
    return _clean(f"{shown_path(filename)}:{number}"[-MAX_PLACE_CHARACTERS:])


def is_library(filename: str) -> bool:
    """Return whether a file is the standard library's, an installed package's or ours, not the user's."""
    return filename.startswith((*_library_folders(), "<frozen"))


@cache
def _library_folders() -> tuple[str, ...]:
    """Return the folders of the standard library, of installed packages and of this package."""
    paths = sysconfig.get_paths()
    named = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return (*(f"{folder}{os.sep}" for folder in named), _own_folder())


@cache
def _own_folder() -> str:
    return f"{Path(__file__).parents[1]}{os.sep}"


def shown_path(filename: str) -> str:
    """Return a file's path from the working directory on, or its name where it is elsewhere."""
    path = Path(filename)
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return path.name


def _text_of(error: BaseException) -> str:
    """Return an exception's text; a group's says nothing of its errors by itself."""
    members = leaves_of(error, most=MAX_ERRORS_OF_GROUP)
    if members == (error,):
        return text_of(error)
    said = [": ".join(filter(None, (name_of(type(one)), text_of(one)))) for one in members]
    return f"{text_of(error)}: {'; '.join(said)}"


def failure_message(text: str, payloads: Sequence[bytes] = ()) -> str:
    """Return a text as the message of a failure: redacted, and cut to its limit."""
    message = _clean(redacted(text[:MAX_RAW_CHARACTERS], payloads)).strip()
    return message if len(message) <= MAX_MESSAGE_CHARACTERS else message[: MAX_MESSAGE_CHARACTERS - 3] + "..."


def reason_of(given: object, payloads: Sequence[bytes] = ()) -> str:
    """Return what a handler gives as its reason, mostly a text, as one of a dead task: redacted, and cut."""
    return _clean(redacted(text_of_value(given), payloads))[:MAX_REASON_CHARACTERS]


def _clean(text: str) -> str:
    """Return a text that a store can keep: without NUL and lone surrogates."""
    return text.replace("\x00", "").encode("utf-8", "replace").decode()

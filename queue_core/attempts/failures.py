"""Failures from exceptions: what a task's attempt shows of an error, without payloads and secrets."""

import json
import os
import re
import socket
import sysconfig
import traceback
from collections.abc import Sequence
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Final, Literal

from queue_core.attempts.attempt import (
    MAX_ERROR_CHARACTERS,
    MAX_HOST_CHARACTERS,
    MAX_MESSAGE_CHARACTERS,
    MAX_PLACE_CHARACTERS,
    Failure,
)

SHORTEST_REDACTED_CHARACTERS: Final = 4
"""Payloads shorter than this are not redacted: they would match unrelated text."""
MAX_RAW_CHARACTERS: Final = 20_000
"""Characters of an exception's own text that are read at most."""
SHORTEST_QUOTED_BEGINNING: Final = 32
"""Characters of a payload's beginning that count as quoted from it: long quotes are cut, by errors and above."""
_KEYS: Final = (
    "password|passwd|passphrase|pwd|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|credentials?|signature"
)
_TOKENS: Final = (
    r"eyJ[\w-]{8,}\.[\w-]+\.[\w-]*|gh[opsru]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|sk_(?:live|test)_\w{10,}"
    r"|sk-[\w-]{20,}|xox[abprs]-[\w-]{10,}|(?:AKIA|ASIA)[A-Z0-9]{16}"
)
# Each is linear in the text: none begins with a repeat, and no two repeats in a row take the same characters.
_SECRETS: Final = (
    # A password with an unescaped slash goes up to the `@`; a port before a path is no password.
    (re.compile(r"(?<=://)(?:[^\s/?#]{1,500}|[^\s/?#@:\[]{0,200}:(?!\d+[/?#,\s])[^\s@]{1,300})(?=@)"), "***"),
    (
        re.compile(r"(?i)\b(authorization['\"]?\s*[=:]\s*['\"]?(?:(?:basic|bearer|digest|token|key)\s+)?)[^\s'\",;]+"),
        r"\1***",
    ),
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}"), r"\1 ***"),
    (
        re.compile(rf"(?i)({_KEYS})(['\"]?\s*[=:]\s*)(?:(?P<quote>['\"])(?:\\.|(?!(?P=quote))[^\\])+|[^\s'\",;&]+)"),
        r"\1\2\3***",
    ),
    (re.compile(rf"(?<![\w-])(?:{_TOKENS})"), "***"),
)


def failure_of(
    error: BaseException | str,
    *,
    payloads: Sequence[bytes] = (),
    outcome: Literal["raised", "timed_out", "given_back"] = "raised",
) -> Failure:
    """Return what an attempt shows of an exception, or of a text: cut to its limits, payloads and secrets replaced."""
    if isinstance(error, str):
        return Failure(outcome, "", failure_message(error, payloads), "", host_name())
    return Failure(
        outcome,
        type(error).__name__[:MAX_ERROR_CHARACTERS],
        failure_message(_text_of(error), payloads),
        place_of(error),
        host_name(),
    )


def as_failure(error: "Failure | BaseException | str", payloads: Sequence[bytes] = ()) -> Failure:
    """Return the `error` of a release of tasks with these payloads as a failure."""
    return error if isinstance(error, Failure) else failure_of(error, payloads=payloads)


@cache
def host_name() -> str:
    """Return the name of this host, as attempts show it."""
    return _clean(socket.gethostname())[:MAX_HOST_CHARACTERS]


def redacted(text: str, payloads: Sequence[bytes] = ()) -> str:
    """Return a text with quoted payloads replaced by `<payload>`, and what looks like a secret by `***`."""
    for payload in payloads:
        for quoted in _quotations(payload):
            text = _without(text, quoted)
    for pattern, shown in _SECRETS:
        text = pattern.sub(shown, text)
    return text


def _quotations(payload: bytes) -> list[str]:
    """Return the forms in which a message may quote a payload, longest first: as text, by `repr`, as JSON, stripped."""
    text = payload.decode(errors="replace")
    forms = {text, repr(payload)[2:-1], repr(text)[1:-1], ascii(text)[1:-1], json.dumps(text)[1:-1], text.strip()}
    forms |= {repr(text.strip())[1:-1]}
    return sorted((form for form in forms if len(form) >= SHORTEST_REDACTED_CHARACTERS), key=len, reverse=True)


def _without(text: str, quoted: str) -> str:
    """Return the text without a payload's quotation, and without the beginnings of it that are long enough."""
    text = text.replace(quoted, "<payload>")
    beginning = quoted[:SHORTEST_QUOTED_BEGINNING]
    if len(beginning) < SHORTEST_QUOTED_BEGINNING:
        return text
    at = text.find(beginning)
    while at >= 0:
        end = at + sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(text[at:], quoted, strict=False)))
        text = f"{text[:at]}<payload>{text[end:]}"
        at = text.find(beginning, at + 1)
    return text


def place_of(error: BaseException) -> str:
    """Return the line that raised an error, as `tasks.py:14`: the innermost that is no library's, if there is one."""
    frames = traceback.extract_tb(error.__traceback__, limit=-50)
    return place_in([(frame.filename, frame.lineno or 0) for frame in reversed(frames)])


def place_in(lines: Sequence[tuple[str, int]]) -> str:
    """Return the first of these lines of code, innermost first, that is no library's, else the first; "" for none."""
    if not lines:
        return ""
    filename, number = next((line for line in lines if not is_library(line[0])), lines[0])
    return f"{shown_path(filename)}:{number}"[-MAX_PLACE_CHARACTERS:]


def is_library(filename: str) -> bool:
    """Return whether a file is the standard library's, an installed package's or ours, not the user's."""
    return filename.startswith((*_library_folders(), "<frozen"))


@cache
def _library_folders() -> tuple[str, ...]:
    """Return the folders of the standard library, of installed packages and of this package."""
    paths = sysconfig.get_paths()
    named = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return tuple(f"{folder}{os.sep}" for folder in (*named, str(Path(__file__).parents[1])))


def shown_path(filename: str) -> str:
    """Return a file's path from the working directory on, or its name where it is elsewhere."""
    path = Path(filename)
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return path.name


def _text_of(error: BaseException) -> str:
    """Return an exception's text. pydantic's own quotes the input, so it is put together by field."""
    errors = getattr(error, "errors", None)
    if callable(errors) and type(error).__module__.startswith("pydantic"):
        details = errors(include_url=False, include_context=False, include_input=False)
        return "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in details)
    try:
        return str(error)
    except Exception as failed:  # noqa: BLE001 - a user's `__str__`
        return f"(its text can't be made: {type(failed).__name__})"


def failure_message(text: str, payloads: Sequence[bytes] = ()) -> str:
    """Return a text as the message of a failure: redacted, and cut to its limit."""
    message = _clean(redacted(text[:MAX_RAW_CHARACTERS], payloads)).strip()
    return message if len(message) <= MAX_MESSAGE_CHARACTERS else message[: MAX_MESSAGE_CHARACTERS - 3] + "..."


def _clean(text: str) -> str:
    """Return a text that a store can keep: without NUL and lone surrogates."""
    return text.replace("\x00", "").encode("utf-8", "replace").decode()

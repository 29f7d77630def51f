"""Attempts: the leases of a task that ended without its work being done, and why: values, and as text in a store. Pure.

A store keeps the last `MAX_ATTEMPTS` of each task as lines of JSON, so that SQL and Lua append one without parsing the
others (ADR 31).
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from json.encoder import encode_basestring as _quoted
from typing import Final, Literal, TypeAlias

from queue_core.clock import Instant
from queue_core.errors import InvalidRequestError
from queue_core.fast_values import value
from queue_core.limits import check_text

MAX_ATTEMPTS: Final = 10
"""Attempts kept of each task; the oldest go first."""
MAX_MESSAGE_CHARACTERS: Final = 500
MAX_ERROR_CHARACTERS: Final = 100
MAX_PLACE_CHARACTERS: Final = 200
MAX_HOST_CHARACTERS: Final = 253
MAX_PATH_CHARACTERS: Final = 200
MAX_TRACEBACK_CHARACTERS: Final = 16_384

AttemptOutcome: TypeAlias = Literal["raised", "timed_out", "expired", "worker_died", "given_back"]
"""How an attempt ended: its handler raised, or ran beyond its timeout; nobody renewed its lease; its worker died, or
gave it back unfinished."""

OUTCOMES: Final = ("raised", "timed_out", "worker_died", "given_back")
"""The outcomes that a release can have; `expired` is what time does by itself."""
WORDS: Final[Mapping[AttemptOutcome, str]] = {
    "raised": "its handler raised an exception",
    "timed_out": "its handler ran beyond its timeout",
    "expired": "its lease expired: nobody renewed it",
    "worker_died": "its worker died",
    "given_back": "its worker gave it back",
}
"""Each outcome as a sentence: the reason of a death of which nothing more is known."""


@value
class Failure:
    """The reason for which a lease is given back, as its worker, or the supervisor of a dead worker, knows it.

    Args:
        outcome: how the attempt ended.
        error: the class of the exception, or the signal that ended the worker; at most 100 characters.
        message: at most 500 characters, without payloads and secrets.
        place: the line of code, as `tasks.py:14`; at most 200 characters.
        host: the host of the worker; at most 253 characters.
        error_path: by what the class is imported, as `shop.errors.PaymentError`; at most 200 characters.
        traceback: as Python prints it, without payloads and secrets; at most 16,384 characters.
    """

    outcome: Literal["raised", "timed_out", "worker_died", "given_back"] = "raised"
    error: str = ""
    message: str = ""
    place: str = ""
    host: str = ""
    error_path: str = ""
    traceback: str = ""

    @property
    def text(self) -> str:
        """The failure in one line: `ValueError: bad width (tasks.py:14)`; else the outcome's sentence."""
        return described(self.outcome, self.error, self.message, self.place)

    @property
    def given_reason(self) -> str:
        """The reason of the ended lease if its task lives on: "" where nothing was said of it."""
        return "" if self == GIVEN_BACK else self.text


@value
class Attempt:
    """A lease that ended without its task being deleted: see `Failure`. Only a task's last one has its traceback."""

    lease_number: int
    worker: str
    began_at: Instant
    ended_at: Instant
    outcome: AttemptOutcome
    error: str = ""
    message: str = ""
    place: str = ""
    host: str = ""
    error_path: str = ""
    traceback: str = ""

    @property
    def text(self) -> str:
        """See `Failure.text`."""
        return described(self.outcome, self.error, self.message, self.place)


@lru_cache(maxsize=64)
def described(outcome: AttemptOutcome, error: str, message: str, place: str) -> str:
    """Return why an attempt ended, in one line; a place or signal that the message names already is not told twice."""
    named = "" if outcome == "worker_died" and error in message else error
    said = ": ".join(part for part in (named, message) if part) or WORDS[outcome]
    return f"{said} ({place})" if place and place not in said else said


GIVEN_BACK: Final = Failure("given_back")
"""The failure of a release that says nothing of its own."""
WORKER_DIED: Final = Failure("worker_died")
EXPIRED: Final = Failure()
"""Nothing is known of why a lease expired."""


def check_failure(failure: object) -> None:
    """Raise `InvalidRequestError` unless it is a `Failure` within its limits."""
    if not isinstance(failure, Failure):
        raise InvalidRequestError(f"error must be a Failure, such as Failure(error='ValueError'): {failure!r}")
    if failure.outcome not in OUTCOMES:
        raise InvalidRequestError(f"outcome must be one of {', '.join(OUTCOMES)}: {failure.outcome!r}")
    for name, text, most in (
        ("error", failure.error, MAX_ERROR_CHARACTERS),
        ("message", failure.message, MAX_MESSAGE_CHARACTERS),
        ("place", failure.place, MAX_PLACE_CHARACTERS),
        ("host", failure.host, MAX_HOST_CHARACTERS),
        ("error_path", failure.error_path, MAX_PATH_CHARACTERS),
        ("traceback", failure.traceback, MAX_TRACEBACK_CHARACTERS),
    ):
        if not isinstance(text, str):
            raise InvalidRequestError(f"{name} of a failure must be text: {type(text).__name__} given")
        if len(text) > most:
            raise InvalidRequestError(f"{name} of a failure must be at most {most} characters: {len(text)}; cut it")
        check_text(f"{name} of a failure", text)


# -- as text in a store ---------------------------------------------------------------------------------------------


def failure_text(failure: Failure) -> str:
    """Return the last fields of an attempt's line, as JSON without brackets, and what follows it.

    A store puts the first four before them, `[lease_number,worker,began_at,ended_at,` with the worker as JSON, and `]`
    behind them. A traceback is an array of its own behind the line and a tab: a store cuts the text there before it
    appends the next line (ADR 104).
    """
    fields: list[object] = [failure.outcome, failure.error, failure.message, failure.place, failure.host]
    if failure.error_path:
        fields.append(failure.error_path)
    text = _json(fields)[1:-1]
    return f"{text}]{BEFORE_TRACEBACK}{_json([failure.traceback])[:-1]}" if failure.traceback else text


BEFORE_TRACEBACK: Final = "\t"
"""Between the last line and its traceback; JSON has it escaped."""
EXPIRED_TEXT: Final = '"expired","","","",""'
"""The last five fields of the line of an attempt whose lease expired: see `failure_text`."""


def attempts_text(attempts: Sequence[Attempt]) -> str | None:
    """Return attempts as stored, a line each, oldest first; None for none."""
    lines = [
        f"[{one.lease_number},{_quoted(one.worker)},{one.began_at},{one.ended_at},{_quoted(one.outcome)},"
        f"{_quoted(one.error)},{_quoted(one.message)},{_quoted(one.place)},{_quoted(one.host)}"
        f"{',' + _quoted(one.error_path) if one.error_path else ''}]"
        for one in attempts
    ]
    if not lines:
        return None
    traceback = attempts[-1].traceback
    return "\n".join(lines) + (f"{BEFORE_TRACEBACK}[{_quoted(traceback)}]" if traceback else "")


def attempts_of(text: str | None) -> tuple[Attempt, ...]:
    """Parse what `attempts_text` wrote."""
    if not text:
        return ()
    lines = text.split("\n")
    found = [Attempt(*json.loads(line.partition(BEFORE_TRACEBACK)[0])) for line in lines]
    _, _, traceback = lines[-1].partition(BEFORE_TRACEBACK)
    if traceback:
        found[-1] = replace(found[-1], traceback=json.loads(traceback)[0])
    return tuple(found)


def with_attempt(attempts: Sequence[Attempt], attempt: Attempt) -> tuple[Attempt, ...]:
    """Return the attempts with one more, without the oldest where there are too many, and without their tracebacks."""
    before = [replace(one, traceback="") if one.traceback else one for one in attempts]
    return (*before, attempt)[-MAX_ATTEMPTS:]


_json: Final[Callable[[list[object]], str]] = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
"""Made once: `json.dumps` makes an encoder for each call, which costs as much as the line."""

"""Attempts: the leases of a task that ended without its work being done, and why: values, and as text in a store. Pure.

A store keeps the last `MAX_ATTEMPTS` of each task as lines of JSON, so that SQL and Lua append one without parsing the
others (ADR 31).
"""

import json
from collections.abc import Callable, Mapping, Sequence
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
    """

    outcome: Literal["raised", "timed_out", "worker_died", "given_back"] = "raised"
    error: str = ""
    message: str = ""
    place: str = ""
    host: str = ""

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
    """A lease that ended without its task being deleted: see `Failure`."""

    lease_number: int
    worker: str
    began_at: Instant
    ended_at: Instant
    outcome: AttemptOutcome
    error: str = ""
    message: str = ""
    place: str = ""
    host: str = ""

    @property
    def text(self) -> str:
        """See `Failure.text`."""
        return described(self.outcome, self.error, self.message, self.place)


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
    ):
        if not isinstance(text, str):
            raise InvalidRequestError(f"{name} of a failure must be text: {type(text).__name__} given")
        if len(text) > most:
            raise InvalidRequestError(f"{name} of a failure must be at most {most} characters: {len(text)}; cut it")
        check_text(f"{name} of a failure", text)


# -- as text in a store ---------------------------------------------------------------------------------------------


def failure_text(failure: Failure) -> str:
    """Return the last five fields of an attempt's line, as JSON without brackets.

    A store puts the first four before them: `[lease_number,worker,began_at,ended_at,` and the worker as JSON.
    """
    return _json([failure.outcome, failure.error, failure.message, failure.place, failure.host])[1:-1]


EXPIRED_TEXT: Final = '"expired","","","",""'
"""The last five fields of the line of an attempt whose lease expired: see `failure_text`."""


def attempts_text(attempts: Sequence[Attempt]) -> str | None:
    """Return attempts as stored, a line each, oldest first; None for none."""
    lines = [
        _json(
            [
                attempt.lease_number,
                attempt.worker,
                attempt.began_at,
                attempt.ended_at,
                attempt.outcome,
                attempt.error,
                attempt.message,
                attempt.place,
                attempt.host,
            ]
        )
        for attempt in attempts
    ]
    return "\n".join(lines) if lines else None


def attempts_of(text: str | None) -> tuple[Attempt, ...]:
    """Parse what `attempts_text` wrote."""
    return tuple(Attempt(*json.loads(line)) for line in text.split("\n")) if text else ()


def with_attempt(attempts: Sequence[Attempt], attempt: Attempt) -> tuple[Attempt, ...]:
    """Return the attempts with one more, without the oldest where there are too many."""
    return (*attempts, attempt)[-MAX_ATTEMPTS:]


_json: Final[Callable[[list[object]], str]] = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
"""Made once: `json.dumps` makes an encoder for each call, which costs as much as the line."""

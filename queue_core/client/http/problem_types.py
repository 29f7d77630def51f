"""Problem types, the names of errors in HTTP responses (`urn:towline:problem:lease-lost`), to and from classes."""

import re
from collections.abc import Mapping
from types import MappingProxyType

from queue_core.errors import (
    InvalidRequestError,
    LeaseLostError,
    PermissionDeniedError,
    QueueError,
    StorageLimitError,
    StoreError,
    StoreUnavailableError,
    TaskTooLargeError,
    UnknownQueueError,
    UnknownScheduleError,
    WorkerRetiredError,
)

PREFIX = "urn:towline:problem:"

_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])")


def problem_type(error: type[QueueError]) -> str:
    """Return the problem type of an error class: `urn:towline:problem:lease-lost` for `LeaseLostError`."""
    return PREFIX + _WORD.sub("-", error.__name__.removesuffix("Error")).lower()


def _trees(*roots: type[QueueError]) -> dict[str, type[QueueError]]:
    found: dict[str, type[QueueError]] = {}
    for root in roots:
        found[problem_type(root)] = root
        ours = (below for below in root.__subclasses__() if below.__module__ == QueueError.__module__)
        found.update(_trees(*ours))
    return found


ERRORS: Mapping[str, type[QueueError]] = MappingProxyType(
    _trees(
        InvalidRequestError,
        UnknownQueueError,
        UnknownScheduleError,
        LeaseLostError,
        WorkerRetiredError,
        PermissionDeniedError,
        StorageLimitError,
        StoreError,
    )
)
"""The errors that a response may carry, by problem type."""


def error_of(problem: Mapping[str, object], *, status: int) -> QueueError:
    """Return the error of a problem document; for an unknown type, one that fits its status."""
    detail = str(problem.get("detail") or problem.get("title") or f"the server answered {status}")
    error = ERRORS.get(str(problem.get("type", "")))
    if error is LeaseLostError:
        tokens = problem.get("tokens")
        return LeaseLostError(detail, tokens=[str(token) for token in tokens] if isinstance(tokens, list) else ())
    if error is TaskTooLargeError:
        most = problem.get("limit")
        return TaskTooLargeError(detail, most=most) if isinstance(most, int) else TaskTooLargeError(detail)
    if error is None:
        error = StoreUnavailableError if status == 503 else InvalidRequestError if status < 500 else QueueError
    return error(detail)

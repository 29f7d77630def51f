"""What an error is called on the wire (`urn:towline:problem:lease-lost`), from class to name and back."""

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
    UnknownQueueError,
    WorkerRetiredError,
)

PREFIX = "urn:towline:problem:"

_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])")


def problem_type(error: type[QueueError]) -> str:
    """`LeaseLostError` is `urn:towline:problem:lease-lost`."""
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
        LeaseLostError,
        WorkerRetiredError,
        PermissionDeniedError,
        StorageLimitError,
        StoreError,
    )
)
"""Every error that crosses the wire, by its problem type."""


def error_of(problem: Mapping[str, object], *, status: int) -> QueueError:
    """The error that a problem document tells of; an unknown type is an error of its status' kind."""
    detail = str(problem.get("detail") or problem.get("title") or f"the server answered {status}")
    error = ERRORS.get(str(problem.get("type", "")))
    if error is LeaseLostError:
        tokens = problem.get("tokens")
        return LeaseLostError(detail, tokens=[str(token) for token in tokens] if isinstance(tokens, list) else ())
    if error is None:
        error = StoreUnavailableError if status == 503 else InvalidRequestError if status < 500 else QueueError
    return error(detail)

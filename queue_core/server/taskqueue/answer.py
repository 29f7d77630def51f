"""Answers of the Task Queue REST API, in the shape of Google's JSON APIs, errors included. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pydantic_core import to_json

from queue_core import errors
from queue_core.errors import QueueError
from queue_core.server.problems import Problem

MEDIA_TYPE = "application/json; charset=UTF-8"


@dataclass(frozen=True, slots=True)
class TaskqueueResponse:
    """An answer before it is bytes on a connection; an empty body has no media type."""

    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    media_type: str = MEDIA_TYPE


class TaskqueueError(QueueError):
    """An answer that tells what went wrong: `reason` is Google's word for it, `location` the parameter at fault.

    A `QueueError`, so that a step may raise it and leave the other steps of its turn alone.
    """

    def __init__(self, status: int, reason: str, message: str, location: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message
        self.location = location


REASONS: Mapping[type[QueueError], tuple[int, str]] = MappingProxyType(
    {
        errors.InvalidRequestError: (400, "invalid"),
        errors.UnknownQueueError: (404, "notFound"),
        errors.LeaseLostError: (400, "invalid"),
        errors.WorkerRetiredError: (403, "forbidden"),
        errors.StorageLimitError: (403, "quotaExceeded"),
        errors.PermissionDeniedError: (403, "forbidden"),
        errors.UnauthenticatedError: (401, "authError"),
        errors.StoreUnavailableError: (503, "backendError"),
        errors.QueueError: (500, "internalError"),
    }
)
"""Status and reason of an error: its own, else those of the nearest class above it."""

_OF_STATUS: Mapping[int, str] = MappingProxyType({403: "forbidden", 404: "notFound", 413: "uploadTooLarge"})
_HEADERS: Mapping[int, tuple[tuple[str, str], ...]] = MappingProxyType(
    {401: (("www-authenticate", 'Bearer realm="towline"'),), 503: (("retry-after", "1"),)}
)


def json_answer(value: object) -> TaskqueueResponse:
    """A value as JSON."""
    return TaskqueueResponse(200, to_json(value))


def invalid(message: str, *, location: str = "") -> TaskqueueError:
    """What most requests that can't be right are answered with."""
    return TaskqueueError(400, "invalidParameter" if location else "invalid", message, location)


def not_found(message: str) -> TaskqueueError:
    """For a path, a queue or a task that is not there."""
    return TaskqueueError(404, "notFound", message)


def error_answer(error: Exception) -> TaskqueueResponse:
    """What an error is answered with; one that is not the queue's tells no detail, and is the caller's to log."""
    told = _told(error)
    item: dict[str, object] = {"domain": "global", "reason": told.reason, "message": told.message}
    if told.location:
        item |= {"locationType": "parameter", "location": told.location}
    body = {"error": {"errors": [item], "code": told.status, "message": told.message}}
    return TaskqueueResponse(told.status, to_json(body), _HEADERS.get(told.status, ()))


def is_ours(error: Exception) -> bool:
    """Whether an error was raised on purpose, so that its message is for the caller."""
    return isinstance(error, QueueError | Problem)


def _told(error: Exception) -> TaskqueueError:
    if isinstance(error, TaskqueueError):
        return error
    if isinstance(error, Problem):
        return TaskqueueError(error.status, _OF_STATUS.get(error.status, "invalid"), error.detail)
    if isinstance(error, QueueError):
        status, reason = next(REASONS[above] for above in type(error).__mro__ if above in REASONS)
        # An acl may hide the other queues from who asks.
        return TaskqueueError(
            status, reason, error.public_message if isinstance(error, errors.UnknownQueueError) else str(error)
        )
    return TaskqueueError(500, "internalError", "the server made a mistake; its log has the details")

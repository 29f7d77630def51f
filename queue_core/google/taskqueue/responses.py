"""Responses of the Task Queue REST API, in the form of Google's JSON APIs, errors included. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pydantic_core import to_json

from queue_core import errors
from queue_core.errors import QueueError
from queue_core.server.base.problems import Problem

MEDIA_TYPE = "application/json; charset=UTF-8"


@dataclass(frozen=True, slots=True)
class TaskqueueResponse:
    """A response, of its own or within a batch; an empty body has no media type."""

    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    media_type: str = MEDIA_TYPE


class TaskqueueError(QueueError):
    """An error response: `reason` is Google's code for it, `location` the invalid parameter.

    It is a `QueueError`, so that an operation may raise it without failing the other operations of its group commit.
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
"""Status and reason by error class; a class without an entry has those of its nearest base class."""

_OF_STATUS: Mapping[int, str] = MappingProxyType({403: "forbidden", 404: "notFound", 413: "uploadTooLarge"})
_HEADERS: Mapping[int, tuple[tuple[str, str], ...]] = MappingProxyType(
    {401: (("www-authenticate", 'Bearer realm="towline"'),), 503: (("retry-after", "1"),)}
)


def json_response(value: object) -> TaskqueueResponse:
    """Return a value as a JSON response."""
    return TaskqueueResponse(200, to_json(value))


def invalid(message: str, *, location: str = "") -> TaskqueueError:
    """Return the error for a malformed request, with the invalid parameter if there is one."""
    return TaskqueueError(400, "invalidParameter" if location else "invalid", message, location)


def not_found(message: str) -> TaskqueueError:
    """Return the error for a path, a queue or a task that does not exist."""
    return TaskqueueError(404, "notFound", message)


def error_response(error: Exception) -> TaskqueueResponse:
    """Return the response for an error; an unexpected one shows no details, and the caller logs it."""
    failure = _as_taskqueue_error(error)
    item: dict[str, object] = {"domain": "global", "reason": failure.reason, "message": failure.message}
    if failure.location:
        item |= {"locationType": "parameter", "location": failure.location}
    body = {"error": {"errors": [item], "code": failure.status, "message": failure.message}}
    return TaskqueueResponse(failure.status, to_json(body), _HEADERS.get(failure.status, ()))


def is_expected(error: Exception) -> bool:
    """Return whether an error was raised on purpose, so that its message is for the caller."""
    return isinstance(error, QueueError | Problem)


def _as_taskqueue_error(error: Exception) -> TaskqueueError:
    if isinstance(error, TaskqueueError):
        return error
    if isinstance(error, Problem):
        return TaskqueueError(error.status, _OF_STATUS.get(error.status, "invalid"), error.detail)
    if isinstance(error, QueueError):
        status, reason = next(REASONS[above] for above in type(error).__mro__ if above in REASONS)
        # An acl may hide other queues from the caller, so the message names none.
        return TaskqueueError(
            status, reason, error.public_message if isinstance(error, errors.UnknownQueueError) else str(error)
        )
    return TaskqueueError(500, "internalError", "internal error; the server's log has the details")

"""Errors of the Cloud Tasks API with their HTTP status, and the mapping from the queue's errors."""

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

from queue_core import errors
from queue_core.errors import QueueError
from queue_core.log import get_logger
from queue_core.server.base import events
from queue_core.server.base.problems import Problem

MAX_MESSAGE_CHARACTERS = 1500
"""Longest error message: gRPC sends it in a header, whose size clients limit."""

log = get_logger()


class RpcStatus(Enum):
    """Codes of `google.rpc.Code` with their HTTP status in REST."""

    INVALID_ARGUMENT = 400
    FAILED_PRECONDITION = 9400
    UNAUTHENTICATED = 401
    PERMISSION_DENIED = 403
    NOT_FOUND = 404
    ALREADY_EXISTS = 409
    RESOURCE_EXHAUSTED = 429
    INTERNAL = 500
    UNIMPLEMENTED = 501
    UNAVAILABLE = 503

    @property
    def http_status(self) -> int:
        """The HTTP status; 400 for a failed precondition, as in the real service."""
        return self.value % 9000


class CloudTasksError(QueueError):
    """An error response of this API. It is a `QueueError`, so that an operation of a group commit may raise it."""

    def __init__(self, code: RpcStatus, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


CODES: Mapping[type[QueueError], RpcStatus] = MappingProxyType(
    {
        errors.InvalidRequestError: RpcStatus.INVALID_ARGUMENT,
        errors.UnknownQueueError: RpcStatus.NOT_FOUND,
        errors.QueueMovedError: RpcStatus.FAILED_PRECONDITION,
        errors.LeaseLostError: RpcStatus.FAILED_PRECONDITION,
        errors.WorkerRetiredError: RpcStatus.FAILED_PRECONDITION,
        errors.StorageLimitError: RpcStatus.RESOURCE_EXHAUSTED,
        errors.PermissionDeniedError: RpcStatus.PERMISSION_DENIED,
        errors.UnauthenticatedError: RpcStatus.UNAUTHENTICATED,
        errors.StoreUnavailableError: RpcStatus.UNAVAILABLE,
        errors.QueueError: RpcStatus.INTERNAL,
    }
)
"""Code by error class; a class without an entry has that of its nearest base class."""

_OF_STATUS: Mapping[int, RpcStatus] = MappingProxyType(
    {
        401: RpcStatus.UNAUTHENTICATED,
        403: RpcStatus.PERMISSION_DENIED,
        421: RpcStatus.PERMISSION_DENIED,
        503: RpcStatus.UNAVAILABLE,
    }
)


def invalid(message: str) -> CloudTasksError:
    """Return the error for a malformed request."""
    return CloudTasksError(RpcStatus.INVALID_ARGUMENT, message)


def refused(message: str) -> CloudTasksError:
    """Return the error for a valid request that the state of the queue or task doesn't allow."""
    return CloudTasksError(RpcStatus.FAILED_PRECONDITION, message)


def failure_of(error: Exception) -> CloudTasksError:
    """Return the response for an error. An unexpected error is logged, and its details are not returned."""
    if isinstance(error, CloudTasksError):
        failure = error
    elif isinstance(error, QueueError):
        # An acl may hide other queues from the caller, so the message names none.
        text = error.public_message if isinstance(error, errors.UnknownQueueError) else str(error)
        failure = CloudTasksError(next(CODES[above] for above in type(error).__mro__ if above in CODES), text)
    elif isinstance(error, Problem):
        failure = CloudTasksError(_OF_STATUS.get(error.status, RpcStatus.INVALID_ARGUMENT), error.detail)
    else:
        log.error(events.REQUEST_FAILED, exc_info=error)
        failure = CloudTasksError(RpcStatus.INTERNAL, "internal error; the server's log has the details")
    if len(failure.message) <= MAX_MESSAGE_CHARACTERS:
        return failure
    return CloudTasksError(failure.code, failure.message[: MAX_MESSAGE_CHARACTERS - 3] + "...")

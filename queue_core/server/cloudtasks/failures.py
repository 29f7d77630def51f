"""The errors of this API, as codes with their HTTP status; and which of them each error of the queue becomes."""

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

import structlog

from queue_core import errors
from queue_core.errors import QueueError
from queue_core.server import events
from queue_core.server.problems import Problem

MAX_MESSAGE_CHARACTERS = 1500
"""gRPC carries the message in a header, and callers bound those."""

log = structlog.get_logger()


class RpcStatus(Enum):
    """google.rpc.Code: its name on the wire, and the HTTP status of REST."""

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
        """400 for a failed precondition, as the real service has it."""
        return self.value % 9000


class CloudTasksError(QueueError):
    """What a call is refused with. One of the queue's errors, so that a step of a turn may raise it."""

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
"""Code of an error: its own, else that of the nearest class above it."""

_OF_STATUS: Mapping[int, RpcStatus] = MappingProxyType(
    {
        401: RpcStatus.UNAUTHENTICATED,
        403: RpcStatus.PERMISSION_DENIED,
        421: RpcStatus.PERMISSION_DENIED,
        503: RpcStatus.UNAVAILABLE,
    }
)


def invalid(message: str) -> CloudTasksError:
    """The call can't be right."""
    return CloudTasksError(RpcStatus.INVALID_ARGUMENT, message)


def refused(message: str) -> CloudTasksError:
    """The call is right, and the queue or task not in the state for it."""
    return CloudTasksError(RpcStatus.FAILED_PRECONDITION, message)


def failure_of(error: Exception) -> CloudTasksError:
    """What an error is answered with. One that is not the queue's is our mistake: logged, and told without detail."""
    if isinstance(error, CloudTasksError):
        told = error
    elif isinstance(error, QueueError):
        # An acl may hide the other queues from who asks.
        text = error.public_message if isinstance(error, errors.UnknownQueueError) else str(error)
        told = CloudTasksError(next(CODES[above] for above in type(error).__mro__ if above in CODES), text)
    elif isinstance(error, Problem):
        told = CloudTasksError(_OF_STATUS.get(error.status, RpcStatus.INVALID_ARGUMENT), error.detail)
    else:
        log.error(events.REQUEST_FAILED, exc_info=error)
        told = CloudTasksError(RpcStatus.INTERNAL, "the server made a mistake; its log has the details")
    if len(told.message) <= MAX_MESSAGE_CHARACTERS:
        return told
    return CloudTasksError(told.code, told.message[: MAX_MESSAGE_CHARACTERS - 3] + "...")

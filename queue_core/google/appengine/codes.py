"""App Engine's error codes, and the mapping from the queue's errors. Pure."""

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType

from queue_core import errors


class TaskQueueErrorCode(IntEnum):
    """`TaskQueueServiceError.ErrorCode`."""

    OK = 0
    UNKNOWN_QUEUE = 1
    TRANSIENT_ERROR = 2
    INTERNAL_ERROR = 3
    TASK_TOO_LARGE = 4
    INVALID_TASK_NAME = 5
    INVALID_QUEUE_NAME = 6
    INVALID_URL = 7
    INVALID_QUEUE_RATE = 8
    PERMISSION_DENIED = 9
    TASK_ALREADY_EXISTS = 10
    TOMBSTONED_TASK = 11
    INVALID_ETA = 12
    INVALID_REQUEST = 13
    UNKNOWN_TASK = 14
    TOMBSTONED_QUEUE = 15
    DUPLICATE_TASK_NAME = 16
    SKIPPED = 17
    TOO_MANY_TASKS = 18
    INVALID_PAYLOAD = 19
    INVALID_RETRY_PARAMETERS = 20
    INVALID_QUEUE_MODE = 21
    ACL_LOOKUP_ERROR = 22
    TRANSACTIONAL_REQUEST_TOO_LARGE = 23
    INCORRECT_CREATOR_NAME = 24
    TASK_LEASE_EXPIRED = 25
    QUEUE_PAUSED = 26
    INVALID_TAG = 27
    INVALID_LOGGING_CONFIG = 28
    INVALID_DISPATCH_DEADLINE = 29
    DATASTORE_BAD_REQUEST = 10001


class RpcCode(IntEnum):
    """`RpcError.ErrorCode`: errors before the call reaches the service."""

    UNKNOWN = 0
    CALL_NOT_FOUND = 1
    PARSE_ERROR = 2
    SECURITY_VIOLATION = 3
    OVER_QUOTA = 4
    REQUEST_TOO_LARGE = 5


class ApplicationError(Exception):
    """The service refuses the whole call."""

    def __init__(self, code: TaskQueueErrorCode, detail: str = "") -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


class RpcError(Exception):
    """The API host refuses a call before it reaches the service."""

    def __init__(self, code: RpcCode, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


CODES: Mapping[type[errors.QueueError], TaskQueueErrorCode] = MappingProxyType(
    {
        errors.UnknownQueueError: TaskQueueErrorCode.UNKNOWN_QUEUE,
        errors.InvalidQueueNameError: TaskQueueErrorCode.INVALID_QUEUE_NAME,
        errors.InvalidTaskNameError: TaskQueueErrorCode.INVALID_TASK_NAME,
        errors.InvalidTagError: TaskQueueErrorCode.INVALID_TAG,
        errors.InvalidEtaError: TaskQueueErrorCode.INVALID_ETA,
        errors.TaskTooLargeError: TaskQueueErrorCode.TASK_TOO_LARGE,
        errors.TooManyTasksError: TaskQueueErrorCode.TOO_MANY_TASKS,
        errors.InvalidRequestError: TaskQueueErrorCode.INVALID_REQUEST,
        errors.QueueModeError: TaskQueueErrorCode.INVALID_QUEUE_MODE,
        errors.LeaseLostError: TaskQueueErrorCode.TASK_LEASE_EXPIRED,
        errors.PermissionDeniedError: TaskQueueErrorCode.PERMISSION_DENIED,
        errors.StoreUnavailableError: TaskQueueErrorCode.TRANSIENT_ERROR,
        errors.QueueError: TaskQueueErrorCode.INTERNAL_ERROR,
    }
)
"""Code by error class; a class without an entry has that of its nearest base class."""


def code_of(error: errors.QueueError) -> TaskQueueErrorCode:
    """Return the code of a `QueueError`."""
    return next(CODES[above] for above in type(error).__mro__ if above in CODES)

"""The queue's errors. The class tells the caller what it can do.

QueueError
├── InvalidRequestError              correct the call; nothing was changed
│   ├── InvalidQueueNameError, InvalidTaskNameError, InvalidTagError, InvalidEtaError
│   ├── InvalidLeaseTimeError, InvalidCountError, InvalidTokenError, InvalidSettingError
│   ├── InvalidArgumentsError        correct the arguments: the message names the function and the field
│   ├── KeyReusedError               give the call a number of its own: its Idempotency-Key is another call's
│   ├── TaskTooLargeError, TooManyTasksError, TooManyTagsError
│   └── BadFileError                 correct the file, or export again
│       └── CutShortError            complete the file, then continue
├── UnknownQueueError                name a queue that exists; the message lists some
│   └── QueueMovedError              open the store that the message names
├── UnknownScheduleError             name a schedule that exists; the message lists some
├── StorageLimitError                delete tasks or raise the limit; nothing was changed
├── MoveRefusedError                 remove the obstacle to the move that the message names
├── LeaseLostError                   stop working on the task: its token is not current
├── WorkerRetiredError               finish and exit: this worker gets no more leases
├── ListenError                      use another address, or stop the process that uses this one
├── AppError                         correct the handlers, or the worker's settings
│   └── AppImportError               correct the module that holds the handlers
├── PermissionDeniedError            use a token of another role
│   └── UnauthenticatedError         give a token that this server knows
└── StoreError                       run `towline doctor`
    ├── StoreUnavailableError        try again; no change is known to have been made
    │   ├── StoreFullError           free disk space, then try again
    │   └── OutcomeUnknownError      check before repeating: it may have taken effect
    ├── StoreReadOnlyError           make the file and its folder writable
    ├── StoreUnsafeError             correct the engine's settings: it could lose or refuse data
    ├── StoreCorruptError            give another file, or restore a backup
    └── StoreVersionError            upgrade this program
"""

from collections.abc import Iterable, Sequence
from typing import Final

_SHOWN_CHARACTERS: Final = 500
"""Characters of a queue's name that a message quotes, at most: more than any name has."""


class QueueError(Exception):
    """The base of every error that the queue raises on purpose."""


class InvalidRequestError(QueueError):
    """The call is invalid in any state of the queue; nothing was changed."""


class InvalidQueueNameError(InvalidRequestError):
    """A queue's name has the wrong form."""


class InvalidTaskNameError(InvalidRequestError):
    """A task's name has the wrong form."""


class InvalidTagError(InvalidRequestError):
    """A tag is empty or too long."""


class InvalidEtaError(InvalidRequestError):
    """An eta or a delay is out of range."""


class InvalidLeaseTimeError(InvalidRequestError):
    """A lease time is out of range."""


class InvalidCountError(InvalidRequestError):
    """A number of tasks is out of range."""


class InvalidTokenError(InvalidRequestError):
    """A text is not a lease token."""


class InvalidSettingError(InvalidRequestError):
    """A queue's settings contradict each other or are out of range."""


class InvalidArgumentsError(InvalidRequestError):
    """The arguments of a task don't fit its function; the message names the function, the field and the reason."""


class KeyReusedError(InvalidRequestError):
    """An `Idempotency-Key` was used before for another call: for another path, body or token.

    This call changed nothing, and the first keeps its answer.
    """


class TaskTooLargeError(InvalidRequestError):
    """A payload is over the limit: `most` bytes."""

    def __init__(self, message: str, *, most: int = 1 << 20) -> None:
        super().__init__(message)
        self.most = most


class TooManyTasksError(InvalidRequestError):
    """A batch is over the limit."""


class TooManyTagsError(InvalidRequestError):
    """A lease requests more tags at once than the limit."""


class QueueModeError(InvalidRequestError):
    """The queue is an App Engine push queue; only its name is known here."""


class UnknownQueueError(QueueError):
    """No queue has that name. `public_message` lists no other queues, for callers that must not learn of them."""

    def __init__(self, message: str, *, public_message: str = "") -> None:
        super().__init__(message)
        self.public_message = public_message or message

    @classmethod
    def among(cls, name: str, others: Iterable[str]) -> "UnknownQueueError":
        """Return the error for `name`, listing the `others` in its message."""
        missing = (
            f"no queue {name!r}" if len(name) <= _SHOWN_CHARACTERS else f"no queue {name[:_SHOWN_CHARACTERS]!r}..."
        )
        return cls(f"{missing}; queues: {', '.join(others) or 'none yet'}", public_message=missing)


class QueueMovedError(UnknownQueueError):
    """The queue was moved to another store and can't be changed here any more."""


class UnknownScheduleError(QueueError):
    """No schedule has that name."""

    @classmethod
    def among(cls, name: str, others: Iterable[str]) -> "UnknownScheduleError":
        """Return the error for `name`, listing the `others` in its message."""
        return cls(f"no schedule {name[:100]!r}; schedules: {', '.join(others) or 'none yet'}")


class BadFileError(InvalidRequestError):
    """A file can't be imported: another format, a value out of range, or modified since it was written."""


class CutShortError(BadFileError):
    """A file is truncated."""


class MoveRefusedError(QueueError):
    """A queue can't be moved at present; it stays where it was, and nothing was lost."""


class StorageLimitError(QueueError):
    """An add would bring the payloads of all tasks over the store's `total_storage_limit`."""


class LeaseLostError(QueueError):
    """Some tokens are not current (expired, released, deleted or leased again) and changed nothing.

    The current tokens of the same call took effect.
    """

    def __init__(self, message: str, *, tokens: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.tokens = tuple(tokens)


class WorkerRetiredError(QueueError):
    """The supervisor retired this worker: it gets no more leases and should exit."""


class ListenError(QueueError):
    """The server can't listen on the address: in use, not of this host, or not permitted."""


class AppError(QueueError):
    """A worker's handlers contradict each other, or don't cover the queues and tags it should serve."""


class AppImportError(AppError):
    """The module of a worker's handlers can't be imported."""

    def __init__(self, *, module: str, reason: str, hint: str) -> None:
        super().__init__(f"can't import {module}: {reason}; {hint}")
        self.module = module
        self.reason = reason
        self.hint = hint


class PermissionDeniedError(QueueError):
    """The caller's role does not cover the verb, or its token is not for the queue."""


class UnauthenticatedError(PermissionDeniedError):
    """The caller gave no token, or one that this server doesn't know."""


class StoreError(QueueError):
    """The store failed."""


class StoreUnavailableError(StoreError):
    """The store did not answer; no change is known to have been made."""


class StoreFullError(StoreUnavailableError):
    """The disk is full; nothing was changed.

    Args:
        affects_only_caller: the call was refused before it reached the store; others in its transaction can succeed.
    """

    def __init__(self, message: str, *, affects_only_caller: bool = False) -> None:
        super().__init__(message)
        self.affects_only_caller = affects_only_caller


class OutcomeUnknownError(StoreUnavailableError):
    """The call may or may not have taken effect: the reply was lost, or the disk failed during the sync."""


class StoreReadOnlyError(StoreError):
    """The store can't be written to."""


class StoreUnsafeError(StoreError):
    """The engine's settings can't guarantee what the store needs: durability, eviction, version, rights."""


class StoreCorruptError(StoreError):
    """The file is not a store, or is damaged."""


class StoreVersionError(StoreError):
    """The store was created by another version of the program, and this one can't read it."""

"""The queue's errors. The class says what the caller can do.

QueueError
├── InvalidRequestError              mend the call; nothing was changed
│   ├── InvalidQueueNameError, InvalidTaskNameError, InvalidTagError, InvalidEtaError
│   ├── InvalidLeaseTimeError, InvalidCountError, InvalidTokenError, InvalidSettingError
│   ├── TaskTooLargeError, TooManyTasksError, TooManyTagsError
│   └── BadFileError                 mend the file, or export it anew
│       └── CutShortError            the file ends too early: complete it, then go on
├── UnknownQueueError                name a queue that exists; the message lists some
│   └── QueueMovedError              the queue lives in another store now; the message says where
├── StorageLimitError                delete tasks, or raise the limit, which the message names; nothing was changed
├── MoveRefusedError                 mend what stands in the way of a move, which the message names
├── LeaseLostError                   the token is not current: stop the work, its task has moved on
├── WorkerRetiredError               this worker is to finish: it gets no more leases
├── ListenError                      listen somewhere else, or stop whoever listens there
├── AppError                         mend the handlers, or what the worker was told to serve
│   └── AppImportError               mend the module that holds them
├── PermissionDeniedError            use a token of another role
│   └── UnauthenticatedError         no token, or not one this server knows
└── StoreError
    ├── StoreUnavailableError        try again: nothing is known to have been changed
    │   ├── StoreFullError           free disk space, then try again
    │   └── OutcomeUnknownError      it may have taken effect: look before repeating
    ├── StoreReadOnlyError           make the file and its folder writable
    ├── StoreUnsafeError             mend the engine's settings: it could lose or refuse what the store must keep
    ├── StoreCorruptError            the file is not a queue, or is damaged
    └── StoreVersionError            made by a newer version; upgrade
"""

from collections.abc import Iterable, Sequence


class QueueError(Exception):
    """Every error that the queue raises on purpose."""


class InvalidRequestError(QueueError):
    """The call can't be right, whatever the state of the queue; nothing was changed."""


class InvalidQueueNameError(InvalidRequestError):
    """A queue's name is out of form."""


class InvalidTaskNameError(InvalidRequestError):
    """A task's name is out of form."""


class InvalidTagError(InvalidRequestError):
    """A tag is empty or too long."""


class InvalidEtaError(InvalidRequestError):
    """An eta or a delay is out of range."""


class InvalidLeaseTimeError(InvalidRequestError):
    """A lease time is out of range."""


class InvalidCountError(InvalidRequestError):
    """A number of tasks is out of range."""


class InvalidTokenError(InvalidRequestError):
    """A text that no lease ever had as its token."""


class InvalidSettingError(InvalidRequestError):
    """A queue's settings contradict each other or are out of range."""


class TaskTooLargeError(InvalidRequestError):
    """A payload is over the limit."""


class TooManyTasksError(InvalidRequestError):
    """A batch is over the limit."""


class TooManyTagsError(InvalidRequestError):
    """A lease asks for more tags at once than the limit."""


class QueueModeError(InvalidRequestError):
    """The queue is a push queue of App Engine's, of which only the name is known here."""


class UnknownQueueError(QueueError):
    """No queue has that name. `public_message` says no more than that, for callers who may not know of other queues."""

    def __init__(self, message: str, *, public_message: str = "") -> None:
        super().__init__(message)
        self.public_message = public_message or message

    @classmethod
    def among(cls, name: str, others: Iterable[str]) -> "UnknownQueueError":
        """The error for a name, with some of the names that there are."""
        return cls(f"no queue {name!r}; queues: {', '.join(others) or 'none yet'}", public_message=f"no queue {name!r}")


class QueueMovedError(UnknownQueueError):
    """The queue was moved to another store, and nothing may change it here any more."""


class BadFileError(InvalidRequestError):
    """A file that can't be imported: another format, a value out of range, or not as it was written."""


class CutShortError(BadFileError):
    """A file that ends before its end."""


class MoveRefusedError(QueueError):
    """A queue can't be moved as things stand; nothing was lost, and where it was it still is."""


class StorageLimitError(QueueError):
    """What is to be added would bring the payloads of all tasks over the store's `total_storage_limit`."""


class LeaseLostError(QueueError):
    """Tokens that are not current: expired, released, deleted or leased again. They changed nothing.

    In a batch the current tokens took effect all the same.
    """

    def __init__(self, message: str, *, tokens: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.tokens = tuple(tokens)


class WorkerRetiredError(QueueError):
    """The supervisor retired this worker: it gets no lease any more and should exit."""


class ListenError(QueueError):
    """The address can't be listened on: in use, not ours, or not allowed."""


class AppError(QueueError):
    """A worker's handlers contradict each other, or do not cover what the worker is to serve."""


class AppImportError(AppError):
    """The module that holds a worker's handlers can't be used."""

    def __init__(self, *, module: str, reason: str, hint: str) -> None:
        super().__init__(f"can't import {module}: {reason}; {hint}")
        self.module = module
        self.reason = reason
        self.hint = hint


class PermissionDeniedError(QueueError):
    """The caller's role does not cover the verb."""


class UnauthenticatedError(PermissionDeniedError):
    """No token was given, or not one this server knows."""


class StoreError(QueueError):
    """The store failed."""


class StoreUnavailableError(StoreError):
    """The store did not answer; nothing is known to have been changed."""


class StoreFullError(StoreUnavailableError):
    """No room is left; nothing was changed.

    Args:
        affects_only_caller: it was refused before it was tried: what shares its transaction is not concerned.
    """

    def __init__(self, message: str, *, affects_only_caller: bool = False) -> None:
        super().__init__(message)
        self.affects_only_caller = affects_only_caller


class OutcomeUnknownError(StoreUnavailableError):
    """The request may or may not have taken effect: the answer was lost, or the disk failed while it was synced."""


class StoreReadOnlyError(StoreError):
    """The store can't be written to."""


class StoreUnsafeError(StoreError):
    """The engine is set so that it can't keep what is asked: durability, eviction, version, rights."""


class StoreCorruptError(StoreError):
    """Not a queue's store, or a damaged one."""


class StoreVersionError(StoreError):
    """The store was made by a newer version of the program."""

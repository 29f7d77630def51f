"""A pull queue: producers add tasks; workers lease them, then delete them.

The names exported here, `queue_core.testing`, `queue_core.telemetry` and `queue_core.django` are public; all else is
private. A name is imported when it is first used, so a program loads only what it needs. ADR 30 explains how the rooms
behind them are laid out.
"""

TYPE_CHECKING = False  # type checkers assume it is true; importing `typing` would cost start time

if TYPE_CHECKING:
    from queue_core.admission import Rate, TagLimits
    from queue_core.attempts.attempt import Attempt, Failure
    from queue_core.client.asynchronous.client import AsyncQueue, AsyncQueues
    from queue_core.client.asynchronous.connect import open_queue_async, open_queues_async
    from queue_core.client.connect import open_queue, open_queues
    from queue_core.client.http.caller import Retries
    from queue_core.client.http_calls import HttpQueue, HttpQueues
    from queue_core.client.local_calls import LocalQueue, LocalQueues
    from queue_core.client.queue import Queue, Queues
    from queue_core.clock import Instant
    from queue_core.errors import (
        AppError,
        AppImportError,
        BadFileError,
        CutShortError,
        InvalidArgumentsError,
        InvalidCountError,
        InvalidEtaError,
        InvalidLeaseTimeError,
        InvalidQueueNameError,
        InvalidRequestError,
        InvalidSettingError,
        InvalidTagError,
        InvalidTaskNameError,
        InvalidTokenError,
        KeyReusedError,
        LeaseLostError,
        ListenError,
        MoveRefusedError,
        OutcomeUnknownError,
        PermissionDeniedError,
        QueueError,
        QueueModeError,
        QueueMovedError,
        StorageLimitError,
        StoreCorruptError,
        StoreError,
        StoreFullError,
        StoreReadOnlyError,
        StoreUnavailableError,
        StoreUnsafeError,
        StoreVersionError,
        TaskTooLargeError,
        TooManyTagsError,
        TooManyTasksError,
        UnauthenticatedError,
        UnknownQueueError,
        UnknownScheduleError,
        WorkerRetiredError,
    )
    from queue_core.google.appengine.connect import connect_appengine
    from queue_core.stats import (
        FinishedLease,
        History,
        LeasingWorker,
        LiveLease,
        QueueStats,
        Samples,
        TagStats,
        WaitingTask,
        WorkerActivity,
    )
    from queue_core.task import ANY, UNTAGGED, Lease, NewTask, Progress, QueueSpec, StoredTask, TagFilter, TaskState
    from queue_core.verbs import (
        Added,
        Deletion,
        ExchangeResult,
        Observation,
        ObservationQuery,
        Page,
        Renewal,
        Renewed,
        Storage,
    )
    from queue_core.verbs.criteria import ChangeTo, MatchedBatch, Search, SearchPage
    from queue_core.worker.app import App
    from queue_core.worker.context import Backoff, Dead, Retry, Task, Timeout
    from queue_core.worker.functions.function import Function
    from queue_core.worker.functions.hooks import INJECTED, Injected
else:
    _HOMES = {
        "queue_core.admission": "Rate TagLimits",
        "queue_core.attempts.attempt": "Attempt Failure",
        "queue_core.client.queue": "Queue Queues",
        "queue_core.google.appengine.connect": "connect_appengine",
        "queue_core.client.asynchronous.client": "AsyncQueue AsyncQueues",
        "queue_core.client.asynchronous.connect": "open_queue_async open_queues_async",
        "queue_core.client.http_calls": "HttpQueue HttpQueues",
        "queue_core.clock": "Instant",
        "queue_core.client.connect": "open_queue open_queues",
        "queue_core.errors": (
            "KeyReusedError AppError AppImportError BadFileError CutShortError InvalidArgumentsError InvalidCountError "
            "InvalidEtaError "
            "InvalidLeaseTimeError InvalidQueueNameError InvalidRequestError InvalidSettingError InvalidTagError "
            "InvalidTaskNameError InvalidTokenError LeaseLostError ListenError MoveRefusedError OutcomeUnknownError "
            "PermissionDeniedError QueueError QueueModeError QueueMovedError StorageLimitError StoreCorruptError "
            "StoreError StoreFullError StoreReadOnlyError StoreUnavailableError StoreUnsafeError StoreVersionError "
            "TaskTooLargeError TooManyTagsError TooManyTasksError UnauthenticatedError UnknownQueueError "
            "UnknownScheduleError "
            "WorkerRetiredError"
        ),
        "queue_core.client.http.caller": "Retries",
        "queue_core.client.local_calls": "LocalQueue LocalQueues",
        "queue_core.verbs.criteria": "ChangeTo MatchedBatch Search SearchPage",
        "queue_core.stats": (
            "FinishedLease History LeasingWorker WorkerActivity LiveLease QueueStats Samples TagStats WaitingTask"
        ),
        "queue_core.task": "ANY Lease NewTask Progress QueueSpec StoredTask TagFilter TaskState UNTAGGED",
        "queue_core.store": "Added Deletion Page Renewal Renewed Storage",
        "queue_core.verbs": "ExchangeResult Observation ObservationQuery",
        "queue_core.worker.app": "App",
        "queue_core.worker.context": "Backoff Dead Retry Task Timeout",
        "queue_core.worker.functions.function": "Function",
        "queue_core.worker.functions.hooks": "INJECTED Injected",
    }
    """The public names, by their module."""

    def __getattr__(name):
        for module, names in _HOMES.items():
            if name in names.split():
                from importlib import import_module

                found = globals()[name] = getattr(import_module(module), name)
                return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)

    def __dir__():
        return sorted({*globals(), *__all__})


__all__ = [
    "ANY",
    "INJECTED",
    "UNTAGGED",
    "Added",
    "App",
    "AppError",
    "AppImportError",
    "AsyncQueue",
    "AsyncQueues",
    "Attempt",
    "Backoff",
    "BadFileError",
    "ChangeTo",
    "CutShortError",
    "Dead",
    "Deletion",
    "ExchangeResult",
    "Failure",
    "FinishedLease",
    "Function",
    "History",
    "HttpQueue",
    "HttpQueues",
    "Injected",
    "Instant",
    "InvalidArgumentsError",
    "InvalidCountError",
    "InvalidEtaError",
    "InvalidLeaseTimeError",
    "InvalidQueueNameError",
    "InvalidRequestError",
    "InvalidSettingError",
    "InvalidTagError",
    "InvalidTaskNameError",
    "InvalidTokenError",
    "KeyReusedError",
    "Lease",
    "LeaseLostError",
    "LeasingWorker",
    "ListenError",
    "LiveLease",
    "LocalQueue",
    "LocalQueues",
    "MatchedBatch",
    "MoveRefusedError",
    "NewTask",
    "Observation",
    "ObservationQuery",
    "OutcomeUnknownError",
    "Page",
    "PermissionDeniedError",
    "Progress",
    "Queue",
    "QueueError",
    "QueueModeError",
    "QueueMovedError",
    "QueueSpec",
    "QueueStats",
    "Queues",
    "Rate",
    "Renewal",
    "Renewed",
    "Retries",
    "Retry",
    "Samples",
    "Search",
    "SearchPage",
    "Storage",
    "StorageLimitError",
    "StoreCorruptError",
    "StoreError",
    "StoreFullError",
    "StoreReadOnlyError",
    "StoreUnavailableError",
    "StoreUnsafeError",
    "StoreVersionError",
    "StoredTask",
    "TagFilter",
    "TagLimits",
    "TagStats",
    "Task",
    "TaskState",
    "TaskTooLargeError",
    "Timeout",
    "TooManyTagsError",
    "TooManyTasksError",
    "UnauthenticatedError",
    "UnknownQueueError",
    "UnknownScheduleError",
    "WaitingTask",
    "WorkerActivity",
    "WorkerRetiredError",
    "connect_appengine",
    "open_queue",
    "open_queue_async",
    "open_queues",
    "open_queues_async",
]

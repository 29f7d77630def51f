"""The messages of App Engine's task queue service and of the API host around it, as tables.

Source: the descriptors in Google's SDK for Python 3.1.0; the Java repository has the commented `.proto` files.
"""

from functools import partial
from typing import Final

from queue_core.google.appengine.codes import TaskQueueErrorCode
from queue_core.google.appengine.schema import Kind, Label, MessageTable, ProtoField

REQUIRED: Final = Label.REQUIRED
REPEATED: Final = Label.REPEATED

PUSH: Final = 0
PULL: Final = 1

_MODES: Final = frozenset({PUSH, PULL})
_CODES: Final = frozenset(int(code) for code in TaskQueueErrorCode)
_METHODS: Final = frozenset(range(1, 6))


def _field(kind: Kind, number: int, name: str, label: Label = Label.OPTIONAL) -> ProtoField:
    return ProtoField(number, name, kind, label)


_int32, _int64, _double, _bool, _bytes, _string = (
    partial(_field, kind) for kind in (Kind.INT32, Kind.INT64, Kind.DOUBLE, Kind.BOOL, Kind.BYTES, Kind.STRING)
)


def _enum(number: int, name: str, values: frozenset[int], label: Label = Label.OPTIONAL) -> ProtoField:
    return ProtoField(number, name, Kind.ENUM, label, values)


def _message(number: int, message: MessageTable, name: str, label: Label = Label.OPTIONAL) -> ProtoField:
    return ProtoField(number, name, Kind.MESSAGE, label, message=message)


def _group(number: int, message: MessageTable, name: str, label: Label = REPEATED) -> ProtoField:
    return ProtoField(number, name, Kind.GROUP, label, message=message)


# -- the API host -----------------------------------------------------------------------------------------------------

REMOTE_REQUEST = MessageTable(
    "Request",
    (
        _string(2, "service_name", REQUIRED),
        _string(3, "method", REQUIRED),
        _bytes(4, "request", REQUIRED),
        _string(5, "request_id"),
        _bytes(6, "trace_context"),
    ),
)
APPLICATION_ERROR = MessageTable("ApplicationError", (_int32(1, "code", REQUIRED), _string(2, "detail", REQUIRED)))
RPC_ERROR = MessageTable("RpcError", (_int32(1, "code", REQUIRED), _string(2, "detail")))
REMOTE_RESPONSE = MessageTable(
    "Response",
    (
        _bytes(1, "response"),
        _bytes(2, "exception"),
        _message(3, APPLICATION_ERROR, "application_error"),
        _bytes(4, "java_exception"),
        _message(5, RPC_ERROR, "rpc_error"),
    ),
)

# -- tasks ------------------------------------------------------------------------------------------------------------

RETRY_PARAMETERS = MessageTable(
    "TaskQueueRetryParameters",
    (
        _int32(1, "retry_limit"),
        _int64(2, "age_limit_sec"),
        _double(3, "min_backoff_sec"),
        _double(4, "max_backoff_sec"),
        _int32(5, "max_doublings"),
    ),
)
ADD_REQUEST = MessageTable(
    "TaskQueueAddRequest",
    (
        _bytes(1, "queue_name", REQUIRED),
        _bytes(2, "task_name", REQUIRED),
        _int64(3, "eta_usec", REQUIRED),
        _bytes(4, "url"),
        _enum(5, "method", _METHODS),
        _group(6, MessageTable("Header", (_bytes(7, "key", REQUIRED), _bytes(8, "value", REQUIRED))), "header"),
        _bytes(9, "body"),
        _bytes(10, "transaction"),  # a datastore's message: only its presence matters
        _bytes(11, "app_id"),
        _group(
            12,
            MessageTable("CronTimetable", (_bytes(13, "schedule", REQUIRED), _bytes(14, "timezone", REQUIRED))),
            "crontimetable",
            Label.OPTIONAL,
        ),
        _bytes(15, "description"),
        _bytes(16, "payload"),
        _message(17, RETRY_PARAMETERS, "retry_parameters"),
        _enum(18, "mode", _MODES),
        _bytes(19, "tag"),
        _message(20, RETRY_PARAMETERS, "cron_retry_parameters"),
        _bytes(21, "datastore_transaction"),
        _int64(22, "dispatch_deadline_usec"),
    ),
)
ADD_RESPONSE = MessageTable("TaskQueueAddResponse", (_bytes(1, "chosen_task_name"),))
BULK_ADD_REQUEST = MessageTable("TaskQueueBulkAddRequest", (_bytes(1, "add_request", REPEATED),))
"""Its messages stay bytes, because their size is limited."""
BULK_ADD_RESPONSE = MessageTable(
    "TaskQueueBulkAddResponse",
    (
        _group(
            1,
            MessageTable("TaskResult", (_enum(2, "result", _CODES, REQUIRED), _bytes(3, "chosen_task_name"))),
            "taskresult",
        ),
    ),
)
LEASE_REQUEST = MessageTable(
    "TaskQueueQueryAndOwnTasksRequest",
    (
        _bytes(1, "queue_name", REQUIRED),
        _double(2, "lease_seconds", REQUIRED),
        _int64(3, "max_tasks", REQUIRED),
        _bool(4, "group_by_tag"),
        _bytes(5, "tag"),
    ),
)
LEASE_RESPONSE = MessageTable(
    "TaskQueueQueryAndOwnTasksResponse",
    (
        _group(
            1,
            MessageTable(
                "Task",
                (
                    _bytes(2, "task_name", REQUIRED),
                    _int64(3, "eta_usec", REQUIRED),
                    _int32(4, "retry_count"),
                    _bytes(5, "body"),
                    _bytes(6, "tag"),
                ),
            ),
            "task",
        ),
    ),
)
MODIFY_REQUEST = MessageTable(
    "TaskQueueModifyTaskLeaseRequest",
    (
        _bytes(1, "queue_name", REQUIRED),
        _bytes(2, "task_name", REQUIRED),
        _int64(3, "eta_usec", REQUIRED),
        _double(4, "lease_seconds", REQUIRED),
    ),
)
MODIFY_RESPONSE = MessageTable("TaskQueueModifyTaskLeaseResponse", (_int64(1, "updated_eta_usec", REQUIRED),))
DELETE_REQUEST = MessageTable(
    "TaskQueueDeleteRequest", (_bytes(1, "queue_name", REQUIRED), _bytes(2, "task_name", REPEATED), _bytes(3, "app_id"))
)
DELETE_RESPONSE = MessageTable("TaskQueueDeleteResponse", (_enum(3, "result", _CODES, REPEATED),))

# -- queues -----------------------------------------------------------------------------------------------------------

NOTHING = MessageTable("an empty response", ())
QUEUE_REQUEST = MessageTable("a request for a queue", (_bytes(1, "app_id"), _bytes(2, "queue_name", REQUIRED)))
"""The request of PurgeQueue and DeleteQueue."""
PAUSE_REQUEST = MessageTable(
    "TaskQueuePauseQueueRequest",
    (_bytes(1, "app_id"), _bytes(2, "queue_name", REQUIRED), _bool(3, "pause", REQUIRED)),
)
STATS_REQUEST = MessageTable(
    "TaskQueueFetchQueueStatsRequest",
    (_bytes(1, "app_id"), _bytes(2, "queue_name", REPEATED), _int32(3, "max_num_tasks")),
)
SCANNER_INFO = MessageTable(
    "TaskQueueScannerQueueInfo",
    (
        _int64(1, "executed_last_minute", REQUIRED),
        _int64(2, "executed_last_hour", REQUIRED),
        _double(3, "sampling_duration_seconds", REQUIRED),
        _int32(4, "requests_in_flight"),
        _double(5, "enforced_rate"),
    ),
)
STATS_RESPONSE = MessageTable(
    "TaskQueueFetchQueueStatsResponse",
    (
        _group(
            1,
            MessageTable(
                "QueueStats",
                (
                    _int32(2, "num_tasks", REQUIRED),
                    _int64(3, "oldest_eta_usec", REQUIRED),
                    _message(4, SCANNER_INFO, "scanner_info"),
                ),
            ),
            "queuestats",
        ),
    ),
)
ACL = MessageTable("TaskQueueAcl", (_bytes(1, "user_email", REPEATED), _bytes(2, "writer_email", REPEATED)))
UPDATE_QUEUE_REQUEST = MessageTable(
    "TaskQueueUpdateQueueRequest",
    (
        _bytes(1, "app_id"),
        _bytes(2, "queue_name", REQUIRED),
        _double(3, "bucket_refill_per_second", REQUIRED),
        _int32(4, "bucket_capacity", REQUIRED),
        _string(5, "user_specified_rate"),
        _message(6, RETRY_PARAMETERS, "retry_parameters"),
        _int32(7, "max_concurrent_requests"),
        _enum(8, "mode", _MODES),
        _message(9, ACL, "acl"),
    ),
)
QUEUES_REQUEST = MessageTable("TaskQueueFetchQueuesRequest", (_bytes(1, "app_id"), _int32(2, "max_rows", REQUIRED)))
QUEUES_RESPONSE = MessageTable(
    "TaskQueueFetchQueuesResponse",
    (
        _group(
            1,
            MessageTable(
                "Queue",
                (
                    _bytes(2, "queue_name", REQUIRED),
                    _double(3, "bucket_refill_per_second", REQUIRED),
                    _double(4, "bucket_capacity", REQUIRED),
                    _string(5, "user_specified_rate"),
                    _bool(6, "paused", REQUIRED),
                    _message(7, RETRY_PARAMETERS, "retry_parameters"),
                    _int32(8, "max_concurrent_requests"),
                    _enum(9, "mode", _MODES),
                    _message(10, ACL, "acl"),
                ),
            ),
            "queue",
        ),
    ),
)
TASKS_REQUEST = MessageTable(
    "TaskQueueQueryTasksRequest",
    (
        _bytes(1, "app_id"),
        _bytes(2, "queue_name", REQUIRED),
        _bytes(3, "start_task_name"),
        _int64(4, "start_eta_usec"),
        _int32(5, "max_rows"),
        _bytes(6, "start_tag"),
    ),
)
TASKS_RESPONSE = MessageTable(
    "TaskQueueQueryTasksResponse",
    (
        _group(
            1,
            MessageTable(
                "Task",
                (
                    _bytes(2, "task_name", REQUIRED),
                    _int64(3, "eta_usec", REQUIRED),
                    _int32(6, "retry_count"),
                    _int32(10, "body_size"),
                    _bytes(11, "body"),
                    _int64(12, "creation_time_usec", REQUIRED),
                    _message(23, RETRY_PARAMETERS, "retry_parameters"),
                    _bytes(25, "tag"),
                ),
            ),
            "task",
        ),
    ),
)
TASK_REQUEST = MessageTable(
    "TaskQueueFetchTaskRequest",
    (_bytes(1, "app_id"), _bytes(2, "queue_name", REQUIRED), _bytes(3, "task_name", REQUIRED)),
)
TASK_RESPONSE = MessageTable("TaskQueueFetchTaskResponse", (_message(1, TASKS_RESPONSE, "task", REQUIRED),))

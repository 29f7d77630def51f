"""The messages of Cloud Tasks v2beta2 as tables, by which JSON and protobuf are read and written (ADR 13)."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Kind = Literal[
    "text", "bytes", "int32", "int64", "double", "bool", "enum", "timestamp", "duration", "mask", "message", "opaque"
]

VIEW = "View"
STATE = "State"
ENUMS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        VIEW: ("VIEW_UNSPECIFIED", "BASIC", "FULL"),
        STATE: ("STATE_UNSPECIFIED", "RUNNING", "PAUSED", "DISABLED"),
    }
)
"""Names of an enum's values; the index is the number."""
BASIC, FULL = 1, 2
RUNNING, PAUSED = 1, 2


@dataclass(frozen=True, slots=True)
class MessageField:
    """A field: its kind, and the name of its message or enum. An `opaque` field is accepted with any content."""

    kind: Kind
    of: str = ""
    is_repeated: bool = False


Fields = Mapping[str, MessageField]

_TEXT, _BYTES, _BOOL = MessageField("text"), MessageField("bytes"), MessageField("bool")
_INT32, _INT64, _DOUBLE = MessageField("int32"), MessageField("int64"), MessageField("double")
_OPAQUE, _MASK = MessageField("opaque"), MessageField("mask")
_TIMESTAMP, _DURATION = MessageField("timestamp"), MessageField("duration")
_VIEW = MessageField("enum", VIEW)
_TEXTS = MessageField("text", is_repeated=True)
_OPAQUES = MessageField("opaque", is_repeated=True)
_NAMED: Fields = {"name": _TEXT}


def _one(message: str) -> MessageField:
    return MessageField("message", message)


def _some(message: str) -> MessageField:
    return MessageField("message", message, is_repeated=True)


MESSAGES: Mapping[str, Fields] = MappingProxyType(
    {
        "Empty": {},
        "PullTarget": {},
        "PullMessage": {"payload": _BYTES, "tag": _TEXT},
        "AttemptStatus": {
            "scheduleTime": _TIMESTAMP,
            "dispatchTime": _TIMESTAMP,
            "responseTime": _TIMESTAMP,
            "responseStatus": _OPAQUE,
        },
        "TaskStatus": {
            "attemptDispatchCount": _INT32,
            "attemptResponseCount": _INT32,
            "firstAttemptStatus": _one("AttemptStatus"),
            "lastAttemptStatus": _one("AttemptStatus"),
        },
        "RetryConfig": {
            "maxAttempts": _INT32,
            "unlimitedAttempts": _BOOL,
            "maxRetryDuration": _DURATION,
            "minBackoff": _DURATION,
            "maxBackoff": _DURATION,
            "maxDoublings": _INT32,
        },
        "Task": {
            "name": _TEXT,
            "appEngineHttpRequest": _OPAQUE,
            "pullMessage": _one("PullMessage"),
            "httpRequest": _OPAQUE,
            "scheduleTime": _TIMESTAMP,
            "createTime": _TIMESTAMP,
            "status": _one("TaskStatus"),
            "view": _VIEW,
            "retryConfig": _one("RetryConfig"),
        },
        "RateLimits": {"maxTasksDispatchedPerSecond": _DOUBLE, "maxBurstSize": _INT32, "maxConcurrentTasks": _INT32},
        "QueueStats": {
            "tasksCount": _INT64,
            "oldestEstimatedArrivalTime": _TIMESTAMP,
            "executedLastMinuteCount": _INT64,
            "concurrentDispatchesCount": _INT64,
            "effectiveExecutionRate": _DOUBLE,
        },
        "Queue": {
            "name": _TEXT,
            "appEngineHttpTarget": _OPAQUE,
            "pullTarget": _one("PullTarget"),
            "httpTarget": _OPAQUE,
            "rateLimits": _one("RateLimits"),
            "retryConfig": _one("RetryConfig"),
            "state": MessageField("enum", STATE),
            "purgeTime": _TIMESTAMP,
            "taskTtl": _DURATION,
            "tombstoneTtl": _DURATION,
            "stats": _one("QueueStats"),
        },
        # -- requests and responses
        "CreateTaskRequest": {"parent": _TEXT, "task": _one("Task"), "responseView": _VIEW},
        "LeaseTasksRequest": {
            "parent": _TEXT,
            "maxTasks": _INT32,
            "leaseDuration": _DURATION,
            "responseView": _VIEW,
            "filter": _TEXT,
        },
        "LeaseTasksResponse": {"tasks": _some("Task")},
        "AcknowledgeTaskRequest": {"name": _TEXT, "scheduleTime": _TIMESTAMP},
        "RenewLeaseRequest": {
            "name": _TEXT,
            "scheduleTime": _TIMESTAMP,
            "leaseDuration": _DURATION,
            "responseView": _VIEW,
        },
        "CancelLeaseRequest": {"name": _TEXT, "scheduleTime": _TIMESTAMP, "responseView": _VIEW},
        "GetTaskRequest": {"name": _TEXT, "responseView": _VIEW},
        "ListTasksRequest": {"parent": _TEXT, "responseView": _VIEW, "pageSize": _INT32, "pageToken": _TEXT},
        "ListTasksResponse": {"tasks": _some("Task"), "nextPageToken": _TEXT},
        "DeleteTaskRequest": _NAMED,
        "RunTaskRequest": {"name": _TEXT, "responseView": _VIEW},
        "BufferTaskRequest": {"queue": _TEXT, "taskId": _TEXT, "body": _OPAQUE},
        "BatchCreateTasksRequest": {"parent": _TEXT, "requestId": _TEXT, "requests": _OPAQUES},
        "BatchDeleteTasksRequest": {"parent": _TEXT, "requestId": _TEXT, "names": _TEXTS},
        "GetQueueRequest": {"name": _TEXT, "readMask": _MASK},
        "ListQueuesRequest": {
            "parent": _TEXT,
            "filter": _TEXT,
            "pageSize": _INT32,
            "pageToken": _TEXT,
            "readMask": _MASK,
        },
        "ListQueuesResponse": {"queues": _some("Queue"), "nextPageToken": _TEXT},
        "CreateQueueRequest": {"parent": _TEXT, "queue": _one("Queue")},
        "UpdateQueueRequest": {"name": _TEXT, "queue": _one("Queue"), "updateMask": _MASK},
        "DeleteQueueRequest": _NAMED,
        "PauseQueueRequest": _NAMED,
        "ResumeQueueRequest": _NAMED,
        "PurgeQueueRequest": _NAMED,
        "UploadQueueYamlRequest": {"appId": _TEXT, "httpBody": _one("HttpBody")},
        "HttpBody": {"contentType": _TEXT, "data": _BYTES, "extensions": _OPAQUES},
        # -- policies and locations
        "Binding": {"role": _TEXT, "members": _TEXTS, "condition": _OPAQUE},
        "Policy": {"version": _INT32, "bindings": _some("Binding"), "etag": _BYTES},
        "GetIamPolicyRequest": {"resource": _TEXT, "options": _OPAQUE},
        "SetIamPolicyRequest": {"resource": _TEXT, "policy": _OPAQUE, "updateMask": _MASK},
        "TestIamPermissionsRequest": {"resource": _TEXT, "permissions": _TEXTS},
        "TestIamPermissionsResponse": {"permissions": _TEXTS},
        "Location": {"name": _TEXT, "locationId": _TEXT, "displayName": _TEXT},
        "GetLocationRequest": _NAMED,
        "ListLocationsRequest": {
            "name": _TEXT,
            "filter": _TEXT,
            "pageSize": _INT32,
            "pageToken": _TEXT,
            "extraLocationTypes": _TEXTS,
        },
        "ListLocationsResponse": {"locations": _some("Location"), "nextPageToken": _TEXT},
        "CmekConfig": {"name": _TEXT, "kmsKey": _TEXT},
        "UpdateCmekConfigRequest": {"name": _TEXT, "cmekConfig": _OPAQUE, "updateMask": _MASK},
    }
)
"""Fields of a message by their JSON name, in the order of responses."""


def snake(name: str) -> str:
    """Return `scheduleTime` in protobuf's spelling: `schedule_time`."""
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


def camel(name: str) -> str:
    """Return `schedule_time` in JSON's spelling: `scheduleTime`, which stays as it is."""
    head, *tail = name.split("_")
    return head + "".join(word[:1].upper() + word[1:] for word in tail)

"""The discovery document, from which Google's client libraries generate their methods. Pure.

It requires no OAuth: a client sends credentials when it has some, and does not search for others.
"""

from collections.abc import Mapping, Sequence

from queue_core.verbs.wire import Json

NAME = "taskqueue"
VERSION = "v1beta2"
SERVICE_PATH = f"{NAME}/{VERSION}/projects/"
BATCH_PATH = f"batch/{NAME}/{VERSION}"
DOCUMENT_PATH = f"/discovery/v1/apis/{NAME}/{VERSION}/rest"
DIRECTORY_PATH = "/discovery/v1/apis"

_TITLE = "Task Queue REST API"
_ABOUT = "Pull queues: insert, lease, renew and delete tasks."
_QUEUE = "{project}/taskqueues/{taskqueue}"

_INSTANT = "microseconds since 1970, as a decimal string"
_TASK: Mapping[str, Json] = {
    "kind": {"type": "string", "default": "taskqueues#task"},
    "id": {"type": "string", "description": "Name of the task; chosen by the queue when it is not given."},
    "queueName": {"type": "string", "description": "Queue of the task; required by patch."},
    "payloadBase64": {"type": "string", "description": "URL-safe base64, at most 1 MiB of bytes; not listed."},
    "enqueueTimestamp": {"type": "string", "format": "int64", "description": f"When it was added: {_INSTANT}."},
    "leaseTimestamp": {
        "type": "string",
        "format": "int64",
        "description": f"End of its lease, 0 for a task never leased; to insert, its eta: {_INSTANT}.",
    },
    "retry_count": {"type": "integer", "format": "int32", "description": "Leases so far."},
    "tag": {"type": "string", "description": "Label by which tasks are leased together, at most 500 bytes."},
}
_COUNTS: Mapping[str, Json] = {
    "totalTasks": {"type": "integer", "format": "int32", "description": "Tasks to be done, leased ones included."},
    "oldestTask": {"type": "string", "format": "int64", "description": "Lowest eta, seconds since 1970; 0: no task."},
    "leasedLastMinute": {"type": "string", "format": "int64", "description": "Leases granted in the last minute."},
    "leasedLastHour": {"type": "string", "format": "int64", "description": "Leases granted in the last hour."},
}
_EMAILS: Json = {"type": "array", "items": {"type": "string"}}
_TASK_QUEUE: Mapping[str, Json] = {
    "kind": {"type": "string", "default": "taskqueues#taskqueue"},
    "id": {"type": "string", "description": "Name of the queue."},
    "maxLeases": {"type": "integer", "format": "int32", "description": "Leases of one task at most; 0: no bound."},
    "stats": {"type": "object", "description": "Given when getStats is true.", "properties": dict(_COUNTS)},
    "acl": {
        "type": "object",
        "description": "Access list of the queue, if it has one.",
        "properties": {"consumerEmails": _EMAILS, "producerEmails": _EMAILS, "adminEmails": _EMAILS},
    },
}
_COMMON: Mapping[str, Json] = {
    "alt": {"type": "string", "location": "query", "default": "json", "enum": ["json"], "enumDescriptions": ["JSON."]},
    "fields": {"type": "string", "location": "query", "description": "Fields to return."},
    "key": {"type": "string", "location": "query", "description": "Ignored."},
    "prettyPrint": {"type": "boolean", "location": "query", "default": "true", "description": "Ignored."},
    "quotaUser": {"type": "string", "location": "query", "description": "Ignored."},
}
_SECONDS: Json = {
    "type": "integer",
    "format": "int32",
    "location": "query",
    "required": True,
    "description": "Length of the lease from now on, in [0, 604800] s.",
}


def document(root_url: str) -> Json:
    """Return the discovery document of a server reached at `root_url`, which ends in a slash."""
    return {
        "kind": "discovery#restDescription",
        "discoveryVersion": "v1",
        "id": f"{NAME}:{VERSION}",
        "name": NAME,
        "version": VERSION,
        "revision": "1",
        "title": _TITLE,
        "description": _ABOUT,
        "protocol": "rest",
        "rootUrl": root_url,
        "servicePath": SERVICE_PATH,
        "baseUrl": root_url + SERVICE_PATH,
        "basePath": "/" + SERVICE_PATH,
        "batchPath": BATCH_PATH,
        "parameters": dict(_COMMON),
        "schemas": {
            "Task": _schema("Task", _TASK),
            "TaskQueue": _schema("TaskQueue", _TASK_QUEUE),
            "Tasks": _list_schema("Tasks", "taskqueue#tasks"),
            "Tasks2": _list_schema("Tasks2", "taskqueues#tasks"),
        },
        "resources": {"taskqueues": {"methods": _queue_methods()}, "tasks": {"methods": _task_methods()}},
    }


def directory(root_url: str) -> Json:
    """Return the directory of discovery documents."""
    return {
        "kind": "discovery#directoryList",
        "discoveryVersion": "v1",
        "items": [
            {
                "kind": "discovery#directoryItem",
                "id": f"{NAME}:{VERSION}",
                "name": NAME,
                "version": VERSION,
                "title": _TITLE,
                "description": _ABOUT,
                "discoveryRestUrl": root_url.rstrip("/") + DOCUMENT_PATH,
                "discoveryLink": f".{DOCUMENT_PATH.removeprefix(DIRECTORY_PATH)}",
                "preferred": True,
            }
        ],
    }


def _queue_methods() -> Json:
    with_stats: Json = {"type": "boolean", "location": "query", "description": "Whether to return the counts."}
    return {
        "get": _method(
            "taskqueues.get", "GET", _QUEUE, "A queue's settings and counts.", ["project", "taskqueue"],
            {"getStats": with_stats}, answer="TaskQueue",
        )
    }  # fmt: skip


def _task_methods() -> Json:
    tasks, task = f"{_QUEUE}/tasks", f"{_QUEUE}/tasks/{{task}}"
    queue_order, task_order = ["project", "taskqueue"], ["project", "taskqueue", "task"]
    renewal = {"newLeaseSeconds": _SECONDS}
    leasing: Mapping[str, Json] = {
        "leaseSecs": _SECONDS,
        "numTasks": {**_SECONDS, "description": "Most tasks to lease, in [1, 1000]; a response may fit fewer."},
        "groupByTag": {
            "type": "boolean",
            "location": "query",
            "description": "Whether to lease tasks of one tag only.",
        },
        "tag": {
            "type": "string",
            "location": "query",
            "description": "The tag, only with groupByTag; default: the tag of the oldest task.",
        },
    }
    return {
        "delete": _method("tasks.delete", "DELETE", task, "Delete a task.", task_order, {}),
        "get": _method("tasks.get", "GET", task, "One task, not leased.", task_order, {}, answer="Task"),
        "insert": _method("tasks.insert", "POST", tasks, "Add a task.", queue_order, {}, body="Task", answer="Task"),
        "lease": _method(
            "tasks.lease", "POST", f"{tasks}/lease", "Lease tasks.", [*queue_order, "numTasks", "leaseSecs"],
            leasing, answer="Tasks",
        ),
        "list": _method("tasks.list", "GET", tasks, "At most 100 tasks.", queue_order, {}, answer="Tasks2"),
        "patch": _method(
            "tasks.patch", "PATCH", task, "Move the end of a lease.", [*task_order, "newLeaseSeconds"],
            renewal, body="Task", answer="Task",
        ),
        "update": _method(
            "tasks.update", "POST", task, "Move the end of a lease.", [*task_order, "newLeaseSeconds"],
            renewal, body="Task", answer="Task",
        ),
    }  # fmt: skip


def _method(
    name: str,
    verb: str,
    path: str,
    about: str,
    order: Sequence[str],
    query: Mapping[str, Json],
    *,
    body: str = "",
    answer: str = "",
) -> Json:
    in_path: Json = {"type": "string", "location": "path", "required": True}
    method: Json = {
        "id": f"{NAME}.{name}",
        "path": path,
        "httpMethod": verb,
        "description": about,
        "parameters": {**{part: in_path for part in order if part not in query}, **query},
        "parameterOrder": list(order),
    }
    if body:
        method["request"] = {"$ref": body}
    if answer:
        method["response"] = {"$ref": answer}
    return method


def _schema(name: str, properties: Mapping[str, Json]) -> Json:
    return {"id": name, "type": "object", "properties": dict(properties)}


def _list_schema(name: str, kind: str) -> Json:
    items: Json = {"type": "array", "items": {"$ref": "Task"}, "description": "Absent when there is none."}
    return _schema(name, {"kind": {"type": "string", "default": kind}, "items": items})

"""The table of the API's methods (ADR 13), and the small ones: IAM policies, locations, unsupported methods."""

import re
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from queue_core.errors import UnknownQueueError
from queue_core.google.cloudtasks import leases, queues, tasks
from queue_core.google.cloudtasks.call import CloudTasksCall, IsGone, MessageReader, Values
from queue_core.google.cloudtasks.failures import CloudTasksError, RpcStatus, refused
from queue_core.google.cloudtasks.names import parse_place, parse_project, parse_queue, parse_task
from queue_core.server.callers.access import ACCESS_OF_VERB, check_scope, is_allowed
from queue_core.server.callers.auth import Principal
from queue_core.server.state import ServerState
from queue_core.task import QueueSpec
from queue_core.unit.unit_of_work import UnitOfWork

LOCATION = "local"
"""The only location listed; any other name is accepted, too."""

PERMISSIONS: Mapping[str, str] = MappingProxyType(
    {
        "cloudtasks.tasks.create": "add",
        "cloudtasks.tasks.lease": "lease",
        "cloudtasks.tasks.consume": "lease",
        "cloudtasks.tasks.get": "peek",
        "cloudtasks.tasks.list": "peek",
        "cloudtasks.tasks.fullView": "peek",
        "cloudtasks.tasks.delete": "delete",
        "cloudtasks.queues.get": "queues",
        "cloudtasks.queues.list": "queues",
        "cloudtasks.queues.getIamPolicy": "queues",
        "cloudtasks.queues.create": "set-queue",
        "cloudtasks.queues.update": "set-queue",
        "cloudtasks.queues.delete": "set-queue",
        "cloudtasks.queues.pause": "pause",
        "cloudtasks.queues.resume": "resume",
        "cloudtasks.queues.purge": "purge",
    }
)
"""Verb of `auth.NEEDED` for each permission of the service."""


async def get_iam_policy(core: ServerState, call: CloudTasksCall) -> Values:
    """Return the queue's acl as bindings; none without an acl."""
    name = parse_queue(call.fields.text("resource"), field="resource")
    spec = await core.read(lambda unit: call.authorize(unit, name.queue, "look"))
    policy: Values = {"version": 1, "etag": b"\x00"}
    if bindings := _bindings(spec):
        policy["bindings"] = bindings
    return policy


def _bindings(spec: QueueSpec) -> list[Values]:
    roles = {"roles/cloudtasks.taskRunner": spec.user_emails, "roles/cloudtasks.enqueuer": spec.writer_emails}
    return [
        {"role": role, "members": tuple(f"user:{email}" for email in emails)}
        for role, emails in roles.items()
        if emails
    ]


async def test_iam_permissions(core: ServerState, call: CloudTasksCall) -> Values:
    """Return the requested permissions that the caller has; none for a queue that does not exist."""
    name = parse_queue(call.fields.text("resource"), field="resource")

    def find(unit: UnitOfWork) -> QueueSpec | None:
        try:
            return unit.transaction.queue(name.queue)
        except UnknownQueueError:
            return None

    spec = await core.read(find)
    if spec is None:
        return {}

    def is_granted(verb: str) -> bool:
        return call.is_allowed(verb) and is_allowed(call.caller, spec, ACCESS_OF_VERB[verb])

    requested = call.fields.texts("permissions")
    granted = tuple(one for one in requested if one in PERMISSIONS and is_granted(PERMISSIONS[one]))
    return {"permissions": granted} if granted else {}


async def get_location(core: ServerState, call: CloudTasksCall) -> Values:  # noqa: ARG001 - a method
    name = parse_place(call.fields.text("name"), field="name")
    return {"name": name, "locationId": name.rpartition("/")[2]}


async def list_locations(core: ServerState, call: CloudTasksCall) -> Values:  # noqa: ARG001 - a method
    name = parse_project(call.fields.text("name"), field="name")
    return {"locations": [{"name": f"{name}/locations/{LOCATION}", "locationId": LOCATION}]}


async def run_task(core: ServerState, call: CloudTasksCall) -> Values:  # noqa: ARG001 - a method
    name = parse_task(call.fields.text("name"), field="name")
    raise refused(f"RunTask cannot be called on a pull task, and {name} is one: lease it with LeaseTasks")


async def buffer_task(core: ServerState, call: CloudTasksCall) -> Values:  # noqa: ARG001 - a method
    queue = parse_queue(call.fields.text("queue"), field="queue")
    raise refused(f"BufferTask needs a queue with an HTTP target, and {queue} is a pull queue: use CreateTask")


async def batch(core: ServerState, call: CloudTasksCall) -> Values:  # noqa: ARG001 - a method
    raise CloudTasksError(
        RpcStatus.UNIMPLEMENTED, "batchCreate and batchDelete are not supported: create or delete the tasks one by one"
    )


async def set_iam_policy(core: ServerState, call: CloudTasksCall) -> Values:  # noqa: ARG001 - a method
    raise CloudTasksError(
        RpcStatus.UNIMPLEMENTED,
        "IAM policies can't be set: permissions come from the server's tokens and roles, and from the acl of a queue",
    )


async def customer_keys(core: ServerState, call: CloudTasksCall) -> Values:  # noqa: ARG001 - a method
    raise CloudTasksError(
        RpcStatus.UNIMPLEMENTED, "customer-managed keys are not supported: encrypt the disk of the store"
    )


Handler = Callable[[ServerState, CloudTasksCall], Coroutine[None, None, Values]]


@dataclass(frozen=True, slots=True)
class CloudTasksMethod:
    """A method.

    Args:
        takes: name of the request message.
        gives: name of the response message.
        verb: the verb of `auth.REQUIRED_ROLES` that the caller's role must allow.
    """

    takes: str
    gives: str
    verb: str
    handler: Handler


METHODS: Mapping[str, CloudTasksMethod] = MappingProxyType(
    {
        "CreateTask": CloudTasksMethod("CreateTaskRequest", "Task", "add", tasks.create_task),
        "LeaseTasks": CloudTasksMethod("LeaseTasksRequest", "LeaseTasksResponse", "lease", leases.lease_tasks),
        "AcknowledgeTask": CloudTasksMethod("AcknowledgeTaskRequest", "Empty", "delete", leases.acknowledge_task),
        "RenewLease": CloudTasksMethod("RenewLeaseRequest", "Task", "renew", leases.renew_lease),
        "CancelLease": CloudTasksMethod("CancelLeaseRequest", "Task", "release", leases.cancel_lease),
        "GetTask": CloudTasksMethod("GetTaskRequest", "Task", "peek", tasks.get_task),
        "ListTasks": CloudTasksMethod("ListTasksRequest", "ListTasksResponse", "peek", tasks.list_tasks),
        "DeleteTask": CloudTasksMethod("DeleteTaskRequest", "Empty", "delete", tasks.delete_task),
        "RunTask": CloudTasksMethod("RunTaskRequest", "Task", "lease", run_task),
        "BufferTask": CloudTasksMethod("BufferTaskRequest", "Task", "add", buffer_task),
        "BatchCreateTasks": CloudTasksMethod("BatchCreateTasksRequest", "Empty", "add", batch),
        "BatchDeleteTasks": CloudTasksMethod("BatchDeleteTasksRequest", "Empty", "delete", batch),
        "GetQueue": CloudTasksMethod("GetQueueRequest", "Queue", "queues", queues.get_queue),
        "ListQueues": CloudTasksMethod("ListQueuesRequest", "ListQueuesResponse", "queues", queues.list_queues),
        "CreateQueue": CloudTasksMethod("CreateQueueRequest", "Queue", "set-queue", queues.create_queue),
        "UpdateQueue": CloudTasksMethod("UpdateQueueRequest", "Queue", "set-queue", queues.update_queue),
        "DeleteQueue": CloudTasksMethod("DeleteQueueRequest", "Empty", "set-queue", queues.delete_queue),
        "PauseQueue": CloudTasksMethod("PauseQueueRequest", "Queue", "pause", queues.pause_queue),
        "ResumeQueue": CloudTasksMethod("ResumeQueueRequest", "Queue", "resume", queues.resume_queue),
        "PurgeQueue": CloudTasksMethod("PurgeQueueRequest", "Queue", "purge", queues.purge_queue),
        "UploadQueueYaml": CloudTasksMethod("UploadQueueYamlRequest", "Empty", "set-queue", queues.upload_queue_yaml),
        "GetIamPolicy": CloudTasksMethod("GetIamPolicyRequest", "Policy", "queues", get_iam_policy),
        "SetIamPolicy": CloudTasksMethod("SetIamPolicyRequest", "Policy", "set-queue", set_iam_policy),
        "TestIamPermissions": CloudTasksMethod(
            "TestIamPermissionsRequest", "TestIamPermissionsResponse", "stats", test_iam_permissions
        ),
        "GetLocation": CloudTasksMethod("GetLocationRequest", "Location", "queues", get_location),
        "ListLocations": CloudTasksMethod("ListLocationsRequest", "ListLocationsResponse", "queues", list_locations),
        "GetCmekConfig": CloudTasksMethod("GetLocationRequest", "CmekConfig", "queues", customer_keys),
        "UpdateCmekConfig": CloudTasksMethod("UpdateCmekConfigRequest", "CmekConfig", "set-queue", customer_keys),
    }
)


_NAMED: Final = re.compile(r"projects/[^/]+/locations/[^/]+/queues/([^/]+)(?:/.*)?")


def queues_named(values: Mapping[str, object]) -> list[str]:
    """Return the queues that a request names by itself, its parent, its resource or its message of a queue."""
    found = []
    for field in ("name", "parent", "resource", "queue"):
        value = values.get(field)
        if isinstance(value, dict):
            value = value.get("name")
        match = _NAMED.fullmatch(value) if isinstance(value, str) else None
        if match is not None:
            found.append(match[1])
    return found


class CloudTasks:
    """The API over the queues of one server; runs in its event loop."""

    def __init__(self, core: ServerState) -> None:
        self.core = core

    async def run(self, method: CloudTasksMethod, values: Values, caller: Principal, is_gone: IsGone) -> Values:
        """Run a method for an authenticated caller. Raises `CloudTasksError` or another `QueueError`."""
        for queue in queues_named(values):
            check_scope(caller, queue)
        return await method.handler(
            self.core, CloudTasksCall(MessageReader(values), caller, self.core.lease_rate, is_gone)
        )

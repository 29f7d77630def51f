"""The table of the API's methods: messages, required permission and handler (ADR 13)."""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from queue_core.server.auth import Principal
from queue_core.server.cloudtasks import leasing, policies, queues, tasks
from queue_core.server.cloudtasks.call import CloudTasksCall, IsGone, MessageReader, Values
from queue_core.server.cloudtasks.failures import CloudTasksError, RpcStatus, refused
from queue_core.server.cloudtasks.names import parse_queue, parse_task
from queue_core.server.state import ServerState


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
        verb: the verb of `auth.NEEDED` that the caller's role must allow.
    """

    takes: str
    gives: str
    verb: str
    handler: Handler


METHODS: Mapping[str, CloudTasksMethod] = MappingProxyType(
    {
        "CreateTask": CloudTasksMethod("CreateTaskRequest", "Task", "add", tasks.create_task),
        "LeaseTasks": CloudTasksMethod("LeaseTasksRequest", "LeaseTasksResponse", "lease", leasing.lease_tasks),
        "AcknowledgeTask": CloudTasksMethod("AcknowledgeTaskRequest", "Empty", "delete", leasing.acknowledge_task),
        "RenewLease": CloudTasksMethod("RenewLeaseRequest", "Task", "renew", leasing.renew_lease),
        "CancelLease": CloudTasksMethod("CancelLeaseRequest", "Task", "release", leasing.cancel_lease),
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
        "GetIamPolicy": CloudTasksMethod("GetIamPolicyRequest", "Policy", "queues", policies.get_iam_policy),
        "SetIamPolicy": CloudTasksMethod("SetIamPolicyRequest", "Policy", "set-queue", set_iam_policy),
        "TestIamPermissions": CloudTasksMethod(
            "TestIamPermissionsRequest", "TestIamPermissionsResponse", "stats", policies.test_iam_permissions
        ),
        "GetLocation": CloudTasksMethod("GetLocationRequest", "Location", "queues", policies.get_location),
        "ListLocations": CloudTasksMethod(
            "ListLocationsRequest", "ListLocationsResponse", "queues", policies.list_locations
        ),
        "GetCmekConfig": CloudTasksMethod("GetLocationRequest", "CmekConfig", "queues", customer_keys),
        "UpdateCmekConfig": CloudTasksMethod("UpdateCmekConfigRequest", "CmekConfig", "set-queue", customer_keys),
    }
)


class CloudTasks:
    """The API over the queues of one server; runs in its event loop."""

    def __init__(self, core: ServerState) -> None:
        self.core = core

    async def run(self, method: CloudTasksMethod, values: Values, caller: Principal, is_gone: IsGone) -> Values:
        """Run a method for an authenticated caller. Raises `CloudTasksError` or another `QueueError`."""
        return await method.handler(
            self.core, CloudTasksCall(MessageReader(values), caller, self.core.lease_rate, is_gone)
        )
